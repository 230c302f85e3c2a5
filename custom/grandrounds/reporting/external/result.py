"""The result of an external evaluation: made by ``grandrounds evaluate``, written as JSON, read by a report.

It says how far the images of a place are from the training images, before a label is used.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from grandrounds import __version__
from grandrounds.errors import DataError
from grandrounds.evaluation.bootstrap import Cases, joined, questions_of
from grandrounds.evaluation.clinical.binary import binary_cases
from grandrounds.evaluation.clinical.image_moments import evenly_spaced, least_deviations, moments_of
from grandrounds.evaluation.clinical.results import Adapted, GroupResult, SubgroupResult
from grandrounds.evaluation.clinical.subgroups import subgroups_of
from grandrounds.evaluation.clinical.suppression import shown_counts, without_small_counts
from grandrounds.evaluation.clinical.validation import Request, score_subgroups, validate_group
from grandrounds.evaluation.grouping import Grouping, grouped_cases, summed_probabilities
from grandrounds.evaluation.metrics import site_metrics
from grandrounds.evaluation.record import EvalRecord, pooled
from grandrounds.evaluation.score import Score, ScoreSheet
from grandrounds.evaluation.site_record import NUMBER
from grandrounds.plain import from_plain, to_plain
from grandrounds.reporting.caveats import MISSED, caveats_of
from grandrounds.reporting.run import (
    FINISHED,
    SCORES_ELSEWHERE,
    ReadRun,
    RunLog,
    RunScores,
    Tests,
    mean_over_sites,
    scores_of,
)
from grandrounds.reporting.tables import SCORE_NAMES, format_estimate, format_list, format_share

if TYPE_CHECKING:
    from grandrounds.reporting.external.prediction import AdaptedPlace, Labels, Place


FAR = 2.0
"""Deviations of the training images from which on many images are called unlike them; of n images 1 + 1 / sqrt(n) times."""
_OLD = "the run's record has no moments of them; it is of an earlier version, or has not been tested"


@dataclass(frozen=True)
class FigureShift:
    """A figure of a place's images: its mean here, mean and deviation in training, and the difference in deviations."""

    name: str
    here: float
    training: float
    deviation: float
    deviations: float

    @property
    def shown(self) -> tuple[str, str]:
        """The means here and in training, as text; sizes in pixels."""
        here, there = (f"{2**one:.0f}" if self.name == "size" else f"{one:.3g}" for one in (self.here, self.training))
        return here, there

    @property
    def in_words(self) -> str:
        """The means and their difference."""
        return f"{self.name} {' against '.join(self.shown)} ({self.deviations:+.1f} deviations)"


@dataclass(frozen=True)
class Appearance:
    """The figures of a place's images beside those of the training images, or why these are unavailable.

    Attributes:
        figures: none where they are unavailable.
        unavailable: the reason.
        far: deviations from which on the images are unlike.
    """

    figures: tuple[FigureShift, ...] = ()
    unavailable: str = ""
    far: float = FAR

    @property
    def unlike(self) -> str:
        """In which figures the images are unlike the training images, the farthest first; empty if in none."""
        ordered = sorted(self.figures, key=lambda one: -abs(one.deviations))
        far = format_list([figure.in_words for figure in ordered if abs(figure.deviations) >= self.far])
        return f"The images are unlike the training images: {far}." if far else ""

    @property
    def finding(self) -> str:
        """In a sentence."""
        if self.unavailable:
            return f"Whether the images are like the training images is unavailable: {self.unavailable}."
        largest = max(self.figures, key=lambda figure: abs(figure.deviations))
        return self.unlike or f"The images are like the training images; the largest difference is {largest.in_words}."


