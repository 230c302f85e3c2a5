"""Who the images of a partition are of: their number by site, part of the training, and class; communities of sites."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from grandrounds.data.manifest import Record, read_manifest
from grandrounds.data.partition.files import DESCRIPTION_FILE, MANIFEST_FILE, read_partition
from grandrounds.errors import ConfigurationError
from grandrounds.files import read_json_object
from grandrounds.protocol.task import Task
from grandrounds.protocol.tasks import SINGLE, task_of

PROVENANCE = "provenance.json"
"""Beside the summary of a simulation: the command, and the description of its sites' data."""
NOTHING_TO_DO = "nothing_to_do"
"""There: why the method has nothing of its own to do with these images."""
POPULATION_PARTS = ("training", "labelled", "validation", "test")
"""Training images, those of them whose label is used, and the images of the other splits that have a label."""
DIVISION_PARTS = ("scheme", "seed", "alpha", "labelled", "validation", "test", "scenario", "group_by", "server_images")
"""Entries of ``partition.json`` that say how the images were divided."""


def describe_population(sites_dir: Path, sites: Sequence[str]) -> dict[str, Any]:
    """Counts by site, part and class, how the images were divided, and the SHA-256 of each manifest.

    Raises:
        DataError: if the folder is no partition, or a manifest is not the one that was written.
    """
    content = read_partition(sites_dir)
    records_of = {site: read_manifest(sites_dir / site / MANIFEST_FILE) for site in sites}
    task = task_of(content)
    return {
        "classes": content["classes"],
        "division": {name: content[name] for name in DIVISION_PARTS if name in content},
        "sites": {site: counts_by_part(records, content["classes"], task) for site, records in records_of.items()},
        "images": {site: images_by_part(records) for site, records in records_of.items()},
        "patients": {site: len({record.group for record in records}) for site, records in records_of.items()},
        "sha256": {site: content["sites"][site]["sha256"] for site in sites},
        **{name: content[name] for name in ("site_names", "import") if name in content},
    }


def counts_by_part(records: Sequence[Record], classes: Sequence[str], task: Task = SINGLE) -> dict[str, dict[str, int]]:
    """Number of images of each part by class or finding; images without a label are counted under an empty name.

    Example:
        >>> counts_by_part([Record("a", "mel"), Record("b", "nv", "test"), Record("c")], ["mel", "nv"])["training"]
        {'mel': 1, 'nv': 0, '': 1}
    """
    counts = {part: Counter[str]() for part in POPULATION_PARTS}
    for record in records:
        names = task.names_in(record.label) if record.label else ("",)
        for part in _parts_of(record):
            counts[part].update(names)
    return {
        part: {name: of_part[name] for name in (*classes, *([""] if part == "training" else []))}
        for part, of_part in counts.items()
    }


def images_by_part(records: Sequence[Record]) -> dict[str, int]:
    """Number of images of each part; an image may have several findings."""
    counts = Counter(part for record in records for part in _parts_of(record))
    return {part: counts[part] for part in POPULATION_PARTS}


def _parts_of(record: Record) -> list[str]:
    """The parts that an image is in: a labelled one is a training image, too."""
    if record.split == "train":
        return ["training", *(["labelled"] if record.labelled else [])]
    return ["validation" if record.split == "val" else "test"] if record.label else []


def communities_of(path: Path, sites: Sequence[str]) -> dict[str, str]:
    """The community of each site: from a partition the commonest source of its images.

    The clients of FedPerl's paper are in one community when they are of one data set, whatever devices it has; for them
    only the part of a source before the slash counts. ``path`` is a folder with ``partition.json``, this file, or one with a
    JSON object of communities by site.

    Raises:
        ConfigurationError: if there is no such file, or a site has no community in it.
    """
    file = path / DESCRIPTION_FILE if path.is_dir() else path
    if not file.is_file():
        raise ConfigurationError(f"{file} is not there; give a partition or a JSON file of communities")
    content = read_json_object(file)
    named = _communities(content) if isinstance(content.get("sites"), dict) else content
    if not all(isinstance(name, str) for name in named.values()):
        raise ConfigurationError(f"{file} must be an object with a community's name for each site")
    missing = [site for site in sites if not named.get(site)]
    if missing:
        raise ConfigurationError(
            f"{file} has no community of {', '.join(missing)}; add it, or give the run's partition"
        )
    return {site: named[site] for site in sites}


def _communities(description: Mapping[str, Any]) -> dict[str, str]:
    """Communities from ``partition.json``, without a prefix that all names share."""
    of_data_set = description.get("scheme") == "fedperl"
    named: dict[str, str] = {}
    for site, summary in description["sites"].items():
        counts: Counter[str] = Counter()
        for source, count in summary.get("sources", {}).items():
            counts[source.partition("/")[0] if of_data_set else source] += count
        # Of equally common sources the first by name.
        named[site] = min(counts, key=lambda source: (-counts[source], source), default="")
    prefixes = {name.partition("/")[0] for name in named.values()}
    common = f"{prefixes.pop()}/" if len(prefixes) == 1 else ""
    return {site: name.removeprefix(common) for site, name in named.items()}
