"""How runs are called, which of them are seeds of one method, and whether they may be compared at all."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from grandrounds.errors import ConfigurationError
from grandrounds.reporting.run import Run

WITHOUT_MEANING = ("seed", "run_name", "resume")


def split_argument(text: str) -> tuple[str | None, Path]:
    """``NAME=PATH`` as name and path, ``PATH`` as path alone.

    Example:
        >>> split_argument("FedPerl, two peers=runs/fedperl")[0], split_argument("runs/fedperl")[0]
        ('FedPerl, two peers', None)
    """
    name, equals, place = text.partition("=")
    return (name.strip(), Path(place)) if equals and name.strip() and place else (None, Path(text))


def names_of(arguments: Sequence[tuple[str | None, Path]]) -> list[str]:
    """A different name for each run: the given one, else the folder's or file's, with its parent's where they agree.

    Example:
        >>> names_of([(None, Path("a/run")), (None, Path("b/run")), ("mine", Path("c"))])
        ['a/run', 'b/run', 'mine']

    Raises:
        ConfigurationError: if two runs would have one name.
    """
    short = [name or (path.stem if path.suffix == ".json" else path.absolute().name) for name, path in arguments]
    often = Counter(short)
    names = [
        text if name or often[text] == 1 else f"{path.absolute().parent.name}/{text}"
        for text, (name, path) in zip(short, arguments, strict=True)
    ]
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise ConfigurationError(f"two runs are called {twice[0]!r}; name them: NAME=RUN")
    return names


def methods_of(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Runs that differ in their seed alone, under one name.

    Returns:
        Runs by method; a method of one run has the run's name, one of several their names without the seed at the end.
    """
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(_key(run), []).append(run)
    found: dict[str, list[Run]] = {}
    for members in groups.values():
        seeds = {run.seed for run in members}
        if len(members) == 1 or len(seeds) < len(members):
            found |= {run.name: [run] for run in members}
        else:
            name = re.sub(r"[\s_.-]*(seed)?[\s_.-]*\d+$", "", members[0].name) or members[0].name
            found[name if name not in found else members[0].name] = members
    return found


def require_one_vocabulary(runs: Sequence[Run]) -> None:
    """Check that all runs answer the same question.

    Raises:
        ConfigurationError: naming two runs whose classes differ, or are in another order.
    """
    first = runs[0]
    for run in runs[1:]:
        if run.classes != first.classes:
            raise ConfigurationError(
                f"{first.name} and {run.name} have different classes ({', '.join(first.classes)}; "
                f"{', '.join(run.classes)}), so no score of theirs can be compared; report on them one by one"
            )


def _key(run: Run) -> str:
    shared = {name: value for name, value in run.configuration.items() if name not in WITHOUT_MEANING}
    return json.dumps([run.method, shared, dict(run.options), list(run.sites)], sort_keys=True, default=str)
