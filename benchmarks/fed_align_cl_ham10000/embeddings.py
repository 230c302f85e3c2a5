"""How the embeddings of several hospitals lie: their separation, and a picture in a plane.

A plot of two dimensions (t-SNE: van der Maaten & Hinton, JMLR 2008) depends on its perplexity and seed. The silhouette of
the hospitals in the embedding itself (Rousseeuw, Journal of Computational and Applied Mathematics 1987) depends on neither.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray

from grandrounds.data.images.tensors import to_tensor
from grandrounds.models.inference.forward import Forward
from grandrounds.models.split import split_network
from grandrounds.ordering import natural_sorted
from grandrounds.plotting import COLOURS, NORMAL_SIZE, SMALL_SIZE, new_figure
from grandrounds.reporting.runs import SitePredictions

Embeddings = NDArray[np.floating[Any]]
Names = NDArray[Any]
PERPLEXITY = 30.0
PLANE_INCHES = 3.6


def site_silhouette(embeddings: Embeddings, sites: Names) -> float:
    """The mean silhouette of the hospitals, equally weighted: 1 is separated, 0 mixed, below 0 swapped.

    Embeddings have shape ``(images, features)``; NaN if every image is a hospital by itself.

    Raises:
        ValueError: if shapes do not fit, a value is not finite, or there is one hospital only.
    """
    require_embeddings(embeddings, sites, "sites")
    names = np.unique(sites)
    if len(names) == len(sites):
        return math.nan
    from sklearn.metrics import silhouette_samples

    values = silhouette_samples(embeddings, sites)
    return float(np.mean([values[sites == name].mean() for name in names]))


def plane_of(embeddings: Embeddings, seed: int) -> NDArray[np.float64]:
    """Place embeddings in a plane by t-SNE, started from their principal components.

    Args:
        embeddings: shape ``(images, features)``, more images than ``PERPLEXITY``, about an image's neighbours; finite.
        seed: of the optimisation.

    Returns:
        Shape ``(images, 2)``; distances between clusters mean nothing.

    Raises:
        ValueError: if there are too few images, or a value is not finite.
    """
    if embeddings.ndim != 2 or len(embeddings) <= PERPLEXITY or not np.isfinite(embeddings).all():
        raise ValueError(
            f"embeddings must be finite and of shape (images, features) with more than {PERPLEXITY:g} images, got "
            f"{embeddings.shape}"
        )
    from sklearn.manifold import TSNE

    plane = TSNE(2, perplexity=PERPLEXITY, init="pca", random_state=seed).fit_transform(embeddings)
    return np.asarray(plane, np.float64)


def require_embeddings(embeddings: Embeddings, names: Names, what: str) -> None:
    """Check that finite embeddings are of at least two sites.

    Raises:
        ValueError: if shapes do not fit, a value is not finite, or there are fewer than two names.
    """
    if embeddings.ndim != 2 or len(embeddings) != len(names):
        raise ValueError(
            f"embeddings must have shape (images, features) with a row for each of {len(names)} {what}, got "
            f"{embeddings.shape}"
        )
    bad = ~np.isfinite(embeddings).all(axis=1)
    if bad.any():
        raise ValueError(f"row {int(np.flatnonzero(bad)[0])} of the embeddings is not finite")
    if len(np.unique(names)) < 2:
        raise ValueError(f"{what} must be at least two")


def plane_figure(
    plane: NDArray[np.float64], sites: NDArray[np.str_], malignant: NDArray[np.bool_], caption: str
) -> Figure:
    """Draw images as a model embeds them.

    Args:
        plane: the images' positions, shape ``(images, 2)``, see :func:`plane_of`.
        sites: the hospital of each image; with more hospitals than colours, colours repeat.
        malignant: shape ``(images,)``; crosses, all others are circles.
        caption: written below.
    """
    figure = new_figure(PLANE_INCHES, PLANE_INCHES + 0.6)
    axes = figure.subplots()
    for index, site in enumerate(natural_sorted(set(sites.tolist()))):
        colour = COLOURS[index % len(COLOURS)]
        own = sites == site
        benign, cancers = plane[own & ~malignant], plane[own & malignant]
        axes.scatter(benign[:, 0], benign[:, 1], s=7, facecolors="none", edgecolors=colour, linewidths=0.5)
        axes.scatter(cancers[:, 0], cancers[:, 1], s=11, marker="x", color=colour, linewidths=0.8)
        axes.scatter([], [], s=20, color=colour, label=site)
    axes.scatter([], [], s=20, facecolors="none", edgecolors="black", label="not malignant")
    axes.scatter([], [], s=20, marker="x", color="black", label="malignant")
    # Neither axis of such a plane has a meaning or a scale.
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_title("embedding", fontsize=NORMAL_SIZE)
    axes.set_xlabel(caption, fontsize=SMALL_SIZE)
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside lower center", ncols=min(len(labels), 4), fontsize=SMALL_SIZE, frameon=False
    )
    return figure


def embedding_figures(sites: Sequence[SitePredictions]) -> dict[str, Figure]:
    """Embeddings of all sites' test images, and what does not depend on the projection below it."""
    names = np.array([site.site for site in sites for _ in site.labels], np.str_)
    if len(names) <= PERPLEXITY or len(sites) < 2:
        return {}
    embedded = [Forward(split_network(site.model).encoder)(to_tensor(site.images)) for site in sites]
    values = torch.cat(embedded).numpy()
    malignant = np.concatenate([site.labels for site in sites]) == 1
    caption = f"silhouette of the sites {site_silhouette(values, names):.2f}"
    return {"embeddings": plane_figure(plane_of(values, seed=1), names, malignant, caption)}
