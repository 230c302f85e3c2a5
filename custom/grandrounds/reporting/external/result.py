"""The result of an external evaluation as plain values: written by ``grandrounds evaluate``, read by a report."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from grandrounds import __version__
from grandrounds.errors import DataError
from grandrounds.evaluation.bootstrap import Cases, cases_of, joined, joined_questions, questions_of
from grandrounds.evaluation.clinical.binary import binary_cases
from grandrounds.evaluation.clinical.subgroups import subgroups_of
from grandrounds.evaluation.clinical.suppression import shown_counts, without_small_counts
from grandrounds.evaluation.clinical.validation import Request, score_subgroups, validate_group
from grandrounds.evaluation.per_class import Grouping, summed_probabilities
from grandrounds.evaluation.record import EvalRecord
from grandrounds.files import write_json
from grandrounds.reporting.caveats import MISSED, caveats_of
from grandrounds.reporting.run import FINISHED, Run, RunLog, Tests
from grandrounds.reporting.scores import scores_of

if TYPE_CHECKING:
    from grandrounds.evaluation.external import ImagePredictions
    from grandrounds.reporting.external.prediction import Place
    from grandrounds.reporting.external.preparation import Labels, PositiveGroup

RESULT_FORMAT = "grandrounds external evaluation 1"


def external_result(
    run: Run,
    place: Place,
    labels: Labels,
    request: Request,
    command: str,
) -> dict[str, Any]:
    """Score a place.

    Args:
        run: whose model it is.
        place: what was predicted.
        labels: what they are, and which are positive.
        request: what is asked of the positive group, with the smallest count that may be shown.
        command: what was typed.

    Returns:
        Plain values; a count from 1 to the minimum less 1 is not among them, nor is the name of an image or a patient.
    """
    tested, findings, together, shown = _tested(run, place, labels, request.minimum)
    scores = scores_of(tested, request.minimum, [count is None for count in shown.values()])
    overlap = place.overlap
    result: dict[str, Any] = {
        "format": RESULT_FORMAT,
        "place": place.name,
        "run": run.name,
        "method": run.log.method,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "version": __version__,
        "command": command,
        "sha256": dict(place.digests),
        "minimum": request.minimum,
        "case": tested.tests.unit,
        "labels": "findings" if not run.task.exclusive else "groups" if labels.by_group else "classes",
        "images": len(together.labels),
        "cases": together.count,
        "unreadable": place.unreadable,
        "classes": shown,
        "overlap": {
            "shared_images": overlap.images,
            "sites": list(overlap.sites),
            "not_compared": list(overlap.unknown),
        },
        "caveats": caveats_of(tested, scores),
        "scores": scores.to_json(),
        "group": None,
        "subgroups": [],
    }
    if labels.positive is not None:
        binary = findings[labels.positive.classes[0]] if findings else _binary(place, labels.positive)
        group, result["subgroups"] = _group_and_subgroups(binary, place, request)
        result["group"] = {**group, "classes": [run.classes[n] for n in labels.positive.classes]}
        result["caveats"] = [*caveats_of_group(group), *result["caveats"]]
    if overlap.message:
        result["caveats"].insert(0, f"{overlap.message}: this is no external validation.")
    return dict(without_small_counts(result, request.minimum))


def _tested(
    run: Run, place: Place, labels: Labels, minimum: int
) -> tuple[Run, list[Cases], Cases, dict[str, int | None]]:
    """The run as one of this place, the cases of each finding if there are findings, all cases, and images by class."""
    classes = labels.vocabulary
    if not run.task.exclusive:
        by_site = {
            site: questions_of(run.task, found.labels, found.probabilities, found.groups or None)
            for site, found in place.sites.items()
        }
        tested, findings = _as_run(run, place.name, by_site, classes), joined_questions(list(by_site.values()))
        shown = {name: _positive_images(one, minimum) for name, one in zip(classes, findings, strict=True)}
        return tested, findings, max(findings, key=lambda one: len(one.labels)), shown
    summed = labels.grouping if labels.by_group else None
    cases = {site: _cases(found, summed) for site, found in place.sites.items()}
    together = joined(list(cases.values()))
    counts = dict(zip(classes, np.bincount(together.labels, minlength=len(classes)).tolist(), strict=True))
    positive = labels.positive.labels if labels.positive else ()
    return (
        _as_run(run, place.name, {site: [one] for site, one in cases.items()}, classes),
        [],
        together,
        _class_counts(counts, positive, minimum),
    )


def _group_and_subgroups(binary: Cases, place: Place, request: Request) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The scores of the positive group, and those of its subgroups."""
    share = float(binary.labels.mean())
    request = replace(request, prevalences=[*([share] if 0 < share < 1 else []), *request.prevalences])
    # Of some images it may not be known whether they show a finding: columns are of all.
    whole = len(binary.labels) == sum(len(found.names) for found in place.sites.values())
    groups = subgroups_of(place.columns) if whole else []
    return validate_group(binary, request), score_subgroups(binary, groups, request)


