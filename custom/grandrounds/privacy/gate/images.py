"""What the images of a data set are known by: each has one budget, in whatever file, archive or data set it lies."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from grandrounds.data.images.files.identity import STORED_BYTES, STORED_PIXELS, image_identity
from grandrounds.data.images.ordered import in_order
from grandrounds.data.images.readers import ImageReader, open_images
from grandrounds.data.keys import comparison_key
from grandrounds.data.location import locate
from grandrounds.data.site import DatasetLocation, private_datasets
from grandrounds.errors import DataError, GrandRoundsError
from grandrounds.privacy.gate.audit import write_audit
from grandrounds.privacy.gate.dataset import DatasetFacts, dataset_facts
from grandrounds.privacy.ledger.digests import DIGEST_FOLDER
from grandrounds.privacy.ledger.entries import DatasetIdentity
from grandrounds.privacy.ledger.ledger import PATIENT, Ledger

NEAR_NAMES = "near names of patients"
"""A scheme of digests: a data set that was read before it is read again."""


def record_dataset(ledger: Ledger, folder: Path, name: str, location: DatasetLocation) -> DatasetFacts:
    """Let the ledger know the images and patients of a data set (:func:`record_images`).

    Returns:
        What the gate knows of it.

    Raises:
        GrandRoundsError: if its manifest or root cannot be read, or the ledger cannot be used.
    """
    data = dataset_facts(name, location.manifest, location.keys)
    record_images(ledger, folder, data.identity, Path(location.root), data.names, data.people)
    return data


def record_private(ledger: Ledger, folder: Path, site: str, folders: Sequence[Path], cache: Path) -> list[str]:
    """Let the ledger know all private data sets of a site, so that which of them share images does not depend on the tasks.

    One that cannot be read is passed over: it gives no answer either.

    Returns:
        Their names.
    """
    names = private_datasets(site, folders)
    for name in names:
        with contextlib.suppress(GrandRoundsError):
            record_dataset(ledger, folder, name, locate(name, site, folders, cache))
    return names


def record_images(
    ledger: Ledger, folder: Path, dataset: DatasetIdentity, root: Path, names: Sequence[str], people: Collection[str]
) -> None:
    """Let the ledger know the images and patients of a data set; they are read whenever files or manifest have changed.

    Digests of another scheme, and those in files of earlier versions beside the ledger, join what is known. Images with
    another content than before under the same manifest are a line of the audit trail.

    Args:
        ledger: of the site.
        folder: of the ledger.
        dataset: whose images they are.
        root: of the images.
        names: of all images, below the root.
        people: the keys of its patients.

    Raises:
        DataError: if the root cannot be opened, or the ledger cannot be used.
        Refused: if the audit trail cannot be written.
    """
    _join_earlier(ledger, folder)
    with open_images(root) as reader:
        state = files_state(reader, dataset, names)
        content = ledger.content()
        latest = content.latest(dataset.name)
        if latest is not None and latest.state == state:
            return

        def known_by(name: str) -> set[str]:
            try:
                return image_identity(reader.encoded(name))
            except DataError:  # training quarantines it
                return set()

        known = dict(zip(names, in_order(known_by, names), strict=True))
    digests = {digest for found in known.values() for digest in found}
    # With the ledger's own random identity, so that nobody else can try names.
    salt = content.opening.identity
    named = {*people, *map(comparison_key, people)}  # one person may be spelled in two ways in two lists
    digests |= {f"{PATIENT}:{hashlib.sha256(f'{salt} {key}'.encode()).hexdigest()[:32]}" for key in named}
    ledger.join(dataset, state, digests, _content(known))
    if ledger.content().changes(dataset.name) > content.changes(dataset.name):
        write_audit(folder, "changed", {"dataset": dataset.name})


def _content(known: Mapping[str, set[str]]) -> str:
    """A hash of what is in each image: its pixels where they are known, else its bytes."""
    shown = {
        name: sorted(digest for digest in found if digest.startswith(STORED_PIXELS)) or sorted(found)
        for name, found in known.items()
    }
    return hashlib.sha256(json.dumps(shown, sort_keys=True).encode()).hexdigest()


def files_state(reader: ImageReader, dataset: DatasetIdentity, names: Sequence[str]) -> str:
    """A hash that changes when files or manifest of a data set do, made without reading the images."""
    schemes = [STORED_BYTES, STORED_PIXELS, PATIENT, NEAR_NAMES, dataset.fingerprint, reader.fingerprint(names)]
    return hashlib.sha256(json.dumps(schemes).encode()).hexdigest()


def _join_earlier(ledger: Ledger, folder: Path) -> None:
    """Take in the digests of bytes that earlier versions wrote into files beside the ledger, by lines of the ledger."""
    known = {name for line in ledger.content().known for name in (f"{line.file}.json", line.state)}
    for path in sorted((folder / DIGEST_FOLDER).glob("*.json")):
        if path.name in known:
            continue
        try:
            content = json.loads(path.read_bytes())
            name, digests = content["name"], {f"{STORED_BYTES}:{digest}" for digest in content["images"]}
        except (OSError, ValueError, KeyError, TypeError):  # a file of no line: a process died before it wrote the line
            continue
        ledger.join(DatasetIdentity(name, path.stem), path.name, digests)
