"""Reads a site's data sets for the privacy gate, in a process of its own: manifests, archives and images.

``python -m grandrounds.privacy.inventory`` takes a question as JSON from its standard input, and writes the answer to its
standard output, as JSON, too, after an empty line for each image that it has read. It has walls: of the site's files it
reaches the data sets that it is asked about, and it has no network. So no reader of tables or images is part of the gate,
which checks the answer (:mod:`grandrounds.privacy.gate.datasets`).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from grandrounds.data.images.files.identity import image_identity
from grandrounds.data.images.ordered import in_order
from grandrounds.data.images.readers import ImageReader, open_images
from grandrounds.data.keys import comparison_key
from grandrounds.data.location import locate, locate_public
from grandrounds.data.manifest import Record, read_manifest
from grandrounds.data.site import DatasetLocation, config_places, private_datasets
from grandrounds.errors import DataError, GrandRoundsError
from grandrounds.privacy.gate.datasets import DatasetFacts, Inventory, InventoryRequest, stamp
from grandrounds.privacy.ledger.ledger import PATIENT, dataset_fingerprint
from grandrounds.privacy.ledger.lines import DatasetIdentity
from grandrounds.protocol.names import STORED_BYTES, STORED_PIXELS
from grandrounds.walls import Isolation, Openings, device_paths, program_paths, raise_walls

NEAR_NAMES = "near names of patients"
"""A scheme of digests: a data set that was read before it is read again."""


def take(question: InventoryRequest, known: Mapping[str, str], progress: Callable[[], object]) -> Inventory:
    """Read the data sets that are asked about; images only of those that are in another state than the known one.

    Files are stamped before what the answer says is read from them. ``progress`` is called after each image.

    Raises:
        GrandRoundsError: if the data set of the task, or the public one, is not defined or cannot be read.
    """
    read = [str(path) for path in config_places(question.site, _folders(question))]
    seen: list[str] = []
    for location in _locations(question):
        with contextlib.suppress(GrandRoundsError):
            read.append(str(location.manifest))
            names = [record.image for record in read_manifest(location.manifest)]
            root = str(location.root)
            seen += [os.path.join(root, name) for name in names] if location.root.is_dir() else [root]
    before = stamp(read, seen)
    datasets = {}
    for name, location in _private(question).items():
        with contextlib.suppress(*([] if name == question.dataset else [GrandRoundsError])):
            datasets[name] = dataset_facts(name, location, known.get(name), progress)
    described = private_datasets(question.site, _folders(question)) if question.private else []
    public = _public(question)
    rows = len(read_manifest(public.manifest)) if public else 0
    return Inventory(datasets, tuple(described), rows, tuple(read), tuple(seen), before)


def dataset_facts(
    name: str, location: DatasetLocation, known: str | None = None, progress: Callable[[], object] = lambda: None
) -> DatasetFacts:
    """Read a data set: its manifest, and its images, with ``progress`` after each, unless they are in the known state.

    Raises:
        DataError: if its manifest or root cannot be read.
    """
    records = read_manifest(location.manifest, choices=location.keys)
    identity = dataset_identity(name, records)
    groups = {part: {record.group for record in records if record.split == part} for part in ("train", "val", "test")}
    groups["labelled"] = {record.group for record in records if record.split == "train" and record.labelled}
    people = {record.patient for record in records if record.patient}
    names = [record.image for record in records]
    digests, content = None, ""
    with open_images(Path(location.root)) as reader:
        state = files_state(reader, identity, names)
        if state != known:
            digests, content = _read_images(reader, names, progress)
    return DatasetFacts(
        identity,
        {part: len(digests) for part, digests in groups.items()},
        sum(record.split == "train" for record in records),
        frozenset({*people, *map(comparison_key, people)}),  # one person may be spelled in two ways in two lists
        state,
        digests,
        content,
        location.model.changes.get("backbone", "") if location.model else "",
    )


def dataset_identity(name: str, records: Sequence[Record]) -> DatasetIdentity:
    """What the ledger knows a data set by, from the records of its manifest."""
    groups = (record.group for record in records)
    return DatasetIdentity(name, dataset_fingerprint((record.image for record in records), groups))


def files_state(reader: ImageReader, dataset: DatasetIdentity, names: Sequence[str]) -> str:
    """A hash that changes when files or manifest of a data set do, made without reading the images."""
    schemes = [STORED_BYTES, STORED_PIXELS, PATIENT, NEAR_NAMES, dataset.fingerprint, reader.fingerprint(names)]
    return hashlib.sha256(json.dumps(schemes).encode()).hexdigest()


def main() -> None:
    """Answer the question on standard input."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print is no part of the answer
    asked = json.load(sys.stdin)
    known, folders = asked.pop("known"), tuple(asked.pop("folders"))
    question = InventoryRequest(folders=folders, **asked)
    try:
        _require_walls(question)
        answer = _to_json(take(question, known, lambda: os.write(answers.fileno(), b"\n")))
    except Exception as error:
        answer = {"error": str(error) if isinstance(error, GrandRoundsError) else f"{type(error).__name__}: {error}"}
    with answers:
        json.dump(answer, answers)


