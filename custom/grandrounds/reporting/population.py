"""Who a model was trained and tested on, and how: counts by site and class, settings, versions, digests and command.

Counts below the run's minimum are not shown, nor are those from which they would follow by subtraction.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grandrounds.data.population import POPULATION_PARTS
from grandrounds.evaluation.bootstrap import Cases, joined
from grandrounds.evaluation.clinical.subgroups import subgroups_of
from grandrounds.evaluation.clinical.suppression import count_text, shown_counts, suppressed
from grandrounds.evaluation.clinical.validation import subset
from grandrounds.evaluation.estimates import counts_of, score_estimates
from grandrounds.evaluation.score import MIN_CASES
from grandrounds.reporting.format import MISSING, Cell, Table, estimate_cell, format_number
from grandrounds.reporting.run import Run

Counts = Mapping[str, Mapping[str, Mapping[str, int]]]
"""By site, part and class."""


def population_tables(run: Run) -> list[Table]:
    """Tables of images by site and by class, as far as they are known, and of what the run was made with."""
    counts = population_counts(run)
    known = [_by_site(run, counts), _by_class(run, counts), _by_site_and_class(run, counts)] if counts else []
    subgroups = subgroup_table(run)
    return [*known, *([] if counts else _reported(run)), *([subgroups] if subgroups else []), settings_table(run)]


def population_counts(run: Run) -> Counts:
    """Numbers of images by site, part and class; of the test images alone where only predictions are known."""
    data = run.origin.provenance.get("data")
    if data:
        return {site: data["sites"][site] for site in run.log.sites if site in data["sites"]}
    found = {}
    for site, cases in run.tests.predictions.items():
        numbers = np.bincount(cases.labels, minlength=len(run.classes)).tolist()
        found[site] = {"test": dict(zip(run.classes, numbers, strict=True))}
    return found


def subgroup_table(run: Run) -> Table | None:
    """Scores of subgroups of the test images by further columns of the manifests; None without such columns."""
    groups = subgroups_of(run.tests.columns)
    if not groups or not run.tests.predictions:
        return None
    together = joined(list(run.tests.predictions.values()))
    rows: list[Sequence[Cell | str]] = []
    for column in dict.fromkeys(group.column for group in groups):
        parts = {group.value: subset(together, group) for group in groups if group.column == column}
        images = shown_counts({value: len(part.labels) for value, part in parts.items()}, run.origin.minimum)
        rows += [_subgroup_row(run, column, value, parts[value], count) for value, count in images.items()]
    caption = (
        f"Subgroups of the test images of all sites, with 95 % intervals. There are {len(rows)}, and intervals are not "
        f"adjusted: a difference between two is a question, not a finding. Balanced accuracy needs {MIN_CASES} cases "
        "of two classes. “Always” is predicting the subgroup's most frequent class for every image"
    )
    header = [
        "column",
        "subgroup",
        "images",
        "cases",
        "always: accuracy",
        "always: balanced",
        "accuracy",
        "balanced accuracy",
    ]
    return Table(header, rows, caption, text_columns=2)


def _subgroup_row(run: Run, column: str, value: str, part: Cases, images: int | None) -> list[Cell | str]:
    counts = counts_of(part)
    scores = score_estimates(counts)
    always = max(np.bincount(part.labels)) / len(part.labels)
    enough = part.count >= MIN_CASES
    cases = "withheld" if images is None else count_text(part.count, run.origin.minimum)
    accuracy, balanced = (estimate_cell(scores[name]) for name in ("accuracy", "balanced_accuracy"))
    constant = format_number(1 / int(counts.occurs.sum())) if scores["balanced_accuracy"].known else MISSING
    shown = [column, value, count_text(images, run.origin.minimum), cases, format_number(always) if enough else MISSING]
    return [*shown, constant, accuracy, balanced]


def population_json(run: Run) -> dict[str, Any]:
    """The counts by part, site and class as plain values, None where a count is not shown."""
    counts = population_counts(run)
    parts = [part for part in POPULATION_PARTS if all(part in found for found in counts.values())] if counts else []
    return {
        "minimum_count": run.origin.minimum,
        "images": {part: _shown_part(run, counts, part) for part in parts},
    }


def settings_table(run: Run) -> Table:
    """What the run was made with: division, options, date, versions, digests and command."""
    rows: list[Sequence[Cell | str]] = [[name, value] for name, value in settings_of(run)]
    return Table(["", "how the model was made"], rows, "Data, options and software of this run", text_columns=2)


def settings_of(run: Run) -> Iterator[tuple[str, str]]:
    """Name and value of each setting that is recorded."""
    data = run.origin.provenance.get("data") or {}
    if data:
        yield "division of the images", _listed(data["division"])
    controller = {
        name: value for name, value in run.log.configuration.items() if name not in ("problem", "method", "preset")
    }
    if run.log.configuration:
        yield "preset", str(run.log.configuration.get("preset") or "none: the options of the job")
    if run.log.problem:
        yield "problem", _listed({name: value for name, value in run.log.problem.items() if name != "classes"})
    if controller:
        yield "options of the server", _listed(controller)
    if run.origin.options:
        yield "options of the sites", _listed(run.origin.options)
    if run.log.started:
        yield "started", run.log.started
    if run.log.versions:
        yield "software", _listed(run.log.versions)
    if data:
        yield "SHA-256 of the manifests", _listed({site: digest[:12] for site, digest in data["sha256"].items()})
    if run.origin.provenance.get("command"):
        yield "command", str(run.origin.provenance["command"])


def _by_site(run: Run, counts: Counts) -> Table:
    parts = _parts(counts)
    table = np.array([[_images(run, counts, site, part) for part in parts] for site in counts], np.int64)
    labelled = parts.index("labelled") if "labelled" in parts else None
    hidden = suppressed(table, run.origin.minimum)
    if labelled is not None:  # a labelled image is a training image, so its partner is no other part
        hidden[:, labelled] |= (table[:, labelled] > 0) & (table[:, labelled] < run.origin.minimum)
    patients = (run.origin.provenance.get("data") or {}).get("patients", {})
    rows: list[Sequence[Cell | str]] = []
    for site, row, hides in zip(counts, table.tolist(), hidden.tolist(), strict=True):
        cells = [_shown(count, hide, run.origin.minimum) for count, hide in zip(row, hides, strict=True)]
        people = [count_text(patients[site], run.origin.minimum)] if site in patients else []
        rows.append([site, run.origin.communities.get(site, MISSING), *cells, *people])
    total = [str(count) for count in table.sum(axis=0).tolist()]
    rows.append(["all sites", "", *total, *([str(sum(patients.values()))] if patients else [])])
    header = ["site", "community", *parts, *(["cases (patient or lesion)"] if patients else [])]
    return Table(header, rows, "Images of each site by part", text_columns=2)


def _images(run: Run, counts: Counts, site: str, part: str) -> int:
    """Images of a part; where they may have several findings, their sum is no number of images."""
    images = (run.origin.provenance.get("data") or {}).get("images", {})
    return int(images[site][part]) if site in images else sum(counts[site][part].values())


def _by_class(run: Run, counts: Counts) -> Table:
    parts = _parts(counts)
    shown = {
        part: shown_counts(
            {name: sum(found[part].get(name, 0) for found in counts.values()) for name in run.classes},
            run.origin.minimum,
        )
        for part in parts
    }
    tested = sum(_images(run, counts, site, "test") for site in counts)
    rows: list[Sequence[Cell | str]] = []
    for name in run.classes:
        test = shown["test"][name]
        share = f"{test / tested:.1%}" if test is not None and tested else MISSING
        rows.append([name, *(count_text(shown[part][name], run.origin.minimum) for part in parts), share])
    unknown = sum(found.get("training", {}).get("", 0) for found in counts.values())
    note = f"; {count_text(unknown, run.origin.minimum)} training images have no known label" if unknown else ""
    return Table(["class", *parts, "prevalence in test"], rows, f"Images of all sites by class{note}")


def _by_site_and_class(run: Run, counts: Counts) -> Table:
    parts = _parts(counts)
    hidden = {part: suppressed(_matrix(run, counts, part), run.origin.minimum) for part in parts}
    rows: list[Sequence[Cell | str]] = []
    for row, site in enumerate(counts):
        cells = []
        for column, name in enumerate(run.classes):
            texts = [
                _shown(counts[site][part].get(name, 0), bool(hidden[part][row, column]), run.origin.minimum)
                for part in parts
            ]
            cells.append(" / ".join(texts))
        rows.append([site, *cells])
    caption = f"Images of each site by class: {' / '.join(parts)}"
    return Table(["site", *run.classes], rows, caption)


def _reported(run: Run) -> list[Table]:
    """Numbers of test images that the sites have reported, where nothing else is known."""
    counted = {site: record.images for site, record in run.tests.sites.items() if record.images}
    sent = shown_counts(counted, run.origin.minimum)
    if not sent:
        return []
    rows: list[Sequence[Cell | str]] = [
        [site, run.origin.communities.get(site, MISSING), count_text(count, run.origin.minimum)]
        for site, count in sent.items()
    ]
    caption = (
        "Test images of each site. Numbers of training and validation images and of single classes stay at the sites; the "
        "job statistics asks for them"
    )
    return [Table(["site", "community", "test"], rows, caption, text_columns=2)]


def _shown_part(run: Run, counts: Counts, part: str) -> dict[str, dict[str, int | None]]:
    hidden = suppressed(_matrix(run, counts, part), run.origin.minimum)
    return {
        site: {
            name: None if hidden[row, column] else counts[site][part].get(name, 0)
            for column, name in enumerate(run.classes)
        }
        for row, site in enumerate(counts)
    }


def _matrix(run: Run, counts: Counts, part: str) -> NDArray[np.int64]:
    return np.array([[found[part].get(name, 0) for name in run.classes] for found in counts.values()], np.int64)


def _parts(counts: Counts) -> list[str]:
    return [part for part in POPULATION_PARTS if all(part in found for found in counts.values())]


def _shown(count: int, hide: bool, minimum: int) -> str:
    return count_text(None if hide and count >= minimum else count, minimum)


def _listed(values: Mapping[str, Any]) -> str:
    """Names with their values, those of inner objects after a dot; what is not set is left out."""
    return ", ".join(f"{name} {value}" for name, value in _flat(values) if value not in (None, "", [], {}))


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """An absolute path may name a person or a machine: of a file only its name is kept."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            path = isinstance(value, str) and value.startswith("/")
            yield f"{prefix}{name}", PurePosixPath(value).name if path else value
