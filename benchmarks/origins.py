"""What computed a row: code, libraries and processor. Rows of one table should have one origin.

A row of another origin may stand beside others if a row that both have computed agrees: the folder ``again`` beside the
results has rows that were run a second time, and ``again`` in the configuration says which score is compared
(``score``, a path of names in which * stands for any) and by how much it changes when a row is run again (``deviation``).
"""

from __future__ import annotations

import json
import statistics
import subprocess
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from benchmarks.processes import machine
from benchmarks.tables import markdown_table
from grandrounds.data.images.cache import PREPROCESSING_VERSION
from grandrounds.deployment.code_digest import installed_digest
from grandrounds.federation.server.record import versions

AGAIN = "again"
MARK = " ‡"
MIXED = (
    "**Rows of more than one origin.** ‡ in a table: in some setting the row was computed by another version of the package "
    "or on another processor than most rows beside it, so that a difference may be that of the origins. A version without a "
    "commit (0.1.0, 0+unknown) can stand for several."
)


class Origin(NamedTuple):
    """What rows must have in common: the package's digest, or of older rows its version; torch; the processor."""

    package: str
    torch: str
    processor: str

    def __str__(self) -> str:
        return f"package {self.package[:24]}, torch {self.torch}, {self.processor}"


class Folder(Protocol):
    """The results of an experiment."""

    results: Path
    configuration: dict[str, Any]


@cache
def code() -> dict[str, str]:
    """The commit, the digest of the installed package and the version of its preprocessing, as they were when first read."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    described = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    return {
        "commit": described or "unknown",
        "package": installed_digest(),
        "preprocessing": str(PREPROCESSING_VERSION),
    }


def origin_of(content: Mapping[str, Any]) -> Origin:
    """The origin of a result."""
    found = content["versions"]
    return Origin(found.get("package", found["grandrounds"]), found["torch"], content["machine"]["processor"])


def strangers(group: Sequence[Path], experiment: Folder) -> list[str]:
    """Names of a group's results of another origin than this process, without those that a row run again vouches for."""
    here = origin_of({"versions": {**versions(), **code()}, "machine": machine()})
    others = {path.stem: origin_of(_read(path)) for path in group if path.is_file()}
    if not set(others.values()) - {here}:
        return []
    known = {here, *_vouched(experiment, here)}
    return [name for name, origin in others.items() if origin not in known]


def _vouched(experiment: Folder, here: Origin) -> Iterator[Origin]:
    """Origins of rows that were run again with this one and had the same score, but for the deviation of a row run again."""
    rule, again = experiment.configuration.get(AGAIN), experiment.results.with_name(AGAIN)
    for path in sorted(again.rglob("*.json")) if rule else ():
        first, second = experiment.results / path.relative_to(again), _read(path)
        if first.is_file() and origin_of(second) == here:
            earlier = _read(first)
            if abs(score(earlier, rule["score"]) - score(second, rule["score"])) <= rule["deviation"]:
                yield origin_of(earlier)


def score(content: Any, path: str) -> float:
    """The mean of the numbers at a path.

    Example:
        >>> score({"scores": {"8": {"f1": 0.5}, "9": {"f1": 0.7}}}, "scores/*/f1")
        0.6
    """
    return statistics.fmean(numbers(content, path))


def numbers(content: Any, path: str) -> Iterator[float]:
    """The numbers at a path of names, in which * stands for any."""
    name, _, rest = path.partition("/")
    for own, inner in content.items():
        if fnmatchcase(own, name) and rest and isinstance(inner, dict):
            yield from numbers(inner, rest)
        elif fnmatchcase(own, name) and not rest and isinstance(inner, int | float):
            yield inner


def _read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    return found


Origins = dict[str, dict[int, dict[str, Origin]]]
"""By setting and seed, of each method."""


def mixed(settings: Mapping[str, Mapping[str, Mapping[int, Mapping[str, Any]]]]) -> Origins:
    """The groups of results, by setting, method and seed, that have more than one origin."""
    found: Origins = {}
    for setting, methods in settings.items():
        seeds: dict[int, dict[str, Origin]] = defaultdict(dict)
        for method, runs in methods.items():
            for seed, content in runs.items():
                seeds[seed][method] = origin_of(content)
        groups = {seed: group for seed, group in sorted(seeds.items()) if len(set(group.values())) > 1}
        if groups:
            found[setting] = groups
    return found


def marked(groups: Origins) -> set[str]:
    """Methods that have another origin than most of a group."""
    each = [group for seeds in groups.values() for group in seeds.values()]
    most = [Counter(group.values()).most_common(1)[0][0] for group in each]
    return {method for group, usual in zip(each, most, strict=True) for method in group if group[method] != usual}


def mixed_table(groups: Origins, methods: Mapping[str, Mapping[str, Any]]) -> str:
    """A row for each origin of the groups; seeds of a setting with the same origins together. ``methods`` have titles."""
    rows = []
    for setting, seeds in groups.items():
        alike: dict[tuple[tuple[Origin, tuple[str, ...]], ...], list[int]] = defaultdict(list)
        for seed, group in seeds.items():
            by_origin: dict[Origin, list[str]] = defaultdict(list)
            for method, origin in sorted(group.items()):
                by_origin[origin].append(methods[method]["title"])
            alike[tuple((origin, tuple(names)) for origin, names in sorted(by_origin.items()))].append(seed)
        for parts, those in alike.items():
            rows += [[setting, ", ".join(map(str, those)), origin, "; ".join(names)] for origin, names in parts]
    return markdown_table(["setting", "seeds", "origin", "rows"], rows)