def _require_walls(question: InventoryRequest) -> None:
    """Raise the walls that this system has around this process, before it reads a manifest or an image."""
    described = [path.resolve() for path in config_places(question.site, _folders(question))]
    locations = list(_private(question).values())
    if question.public is not None:
        locations.append(locate(question.public, question.site, _folders(question), Path(question.cache)))
    files = [path.resolve() for location in locations for path in (location.manifest, location.root)]
    drawn = [path.parent for path in files if path.is_relative_to(Path(question.cache).resolve())]
    programs = [path for path in program_paths() if not any(place.is_relative_to(path) for place in _folders(question))]
    read = map(str, (*programs, *described, *files, *drawn))
    missing = raise_walls(Openings(tuple(read), tuple(device_paths()), (os.getppid(),)))
    Isolation.chosen(real=False).require(missing, "the process that reads the data sets")


def _locations(question: InventoryRequest) -> list[DatasetLocation]:
    """Where all data sets are that the answer depends on."""
    public = _public(question)
    return [*_private(question).values(), *([public] if public else [])]


def _private(question: InventoryRequest) -> dict[str, DatasetLocation]:
    """Where the data set of the task is, and all others that are asked about and can be found."""
    location = question.site, _folders(question), Path(question.cache)
    locations = {question.dataset: locate(question.dataset, *location)}
    for name in private_datasets(*location[:2]) if question.private else []:
        with contextlib.suppress(GrandRoundsError):
            locations.setdefault(name, locate(name, *location))
    return locations


def _public(question: InventoryRequest) -> DatasetLocation | None:
    """Where the data set is that the task calls public; None where it names none."""
    if question.public is None:
        return None
    return locate_public(question.public, question.dataset, question.site, _folders(question), Path(question.cache))


def _folders(question: InventoryRequest) -> list[Path]:
    return list(map(Path, question.folders))


def _read_images(
    reader: ImageReader, names: Sequence[str], progress: Callable[[], object]
) -> tuple[frozenset[str], str]:
    """The digests of images, and a hash of what is in each: its pixels where they are known, else its bytes."""

    def known_by(name: str) -> set[str]:
        try:
            return image_identity(reader.encoded(name))
        except DataError:  # training quarantines it
            return set()
        finally:
            progress()

    known = dict(zip(names, in_order(known_by, names), strict=True))
    shown = {
        name: sorted(digest for digest in digests if digest.startswith(STORED_PIXELS)) or sorted(digests)
        for name, digests in known.items()
    }
    content = hashlib.sha256(json.dumps(shown, sort_keys=True).encode()).hexdigest()
    return frozenset(digest for digests in known.values() for digest in digests), content


def _to_json(inventory: Inventory) -> dict[str, Any]:
    datasets = {}
    for name, facts in inventory.datasets.items():
        entry = facts._asdict()
        entry["fingerprint"] = entry.pop("identity").fingerprint
        entry["people"] = sorted(facts.people)
        entry["digests"] = None if facts.digests is None else sorted(facts.digests)
        datasets[name] = entry
    return {**inventory._asdict(), "datasets": datasets}


if __name__ == "__main__":
    main()
