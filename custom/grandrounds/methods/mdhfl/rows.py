"""What soft labels from another party must be before anybody learns from them.

One site's rows enter the targets of all others, so rows that are no distributions, or are about other images, would spoil
every model of the federation at once.
"""

from __future__ import annotations

import torch
from torch import Tensor

from grandrounds.errors import MessageError

ROW_TOLERANCE = 1e-3


def require_soft_labels(
    rows: Tensor, images: int, classes: int, name: str, parties: int = 1, tolerance: float = ROW_TOLERANCE
) -> None:
    """Check soft labels for all public images, or the sum of such of several parties.

    Args:
        rows: what came, expected of shape ``(images, classes)``, floating point.
        images: number of public images.
        classes: number of classes.
        name: how the error calls the rows, for example ``"rows of site-2"``.
        parties: how many parties' rows were added up; every row must sum to it.
        tolerance: how far a row's sum may be off, and an entry below zero, for each party.

    Raises:
        MessageError: naming the first offending row, if the shape is another, or an entry is not finite or negative, or a
            row does not sum to the number of parties.
    """
    require_scores(rows, images, classes, name)
    # The decrypted sum of encrypted rows may be a little below zero where the rows are zero.
    least = 0.0 if parties == 1 else -tolerance * parties
    _refuse_first((rows < least).any(dim=1), f"{name}: row {{}} has a negative entry")
    sums = rows.sum(dim=1, dtype=torch.float64)
    _refuse_first((sums - parties).abs() > tolerance * parties, f"{name}: row {{}} does not sum to {parties}")


def require_scores(rows: Tensor, images: int, classes: int, name: str) -> None:
    """Check scores for all public images that need be no distributions: the logits of FedMD.

    Args:
        rows: what came, expected of shape ``(images, classes)``, floating point.
        images: number of public images.
        classes: number of classes.
        name: how the error calls the rows.

    Raises:
        MessageError: if the shape is another, or an entry is not finite.
    """
    if not rows.is_floating_point():
        raise MessageError(f"{name}: expected floating-point values, got {rows.dtype}")
    if rows.dim() == 2 and rows.shape[1] != classes:
        raise MessageError(f"{name}: expected {classes} classes, got {rows.shape[1]}; all models need the same classes")
    if rows.shape != (images, classes):
        raise MessageError(f"{name}: expected shape {(images, classes)}, got {tuple(rows.shape)}")
    _refuse_first(~torch.isfinite(rows).all(dim=1), f"{name}: row {{}} has an entry that is not finite")


def require_same_public_set(ours: str, theirs: str, name: str) -> None:
    """Check that rows are about the same images in the same order.

    Args:
        ours: digest of the public set here, see ``data.public_set``.
        theirs: digest that came with the rows.
        name: how the error calls the rows.

    Raises:
        MessageError: if the digests differ.
    """
    if ours != theirs:
        raise MessageError(
            f"{name} are about another public set ({theirs[:12]}, here {ours[:12]}): compare the lists of files; "
            "names, contents and order must be the same everywhere"
        )


def _refuse_first(bad: Tensor, message: str) -> None:
    if bad.any():
        raise MessageError(message.format(int(bad.nonzero()[0])))
