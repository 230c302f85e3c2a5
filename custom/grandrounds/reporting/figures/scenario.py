"""Where several models look, on the images on which they agree and on those on which one stands alone.

The picture of Fed-Align-CL's paper: a row for each scenario of :func:`grandrounds.evaluation.grad_cam.scenarios`, the image
and each model's map over it, and beside it the share of the map that lies inside the breast.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from grandrounds.evaluation.grad_cam import Scenario, share_inside
from grandrounds.reporting.figures.drawing import NORMAL, SMALL, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TITLES: Mapping[Scenario, str] = MappingProxyType(
    {
        "all_right": "all right",
        "all_wrong": "all wrong",
        "ours_right_others_wrong": "{ours} right,\nothers wrong",
        "reference_right_ours_wrong": "{reference} right,\n{ours} wrong",
    }
)
PANEL_INCHES = 2.2
OVERLAY = 0.5


def breast_masks(images: NDArray[np.uint8]) -> Tensor:
    """Where a prepared mammogram shows the breast: all else is 0 there (:mod:`grandrounds.data.images.mammogram`).

    Args:
        images: shape ``(images, height, width, channels)``.

    Returns:
        bool, shape ``(images, height, width)``.

    Example:
        >>> breast_masks(np.array([[[[0], [9]]]], np.uint8)).tolist()
        [[[False, True]]]
    """
    return torch.from_numpy(images.max(axis=3) > 0)


def scenario_figure(
    images: NDArray[np.uint8],
    maps: Mapping[str, Tensor],
    found: Mapping[Scenario, Tensor],
    ours: str,
    reference: str,
    breast: bool = True,
) -> Figure:
    """Draw the first image of each scenario, plain and under each model's map.

    Args:
        images: shape ``(images, height, width, channels)``.
        maps: by model, from 0 to 1, shape ``(images, height, width)``, see
            :func:`~grandrounds.evaluation.grad_cam.class_activation`.
        found: indices of the images by scenario, see :func:`~grandrounds.evaluation.grad_cam.scenarios`.
        ours: the model in question, one of ``maps``.
        reference: the model that it extends.
        breast: whether the images are prepared mammograms, so that a map's share inside the breast can be told.

    Returns:
        Four rows; a scenario without an image says so. Below each map of a mammogram stands its share inside the breast,
        which of a map without activation is a dash.

    Raises:
        ValueError: if maps and images differ in shape, or a model has no maps.
    """
    missing = {ours, reference} - maps.keys()
    if missing:
        raise ValueError(f"maps of {', '.join(sorted(missing))} are missing")
    masks = breast_masks(images)
    shares = {name: share_inside(own, masks) for name, own in maps.items()}
    figure = new_figure(PANEL_INCHES * (1 + len(maps)), PANEL_INCHES * len(TITLES))
    panels = figure.subplots(len(TITLES), 1 + len(maps), squeeze=False)
    for row, (scenario, title) in zip(panels, TITLES.items(), strict=True):
        row[0].set_ylabel(title.format(ours=ours, reference=reference), fontsize=NORMAL)
        indices = found[scenario].tolist()
        for axes in row:
            axes.set_xticks([])
            axes.set_yticks([])
        if not indices:
            row[0].text(0.5, 0.5, "no image", ha="center", va="center", fontsize=SMALL, transform=row[0].transAxes)
            continue
        image = images[indices[0]]
        row[0].imshow(_grey(image), cmap="gray", vmin=0, vmax=255)
        for axes, name in zip(row[1:], maps, strict=True):
            _overlay(axes, image, maps[name][indices[0]].numpy())
            axes.set_xlabel(_inside(shares[name][indices[0]]) if breast else "", fontsize=SMALL)
    for axes, name in zip(panels[0][1:], maps, strict=True):
        axes.set_title(name, fontsize=NORMAL)
    return figure


def _overlay(axes: Axes, image: NDArray[np.uint8], heat: NDArray[np.float32]) -> None:
    axes.imshow(_grey(image), cmap="gray", vmin=0, vmax=255)
    axes.imshow(heat, cmap="inferno", vmin=0, vmax=1, alpha=OVERLAY)


def _inside(share: Tensor) -> str:
    return "—" if share.isnan() else f"{float(share):.0%} inside"


def _grey(image: NDArray[np.uint8]) -> NDArray[np.float64]:
    return np.asarray(image.mean(axis=2), np.float64)
