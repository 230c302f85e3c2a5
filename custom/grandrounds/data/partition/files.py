"""A partition on disk: a manifest and a site configuration for every site, and one file that describes them all.

``partition.json`` holds counts and the SHA-256 of every manifest, and no path: it can be committed beside the manifests
and shows later whether a result was computed on the same division.
"""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from grandrounds.data.images.files.reading import AS_IN_FILES, Reading
from grandrounds.data.keys import KEY_RULE, RULE_VALUE, canonical
from grandrounds.data.leaks import Sharing
from grandrounds.data.manifest import SPLITS, Record, manifest_digest, require_grouped, write_manifest
from grandrounds.data.partition.label_noise import DrawnLabel, write_drawn_labels
from grandrounds.data.partition.public_set import PublicSet, list_path, write_public_set
from grandrounds.data.site import CONFIG_NAME, PUBLIC_NAME
from grandrounds.errors import ConfigurationError, DataError
from grandrounds.files import write_json
from grandrounds.folders import file_names, in_turn, put_in_place, temporary_sibling
from grandrounds.ordering import natural_sorted
from grandrounds.protocol.names import SERVER, Preprocess
from grandrounds.protocol.task import Task
from grandrounds.protocol.tasks import SINGLE, task_entry
from grandrounds.remedies import nearest_beside

DESCRIPTION_FILE = "partition.json"
MANIFEST_FILE = "manifest.csv"
LABELS_FILE = "labels.csv"
"""The labels that were drawn for a site's images, beside its manifest; training does not read it."""

PUBLIC_FILE = "public.csv"
"""How jobs call the images that all sites have."""

SITE_FILES = (MANIFEST_FILE, CONFIG_NAME, LABELS_FILE, PUBLIC_FILE, list_path(Path(PUBLIC_FILE)).name)
SITE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_WRITTEN = {"dataset_name", "classes", "sites", "task", "public_set", RULE_VALUE, *vars(AS_IN_FILES)}


@dataclass(frozen=True)
class Replicated:
    """Test images and a public set that every site gets.

    ``test`` is in split ``test`` of every site's manifest; ``public_root`` is the folder or archive of the public images.
    """

    test: Sequence[Record]
    public: PublicSet
    public_root: Path


def write_partition(
    sites: Mapping[str, Sequence[Record]],
    out_dir: Path | str,
    dataset_name: str,
    images_root: Path | str,
    classes: Sequence[str],
    description: Mapping[str, Any],
    *,
    overwrite: bool = False,
    reading: Reading = AS_IN_FILES,
    devices: Mapping[str, Preprocess] = MappingProxyType({}),
    shared_patients: bool = False,
    replicated: Replicated | None = None,
    drawn: Mapping[str, Sequence[DrawnLabel]] | None = None,
    task: Task = SINGLE,
) -> dict[str, Any]:
    """Write manifests, site configurations and ``partition.json``, all or nothing; the same again changes nothing.

    Args:
        sites: the records of each site, splits included.
        out_dir: the partition's own folder.
        dataset_name: name of the data set in jobs.
        images_root: folder or archive of the images; site configurations contain its absolute path.
        classes: the vocabulary.
        description: how the partition was made (scheme, seed, shares); JSON values.
        overwrite: replace another partition in ``out_dir``.
        reading: how the sites read the image files, for their configurations and ``partition.json``.
        devices: the synthetic device that retakes each site's images, where a site has one.
        shared_patients: whether a patient or lesion may be at several sites, in the same split at each.
        replicated: test images and a public set that every site gets.
        drawn: the labels that were drawn for each site's images; written beside its manifest.
        task: what labels are.

    Returns:
        The content of ``partition.json``: the arguments, and ``sites`` with counts and the SHA-256 of the files.

    Raises:
        ConfigurationError: if ``out_dir`` contains other files, or another partition without ``overwrite``.
        DataError: if a label is not in ``classes``, a patient or lesion is in two splits, or an image is at two sites (or a
            patient or lesion, without ``shared_patients``).
        ValueError: if a site's name cannot be a folder's name, or ``description`` has a key that is written here.
    """
    out_dir = Path(out_dir).resolve()
    common = tuple(replicated.test) if replicated else ()
    _check_sites({**sites, "every-site": common} if common else sites, classes, shared_patients, task)
    if own := _WRITTEN & set(description):
        raise ValueError(f"description must not contain {', '.join(sorted(own))}")
    _require_own_folder(out_dir)
    stated = reading.entries()
    location = {
        "manifest": MANIFEST_FILE,
        "root": str(Path(images_root).absolute()),
        **stated,
        **_distinct(description),
    }
    config = {"datasets": {dataset_name: location, **_public_location(replicated)}}
    if replicated is not None:
        stated["public_set"] = {"images": len(replicated.public.images), "sha256": replicated.public.digest}
    with temporary_sibling(out_dir) as temporary:
        summaries = {
            site: _write_site(
                temporary / site, (*own, *common), _retaking(config, dataset_name, devices.get(site)), classes, task
            )
            for site, own in sites.items()
        }
        for site, summary in summaries.items():
            summary |= _write_beside(temporary / site, replicated, (drawn or {}).get(site))
        content = {
            **description,
            **stated,
            RULE_VALUE: KEY_RULE,
            **task_entry(task),
            "dataset_name": dataset_name,
            "classes": list(classes),
            "sites": summaries,
        }
        write_json(temporary / DESCRIPTION_FILE, content)
        with in_turn(out_dir.parent, out_dir):
            _replace(out_dir, temporary, overwrite)
            return read_partition(out_dir)


