"""What a site tells of its curves with the answer to the last task, and what the server makes of it.

Predictions stay at the site. Counts of several patients each may leave it, if its gate lets them; without them the scores
leave all the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from grandrounds.data.site import SiteData
from grandrounds.errors import MessageError
from grandrounds.evaluation.cases import cases_of
from grandrounds.evaluation.curves import COUNTS, LEAST, SiteCurves, counts_of, curves_from, curves_of, write_curves
from grandrounds.protocol.messages import CURVES, Release, ReleaseKind, Result


def told_curves(data: SiteData, rows: np.ndarray, probabilities: Tensor) -> SiteCurves:
    """What a site may tell of its predictions: counts of ``LEAST`` patients each, or of more where the site says so.

    Args:
        data: the site's.
        rows: of the predicted images, whose labels are known.
        probabilities: of the classes, shape ``(rows, classes)``.
    """
    groups = [data.groups[row] for row in rows]
    cases = cases_of(data.labels[rows], probabilities.double().numpy(), groups)
    return curves_of(cases, data.classes, max(LEAST, data.min_support))


def curve_releases(told: Mapping[str, SiteCurves], classes: tuple[str, ...]) -> dict[str, Release]:
    """Curves as releases.

    Args:
        told: by the tested model's name.
        classes: the vocabulary.

    Returns:
        Those of models in ``CURVES`` of which there is anything to tell.
    """
    return {
        CURVES[model]: Release(ReleaseKind.CURVES, {COUNTS: torch.from_numpy(counts_of(curves, classes))})
        for model, curves in told.items()
        if model in CURVES and (curves.classes or curves.reliability)
    }


def received_curves(result: Result, classes: tuple[str, ...]) -> dict[str, SiteCurves]:
    """The curves in an answer, by the release's name.

    Raises:
        MessageError: if a name is not in ``CURVES``, or counts are misshapen or of fewer than ``LEAST`` cases.
    """
    found = {}
    for name, release in result.releases.items():
        if release.kind is not ReleaseKind.CURVES:
            continue
        if name not in CURVES.values() or release.tensors.keys() != {COUNTS}:
            raise MessageError(f"curves must be {' or '.join(CURVES.values())} with {COUNTS}, got {name!r}")
        try:
            found[name] = curves_from(release.tensors[COUNTS].numpy(), classes, LEAST)
        except ValueError as error:
            raise MessageError(f"{name}: {error}") from error
    return found


def keep_curves(folder: Path, curves: Mapping[str, SiteCurves]) -> None:
    """Write a site's curves where a report looks for them: ``NAME.json`` each."""
    for name, told in curves.items():
        write_curves(folder / f"{name}.json", told)