def caveats_of_group(group: Mapping[str, Any]) -> list[str]:
    """What to distrust in the scores of the positive group.

    ``group`` is what :func:`~grandrounds.evaluation.clinical.validation.validate_group` returns.

    Example:
        >>> area = {"value": 0.5, "low": 0.42, "high": 0.58}
        >>> caveats_of_group({"positive": "malignant", "auroc": area, "operating": None})
        ['Does not separate malignant from the others better than chance (AUROC 0.50 [0.42, 0.58]).']
    """
    name, area, point = group["positive"], group["auroc"], group["operating"]
    found = []
    if area and area["low"] is not None and area["low"] <= 0.5:
        beside = f"{area['value']:.2f} [{area['low']:.2f}, {area['high']:.2f}]"
        found.append(f"Does not separate {name} from the others better than chance (AUROC {beside}).")
    for key, words in (("sensitivity", f"misses {{}} of {name}"), ("specificity", f"calls {{}} of the others {name}")):
        value = point[key]["value"] if point else None
        if value is not None and value < MISSED:
            found.append(f"At its operating point it {words.format(f'{1 - value:.0%}'.replace('%', ' %'))}.")
    return found


def write_result(path: Path, result: Mapping[str, Any]) -> None:
    """Write a result as JSON."""
    write_json(path, dict(result))


def read_result(path: Path) -> dict[str, Any]:
    """Read the result of an external evaluation.

    Raises:
        DataError: if it is no such file.
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
    return content


def _class_counts(counts: Mapping[str, int], positive: Sequence[int], minimum: int) -> dict[str, int | None]:
    """Counts by class; the sums of the positive classes and of the others are known, too, so each is a table."""
    inside = {name: count for number, (name, count) in enumerate(counts.items()) if number in positive}
    outside = {name: count for name, count in counts.items() if name not in inside}
    shown = shown_counts(inside, minimum) | shown_counts(outside, minimum)
    return {name: shown[name] for name in counts}


def _positive_images(finding: Cases, minimum: int) -> int | None:
    """How many images show a finding; None where they or the others are too few to be shown."""
    counts = np.bincount(finding.labels, minlength=2).tolist()
    return shown_counts(dict(zip(("absent", "present"), counts, strict=True)), minimum)["present"]


def _cases(found: ImagePredictions, grouping: Grouping | None) -> Cases:
    probabilities = summed_probabilities(found.probabilities, grouping) if grouping else found.probabilities
    return cases_of(found.labels, probabilities, found.groups or None)


def _binary(place: Place, positive: PositiveGroup) -> Cases:
    """The positive group against all others, over all sites of the place."""
    cases = joined([cases_of(f.labels, f.probabilities, f.groups or None) for f in place.sites.values()])
    true: NDArray[np.bool_] = np.isin(cases.labels, positive.labels)
    return binary_cases(cases, positive.classes, true)


def _as_run(run: Run, place: str, sites: Mapping[str, Sequence[Cases]], classes: Sequence[str]) -> Run:
    """The place as the only test of the run's model, so that it is scored like the run's own sites."""
    log = RunLog(run.log.method, FINISHED, "", run.log.configuration, tuple(sites), (), {}, {}, (), 0, 0.0, {}, {})
    grouped = any(one.count < len(one.labels) for questions in sites.values() for one in questions)
    records = {
        site: EvalRecord.of(run.task, classes, questions, unit="patient or lesion" if grouped else "image")
        for site, questions in sites.items()
    }
    return Run(
        place, tuple(classes), log, Tests("common", records), replace(run.origin, communities={}, spent=(), notes=())
    )