def read_partition(out_dir: Path | str) -> dict[str, Any]:
    """Read ``partition.json`` and check that every manifest is still the one it describes.

    Raises:
        DataError: if the description is missing or damaged, its names became keys by another rule, or a manifest, or what is
            beside it, is missing or differs from its SHA-256.
    """
    path = Path(out_dir) / DESCRIPTION_FILE
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        digests = _digests(content)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{path} is damaged ({error!r}); write the partition again") from error
    _require_rule(content, path)
    for name, digest in digests.items():
        file = Path(out_dir) / name
        actual = manifest_digest(file)
        if actual != digest:
            raise DataError(
                f"{file} differs from the partition: expected SHA-256 {digest[:12]}..., got {actual[:12]}...; "
                "restore the file or write the partition again"
            )
    return dict(content)


def _require_rule(content: Mapping[str, Any], path: Path) -> None:
    """Refuse names of another rule; a partition from before there was one passes if its classes are canonical."""
    rule = content.get(RULE_VALUE)
    if rule is None and all(canonical(name) == name for name in content.get("classes", ())):
        return
    if rule != KEY_RULE:
        how = f"by rule {rule}" if rule is not None else "without a rule"
        raise DataError(
            f"{path}: its classes and patients were named {how}, this version of grandrounds has rule {KEY_RULE}; make the "
            "partition again"
        )


def sharing_of(content: Mapping[str, Any]) -> Sharing:
    """What the sites of a partition share on purpose, from its description."""
    of_patients = content.get("client_partition") == "slice" or content.get("group_by") == "image"
    return Sharing(patients=of_patients, tests=content.get("scheme") == "mdhfl")


def _digests(content: Mapping[str, Any]) -> dict[str, str]:
    """SHA-256 of the files of a partition, by name."""
    digests: dict[str, str] = {}
    for site, summary in content["sites"].items():
        digests[f"{site}/{MANIFEST_FILE}"] = str(summary["sha256"])
        if "labels_sha256" in summary:
            digests[f"{site}/{LABELS_FILE}"] = str(summary["labels_sha256"])
        if "public_set" in content:
            digests[f"{site}/{list_path(Path(PUBLIC_FILE))}"] = str(content["public_set"]["sha256"])
    return digests


def _check_sites(
    sites: Mapping[str, Sequence[Record]], classes: Sequence[str], shared_patients: bool, task: Task
) -> None:
    first: dict[tuple[str, str], tuple[str, str]] = {}
    for site, records in sites.items():
        if not SITE_NAME.fullmatch(site):
            raise ValueError(f"{site!r} cannot be a site's name: use letters, digits, '.', '_' and '-'")
        require_grouped(records, site)
        for record in records:
            if record.label:
                task.require_label(record.label, classes, f"{site}, image {record.image!r}")
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
        ours = parts == (DESCRIPTION_FILE,) or (len(parts) == 2 and parts[1] in SITE_FILES)
        if not ours or not (out_dir / DESCRIPTION_FILE).exists():
            raise ConfigurationError(
                f"{out_dir} holds {name}, not of a partition; choose an empty folder: {out_dir}-sites"
            )


