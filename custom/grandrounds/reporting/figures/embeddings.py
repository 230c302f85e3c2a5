"""Embeddings in a plane: each image a dot whose colour is its hospital and whose shape is its diagnosis.

The picture of Fed-Align-CL's paper. Beside it belongs what does not depend on the projection: the probe and the silhouette
of :mod:`grandrounds.evaluation.domain_probe`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from grandrounds.ordering import natural_sorted
from grandrounds.reporting.figures.drawing import COLOURS, NORMAL, SMALL, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PANEL_INCHES = 3.6


def plane_figure(
    planes: Mapping[str, ArrayLike],
    sites: Sequence[str],
    malignant: NDArray[np.bool_],
    names: Mapping[str, str] | None = None,
    captions: Mapping[str, str] | None = None,
) -> Figure:
    """Draw the same images as several models place them.

    Args:
        planes: by the model's name, the images' places, shape ``(images, 2)``, see
            :func:`~grandrounds.evaluation.domain_probe.plane_of`.
        sites: the hospital of each image.
        malignant: shape ``(images,)``; crosses, all others are circles.
        names: of the hospitals in the legend, where they have others.
        captions: by the model's name, what is written below its panel, such as the probe's accuracy.

    Returns:
        A panel for each model beside each other, with one legend. With more hospitals than colours these come again.

    Raises:
        ValueError: if there is no plane, or the numbers of images differ.
    """
    if not planes:
        raise ValueError("there must be one plane at least to draw")
    places = {name: np.asarray(plane, np.float64) for name, plane in planes.items()}
    for name, plane in places.items():
        if plane.shape != (len(sites), 2) or malignant.shape != (len(sites),):
            raise ValueError(
                f"{name}: expected {len(sites)} places and flags, one for each image, got {plane.shape} and "
                f"{malignant.shape}"
            )
    figure = new_figure(PANEL_INCHES * len(places), PANEL_INCHES + 0.6)
    panels = figure.subplots(1, len(places), squeeze=False)[0]
    for axes, (name, plane) in zip(panels, places.items(), strict=True):
        _draw(axes, plane, np.asarray(sites), malignant, names or {})
        axes.set_title(name, fontsize=NORMAL)
        axes.set_xlabel((captions or {}).get(name, ""), fontsize=SMALL)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), 4), fontsize=SMALL, frameon=False)
    return figure


def _draw(
    axes: Axes,
    plane: NDArray[np.float64],
    sites: NDArray[np.str_],
    malignant: NDArray[np.bool_],
    names: Mapping[str, str],
) -> None:
    for index, site in enumerate(natural_sorted(set(sites.tolist()))):
        colour = COLOURS[index % len(COLOURS)]
        own = sites == site
        benign, cancers = plane[own & ~malignant], plane[own & malignant]
        axes.scatter(benign[:, 0], benign[:, 1], s=7, facecolors="none", edgecolors=colour, linewidths=0.5)
        axes.scatter(cancers[:, 0], cancers[:, 1], s=11, marker="x", color=colour, linewidths=0.8)
        axes.scatter([], [], s=20, color=colour, label=names.get(site, site))
    axes.scatter([], [], s=20, facecolors="none", edgecolors="black", label="not malignant")
    axes.scatter([], [], s=20, marker="x", color="black", label="malignant")
    # Neither axis of such a plane has a meaning or a scale.
    axes.set_xticks([])
    axes.set_yticks([])
