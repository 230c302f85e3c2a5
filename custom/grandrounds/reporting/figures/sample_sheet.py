"""A sheet of single cases: where the model is surely right, surely wrong, and where it does not know.

It shows images, so it may only be drawn where they are, and is in no report that leaves the site.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from grandrounds.checks import require_at_least
from grandrounds.reporting.figures.drawing import NORMAL, SMALL, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHOWN = 6
MAP_COLOURS = "inferno"
TITLES = {
    "right": "right, the surest first",
    "wrong": "wrong, the surest first",
    "uncertain": "uncertain, the least sure first",
}


class Chosen(NamedTuple):
    """Rows of predictions, each of shape ``(at most so many as were asked for,)``.

    Attributes:
        right: rightly predicted, with falling confidence.
        wrong: wrongly predicted, with falling confidence.
        uncertain: with rising confidence; a row may be among the others, too, where there are few.
    """

    right: NDArray[np.int64]
    wrong: NDArray[np.int64]
    uncertain: NDArray[np.int64]


def choose_samples(labels: NDArray[np.int64], probabilities: NDArray[np.float64], count: int = SHOWN) -> Chosen:
    """Choose the cases of a sheet; of equally sure ones the first.

    Args:
        labels: true classes, shape ``(n,)``.
        probabilities: of the classes, shape ``(n, classes)``.
        count: how many of each kind.

    Raises:
        ValueError: if ``count`` is below one or the lengths differ.

    Example:
        >>> choose_samples(np.array([0, 0, 1]), np.array([[0.9, 0.1], [0.4, 0.6], [0.3, 0.7]]), count=1)
        Chosen(right=array([0]), wrong=array([1]), uncertain=array([1]))
    """
    require_at_least(count, 1, "count")
    if len(labels) != len(probabilities):
        raise ValueError(f"expected as many probabilities as labels ({len(labels)}), got {len(probabilities)}")
    confidence = probabilities.max(axis=1)
    falling, right = np.argsort(-confidence, kind="stable"), probabilities.argmax(axis=1) == labels
    return Chosen(
        falling[right[falling]][:count],
        falling[~right[falling]][:count],
        np.argsort(confidence, kind="stable")[:count],
    )


def sample_figure(
    images: NDArray[np.uint8],
    labels: NDArray[np.int64],
    probabilities: NDArray[np.float64],
    classes: Sequence[str],
    maps: NDArray[np.float32] | None = None,
    count: int = SHOWN,
) -> Figure:
    """Draw the sheet: a row for each kind, under each image what it is and what it was taken for.

    Args:
        images: shape ``(n, size, size, channels)``, 8 bit.
        labels: true classes, shape ``(n,)``.
        probabilities: of the classes, shape ``(n, classes)``.
        classes: their names.
        maps: shape ``(n, size, size)``, in [0, 1]: laid over the images, where the network finds its evidence.
        count: how many of each kind.

    Raises:
        ValueError: as :func:`choose_samples`.
    """
    chosen = choose_samples(labels, probabilities, count)
    figure = new_figure(1.5 * count, 6.6)
    panels = figure.subplots(len(chosen), count, squeeze=False)
    for row, (kind, rows) in zip(panels, chosen._asdict().items(), strict=True):
        row[0].set_title(TITLES[kind] if len(rows) else f"{kind}: none", fontsize=NORMAL, loc="left")
        for axes in row:
            axes.set_axis_off()
        for axes, index in zip(row, rows.tolist(), strict=False):
            axes.imshow(images[index].squeeze(), cmap="gray")
            if maps is not None:
                axes.imshow(maps[index], cmap=MAP_COLOURS, alpha=0.6 * maps[index], vmin=0, vmax=1)
            told = int(probabilities[index].argmax())
            words = f"{classes[int(labels[index])]}\n{classes[told]} {probabilities[index, told]:.2f}"
            axes.text(0.5, -0.03, words, ha="center", va="top", fontsize=SMALL, transform=axes.transAxes)
    figure.supxlabel("under each image: its class, then the prediction with its probability", fontsize=SMALL)
    return figure