def appearance_of(
    training: Mapping[str, Any], images: Iterable[tuple[NDArray[np.uint8], Sequence[Sequence[int]]]]
) -> Appearance:
    """Compare the images of a place with the training images of a run.

    Args:
        training: the entry of the run's record, see
            :func:`~grandrounds.evaluation.clinical.image_moments.training_moments`.
        images: of the place, in sets: as a network takes them, shape ``(n, side, side, channels)``, and height and width of
            each before it was resized.
    """
    figures: Mapping[str, tuple[float, float]] = training.get("figures", {})
    if not figures:
        return Appearance(unavailable=training.get("unavailable", _OLD))
    moments = [(len(one), moments_of(one, shapes, evenly_spaced(np.arange(len(one))))[0]) for one, shapes in images]
    here = np.average([mean for _, mean in moments], axis=0, weights=[count for count, _ in moments])
    least = least_deviations(1 if "brightness" in figures else 3)
    shifts = []
    for (name, (mean, deviation)), value in zip(figures.items(), here.round(4).tolist(), strict=True):
        unit = max(deviation, least[name])
        shifts.append(FigureShift(name, value, mean, unit, round((value - mean) / unit, 2)))
    count = sum(images for images, _ in moments)
    return Appearance(tuple(shifts), far=round(FAR * (1 + count**-0.5), 2))


RESULT_FORMAT = "grandrounds external evaluation 1"
RANKS_WELL = 0.85
"""The AUROC from which on images are ranked well."""


@dataclass(frozen=True)
class Overlap:
    """What a place has in common with the run.

    Attributes:
        shared_images: how many test images are images of a site of the run, by their pixels.
        sites: names that are sites of the run.
        not_compared: sites of the run whose images are not known.
        alike: how many others look like images of the run: turned, cropped, brighter or saved again.
    """

    shared_images: int
    sites: tuple[str, ...]
    not_compared: tuple[str, ...]
    alike: int = 0

    @property
    def message(self) -> str:
        """What is wrong, as one sentence; empty if nothing is."""
        images = f"{self.shared_images} of the images are images of the run's sites" if self.shared_images else ""
        sites = f"{format_list(self.sites)} took part in the run" if self.sites else ""
        alike = f"{self.alike} of the images look the same as images of the run's sites" if self.alike else ""
        return "; ".join(filter(None, (images, alike, sites)))


@dataclass(frozen=True, eq=False)
class TestedModel:
    """Which model was tested, by which command.

    Attributes:
        run: whose model it is.
        method: that trained it.
        date: and time of the test in UTC, ISO 8601.
        version: of this package.
        command: as it was typed.
        sha256: of the model's file, and of each site's manifest.
    """

    run: str
    method: str
    date: str
    version: str
    command: str
    sha256: Mapping[str, str]


@dataclass(frozen=True, eq=False)
class TestedImages:
    """The test images, without a count below the minimum.

    Attributes:
        minimum: the smallest count that is shown.
        case: what a case is.
        noun: what a label is.
        labels: the same in the plural.
        images: their number.
        cases: number of independent cases.
        unreadable: number of images that are left out.
        classes: number of images by label.
    """

    minimum: int
    case: str
    noun: str
    labels: str
    images: int | None
    cases: int | None
    unreadable: int
    classes: Mapping[str, int | None]


