"""A site's data: its configuration ``grandrounds.json``, and the images and labels that training uses.

Jobs name a data set and never a path; the site's ``grandrounds.json`` defines the name:

    {"datasets": {"skin": {"manifest": "skin.csv", "root": "/data/skin", "max_unreadable": 0.01}}}

For CT slices in DICOM files, ``"windows": [[40, 80], [80, 200], [40, 380]]`` sets centre and width of each channel in
Hounsfield units. ``"preprocess": "mammogram"`` crops mammograms to the breast, turns them to one side and pads them
(:mod:`~grandrounds.data.images.mammogram`); ``"device-1"`` to ``"device-4"`` retake images with a synthetic device
(:mod:`~grandrounds.data.images.devices`). ``"bits": 12`` states the depth of grey images of more than 8 bits, such as values
from 0 to 4095 in 16-bit files. ``"distinct": ["patient"]`` says that patients with near names are different,
and ``"merge": ["patient"]`` that they are one (:mod:`~grandrounds.data.keys`).

``"privacy": {"min_support": 10}`` beside ``datasets`` sets the minimum
number of patients behind any value of a class that leaves the site; no job can lower it. Where a method lets sites have
their own models, ``"models": {"skin": {"backbone": "resnet10", "weights": "own.pt", "intensities": "scaled"}}``
chooses one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from grandrounds.checks import reraised_as
from grandrounds.data.images.cache import DecodedCache, open_cache
from grandrounds.data.images.decoding import image_digests
from grandrounds.data.images.files.reading import AS_IN_FILES, Reading
from grandrounds.data.keys import NO_CHOICES, KeyChoices
from grandrounds.data.manifest import read_manifest
from grandrounds.errors import ConfigurationError
from grandrounds.files import read_json_object, require_object
from grandrounds.options import require_type
from grandrounds.protocol.problem import IMAGENET, Problem
from grandrounds.protocol.task import Task
from grandrounds.protocol.tasks import SINGLE

CONFIG_NAME = "grandrounds.json"
SITE_PLACEHOLDER = "{site}"
UNKNOWN_LABEL = -1
PHANTOM_NAME, FINDINGS_NAME, LABELLED_NAME = "phantom", "phantom_findings", "phantom_labelled"
"""Data sets that a site without a file draws for itself; the second one has pictures with any number of findings."""
PUBLIC_NAME = "public"
"""A data set about whose images predictions may leave."""
STATISTICS_NORMS = ("batch", "group")
CHOICE_KEYS = ("merge", "distinct")
MODEL_KEYS = ("backbone", "dropout", "head", "intensities", "norm", "weights")

Part = Literal["labelled", "unlabelled", "train", "val", "test"]


@dataclass(frozen=True)
class ModelOverride:
    """How a site's network differs from the job's.

    ``changes`` has ``backbone``, ``norm``, ``dropout``, ``weights`` ("imagenet" or the path of a file) and ``intensities``,
    as far as they are given; a dropout of None is the backbone's own. ``where`` is the file and the entry, for errors.
    """

    where: str
    changes: Mapping[str, Any]


@dataclass(frozen=True)
class DatasetLocation:
    """Where a data set is at this site.

    ``root`` is a folder, zip, npz or idx file; ``max_unreadable`` a fraction of the images; ``reading`` is how the image
    files are read; ``min_support`` is the minimum number of patients behind any value of a class that leaves the site; a
    ``model`` of None leaves the network to the job.
    Of a ``public`` data set, predictions may leave the site; only the site says which is. ``keys`` is what the site says
    about near patients and lesions.
    """

    manifest: Path
    root: Path
    max_unreadable: float = 0.01
    reading: Reading = AS_IN_FILES
    min_support: int = 0
    model: ModelOverride | None = None
    public: bool = False
    keys: KeyChoices = NO_CHOICES

    def decoded(self, names: Sequence[str], problem: Problem, cache_dir: Path) -> DecodedCache:
        """The images of these names in the problem's format, see :func:`~grandrounds.data.images.cache.open_cache`."""
        size, channels, sizing = problem.image_size, problem.channels, problem.preprocessing
        return open_cache(names, self.root, size, channels, cache_dir, self.max_unreadable, self.reading, sizing)


