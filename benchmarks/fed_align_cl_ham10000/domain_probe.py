"""Domain probe: how well a linear classifier recognises from its embedding which hospital an image is from."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from grandrounds.checks import require_at_least
from grandrounds.evaluation.embeddings import Embeddings, Names, require_embeddings

FOLDS = 5


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
    require_embeddings(embeddings, sites, "sites")
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
