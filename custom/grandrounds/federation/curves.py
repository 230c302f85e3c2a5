"""Curve counts of the sites' test predictions, as releases of the last task's answer.

Predictions stay at the site. Counts of several patients each (:mod:`grandrounds.evaluation.curves`) may leave it if its gate
allows them; without them the scores leave all the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from grandrounds.data.site import SiteData
from grandrounds.errors import MessageError
from grandrounds.evaluation.cases import cases_of
from grandrounds.evaluation.curves import (
    COUNTS,
    MINIMUM,
    SiteCurves,
    decode_counts,
    encode_counts,
    site_curves,
    write_curves,
)
from grandrounds.protocol.messages import CURVES, Release, ReleaseKind, Result


def curve_counts(data: SiteData, rows: np.ndarray, probabilities: Tensor) -> SiteCurves:
    """A site's counts: of at least ``MINIMUM`` patients each, or of more where the site says so.

    Args:
        data: the site's.
        rows: of the predicted images, whose labels are known.
        probabilities: of the classes, shape ``(rows, classes)``.
    """
    groups = [data.groups[row] for row in rows]
    cases = cases_of(data.labels[rows], probabilities.double().numpy(), groups)
    return site_curves(cases, data.classes, max(MINIMUM, data.min_support))


def curve_releases(curves: Mapping[str, SiteCurves], classes: Sequence[str]) -> dict[str, Release]:
    """Counts as releases.

    Args:
        curves: by the tested model's name.
        classes: the vocabulary.

    Returns:
        Those of models in ``CURVES`` that have any counts.
    """
    return {
        CURVES[model]: Release(ReleaseKind.CURVES, {COUNTS: torch.from_numpy(encode_counts(found, classes))})
        for model, found in curves.items()
        if model in CURVES and (found.classes or found.reliability)
    }


def received_curves(result: Result, classes: Sequence[str]) -> dict[str, SiteCurves]:
    """The counts in an answer, by the release's name.

    Raises:
        MessageError: if a name is not in ``CURVES``, or counts are misshapen or of fewer than ``MINIMUM`` patients.
    """
    found = {}
    for name, release in result.releases.items():
        if release.kind is not ReleaseKind.CURVES:
            continue
        if name not in CURVES.values() or release.tensors.keys() != {COUNTS}:
            raise MessageError(f"curves must be {' or '.join(CURVES.values())} with {COUNTS}, got {name!r}")
        try:
            found[name] = decode_counts(release.tensors[COUNTS].numpy(), classes, MINIMUM)
        except ValueError as error:
            raise MessageError(f"{name}: {error}") from error
    return found


def keep_curves(folder: Path, curves: Mapping[str, SiteCurves], classes: Sequence[str]) -> None:
    """Write a site's counts where a report looks for them: ``NAME.json`` each."""
    for name, found in curves.items():
        write_curves(folder / f"{name}.json", found, classes)