@dataclass(frozen=True, eq=False)
class SiteData:
    """The images of one data set at one site and what is known of each; ``labels`` to ``groups`` have N entries.

    Attributes:
        cache: the decoded images, and how they were decoded.
        labels: int64, of the task: index into ``classes``; of findings 1 or 0, shape ``(N, classes)``; -1 where unknown.
        labelled: bool, whether training may use the label.
        split: ``train``, ``val`` or ``test``.
        names: the images' names.
        groups: the patient, else the lesion, else the image itself.
        classes: the job's vocabulary, in the order of the model's outputs.
        sources: device, hospital or data set of each image, empty where the manifest has none; empty when unknown.
        min_support: minimum number of patients behind any value of a class that leaves the site.
        root: folder, zip, npz or idx file that the images came from; None where they came from nowhere.
        patients: the patient of each image, empty where the manifest has none; no entries where that is not known at all.
        task: what labels are.
    """

    cache: DecodedCache
    labels: NDArray[np.int64]
    labelled: NDArray[np.bool_]
    split: NDArray[np.str_]
    names: tuple[str, ...]
    groups: tuple[str, ...]
    classes: tuple[str, ...]
    sources: tuple[str, ...] = ()
    min_support: int = 0
    root: Path | None = None
    patients: tuple[str, ...] = ()
    task: Task = SINGLE

    @property
    def images(self) -> NDArray[np.uint8]:
        """The pixels, shape ``(N, H, W, C)``; quarantined rows are zero."""
        return self.cache.images

    @property
    def digests(self) -> Sequence[str]:
        """See :func:`~grandrounds.data.images.decoding.image_digests`."""
        return self.cache.digests or image_digests(self.images)

    @property
    def known(self) -> NDArray[np.bool_]:
        """Whether an image has a known label or at least one known finding, shape ``(N,)``."""
        return self.task.known(self.labels)

    def rows(self, part: Part) -> NDArray[np.int64]:
        """Rows of one part of the data, ascending, without quarantined images.

        ``train`` is every training image; ``labelled`` those of them whose label may be used, ``unlabelled`` the others
        (their labels may be known, for diagnostics). ``val`` and ``test`` are the images with a known label, because
        nothing can be evaluated without.

        Raises:
            ValueError: if ``part`` is another word.
        """
        known = self.known
        train = self.split == "train"
        if part not in get_args(Part):
            raise ValueError(f"part must be one of {', '.join(get_args(Part))}, got {part!r}")
        chosen = {
            "train": train,
            "labelled": train & self.labelled & known,
            "unlabelled": train & ~(self.labelled & known),
        }.get(part, (self.split == part) & known)
        chosen[self.cache.unreadable] = False
        return np.flatnonzero(chosen).astype(np.int64)

    def patients_by_class(self, part: Part) -> dict[str, int]:
        """How many patients (or lesions, or images) have a labelled image of each class."""
        rows = self.rows(part)
        patients: dict[str, set[str]] = {name: set() for name in self.classes}
        for row in rows:
            shown = self.task.class_counts(self.labels[[row]], len(self.classes))
            for number in np.flatnonzero(shown):
                patients[self.classes[number]].add(self.groups[row])
        return {name: len(own) for name, own in patients.items()}

    def class_counts(self, part: Part) -> NDArray[np.int64]:
        """Number of images of each class, or with each finding, in one part, shape ``(classes,)``, if known."""
        return self.task.class_counts(self.labels[self.rows(part)], len(self.classes))


def read_site_config(path: Path) -> dict[str, DatasetLocation]:
    """Read the data sets of a site.

    Relative paths are relative to the folder of ``path``. A path with ``{site}`` in it is not looked for, because it
    is complete only for a certain site.

    Raises:
        ConfigurationError: if the file is missing or no JSON, a key is unknown or missing, a value has the wrong type,
            or a manifest or root does not exist; file and field are named.
    """
    locations = _read_locations(path)
    for name, location in locations.items():
        if SITE_PLACEHOLDER not in f"{location.manifest}{location.root}":
            _require_files(location, name, path)
    return locations


