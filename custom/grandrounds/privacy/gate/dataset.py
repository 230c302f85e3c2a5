"""What the gate knows of a data set of the site, from its manifest."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from grandrounds.data.keys import KeyChoices
from grandrounds.data.manifest import read_manifest
from grandrounds.privacy.ledger.entries import DatasetIdentity
from grandrounds.privacy.ledger.ledger import dataset_fingerprint


class DatasetFacts(NamedTuple):
    """A data set of the site, read from its manifest: the gate must not rely on a method for this.

    Attributes:
        identity: its name and fingerprint.
        patients: number of patients (else lesions, else images) in ``train``, ``labelled``, ``val`` and ``test``.
        images: number of training images.
        names: of all image files, below the data set's root.
        people: the keys of its patients, of images whose patient is known.
    """

    identity: DatasetIdentity
    patients: Mapping[str, int]
    images: int
    names: tuple[str, ...]
    people: frozenset[str] = frozenset()


def dataset_facts(name: str, manifest: Path, keys: KeyChoices | None = None) -> DatasetFacts:
    """Read the manifest of a data set; ``keys`` is what its site says about near patients.

    Raises:
        DataError: if the manifest cannot be read.
    """
    records = read_manifest(manifest, choices=keys)
    fingerprint = dataset_fingerprint((record.image for record in records), (record.group for record in records))
    groups = {part: {record.group for record in records if record.split == part} for part in ("train", "val", "test")}
    groups["labelled"] = {record.group for record in records if record.split == "train" and record.labelled}
    patients = {part: len(found) for part, found in groups.items()}
    images = sum(record.split == "train" for record in records)
    names = tuple(record.image for record in records)
    people = frozenset(record.patient for record in records if record.patient)
    return DatasetFacts(DatasetIdentity(name, fingerprint), patients, images, names, people)
