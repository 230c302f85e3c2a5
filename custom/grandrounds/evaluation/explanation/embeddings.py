"""Embeddings of several hospitals: their separation, and a plane in which they can be drawn.

A plot of two dimensions (t-SNE: van der Maaten & Hinton, JMLR 2008) depends on its perplexity and seed. The silhouette of
the hospitals in the embedding itself (Rousseeuw, Journal of Computational and Applied Mathematics 1987) depends on neither.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

Embeddings = NDArray[np.floating[Any]]
Names = NDArray[Any]
PERPLEXITY = 30.0


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