def locate_dataset(site: str, dataset: str, folders: Sequence[Path]) -> DatasetLocation:
    """Find the definition of a data set at a site.

    In each folder, ``<folder>/<site>/grandrounds.json`` is looked at before ``<folder>/grandrounds.json``; the first
    that defines the data set decides. In its paths, ``{site}`` is replaced by the site's name.

    Raises:
        ConfigurationError: if no file defines it (the files and their data sets are listed), or the definition is wrong.
    """
    looked: list[str] = []
    for path in config_places(site, folders):
        if not path.is_file():
            looked.append(f"{path} (not there)")
            continue
        locations = _read_locations(path)
        if dataset in locations:
            location = _for_site(locations[dataset], site)
            _require_files(location, dataset, path)
            return location
        looked.append(f"{path} (defines {', '.join(sorted(locations)) or 'none'})")
    places = "; ".join(looked) or "no folder was given"
    raise ConfigurationError(f"{site}: data set {dataset!r} is not defined; looked at: {places}")


def private_datasets(site: str, folders: Sequence[Path]) -> list[str]:
    """The names of the :func:`site_datasets` that the site does not call public."""
    return [name for name, location in site_datasets(site, folders).items() if not location.public]


def site_datasets(site: str, folders: Sequence[Path]) -> dict[str, DatasetLocation]:
    """All data sets that a site defines, see :func:`locate_dataset`; their files are not looked for.

    Raises:
        ConfigurationError: if a definition is wrong.
    """
    locations: dict[str, DatasetLocation] = {}
    for path in config_places(site, folders):
        if path.is_file():
            locations = {**_read_locations(path), **locations}
    return {name: _for_site(location, site) for name, location in locations.items()}


def config_places(site: str, folders: Sequence[Path]) -> list[Path]:
    """The files that may describe a site's data sets, in the order in which they are looked at."""
    return [place for folder in folders for place in (folder / site / CONFIG_NAME, folder / CONFIG_NAME)]


def load_site_data(
    location: DatasetLocation, problem: Problem, cache_dir: Path, foreign_labels: bool = False
) -> SiteData:
    """Read a manifest with the problem's vocabulary and open the decoded images, of the problem's size.

    A label outside the vocabulary is refused, or with ``foreign_labels`` taken as unknown.

    Raises:
        DataError: if the manifest is invalid or too many images are unreadable.
        ConfigurationError: if there are windows and not as many as channels.
    """
    classes, task = problem.classes, problem.kind
    vocabulary = None if foreign_labels else classes
    records = read_manifest(location.manifest, vocabulary, task, location.keys)
    names = tuple(record.image for record in records)
    return SiteData(
        cache=location.decoded(names, problem, cache_dir),
        labels=task.read_labels([record.label for record in records], classes),
        labelled=np.array([record.labelled for record in records], np.bool_),
        split=np.array([record.split for record in records], np.str_),
        names=names,
        groups=tuple(record.group for record in records),
        classes=classes,
        sources=tuple(record.source for record in records),
        min_support=location.min_support,
        root=location.root,
        patients=tuple(record.patient for record in records),
        task=task,
    )


def _read_locations(path: Path) -> dict[str, DatasetLocation]:
    content = read_json_object(path)
    require_object(content, str(path), ["datasets"], ["models", "privacy"])
    min_support = min_support_from(content.get("privacy", {}), f"{path}: privacy")
    datasets = content["datasets"]
    if not isinstance(datasets, dict):
        raise ConfigurationError(f"{path}: datasets must be an object of data sets by name, got {datasets!r}")
    locations = {name: _location(entry, f"{path}: datasets.{name}", path.parent) for name, entry in datasets.items()}
    models = _overrides(content.get("models", {}), datasets, path)
    return {
        name: replace(location, min_support=min_support, model=models.get(name)) for name, location in locations.items()
    }


def _location(entry: Any, where: str, folder: Path) -> DatasetLocation:
    optional = ["max_unreadable", "windows", "preprocess", "bits", "public", *CHOICE_KEYS]
    require_object(entry, where, ["manifest", "root"], optional)
    for field in ("manifest", "root"):
        if not isinstance(entry[field], str) or not entry[field]:
            raise ConfigurationError(f"{where}.{field} must be a path, got {entry[field]!r}")
    limit = entry.get("max_unreadable", DatasetLocation.max_unreadable)
    if isinstance(limit, bool) or not isinstance(limit, int | float) or not 0 <= limit <= 1:
        raise ConfigurationError(f"{where}.max_unreadable must be a number between 0 and 1, got {limit!r}")
    reading = Reading.of(entry, where)
    public = entry.get("public", False)
    require_type(public, bool, f"{where}.public")
    return DatasetLocation(
        folder / entry["manifest"],
        folder / entry["root"],
        float(limit),
        reading,
        public=public,
        keys=_choices(entry, where),
    )


