"""The data sets that can be divided, by name: how each is read, and how jobs call it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from grandrounds.data.ham10000 import HAM10000_CLASSES, read_ham10000
from grandrounds.data.isic2020 import ISIC2020_CLASSES, read_isic2020
from grandrounds.data.lesion_collection import Variant, read_lesions
from grandrounds.data.lesions import LESION_CLASSES
from grandrounds.data.manifest import Record, read_manifest
from grandrounds.errors import ConfigurationError
from grandrounds.ordering import natural_sorted

Dataset = Literal["ham10000", "lesions", "isic2020", "manifest"]

# How jobs call the data sets that have a name of their own.
NAMES: Mapping[str, str] = {"ham10000": "skin", "lesions": "lesions", "isic2020": "isic2020"}


class ReadDataset(NamedTuple):
    """What a recipe needs to know of a data set.

    Attributes:
        records: all images.
        images: the folder or archive they are in.
        name: how jobs call the data set.
        classes: the vocabulary.
        facts: what else the partition's description says of it.
    """

    records: tuple[Record, ...]
    images: Path
    name: str
    classes: tuple[str, ...]
    facts: Mapping[str, Any]


def read_dataset(
    dataset: Dataset,
    root: Path,
    variant: Variant = "clean",
    manifest: Path | str | None = None,
    name: str | None = None,
    classes: Sequence[str] | None = None,
) -> ReadDataset:
    """Read a data set by its name.

    Args:
        dataset: which.
        root: its folder; for ``manifest`` the images' folder or archive.
        variant: of ``lesions``, see :func:`~grandrounds.data.lesion_collection.read_lesions`.
        manifest: the table of a ``manifest`` data set.
        name: how jobs call a ``manifest`` data set.
        classes: the vocabulary of a ``manifest`` data set; the labels that occur, in natural order, by default.

    Raises:
        ConfigurationError: if the root does not exist or the arguments do not fit the data set.
        DataError: if the data set is not as it must be.
    """
    if not root.exists():
        raise ConfigurationError(f"root {root} does not exist; name the folder of the images")
    if dataset == "manifest":
        return _manifest(root, manifest, name, classes)
    own = NAMES[dataset]
    if manifest is not None or name is not None or classes is not None:
        raise ConfigurationError(f"{dataset} has its own manifest, name ({own}) and classes; leave these options out")
    if dataset == "lesions":
        records, removed = read_lesions(root, variant)
        facts = {"variant": variant, **({"removed_copies": removed._asdict()} if variant == "clean" else {})}
        return ReadDataset(records, root, own, LESION_CLASSES, facts)
    if dataset == "isic2020":
        return ReadDataset(read_isic2020(root), root, own, ISIC2020_CLASSES, {})
    records, images = read_ham10000(root)
    return ReadDataset(records, images, own, HAM10000_CLASSES, {})


def _manifest(root: Path, manifest: Path | str | None, name: str | None, classes: Sequence[str] | None) -> ReadDataset:
    if manifest is None or not name:
        raise ConfigurationError("data set manifest needs the manifest's file and the name by which jobs call the data")
    records = read_manifest(manifest, classes).records
    vocabulary = classes or natural_sorted({record.label for record in records if record.label})
    return ReadDataset(records, root, name, tuple(vocabulary), {})
