"""A model that is adapted to a place: from some of the place's labels, or from its class shares, and tested on the rest."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from grandrounds.errors import ConfigurationError
from grandrounds.evaluation.bootstrap import Cases
from grandrounds.evaluation.clinical.adaptation import Adaptation, AtPlace
from grandrounds.evaluation.clinical.results import Adapted
from grandrounds.evaluation.external import ImagePredictions
from grandrounds.evaluation.score import ScoreSheet
from grandrounds.models.closed_form.sums import Sums
from grandrounds.plain import to_plain
from grandrounds.reporting.external.result import run_at
from grandrounds.reporting.run import ReadRun
from grandrounds.reporting.scores import scores_of
from grandrounds.seeding import numpy_generator

if TYPE_CHECKING:
    from grandrounds.reporting.external.prediction import Place
    from grandrounds.reporting.external.preparation import Labels


@dataclass(frozen=True, eq=False)
class AdaptedPlace:
    """What an adaptation did at a place; for the place itself.

    Attributes:
        how: in words.
        images: whose labels were used.
        cases: that they are of.
        by_class: what was fitted, by name and class.
        before: the other images as a run's test, with the model as it is.
        after: the same with the adapted one.
    """

    how: str
    images: int
    cases: int
    by_class: Mapping[str, Mapping[str, float]]
    before: ReadRun
    after: ReadRun

    def plain(self) -> dict[str, Any]:
        """As plain values, with the scores of each class before and after."""
        sheets = {name: scores_of(run, 1).pooled for name, run in (("before", self.before), ("after", self.after))}
        scores = {name: to_plain({"scores": one.scores, "classes": one.classes}) for name, one in sheets.items() if one}
        return {"how": self.how, "images": self.images, "by_class": dict(self.by_class), **scores}

    def shown(self, minimum: int, hidden: Sequence[bool]) -> Adapted:
        """As it may leave: counts by class of the rest would give away those of the few labels that were used.

        Args:
            minimum: the smallest count that may be shown.
            hidden: classes whose counts are hidden everywhere.
        """
        before, after = (self._sheet(run, minimum, hidden) for run in (self.before, self.after))
        if not 0 < self.cases < minimum:
            return Adapted(self.how, self.images, before, after)
        return Adapted(self.how, None, *(replace(sheet, images=None, cases=None) for sheet in (before, after)))

    @staticmethod
    def _sheet(run: ReadRun, minimum: int, hidden: Sequence[bool]) -> ScoreSheet:
        sheet = scores_of(run, minimum, hidden).pooled
        assert sheet is not None
        scores = {name: score if score.few else score._replace(cases=None) for name, score in sheet.scores.items()}
        confidence = {name: value for name, value in sheet.confidence.items() if name == "ece"}
        return replace(sheet, scores=scores, classes={}, references={}, shares={}, confidence=confidence)


def adapt_place(
    adaptation: Adaptation,
    run: ReadRun,
    place: Place,
    labels: Labels,
    home: Callable[[], Cases],
    last_layer: Callable[[], tuple[Tensor, Tensor]],
    sums: Callable[[], tuple[Sums, float, tuple[float, ...], Tensor]] | None = None,
) -> AdaptedPlace:
    """Adapt a run's model and test it on the images whose labels were not used.

    Labels are of cases drawn at random, all images of a case together; the same place always gives the same ones.

    Args:
        adaptation: how.
        run: whose model it is.
        place: what was predicted.
        labels: what they are; classes, not groups.
        home: gives predictions for the run's validation images.
        last_layer: gives what the model's last layer reads of the place's images, and its weights.
        sums: gives sums of training images, their penalty and class weights, and features of the place's images; None
            without sums.

    Raises:
        ConfigurationError: if more than half of the images would be fitted on.
    """
    predictions = list(place.sites.values())
    probabilities, truth = (
        np.concatenate([getattr(one, name) for one in predictions]) for name in ("probabilities", "labels")
    )
    fitted, cases = _drawn(place.sites, adaptation.images)
    if 2 * fitted.sum() > len(truth):
        raise ConfigurationError(
            f"--recalibrate: {fitted.sum()} of {len(truth)} labelled images would be fitted on, and at least half must be "
            "left to test on; take fewer labels, or label more images"
        )
    rows = np.flatnonzero(fitted)
    fit = adaptation.adapted(AtPlace(run.classes, probabilities, truth[rows], rows, home, last_layer, sums))
    named = {
        name: dict(zip(run.classes, values.round(4).tolist(), strict=True)) for name, values in fit.by_class.items()
    }
    before, after = (
        run_at(run, replace(place, sites=_rest(place.sites, ~fitted, one)), labels)
        for one in (probabilities, fit.probabilities)
    )
    return AdaptedPlace(fit.how, len(rows), cases, named, before, after)


def _drawn(sites: Mapping[str, ImagePredictions], images: int) -> tuple[NDArray[np.bool_], int]:
    """Whether each image is one of the first cases in a random order that have so many images, and how many cases."""
    named = [f"{site}\n{case}" for site, one in sites.items() for case in (one.groups or one.names)]
    cases, of_image, sizes = np.unique(np.array(named, np.str_), return_inverse=True, return_counts=True)
    order = numpy_generator("external", "adaptation").permutation(len(cases))
    before = np.cumsum(sizes[order]) - sizes[order]
    chosen = order[before < images]
    return np.isin(of_image, chosen), len(chosen)


def _rest(
    sites: Mapping[str, ImagePredictions], kept: NDArray[np.bool_], probabilities: NDArray[np.float64]
) -> dict[str, ImagePredictions]:
    """The kept images of each site that has some, with these probabilities."""
    kept_images, start = {}, 0
    for site, predictions in sites.items():
        rows = np.flatnonzero(kept[start : start + len(predictions.names)])
        names, groups = (tuple(of[row] for row in rows) if of else () for of in (predictions.names, predictions.groups))
        if len(rows):
            kept_images[site] = ImagePredictions(names, predictions.labels[rows], probabilities[start + rows], groups)
        start += len(predictions.names)
    return kept_images
