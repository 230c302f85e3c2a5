"""A partition on disk: a manifest and a site configuration for every site, and one file that describes them all.

``partition.json`` holds counts and the SHA-256 of every manifest, and no path: it can be committed beside the manifests
and says later whether a result was computed on the same division.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from grandrounds.data.dicom import Window
from grandrounds.data.folders import file_names, put_in_place, temporary_sibling
from grandrounds.data.manifest import (
    SPLITS,
    Record,
    manifest_digest,
    require_grouped,
    require_known_label,
    write_manifest,
)
from grandrounds.data.site import CONFIG_NAME
from grandrounds.errors import ConfigurationError, DataError
from grandrounds.files import write_json

DESCRIPTION_FILE = "partition.json"
MANIFEST_FILE = "manifest.csv"
SITE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def write_partition(
    sites: Mapping[str, Sequence[Record]],
    out_dir: Path | str,
    dataset_name: str,
    images_root: Path | str,
    classes: Sequence[str],
    description: Mapping[str, Any],
    *,
    overwrite: bool = False,
    windows: Sequence[Window] = (),
    shared_patients: bool = False,
) -> dict[str, Any]:
    """Write ``<site>/manifest.csv``, ``<site>/grandrounds.json`` and ``partition.json``, all or nothing.

    Writing the same partition again changes nothing.

    Args:
        sites: the records of each site, splits included.
        out_dir: the partition's own folder; it must hold nothing else.
        dataset_name: the name by which jobs call the data set.
        images_root: where the images are; every site's configuration gets its absolute path.
        classes: the vocabulary.
        description: how the partition was made (scheme, seed, fractions); JSON values.
        overwrite: replace another partition in ``out_dir``.
        windows: under which the sites look at CT slices; every site's configuration gets them, and ``partition.json``.
        shared_patients: whether a patient or lesion may be at several sites, in the same split at each.

    Returns:
        What ``partition.json`` says: ``description``, ``dataset_name``, ``classes``, ``windows`` if there are any, and
        ``sites`` with the counts per split, class and source, the labelled training images and the SHA-256 of each
        manifest.

    Raises:
        ConfigurationError: if ``out_dir`` holds another partition and ``overwrite`` is not set, or files that belong
            to no partition.
        DataError: if a label is not in ``classes``, a patient or lesion is in two splits of a site, or an image, a
            patient or a lesion is at two sites (with ``shared_patients``: is in two splits, whatever the site).
        ValueError: if a site's name cannot be a folder's name, or ``description`` uses a name of ours.
    """
    out_dir = Path(out_dir).resolve()
    _check_sites(sites, classes, shared_patients)
    reserved = {"dataset_name", "classes", "sites", "windows"} & set(description)
    if reserved:
        raise ValueError(f"description must not contain {', '.join(sorted(reserved))}")
    _require_own_folder(out_dir)
    shown = {"windows": [list(window) for window in windows]} if windows else {}
    location = {"manifest": MANIFEST_FILE, "root": str(Path(images_root).absolute()), **shown}
    config = {"datasets": {dataset_name: location}}
    with temporary_sibling(out_dir) as temporary:
        summaries = {site: _write_site(temporary / site, records, config, classes) for site, records in sites.items()}
        content = {**description, **shown, "dataset_name": dataset_name, "classes": list(classes), "sites": summaries}
        write_json(temporary / DESCRIPTION_FILE, content)
        if _bytes_by_name(out_dir) != _bytes_by_name(temporary):
            if (out_dir / DESCRIPTION_FILE).exists() and not overwrite:
                raise ConfigurationError(f"{out_dir} holds another partition; choose another folder or overwrite it")
            put_in_place(temporary, out_dir)
    return read_partition(out_dir)


def read_partition(out_dir: Path | str) -> dict[str, Any]:
    """Read ``partition.json`` and check that every manifest is still the one it describes.

    Raises:
        DataError: if the description is missing or damaged, or a manifest is missing or differs from its SHA-256.
    """
    path = Path(out_dir) / DESCRIPTION_FILE
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        digests = {str(site): str(summary["sha256"]) for site, summary in content["sites"].items()}
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{path} is damaged ({error!r}); write the partition again") from error
    for site, digest in digests.items():
        manifest = Path(out_dir) / site / MANIFEST_FILE
        found = manifest_digest(manifest)
        if found != digest:
            raise DataError(
                f"{manifest} differs from the partition: expected SHA-256 {digest[:12]}..., got {found[:12]}...; "
                "restore the file or write the partition again"
            )
    return dict(content)


def _check_sites(sites: Mapping[str, Sequence[Record]], classes: Sequence[str], shared_patients: bool) -> None:
    first: dict[tuple[str, str], tuple[str, str]] = {}
    for site, records in sites.items():
        if not SITE_NAME.fullmatch(site):
            raise ValueError(f"{site!r} cannot be a site's name: use letters, digits, '.', '_' and '-'")
        require_grouped(records, site)
        for record in records:
            if record.label:
                require_known_label(record.label, classes, f"{site}, image {record.image!r}")
            for kind, name in (("image", record.image), ("patient", record.patient), ("lesion", record.lesion)):
                earlier, split = first.setdefault((kind, name), (site, record.split)) if name else (site, record.split)
                if earlier != site and (kind == "image" or not shared_patients):
                    raise DataError(f"{kind} {name!r} is at two sites, {earlier} and {site}; give it to one")
                if earlier != site and split != record.split:
                    raise DataError(
                        f"{kind} {name!r} is in split {split} at {earlier} and in {record.split} at {site}; keep all "
                        f"images of a {kind} in one split"
                    )


def _require_own_folder(out_dir: Path) -> None:
    """Refuse a folder with files that no partition writes: replacing it would delete them."""
    for name in file_names(out_dir):
        parts = Path(name).parts
        ours = parts == (DESCRIPTION_FILE,) or (len(parts) == 2 and parts[1] in (MANIFEST_FILE, CONFIG_NAME))
        if not ours or not (out_dir / DESCRIPTION_FILE).exists():
            raise ConfigurationError(f"{out_dir} holds {name}, which no partition wrote; choose an empty folder")


def _write_site(
    folder: Path, records: Sequence[Record], config: Mapping[str, Any], classes: Sequence[str]
) -> dict[str, Any]:
    digest = write_manifest(records, folder / MANIFEST_FILE)
    write_json(folder / CONFIG_NAME, config)
    splits = Counter(record.split for record in records)
    labels = Counter(record.label for record in records)
    sources = Counter(record.source for record in records)
    return {
        "images": {split: splits[split] for split in SPLITS},
        "labelled": sum(record.labelled and record.split == "train" for record in records),
        "classes": {name: labels[name] for name in classes},
        "sources": dict(sorted(sources.items())),
        "sha256": digest,
    }


def _bytes_by_name(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in file_names(folder)}
