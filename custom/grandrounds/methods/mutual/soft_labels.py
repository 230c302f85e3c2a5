"""What soft labels from another party must be before anybody learns from them.

One site's rows enter the targets of all others, so rows that are no distributions, or are about other images, would spoil
every model of the federation at once.

Soft labels in fewer bytes.

A row-matrix is all that a site sends. Its entries are probabilities, whose size is known beforehand, so eight bits are
enough: the largest error of an entry is 1/510. What was sent is what counts: the sums are made of decoded rows, and a site
takes out of a sum its own rows as they were decoded, not as they were computed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor

from grandrounds.errors import MessageError
from grandrounds.methods.mutual.contributions import RowSum, mean_of_all

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


WireFormat = Literal["fp64", "fp32", "fp16", "uint8"]

DTYPES: Mapping[str, torch.dtype] = {
    "fp64": torch.float64,
    "fp32": torch.float32,
    "fp16": torch.float16,
    "uint8": torch.uint8,
}
LEVELS = 255


def encode_rows(rows: Tensor, wire: WireFormat) -> Tensor:
    r"""Probabilities as they travel.

    .. math:: u = \mathrm{round}(255 \, p) \quad\text{for uint8}

    Args:
        rows: probabilities, shape ``(images, classes)``; also the mean of several parties' rows.
        wire: ``fp64`` (for comparisons), ``fp32``, ``fp16`` or ``uint8``.

    Returns:
        A tensor of that shape and the dtype of the format.

    Raises:
        ValueError: if the format is unknown, or rows have too many classes: a uniform one would round to zero.

    Example:
        >>> encode_rows(torch.tensor([[0.7, 0.2, 0.1]]), "uint8")
        tensor([[178,  51,  26]], dtype=torch.uint8)
    """
    if wire not in DTYPES:
        raise ValueError(f"wire must be one of {', '.join(DTYPES)}, got {wire!r}")
    if wire != "uint8":
        return rows.to(DTYPES[wire])
    if rows.shape[1] > LEVELS:
        raise ValueError(f"uint8 cannot hold rows of {rows.shape[1]} classes, at most {LEVELS}; use fp16")
    return (rows.double() * LEVELS).round().to(torch.uint8)


def decode_rows(encoded: Tensor, images: int, classes: int, name: str) -> Tensor:
    r"""Probabilities from what travelled, on the simplex again.

    Args:
        encoded: as :func:`encode_rows` makes them.
        images: number of public images.
        classes: number of classes.
        name: how an error calls the rows, for example ``"rows of site-2"``.

    Returns:
        Probabilities, shape ``(images, classes)``, float32 (float64 from fp64). Rows of fp16 and uint8 are divided by their
        sum; others are as they came.

    Raises:
        MessageError: if the dtype is none of the formats', the shape is another, an entry is not finite or negative, or a
            row is farther off the simplex than its format rounds.

    Example:
        >>> decode_rows(torch.tensor([[178, 51, 26]], dtype=torch.uint8), 1, 3, "rows")
        tensor([[0.6980, 0.2000, 0.1020]])
    """
    if encoded.dtype not in DTYPES.values():
        raise MessageError(f"{name}: expected one of {', '.join(DTYPES)}, got {encoded.dtype}")
    if encoded.dtype in (torch.float64, torch.float32):
        require_soft_labels(encoded, images, classes, name)
        return encoded
    tolerance = ROW_TOLERANCE
    rows = encoded.double()
    if encoded.dtype == torch.uint8:
        rows = rows / LEVELS
        # Each entry is rounded by half a level at most; the rest is for the float32 rows that were rounded.
        tolerance = min(classes, LEVELS) / (2 * LEVELS) + ROW_TOLERANCE
    require_soft_labels(rows, images, classes, name, tolerance=tolerance)
    return (rows / rows.sum(dim=1, keepdim=True)).float()


def decode_scores(encoded: Tensor, images: int, classes: int, name: str) -> Tensor:
    """Logits from what travelled (FedMD), which is as it was computed but for the rounding of the format.

    Args:
        encoded: as :func:`encode_rows` makes them, in a floating-point format.
        images: number of public images.
        classes: number of classes.
        name: how an error calls the rows.

    Returns:
        Logits, shape ``(images, classes)``, float32 (float64 from fp64).

    Raises:
        MessageError: if the dtype is none of the floating-point formats', the shape is another, or an entry is not finite.

    Example:
        >>> decode_scores(torch.tensor([[2.0, -0.5]], dtype=torch.float16), 1, 2, "scores")
        tensor([[ 2.0000, -0.5000]])
    """
    require_scores(encoded, images, classes, name)
    if encoded.dtype not in DTYPES.values():
        raise MessageError(f"{name}: expected one of {', '.join(DTYPES)}, got {encoded.dtype}")
    return encoded.float() if encoded.dtype == torch.float16 else encoded


def encode_sum(row_sum: RowSum, wire: WireFormat) -> Tensor:
    r"""The sum as it travels: divided by its weights, so that it is a mean of rows and fits every format.

    .. math:: \bar D = S / \sum_j w_j

    Args:
        row_sum: of probabilities, or of logits.
        wire: as for rows.

    Returns:
        A tensor of the sum's shape and the dtype of the format. It is as large as the rows of one site, however many
        contribute.

    Raises:
        ValueError: as :func:`encode_rows`, or if all weights are zero.
    """
    return encode_rows(mean_of_all(row_sum), wire)


def decode_sum(
    encoded: Tensor,
    rounds: Mapping[str, int],
    weights: Mapping[str, float],
    images: int,
    classes: int,
    scores: bool = False,
) -> RowSum:
    """The sum from what travelled.

    Args:
        encoded: as :func:`encode_sum` makes it.
        rounds: the contributors, each with the exchange that its rows are from.
        weights: of the contributors.
        images: number of public images.
        classes: number of classes.
        scores: whether it is of logits.

    Raises:
        MessageError: as :func:`decode_rows` and :func:`decode_scores`, or if contributors and weights do not fit.
    """
    mean = (decode_scores if scores else decode_rows)(encoded, images, classes, "the sum of the rows")
    try:
        return RowSum(mean * sum(weights.values()), dict(rounds), dict(weights))
    except ValueError as error:
        raise MessageError(str(error)) from error


def bytes_of_rows(images: int, classes: int, wire: WireFormat) -> int:
    """The size of a row-matrix on the wire, without the message around it.

    Example:
        >>> [bytes_of_rows(26379, 13, wire) for wire in ("fp32", "fp16", "uint8")]
        [1371708, 685854, 342927]
    """
    return images * classes * DTYPES[wire].itemsize
