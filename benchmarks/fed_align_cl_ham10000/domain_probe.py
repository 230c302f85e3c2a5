"""Domain probe: a linear classifier that names the hospital of an image from its embedding."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import balanced_accuracy_score
from sklearn.model_selection import StratifiedGroupKFold, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from benchmarks.fed_align_cl_ham10000.embeddings import Embeddings, Names, require_embeddings
from grandrounds.checks import require_at_least

FOLDS = 5


class SiteProbe(NamedTuple):
    """Balanced accuracy of a probe on held-out images, and that of guessing: one over the number of hospitals."""

    accuracy: float
    chance: float


def site_probe(
    embeddings: Embeddings, sites: Names, seed: int, groups: Names | None = None, folds: int = FOLDS
) -> SiteProbe:
    """Train logistic regression to name the hospital of an embedding, with cross-validation.

    Embeddings have shape ``(images, features)``; each feature is standardised on the training folds. Images of one group
    (a patient) are in one fold; without groups each image is a group. ``seed`` is that of the folds.

    Returns:
        The probe; its accuracy is NaN where a hospital has too few groups to be in every fold.

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
    probe = make_pipeline(StandardScaler(), LogisticRegression(class_weight="balanced", max_iter=1000))
    splits = StratifiedGroupKFold(folds, shuffle=True, random_state=seed)
    predicted = cross_val_predict(probe, embeddings, sites, groups=patients, cv=splits)
    return SiteProbe(float(balanced_accuracy_score(sites, predicted)), chance)
