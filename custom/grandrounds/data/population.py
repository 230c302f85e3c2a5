"""Who the images of a partition are of: their number by site, part of the training, and class."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from grandrounds.data.manifest import Record, read_manifest
from grandrounds.data.partition.files import MANIFEST_FILE, read_partition

PROVENANCE = "provenance.json"
"""Beside the summary of a simulation: the command, and the description of its sites' data."""
PARTS = ("training", "labelled", "validation", "test")
"""Training images, those of them whose label is used, and the images of the other splits that have a label."""
DIVISION = ("scheme", "seed", "alpha", "labelled", "validation", "test", "scenario", "group_by", "server_images")
"""Entries of ``partition.json`` that say how the images were divided."""


def describe_population(sites_dir: Path, sites: Sequence[str]) -> dict[str, Any]:
    """Counts by site, part and class, how the images were divided, and the SHA-256 of each manifest.

    Raises:
        DataError: if the folder is no partition, or a manifest is not the one that was written.
    """
    content = read_partition(sites_dir)
    found = {site: read_manifest(sites_dir / site / MANIFEST_FILE).records for site in sites}
    return {
        "classes": content["classes"],
        "division": {name: content[name] for name in DIVISION if name in content},
        "sites": {site: counts_by_part(records, content["classes"]) for site, records in found.items()},
        "patients": {site: len({record.group for record in records}) for site, records in found.items()},
        "sha256": {site: content["sites"][site]["sha256"] for site in sites},
    }


def counts_by_part(records: Sequence[Record], classes: Sequence[str]) -> dict[str, dict[str, int]]:
    """Number of images of each part by class; images whose label nobody knows are counted under an empty name.

    Example:
        >>> counts_by_part([Record("a", "mel"), Record("b", "nv", "test"), Record("c")], ["mel", "nv"])["training"]
        {'mel': 1, 'nv': 0, '': 1}
    """
    counts = {part: Counter[str]() for part in PARTS}
    for record in records:
        if record.split == "train":
            counts["training"][record.label] += 1
            if record.labelled:
                counts["labelled"][record.label] += 1
        elif record.label:
            counts["validation" if record.split == "val" else "test"][record.label] += 1
    return {
        part: {name: of_part[name] for name in (*classes, *([""] if part == "training" else []))}
        for part, of_part in counts.items()
    }