@dataclass(frozen=True, eq=False)
class ExternalResult:
    """The result of an external evaluation, without a count below the minimum, an image's name or a patient.

    Attributes:
        place: name of the external site.
        model: that was tested.
        tested: the test images.
        overlap: with the run.
        caveats: the most serious first.
        scores: at each site of the place, and of all its images.
        group: scores of the positive group, where there is one.
        subgroups: scores by further columns of the manifests.
        adapted: scores of a model that was adapted to the place, where that was asked for.
        appearance: how its images differ from the training images; None for fewer cases than the minimum.
    """

    place: str
    model: TestedModel
    tested: TestedImages
    overlap: Overlap
    caveats: tuple[str, ...]
    scores: RunScores
    group: GroupResult | None = None
    subgroups: tuple[SubgroupResult, ...] = ()
    adapted: Adapted | None = None
    appearance: Appearance | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain values; those of :attr:`model` and :attr:`tested` stand beside the others.

        Scores of an adaptation from labels stay at the place: beside the counts of all images they would tell the classes of
        the few that were used.
        """
        from_labels = self.adapted is not None and self.adapted.fitted != 0
        return {"format": RESULT_FORMAT, **self._plain(), **({"adapted": None} if from_labels else {})}

    def disclosed(self) -> ExternalResult:
        """What a reader of the file sees."""
        return self._of_plain(without_small_counts(self._plain(), self.tested.minimum))

    @classmethod
    def read(cls, path: Path) -> ExternalResult:
        """Read the result of an external evaluation.

        Raises:
            DataError: if it is no such file, or a field is missing or of another type.
        """
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise DataError(f"{path} cannot be read: {error.strerror or error}") from error
        except ValueError as error:
            raise DataError(
                f"{path} is not valid JSON ({error}); write it again with grandrounds evaluate --out"
            ) from error
        if not isinstance(content, dict) or content.get("format") != RESULT_FORMAT:
            raise DataError(f"{path} is no external evaluation; write it with grandrounds evaluate RUN ... --out FILE")
        try:
            return cls._of_plain(content)
        except ValueError as error:
            raise DataError(f"{path} is damaged ({error}); write it again with grandrounds evaluate --out") from error

    def _plain(self) -> dict[str, Any]:
        content = {field.name: to_plain(getattr(self, field.name)) for field in fields(self)}
        return {"place": content.pop("place"), **content.pop("model"), **content.pop("tested"), **content}

    @classmethod
    def _of_plain(cls, content: Mapping[str, Any]) -> ExternalResult:
        for part in (TestedModel, TestedImages):  # an error names the key as it is in the file
            from_plain(part, content)
        return from_plain(cls, {**content, "model": content, "tested": content})


def run_at(run: ReadRun, place: Place, labels: Labels) -> ReadRun:
    """The place as the only test of the run's model, so that it is scored like the run's own sites."""
    records = {}
    for site, predictions in place.sites.items():
        grouping = labels.grouping if labels.by_group else None
        of_classes = predictions.probabilities, predictions.decisions
        values, decisions = (summed_probabilities(one, grouping) for one in of_classes) if grouping else of_classes
        decided = run.task.decide(decisions)
        questions = questions_of(run.task, predictions.labels, values, predictions.groups or None, decided)
        scores = site_metrics(run.task, predictions.labels, values, decided)
        exact = {key: one for key, one in scores.items() if key != NUMBER}
        unit = "patient or lesion" if any(question.count < len(question.labels) for question in questions) else "image"
        records[site] = EvalRecord.of(run.task, labels.vocabulary, questions, exact=exact, unit=unit)
    log = RunLog(run.log.method, FINISHED, "", run.log.configuration, tuple(records), (), {}, {}, (), 0, 0.0, {}, {})
    origin = replace(run.origin, notes=())
    return ReadRun(place.name, labels.vocabulary, log, Tests("common", records), origin)


def external_result(
    run: ReadRun,
    tested: ReadRun,
    place: Place,
    labels: Labels,
    request: Request,
    command: str,
    adapted: AdaptedPlace | None = None,
) -> ExternalResult:
    """Score a place.

    Args:
        run: whose model it is.
        tested: the place as a run, see :func:`run_at`.
        place: what was predicted.
        labels: what they are, and which are positive.
        request: what is asked of the positive group, with the smallest count that may be shown.
        command: what was typed.
        adapted: what an adaptation did.
    """
    together = pooled(list(tested.tests.sites.values()))
    shown = _shown_classes(together, labels.positive.labels if labels.positive else (), request.minimum)
    hidden = [count is None for count in shown.values()]
    scores = scores_of(tested, request.minimum, hidden)
    adaptation = adapted.shown(request.minimum, hidden) if adapted else None
    group, subgroups = _group_and_subgroups(run.classes, together, place, labels, request)
    appearance = place.appearance if (together.cases or 0) >= request.minimum else None
    date = datetime.now(UTC).isoformat(timespec="seconds")
    noun, plural = ("group", "groups") if labels.by_group else (run.task.noun, run.task.nouns)
    caveats = (
        *([f"{place.overlap.message}: this is no external validation."] if place.overlap.message else []),
        *_caveats_of_thresholds(scores.pooled.classes if scores.pooled else {}, group),
        *(_caveats_of_group(group) if group else ()),
        *([appearance.unlike] if appearance and appearance.unlike else ()),
        *(_caveats_of_adaptation(adaptation, run.task.default_metric) if adaptation else ()),
        *(f"{line[0].upper()}{line[1:]}{_beside(scores)}." for line in run.log.expected),
        *caveats_of(tested, scores),
    )
    result = ExternalResult(
        place.name,
        TestedModel(run.name, run.log.method, date, __version__, command, place.digests),
        TestedImages(
            minimum=request.minimum,
            case=tested.tests.unit,
            noun=noun,
            labels=plural,
            images=together.images,
            cases=together.cases,
            unreadable=place.unreadable,
            classes=shown,
        ),
        place.overlap,
        caveats,
        scores,
        group,
        subgroups,
        adaptation,
        appearance,
    )
    return result.disclosed()


def _beside(scores: RunScores) -> str:
    """The place's own scores, mean over its sites, behind what was expected of a site."""
    known = {title: scores.best_mean(name) for name, title in SCORES_ELSEWHERE.items()}
    here = [f"{title} {score.value:.3f}" for title, score in known.items() if score and score.known]
    return f"; here {', '.join(here)}" if here else ""