def _choices(entry: Mapping[str, Any], where: str) -> KeyChoices:
    """What is said about near names."""
    lists = {name: entry.get(name, []) for name in CHOICE_KEYS}
    for name, value in lists.items():
        if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
            raise ConfigurationError(f'{where}.{name} must be a list of texts such as ["patient"], got {value!r}')
    with reraised_as(ConfigurationError, ConfigurationError, where=where):
        return KeyChoices(*(tuple(value) for value in lists.values()))


def _for_site(location: DatasetLocation, site: str) -> DatasetLocation:
    manifest, root = (Path(str(path).replace(SITE_PLACEHOLDER, site)) for path in (location.manifest, location.root))
    return replace(location, manifest=manifest, root=root)


def _require_files(location: DatasetLocation, name: str, path: Path) -> None:
    if not location.manifest.is_file():
        raise ConfigurationError(f"{path}: datasets.{name}.manifest: there is no file {location.manifest}")
    if not location.root.exists():
        raise ConfigurationError(f"{path}: datasets.{name}.root: there is no file or folder {location.root}")


def min_support_from(privacy: Any, where: str) -> int:
    """Minimum number of patients behind any value of a class that leaves the site; a job can only raise it.

    Raises:
        ConfigurationError: naming the key, what was expected and what came.

    Example:
        >>> min_support_from({"min_support": 10}, "grandrounds.json: privacy")
        10
        >>> min_support_from({}, "grandrounds.json: privacy")
        0
    """
    value = require_object(privacy, where, optional=["min_support"]).get("min_support", 0)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ConfigurationError(f"{where}.min_support must be a whole number of patients, 0 or more, got {value!r}")
    return value


def _overrides(models: Any, datasets: Collection[str], path: Path) -> dict[str, ModelOverride]:
    """Read the entry ``models`` of a ``grandrounds.json``; whether a backbone exists is checked later.

    Raises:
        ConfigurationError: naming the file and the key, what was expected and what came.

    Example:
        >>> _overrides({"skin": {"backbone": "resnet10"}}, ["skin"], Path("grandrounds.json"))["skin"].changes
        {'backbone': 'resnet10'}
    """
    if not isinstance(models, Mapping):
        raise ConfigurationError(f"{path}: models must be an object of models by data set, got {models!r}")
    for name in models:
        if name not in datasets:
            known = ", ".join(sorted(datasets)) or "none"
            raise ConfigurationError(
                f"{path}: models.{name}: there is no such data set in this file (there are: {known})"
            )
    return {name: _override(entry, f"{path}: models.{name}", path.parent) for name, entry in models.items()}


def _override(entry: Any, where: str, folder: Path) -> ModelOverride:
    require_object(entry, where, optional=MODEL_KEYS)
    backbone, norm, dropout = entry.get("backbone", ""), entry.get("norm", STATISTICS_NORMS[0]), entry.get("dropout")
    if not isinstance(backbone, str):
        raise ConfigurationError(f"{where}.backbone must be a name, got {backbone!r}")
    if norm not in STATISTICS_NORMS:
        raise ConfigurationError(f"{where}.norm must be {' or '.join(STATISTICS_NORMS)}, got {norm!r}")
    numeric = isinstance(dropout, int | float) and not isinstance(dropout, bool)
    if dropout is not None and not (numeric and 0 <= dropout < 1):
        raise ConfigurationError(f"{where}.dropout must be a number from 0 to below 1, or null, got {dropout!r}")
    return ModelOverride(where, {**entry, **_weights(entry.get("weights"), where, folder)})


def _weights(weights: Any, where: str, folder: Path) -> dict[str, str]:
    """Where weights are; nothing if none are given."""
    if weights is None or weights == IMAGENET:
        return {}
    if not isinstance(weights, str) or not (folder / weights).is_file():
        raise ConfigurationError(
            f"{where}.weights must be {IMAGENET} or the path of a file, from the folder of this file; got {weights!r}"
        )
    return {"weights": str(folder / weights)}