def _write_site(
    folder: Path, records: Sequence[Record], config: Mapping[str, Any], classes: Sequence[str], task: Task
) -> dict[str, Any]:
    digest = write_manifest(records, folder / MANIFEST_FILE)
    write_json(folder / CONFIG_NAME, config)
    splits = Counter(record.split for record in records)
    labels = Counter(name for record in records for name in task.names_in(record.label))
    sources = Counter(record.source for record in records)
    return {
        "images": {split: splits[split] for split in SPLITS},
        "labelled": sum(record.labelled and record.split == "train" for record in records),
        "classes": {name: labels[name] for name in classes},
        "sources": dict(sorted(sources.items())),
        "sha256": digest,
    }


def _write_beside(folder: Path, replicated: Replicated | None, drawn: Sequence[DrawnLabel] | None) -> dict[str, Any]:
    """Write the files beside a site's manifest; returns their entries of the description."""
    if replicated:
        names = [image.image for image in replicated.public.images]
        write_manifest([Record(name) for name in names], folder / PUBLIC_FILE)
        write_public_set(replicated.public, list_path(folder / PUBLIC_FILE))
    if drawn is None:
        return {}
    wrong = sum(label.clean != label.noisy for label in drawn)
    digest = write_drawn_labels(drawn, folder / LABELS_FILE)
    clean = Counter(label.clean for label in drawn)
    return {"wrong_labels": wrong, "clean_classes": dict(sorted(clean.items())), "labels_sha256": digest}


def _public_location(replicated: Replicated | None) -> dict[str, dict[str, Any]]:
    if replicated is None:
        return {}
    root = str(replicated.public_root.absolute())
    return {PUBLIC_NAME: {"manifest": PUBLIC_FILE, "root": root, "max_unreadable": 0, "public": True}}


def _distinct(description: Mapping[str, Any]) -> dict[str, list[str]]:
    """Near patients and lesions that are different, for the site configurations; merged ones are near no more."""
    stated = [
        entry for entry in description.get("keys", {}).get("distinct", ()) if entry.startswith(("patient", "lesion"))
    ]
    return {"distinct": stated} if stated else {}


def _retaking(config: Mapping[str, Any], dataset: str, device: Preprocess | None) -> Mapping[str, Any]:
    """A site's configuration whose images are retaken with a synthetic device, if it has one."""
    if device is None:
        return config
    datasets = config["datasets"]
    return {**config, "datasets": {**datasets, dataset: {**datasets[dataset], "preprocess": device}}}


def _replace(out_dir: Path, temporary: Path, overwrite: bool) -> None:
    if _bytes_by_name(out_dir) == _bytes_by_name(temporary):
        return
    if (out_dir / DESCRIPTION_FILE).exists() and not overwrite:
        raise ConfigurationError(f"{out_dir} holds another partition; choose another folder or overwrite it")
    put_in_place(temporary, out_dir)


def _bytes_by_name(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in file_names(folder)}


def sites_and_problem(partition: Path) -> tuple[list[str], dict[str, Any]]:
    """The sites of a partition, and the options of the problem that follow from it (data set and vocabulary).

    The folder ``server`` is not a site: it contains the server's own images.

    Raises:
        ConfigurationError: if the folder is not a partition.
        DataError: if it is damaged, or a manifest has changed.
    """
    if not (partition / DESCRIPTION_FILE).is_file():
        raise ConfigurationError(
            f"{partition} is not a partition: there is no {DESCRIPTION_FILE} in it{nearest_beside(partition)}; make one of "
            f"images of your own by grandrounds import {shlex.quote(str(partition))} --out DIR (--scheme external: all are "
            "for testing), of a public data set by grandrounds partition"
        )
    description = read_partition(partition)
    sites = [site for site in natural_sorted(description["sites"]) if site != SERVER]
    task = {"task": description["task"]} if "task" in description else {}
    return sites, {"dataset": description["dataset_name"], "classes": description["classes"], **task}
