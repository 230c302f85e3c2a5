"""Whether two data sets of a site share images: each name has a budget of its own, and an image must not have two."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from pathlib import Path

from grandrounds.errors import ConfigurationError
from grandrounds.files import write_json
from grandrounds.privacy.ledger.entries import DatasetIdentity

DIGEST_FOLDER = "images"
"""Folder with the digests of the images of each data set, beside the ledger."""


def require_own_images(folder: Path, dataset: DatasetIdentity, root: Path, names: Iterable[str]) -> None:
    """Check that no data set of another name has one of these image files, by their content; once per fingerprint.

    Args:
        folder: of the ledger.
        dataset: whose images they are.
        root: of the images.
        names: paths below the root.

    Raises:
        ConfigurationError: naming both data sets and the number of images.
    """
    path = folder / DIGEST_FOLDER / f"{dataset.fingerprint}.json"
    if path.is_file():
        return
    own = {_digest(root / name) for name in names}
    for other in sorted(path.parent.glob("*.json")):
        known = json.loads(other.read_text(encoding="utf-8"))
        shared = own.intersection(known["images"])
        if known["name"] != dataset.name and shared:
            raise ConfigurationError(
                f"{len(shared)} images of data set {dataset.name!r} are also in {known['name']!r}, which has a budget of "
                "its own; use one name for both"
            )
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, {"name": dataset.name, "images": sorted(own)})


def _digest(path: Path) -> str:
    """Of a file's content; of its name where it is no file of its own."""
    content = path.read_bytes() if path.is_file() else os.fsencode(os.path.realpath(path))
    return hashlib.sha256(content).hexdigest()[:32]
