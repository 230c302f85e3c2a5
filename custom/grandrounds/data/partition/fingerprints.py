"""Fingerprints of public images, by which sites see that they have the same."""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

from grandrounds.data.partition.public_set import FINGERPRINT, PublicSet
from grandrounds.errors import DataError


def fingerprints(public: PublicSet) -> NDArray[np.uint8]:
    """The set in sixteen bytes for each image, for another party to compare.

    Returns:
        Shape ``(images, 16)``: eight bytes of the hash over name and content, eight of that of the decoded image.
    """
    named = b"".join(_short(f"{image.image}\n{image.content}") for image in public.images)
    decoded = b"".join(_short(image.pixels) for image in public.images)
    halves = [np.frombuffer(half, np.uint8).reshape(len(public.images), FINGERPRINT) for half in (named, decoded)]
    return np.concatenate(halves, axis=1)


def first_unlike(here: PublicSet, there: NDArray[np.uint8]) -> str | None:
    """Say which image is the first that differs from another party's set.

    Returns:
        A sentence that names the image as it is called here; None if the sets are equal.

    Raises:
        DataError: if ``there`` is not an array of fingerprints.
    """
    if there.ndim != 2 or there.shape[1] != 2 * FINGERPRINT or there.dtype != np.uint8:
        raise DataError(f"fingerprints must be uint8 (images, {2 * FINGERPRINT}), got {there.dtype} {there.shape}")
    own = fingerprints(here)
    common = min(len(own), len(there))
    unlike = np.flatnonzero((own[:common] != there[:common]).any(axis=1))
    if len(unlike):
        number = int(unlike[0])
        file = (own[number, :FINGERPRINT] != there[number, :FINGERPRINT]).any()
        what = "has another name or content" if file else "is the same file, decoded or resized differently"
        return f"public image {here.images[number].image!r} (number {number + 1}) {what} elsewhere"
    if len(own) == len(there):
        return None
    return f"there are {len(own)} public images here and {len(there)} elsewhere; the first {common} are the same"


def _short(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()[:FINGERPRINT]
