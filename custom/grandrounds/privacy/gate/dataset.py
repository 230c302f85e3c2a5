"""What the gate knows of a data set of the site, from its manifest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from grandrounds.data.keys import KeyChoices
from grandrounds.data.manifest import Record, read_manifest
from grandrounds.privacy.ledger.entries import DatasetIdentity
from grandrounds.privacy.ledger.ledger import dataset_fingerprint


class PartFacts(NamedTuple):
    """What the gate knows of the labelled images of a part of a data set.

    Attributes:
        labels: how many images have each cell of the manifest that occurs.
        one_image: whether each patient has one image.
        one_label: whether all images of a patient have the same label.
    """

    labels: Mapping[str, int] = MappingProxyType({})
    one_image: bool = True
    one_label: bool = True


class DatasetFacts(NamedTuple):
    """A data set of the site, read from its manifest: the gate must not rely on a method for this.

    Attributes:
        identity: its name and fingerprint.
        patients: number of patients (else lesions, else images) in ``train``, ``labelled``, ``val`` and ``test``.
        images: number of training images.
        names: of all image files, below the data set's root.
        people: the keys of its patients, of images whose patient is known.
        labelled: number of training images with a label.
        parts: what is known of ``labelled``, ``val`` and ``test``.
    """

    identity: DatasetIdentity
    patients: Mapping[str, int]
    images: int
    names: tuple[str, ...]
    people: frozenset[str] = frozenset()
    labelled: int = 0
    parts: Mapping[str, PartFacts] = MappingProxyType({})


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
    labelled = sum(record.split == "train" and record.labelled for record in records)
    names = tuple(record.image for record in records)
    people = frozenset(record.patient for record in records if record.patient)
    parts = {
        part: _part_facts(records, split) for part, split in (("labelled", "train"), ("val", "val"), ("test", "test"))
    }
    return DatasetFacts(DatasetIdentity(name, fingerprint), patients, images, names, people, labelled, parts)


def _part_facts(records: Sequence[Record], split: str) -> PartFacts:
    found = [
        record for record in records if record.split == split and record.label and (record.labelled or split != "train")
    ]
    groups = {record.group for record in found}
    pairs = {(record.group, record.label) for record in found}
    labels = Counter(record.label for record in found)
    return PartFacts(labels, len(found) == len(groups), len(pairs) == len(groups))