def _shown_classes(record: EvalRecord, positive: Sequence[int], minimum: int) -> dict[str, int | None]:
    """Images by label; None for those that must not be shown, as they are few or of few cases.

    The sum of the answers to each question is known. Where there is one question only, so are the sums of the positive
    classes and of the others: each is a table.
    """
    counts_shown = []
    for question in record.questions:
        images = np.bincount(question.labels, minlength=question.classes).tolist()
        cases = question.positives().tolist()
        shown: dict[str, int | None] = {}
        for side in (True, False):
            rows = [row for row in range(len(images)) if (row in positive and len(record.questions) == 1) is side]
            of_images, of_cases = ({str(row): counts[row] for row in rows} for counts in (images, cases))
            shown |= shown_counts(of_images, minimum, of_cases)
        counts_shown += [shown[str(row)] for row in question.rows]
    return dict(zip(record.names, counts_shown, strict=True))


def _group_and_subgroups(
    classes: Sequence[str], together: EvalRecord, place: Place, labels: Labels, request: Request
) -> tuple[GroupResult | None, tuple[SubgroupResult, ...]]:
    """The scores of the positive group, and those of its subgroups; nothing without a group."""
    if labels.positive is None:
        return None, ()
    cases = _positive_cases(together, labels.positive.labels)
    share = float(cases.labels.mean())
    asked = replace(request, prevalences=[*([share] if 0 < share < 1 else []), *request.prevalences])
    # Of some images it may not be known whether they show a finding: columns are of all.
    whole = len(cases.labels) == sum(len(site.names) for site in place.sites.values())
    members = tuple(classes[number] for number in labels.positive.classes)
    group = validate_group(cases, asked, labels.positive.name, members)
    return group, score_subgroups(cases, subgroups_of(place.columns) if whole else [], asked)


def _positive_cases(together: EvalRecord, positive: Sequence[int]) -> Cases:
    """The positive group against all others: some classes of a question, or a question of its own."""
    if len(together.questions) > 1:
        return together.questions[positive[0]]
    return binary_cases(together.questions[0], positive)


def _caveats_of_thresholds(classes: Mapping[str, Mapping[str, Score]], group: GroupResult | None) -> list[str]:
    """What is ranked well (AUROC of ``RANKS_WELL`` or more) but told apart badly (a side below ``MISSED``).

    Of a class the side is the sensitivity of the most probable class; of the positive group the sensitivity or the
    specificity at its operating point.
    """
    tests = [(name, scores.get("auroc"), "sensitivity", scores["sensitivity"]) for name, scores in classes.items()]
    if group and group.operating:
        point, name = group.operating, f"{group.positive} at its operating point"
        tests += [(name, group.auroc, side, getattr(point, side)) for side in ("sensitivity", "specificity")]
    listed = [
        f"{name} (AUROC {area.value:.2f}, {side} {score.value:.2f})"
        for name, area, side, score in tests
        if area and area.enough and area.value >= RANKS_WELL and score.enough and score.value < MISSED
    ]
    return [f"Ranks well, thresholds do not transfer: {format_list(listed)}."] if listed else []


