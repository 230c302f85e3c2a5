"""What the gate knows of a site's data, read from the site's own manifest: a gate must not believe a method about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from grandrounds.data.manifest import read_manifest
from grandrounds.privacy.ledger.entries import DatasetIdentity
from grandrounds.privacy.ledger.ledger import dataset_fingerprint


@dataclass(frozen=True)
class DatasetFacts:
    """A data set of the site.

    Attributes:
        identity: its name and fingerprint.
        patients: number of patients (else lesions, else images) in ``train``, ``labelled``, ``val`` and ``test``.
    """

    identity: DatasetIdentity
    patients: Mapping[str, int]


def dataset_facts(name: str, manifest: Path) -> DatasetFacts:
    """Read the manifest of a data set.

    Raises:
        DataError: if the manifest is not as it must be.
    """
    records = read_manifest(manifest).records
    fingerprint = dataset_fingerprint((record.image for record in records), (record.group for record in records))
    groups = {part: {record.group for record in records if record.split == part} for part in ("train", "val", "test")}
    groups["labelled"] = {record.group for record in records if record.split == "train" and record.labelled}
    return DatasetFacts(DatasetIdentity(name, fingerprint), {part: len(found) for part, found in groups.items()})
