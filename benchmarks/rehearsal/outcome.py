"""What a rehearsal's run has left: whether its model can be used, and its scores."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from benchmarks.rehearsal.watching import FaultCost
from grandrounds.data.datasets.phantom import PHANTOM_CLASSES
from grandrounds.data.partition.phantom_site import phantom_site
from grandrounds.data.site import PHANTOM_NAME, read_site_config
from grandrounds.deployment.submission import Outcome
from grandrounds.errors import GrandRoundsError
from grandrounds.evaluation.external import LabelledImages, load_test_images, predict_images
from grandrounds.evaluation.metrics import site_metrics
from grandrounds.models.trained import trained_models
from grandrounds.protocol.problem import Problem
from grandrounds.reporting.external.prediction import trained_model

COMPARED_SCORES = ("accuracy", "balanced_accuracy")
"""On the rehearsal's own test images; they are compared with those of the undisturbed run."""
TEST_PHANTOMS = 480
"""Drawn for each site, of which a quarter are test images."""
REHEARSED = Problem(PHANTOM_NAME, PHANTOM_CLASSES, image_size=32)
"""Of the images of the job."""


@dataclass(frozen=True)
class RehearsedRun:
    """A run of a rehearsal.

    Attributes:
        name: of the run.
        status: of its summary, or why there is none.
        attempts: how often it was submitted.
        rounds: complete ones.
        missed: rounds times sites without an answer.
        seconds: from the submission to the end.
        fault: why its model cannot be used; empty if it can.
        scores: of the selected model on the rehearsal's test images.
        lost_sums: secure sums that could not be opened.
    """

    name: str
    status: str
    attempts: int
    rounds: int
    missed: int
    seconds: float
    fault: str
    scores: dict[str, float] = field(default_factory=dict)
    lost_sums: int = 0

    @property
    def usable(self) -> bool:
        """Whether all rounds are complete and the model can be used."""
        return not self.fault


def rehearsed_run(
    name: str,
    outcome: Outcome | None,
    last: str,
    seconds: float,
    sites: Sequence[str],
    images: Mapping[str, LabelledImages],
) -> RehearsedRun:
    """What a run has left.

    Args:
        name: of the run.
        outcome: of its submission; None if it has none.
        last: line of the submission, for a run without an outcome.
        seconds: that it took.
        sites: of the federation.
        images: on which its model is tested, by site.
    """
    if outcome is None:
        return RehearsedRun(name, last, 0, 0, 0, round(seconds, 1), last)
    summary, scores = outcome.summary, dict[str, float]()
    fault = "" if outcome.finished and outcome.download else str(summary.get("reason") or outcome.status)
    if outcome.download and not fault:
        try:
            scores = _scores(outcome.download, images)
        except (GrandRoundsError, RuntimeError, OSError) as error:  # the file is damaged, or does not fit
            fault = " ".join(str(error).split())
    rounds = summary.get("rounds", ())
    missed = sum(len({*sites} - {*entry["answered"]}) for entry in rounds)
    status = str(summary.get("status", outcome.status))
    return RehearsedRun(name, status, len(outcome.jobs), len(rounds), missed, round(seconds, 1), fault, scores)


def drawn_test_images(sites: Sequence[str], folder: Path, seed: int) -> dict[str, LabelledImages]:
    """Synthetic images like those of the sites, which no site has, by site; ``seed`` is not that of the sites' images."""
    found = {}
    for site in sites:
        drawn = phantom_site(site, folder / "drawn", images=TEST_PHANTOMS, seed=1 + seed)
        location = read_site_config(drawn)[PHANTOM_NAME]
        found[site] = load_test_images(site, location, REHEARSED, PHANTOM_CLASSES, folder / "cache")
    return found


def differences(run: RehearsedRun, undisturbed: RehearsedRun) -> dict[str, float]:
    """The run's scores less those of the undisturbed run."""
    return {
        name: round(value - undisturbed.scores[name], 4)
        for name, value in run.scores.items()
        if name in undisturbed.scores
    }


def by_fault(costs: Sequence[FaultCost]) -> dict[str, dict[str, Any]]:
    """For each kind of fault, how often it came, what it has cost, and the seconds to recover.

    Example:
        >>> by_fault([FaultCost("cut connection", "a", "run-1", 2, recovered=4.0, usable=True)])["cut connection"]["times"]
        1
    """
    alike: Mapping[str, list[FaultCost]] = defaultdict(list)
    for cost in costs:
        alike[cost.kind].append(cost)
    return {kind: _together(alike[kind]) for kind in sorted(alike)}


def _together(costs: Sequence[FaultCost]) -> dict[str, Any]:
    seconds = [cost.recovered for cost in costs if cost.recovered is not None]
    return {
        "times": len(costs),
        "missed": sum(cost.missed for cost in costs),
        "most_missed": max(cost.missed for cost in costs),
        "repeated": sum(cost.repeated for cost in costs),
        "recovered": len(seconds),
        "median_seconds": round(median(seconds), 1) if seconds else None,
        "longest_seconds": max(seconds) if seconds else None,
        "usable": sum(cost.usable for cost in costs),
    }


def _scores(download: Path, images: Mapping[str, LabelledImages]) -> dict[str, float]:
    """Of the selected model on all images together.

    Raises:
        GrandRoundsError: if there is no model, it does not fit its network, or a prediction is not finite.
    """
    trained = trained_model(download / "workspace")
    problem, device = trained.problem, torch.device("cpu")
    model_of = trained_models(*trained.networks[0])
    found = [
        predict_images(
            model_of((test.images, np.arange(len(test.names)))), test, device, problem.kind, problem.test_view
        )
        for test in images.values()
    ]
    labels, probabilities = (
        np.concatenate([one.labels for one in found]),
        np.concatenate([one.probabilities for one in found]),
    )
    metrics = site_metrics(problem.kind, labels, probabilities)
    return {name: round(metrics[name], 4) for name in COMPARED_SCORES}