def _caveats_of_group(group: GroupResult) -> list[str]:
    """What to distrust in the scores of the positive group."""
    caveats = []
    area = format_estimate(group.auroc)
    if group.auroc and group.auroc.high < 0.5:
        caveats.append(
            f"Worse than chance (AUROC {area}): {group.positive} and the others are separated the other way round; "
            "the labels of this place may be exchanged."
        )
    elif group.auroc and group.auroc.low <= 0.5:
        unsure = f"Too few cases to know whether it separates {group.positive} from the others"
        clear = f"Does not separate {group.positive} from the others better than chance"
        caveats.append(f"{unsure if group.auroc.few else clear} (AUROC {area}).")
    point = group.operating
    if point and point.sensitivity.value < MISSED:
        caveats.append(
            f"At its operating point it misses {format_share(1 - point.sensitivity.value)} of {group.positive}."
        )
    if point and point.specificity.value < MISSED:
        called = format_share(1 - point.specificity.value)
        caveats.append(f"At its operating point it calls {called} of the others {group.positive}.")
    return caveats


def _caveats_of_adaptation(adapted: Adapted, metric: str) -> list[str]:
    """Whether the adapted model is no better than the model as it is."""
    before, after = adapted.before.best(metric), adapted.after.best(metric)
    if not after.value <= before.value:
        return []
    beside = f"{SCORE_NAMES[metric]} {after.value:.2f} against {before.value:.2f}"
    return [f"Adapting made the model no better ({beside}): use it as it is."]


def plain_scores(tested: ReadRun, place: Place, labels: Labels, adapted: AdaptedPlace | None = None) -> dict[str, Any]:
    """The scores of a place.

    Args:
        tested: the place as a run.
        place: what was predicted.
        labels: what they are.
        adapted: what an adaptation did.

    Returns:
        ``labels`` (what they are), ``sites`` (scores of each, with ``n``, its images), their ``mean``, ``pooled`` (of all
        images together), ``classes`` (by label: ``n``, the number of ``sites`` that have it, ``mean`` over them and
        ``pooled``) and, with a grouping, ``groups``: scores of each group over all images, by reading of the predictions.
        With an adaptation, ``adapted``: what was fitted, and scores of the other images ``before`` and ``after``.
    """
    scores = scores_of(tested, 1)
    sheets = list(scores.sites.values())
    truths = np.concatenate([predictions.labels for predictions in place.sites.values()])
    counts = tested.task.class_counts(truths, len(tested.classes)).tolist()
    classes = {}
    for name, count in zip(tested.classes, counts, strict=True):
        known = [sheet.classes[name] for sheet in sheets if sheet.classes[name]["sensitivity"].known]
        pooled = _values(scores.pooled.classes[name]) if scores.pooled else {}
        classes[name] = {"n": count, "sites": len(known), "mean": _values(mean_over_sites(known)), "pooled": pooled}
    return {
        "labels": "groups" if labels.by_group else tested.task.nouns,
        "classes": classes,
        "sites": {site: _of_sheet(sheet) for site, sheet in scores.sites.items()},
        "mean": {"n": sum(sheet.images or 0 for sheet in sheets), **_values(scores.mean)},
        "pooled": _of_sheet(scores.pooled) if scores.pooled else {},
        **({"groups": _of_groups(tested, place, labels, labels.grouping)} if labels.grouping else {}),
        **({"adapted": adapted.plain()} if adapted else {}),
    }


def _of_groups(tested: ReadRun, place: Place, labels: Labels, grouping: Grouping) -> dict[str, Any]:
    """Scores of each group by reading."""
    at_sites = [
        grouped_cases(
            predictions.labels if labels.by_group else grouping.group_of[predictions.labels],
            predictions.probabilities,
            tested.task.decide(predictions.decisions),
            grouping,
            predictions.groups or None,
        )
        for predictions in place.sites.values()
    ]
    readings = {reading: joined([site[reading] for site in at_sites]) for reading in at_sites[0]}
    tables = {}
    for reading, cases in readings.items():
        scored = EvalRecord.of(tested.task, grouping.names, [cases]).classes
        counts = np.bincount(cases.labels, minlength=cases.classes).tolist()
        tables[reading] = {
            name: {"n": count, **_values(one)} for name, count, one in zip(grouping.names, counts, scored, strict=True)
        }
    return tables


def _of_sheet(sheet: ScoreSheet) -> dict[str, Any]:
    return {"n": sheet.images, **_values(sheet.scores), **sheet.confidence}


def _values(scores: Mapping[str, Score]) -> dict[str, float]:
    return {name: score.value for name, score in scores.items()}
