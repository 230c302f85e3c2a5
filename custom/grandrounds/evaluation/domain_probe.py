"""How well embeddings tell from which hospital an image is: a number beside every picture of aligned features.

A plot of two dimensions (t-SNE: van der Maaten & Hinton, JMLR 2008) shows what its perplexity and seed make of the
data. The accuracy of a linear probe and the silhouette (Rousseeuw, Journal of Computational and Applied Mathematics
1987) of the hospitals in the embedding itself depend on neither.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from grandrounds.checks import require_at_least

Embeddings = NDArray[np.floating[Any]]
Names = NDArray[Any]
FOLDS = 5
PERPLEXITY = 30.0


class SiteProbe(NamedTuple):
    """How far a linear classifier tells hospitals apart.

    Attributes:
        accuracy: mean of the hospitals' recalls on held-out images, from 0 to 1.
        chance: what guessing gives: one over the number of hospitals.
    """

    accuracy: float
    chance: float


def site_probe(
    embeddings: Embeddings, sites: Names, seed: int, groups: Names | None = None, folds: int = FOLDS
) -> SiteProbe:
    """Train logistic regression to name the hospital of an embedding, with cross-validation.

    Args:
        embeddings: shape ``(images, features)``, finite; each feature is standardised on the training folds.
        sites: the hospital of each image, two at least.
        seed: of the folds.
        groups: the patient of each image: images of one are in one fold. None: each image is by itself.
        folds: how many.

    Returns:
        Balanced accuracy over all held-out images, and chance. NaN where a hospital has too few images or patients to
        be in every fold.

    Raises:
        ValueError: if shapes do not fit, a value is not finite, there is one hospital only, or ``folds`` is below two.
    """
    _require_embeddings(embeddings, sites, "sites")
    require_at_least(folds, 2, "folds")
    patients = np.arange(len(sites)) if groups is None else np.asarray(groups)
    if len(patients) != len(sites):
        raise ValueError(f"groups must have an entry for each of {len(sites)} images, got {len(patients)}")
    names = np.unique(sites)
    chance = 1 / len(names)
    if any(len(np.unique(patients[sites == name])) < folds for name in names):
        return SiteProbe(math.nan, chance)
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import balanced_accuracy_score
    from sklearn.model_selection import StratifiedGroupKFold, cross_val_predict
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    probe = make_pipeline(StandardScaler(), LogisticRegression(class_weight="balanced", max_iter=1000))
    splits = StratifiedGroupKFold(folds, shuffle=True, random_state=seed)
    predicted = cross_val_predict(probe, embeddings, sites, groups=patients, cv=splits)
    return SiteProbe(float(balanced_accuracy_score(sites, predicted)), chance)


def site_silhouette(embeddings: Embeddings, sites: Names) -> float:
    """The mean silhouette of the hospitals, each weighing the same: 1 is apart, 0 mixed, below 0 swapped.

    Args:
        embeddings: shape ``(images, features)``, finite.
        sites: the hospital of each image, two at least.

    Returns:
        From -1 to 1; NaN if every image is a hospital by itself.

    Raises:
        ValueError: if shapes do not fit, a value is not finite, or there is one hospital only.
    """
    _require_embeddings(embeddings, sites, "sites")
    names = np.unique(sites)
    if len(names) == len(sites):
        return math.nan
    from sklearn.metrics import silhouette_samples

    values = silhouette_samples(embeddings, sites)
    return float(np.mean([values[sites == name].mean() for name in names]))


def plane_of(embeddings: Embeddings, seed: int, perplexity: float = PERPLEXITY) -> NDArray[np.float64]:
    """Place embeddings in a plane by t-SNE, started from their principal components.

    Args:
        embeddings: shape ``(images, features)``, more images than ``perplexity``, finite.
        seed: of the optimisation.
        perplexity: about how many neighbours an image has.

    Returns:
        Shape ``(images, 2)``. Distances between clusters mean nothing.

    Raises:
        ValueError: if there are too few images, or a value is not finite.
    """
    if embeddings.ndim != 2 or len(embeddings) <= perplexity or not np.isfinite(embeddings).all():
        raise ValueError(
            f"embeddings must be finite and of shape (images, features) with more than {perplexity:g} images, got "
            f"{embeddings.shape}"
        )
    from sklearn.manifold import TSNE

    plane = TSNE(2, perplexity=perplexity, init="pca", random_state=seed).fit_transform(embeddings)
    return np.asarray(plane, np.float64)


def _require_embeddings(embeddings: Embeddings, names: Names, what: str) -> None:
    if embeddings.ndim != 2 or len(embeddings) != len(names):
        raise ValueError(
            f"embeddings must have shape (images, features) with a row for each of {len(names)} {what}, got "
            f"{embeddings.shape}"
        )
    bad = ~np.isfinite(embeddings).all(axis=1)
    if bad.any():
        raise ValueError(f"row {int(np.flatnonzero(bad)[0])} of the embeddings is not finite")
    if len(np.unique(names)) < 2:
        raise ValueError(f"{what} must be two at least to be told apart")
