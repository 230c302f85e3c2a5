"""The result of an external evaluation: made by ``grandrounds evaluate``, written as JSON, read by a report."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from grandrounds import __version__
from grandrounds.errors import DataError
from grandrounds.evaluation.bootstrap import Cases, questions_of
from grandrounds.evaluation.clinical.binary import binary_cases
from grandrounds.evaluation.clinical.results import Adapted, GroupResult, SubgroupResult
from grandrounds.evaluation.clinical.subgroups import subgroups_of
from grandrounds.evaluation.clinical.suppression import shown_counts, without_small_counts
from grandrounds.evaluation.clinical.validation import Request, score_subgroups, validate_group
from grandrounds.evaluation.grouping import summed_probabilities
from grandrounds.evaluation.metrics import site_metrics
from grandrounds.evaluation.record import EvalRecord, pooled
from grandrounds.evaluation.site_record import NUMBER
from grandrounds.files import write_json
from grandrounds.plain import from_plain, to_plain
from grandrounds.reporting.caveats import caveats_of
from grandrounds.reporting.external.appearance import Appearance
from grandrounds.reporting.external.caveats import caveats_of_adaptation, caveats_of_group, caveats_of_thresholds
from grandrounds.reporting.external.overlap import Overlap
from grandrounds.reporting.run import FINISHED, ReadRun, RunLog, Tests
from grandrounds.reporting.scores import RunScores, scores_of

if TYPE_CHECKING:
    from grandrounds.reporting.external.adapted import AdaptedPlace
    from grandrounds.reporting.external.prediction import Place
    from grandrounds.reporting.external.preparation import Labels

RESULT_FORMAT = "grandrounds external evaluation 1"


@dataclass(frozen=True, eq=False)
class ExternalResult:
    """What was found at a place, without a count below the minimum, an image's name or a patient.

    Attributes:
        place: its name.
        run: whose model it is.
        method: that trained it.
        date: and time in UTC, ISO 8601.
        version: of this package.
        command: what was typed.
        sha256: of the model's file, and of each site's manifest.
        minimum: the smallest count that is shown.
        case: what a case is.
        noun: what a label is.
        labels: several of them.
        images: number of test images.
        cases: independent cases that they are of.
        unreadable: images that are left out.
        classes: images by label.
        overlap: with the run.
        caveats: the most serious first.
        scores: of the sites of the place, and of all its images.
        group: of the positive group, where there is one.
        subgroups: by further columns of the manifests.
        adapted: what a model that was adapted to the place is worth, where that was asked for.
        appearance: how its images differ from the training images; None for fewer cases than the minimum.
    """

    place: str
    run: str
    method: str
    date: str
    version: str
    command: str
    sha256: Mapping[str, str]
    minimum: int
    case: str
    noun: str
    labels: str
    images: int | None
    cases: int | None
    unreadable: int
    classes: Mapping[str, int | None]
    overlap: Overlap
    caveats: tuple[str, ...]
    scores: RunScores
    group: GroupResult | None = None
    subgroups: tuple[SubgroupResult, ...] = ()
    adapted: Adapted | None = None
    appearance: Appearance | None = None


def run_at(run: ReadRun, place: Place, labels: Labels) -> ReadRun:
    """The place as the only test of the run's model, so that it is scored like the run's own sites."""
    records = {}
    for site, found in place.sites.items():
        grouping = labels.grouping if labels.by_group else None
        values = summed_probabilities(found.probabilities, grouping) if grouping else found.probabilities
        questions = questions_of(run.task, found.labels, values, found.groups or None)
        exact = {key: one for key, one in site_metrics(run.task, found.labels, values).items() if key != NUMBER}
        unit = "patient or lesion" if any(one.count < len(one.labels) for one in questions) else "image"
        records[site] = EvalRecord.of(run.task, labels.vocabulary, questions, exact=exact, unit=unit)
    log = RunLog(run.log.method, FINISHED, "", run.log.configuration, tuple(records), (), {}, {}, (), 0, 0.0, {}, {})
    origin = replace(run.origin, communities={}, spent=(), notes=())
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
    together, overlap = pooled(list(tested.tests.sites.values())), place.overlap
    shown = _shown_classes(together, labels.positive.labels if labels.positive else (), request.minimum)
    hidden = [count is None for count in shown.values()]
    scores = scores_of(tested, request.minimum, hidden)
    adaptation = adapted.shown(request.minimum, hidden) if adapted else None
    group, subgroups = _group_and_subgroups(run.classes, together, place, labels, request)
    warning = [f"{overlap.message}: this is no external validation."] if overlap.message else []
    appearance = place.appearance if (together.cases or 0) >= request.minimum else None
    result = ExternalResult(
        place=place.name,
        run=run.name,
        method=run.log.method,
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        version=__version__,
        command=command,
        sha256=place.digests,
        minimum=request.minimum,
        case=tested.tests.unit,
        noun="group" if labels.by_group else run.task.noun,
        labels="groups" if labels.by_group else run.task.nouns,
        images=together.images,
        cases=together.cases,
        unreadable=place.unreadable,
        classes=shown,
        overlap=overlap,
        caveats=(
            *warning,
            *caveats_of_thresholds(scores.pooled.classes if scores.pooled else {}, group),
            *(caveats_of_group(group) if group else ()),
            *([appearance.unlike] if appearance and appearance.unlike else ()),
            *(caveats_of_adaptation(adaptation, run.task.default_metric) if adaptation else ()),
            *caveats_of(tested, scores),
        ),
        scores=scores,
        group=group,
        subgroups=subgroups,
        adapted=adaptation,
        appearance=appearance,
    )
    # What is shown here is what a reader of the file sees.
    return from_plain(ExternalResult, without_small_counts(to_plain(result), request.minimum))


def result_json(result: ExternalResult) -> dict[str, Any]:
    """A result as plain values.

    Scores of an adaptation from labels stay at the place: beside the counts of all images they would tell the classes of the
    few that were used.
    """
    told = result.adapted is None or result.adapted.fitted == 0
    return {"format": RESULT_FORMAT, **to_plain(result if told else replace(result, adapted=None))}


def write_result(path: Path, result: ExternalResult) -> None:
    """Write a result as JSON."""
    write_json(path, result_json(result))


def read_result(path: Path) -> ExternalResult:
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
        return from_plain(ExternalResult, content)
    except ValueError as error:
        raise DataError(f"{path} is damaged ({error}); write it again with grandrounds evaluate --out") from error


def _shown_classes(record: EvalRecord, positive: Sequence[int], minimum: int) -> dict[str, int | None]:
    """Images by label; None for those that must not be shown.

    The sum of the answers to each question is known. Where there is one question only, so are the sums of the positive
    classes and of the others: each is a table.
    """
    found = []
    for question in record.questions:
        counts = dict(enumerate(np.bincount(question.labels, minlength=question.classes).tolist()))
        inside = [row for row in counts if row in positive and len(record.questions) == 1]
        tables = (
            {str(row): count for row, count in counts.items() if (row in inside) is side} for side in (True, False)
        )
        shown = {row: count for table in tables for row, count in shown_counts(table, minimum).items()}
        found += [shown[str(row)] for row in question.rows]
    return dict(zip(record.names, found, strict=True))


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
    whole = len(cases.labels) == sum(len(found.names) for found in place.sites.values())
    members = tuple(classes[number] for number in labels.positive.classes)
    group = validate_group(cases, asked, labels.positive.name, members)
    return group, score_subgroups(cases, subgroups_of(place.columns) if whole else [], asked)


def _positive_cases(together: EvalRecord, positive: Sequence[int]) -> Cases:
    """The positive group against all others: some classes of a question, or a question of its own."""
    if len(together.questions) > 1:
        return together.questions[positive[0]]
    return binary_cases(together.questions[0], positive)
