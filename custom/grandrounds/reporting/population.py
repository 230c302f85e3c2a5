"""Who a model was trained and tested on, and how: counts by site and class, settings, versions, digests and command.

Counts below the run's minimum are not shown, nor are those from which they would follow by subtraction.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grandrounds.data.importing import account
from grandrounds.data.population import POPULATION_PARTS
from grandrounds.evaluation.bootstrap import Cases, joined
from grandrounds.evaluation.clinical.subgroups import subgroups_of, subset
from grandrounds.evaluation.clinical.suppression import count_text, shown_counts, suppressed
from grandrounds.evaluation.estimates import counts_of, score_estimates
from grandrounds.evaluation.score import MIN_CASES
from grandrounds.reporting.run import ReadRun, RunLog
from grandrounds.reporting.tables import MISSING, Cell, PageTable, estimate_cell, format_number

Counts = Mapping[str, Mapping[str, Mapping[str, int]]]
"""By site, part and class."""

DIGEST = re.compile(r"\b([0-9a-f]{12})[0-9a-f]{52}\b")
Rows = list[Sequence[Cell | str]]


@dataclass(frozen=True)
class Population:
    """Numbers of images behind a run, as far as they are known, and what of them may be shown.

    Attributes:
        counts: by site, part and class; of the test images alone where only predictions are known.
        classes: the vocabulary.
        minimum: the smallest count that may be shown.
        communities: of the sites, where they are known.
        images: by site and part, where an image may have several labels.
        patients: by site.
    """

    counts: Counts
    classes: tuple[str, ...]
    minimum: int
    communities: Mapping[str, str] = field(default_factory=dict)
    images: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    patients: Mapping[str, int] = field(default_factory=dict)

    @property
    def parts(self) -> list[str]:
        """The parts that every site has."""
        return [
            part
            for part in POPULATION_PARTS
            if self.counts and all(part in of_site for of_site in self.counts.values())
        ]

    def matrix(self, part: str) -> NDArray[np.int64]:
        """Images of a part, shape ``(sites, classes)``."""
        return np.array(
            [[of_site[part].get(name, 0) for name in self.classes] for of_site in self.counts.values()], np.int64
        )

    def total(self, site: str, part: str) -> int:
        """Images of a part; where they may have several findings, their sum is no number of images."""
        return int(self.images[site][part]) if site in self.images else sum(self.counts[site][part].values())

    def text(self, count: int, hides: bool) -> str:
        """A count, or that it must not be shown."""
        return count_text(None if hides and count >= self.minimum else count, self.minimum)


def population_of(run: ReadRun) -> Population:
    """The population of a run."""
    data, fixed = run.origin.provenance.get("data"), (run.classes, run.origin.minimum, run.origin.communities)
    if data:
        counts = {site: data["sites"][site] for site in run.log.sites if site in data["sites"]}
        return Population(counts, *fixed, data.get("images", {}), data.get("patients", {}))
    by_site = {}
    for site, cases in run.tests.predictions.items():
        numbers = np.bincount(cases.labels, minlength=len(run.classes)).tolist()
        by_site[site] = {"test": dict(zip(run.classes, numbers, strict=True))}
    return Population(by_site, *fixed)


def population_tables(run: ReadRun) -> list[PageTable]:
    """Tables of images by site and by class, as far as they are known, and of what the run was made with."""
    known = population_of(run)
    minimum, communities = run.origin.minimum, run.origin.communities
    tables = [_by_site(known), _by_class(known), _by_site_and_class(known)] if known.counts else []
    if not known.counts:
        reported = {site: record.images for site, record in run.tests.sites.items() if record.images}
        tables += _reported(shown_counts(reported, minimum), minimum, communities) if reported else []
    tables += subgroup_tables(list(run.tests.predictions.values()), run.tests.columns, minimum)
    rows = [[name, DIGEST.sub(r"\1...", value)] for name, value in settings_of(run)]
    caption = "Data, options and software of this run; report.json has all digits of digests"
    return [*tables, PageTable(["", "how the model was made"], rows, caption, text_columns=2)]


def population_json(run: ReadRun) -> dict[str, Any]:
    """The counts by part, site and class as plain values, None where a count is not shown."""
    known = population_of(run)
    images = {}
    for part in known.parts:
        counts = known.matrix(part)
        hidden = suppressed(counts, known.minimum)
        images[part] = {
            site: {name: None if hides else count for name, count, hides in zip(known.classes, row, hide, strict=True)}
            for site, row, hide in zip(known.counts, counts.tolist(), hidden.tolist(), strict=True)
        }
    return {"minimum_count": known.minimum, "images": images}


def subgroup_tables(
    predictions: Sequence[Cases], columns: Mapping[str, Sequence[str]], minimum: int
) -> Iterator[PageTable]:
    """Scores of subgroups of the test images by further columns of the manifests; no table without such columns."""
    groups = subgroups_of(columns)
    if not groups or not predictions:
        return
    together = joined(predictions)
    rows: Rows = []
    for column in dict.fromkeys(group.column for group in groups):
        parts = {group.value: subset(together, group) for group in groups if group.column == column}
        cases = {value: part.count for value, part in parts.items()}
        images = shown_counts({value: len(part.labels) for value, part in parts.items()}, minimum, cases)
        rows += [[column, value, *_subgroup_cells(parts[value], count, minimum)] for value, count in images.items()]
    caption = (
        f"Subgroups of the test images of all sites, with 95 % intervals. There are {len(rows)}, and intervals are not "
        "adjusted: a difference between two is a question, not a finding. “Always” is predicting the subgroup's most "
        "frequent class for every image"
    )
    scores = ["always: accuracy", "always: balanced", "accuracy", "balanced accuracy"]
    yield PageTable(["column", "subgroup", "images", "cases", *scores], rows, caption, text_columns=2)


def _subgroup_cells(part: Cases, images: int | None, minimum: int) -> list[Cell | str]:
    counts = counts_of(part)
    scores, cases = score_estimates(counts), count_text(None if images is None else part.count, minimum)
    enough, balanced = part.count >= MIN_CASES, scores["balanced_accuracy"]
    always = max(np.bincount(part.labels)) / len(part.labels)
    constant = 1 / int(counts.occurs.sum()) if balanced.known else None
    references = format_number(always if enough else None), format_number(constant)
    shown = [count_text(images, minimum), cases, *references]
    return [*shown, estimate_cell(scores["accuracy"]), estimate_cell(balanced)]


def settings_of(run: ReadRun) -> Iterator[tuple[str, str]]:
    """Name and value of each setting that is recorded."""
    data, log, origin = run.origin.provenance.get("data") or {}, run.log, run.origin
    if data:
        yield "division of the images", _listed(data["division"])
    if "import" in data:
        yield "import of the images", account(data["import"])
    yield from _option_settings(log, origin.options)
    if log.started:
        yield "started", log.started
    if log.versions:
        yield "software", _listed(log.versions)
    if "site_names" in data:
        yield "names of the sites", _listed(data["site_names"])
    if data:
        yield "SHA-256 of the manifests", _listed({site: digest[:12] for site, digest in data["sha256"].items()})
    if origin.provenance.get("command"):
        yield "command", str(origin.provenance["command"])


def _option_settings(log: RunLog, of_sites: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    server = {name: value for name, value in log.configuration.items() if name not in ("problem", "method", "preset")}
    if log.configuration:
        yield "preset", str(log.configuration.get("preset") or "none: the options of the job")
    if log.problem:
        yield "problem", _listed({name: value for name, value in log.problem.items() if name != "classes"})
    if server:
        yield "options of the server", _listed(server)
    if of_sites:
        yield "options of the sites", _listed(of_sites)


def _by_site(known: Population) -> PageTable:
    parts, minimum = known.parts, known.minimum
    table = np.array([[known.total(site, part) for part in parts] for site in known.counts], np.int64)
    hidden = suppressed(table, minimum)
    if "labelled" in parts:  # a labelled image is a training image, so its partner is no other part
        labelled = parts.index("labelled")
        hidden[:, labelled] |= (table[:, labelled] > 0) & (table[:, labelled] < minimum)
    rows: Rows = []
    for site, row, hides in zip(known.counts, table.tolist(), hidden.tolist(), strict=True):
        cells = [known.text(count, hide) for count, hide in zip(row, hides, strict=True)]
        people = [count_text(known.patients[site], minimum)] if site in known.patients else []
        rows.append([site, known.communities.get(site, MISSING), *cells, *people])
    total = [str(count) for count in table.sum(axis=0).tolist()]
    people = [str(sum(known.patients.values()))] if known.patients else []
    rows.append(["all sites", "", *total, *people])
    header = ["site", "community", *parts, *(["cases (patient or lesion)"] if known.patients else [])]
    return PageTable(header, rows, "Images of each site by part", text_columns=2)


def _by_class(known: Population) -> PageTable:
    parts, minimum = known.parts, known.minimum
    sums = {part: dict(zip(known.classes, known.matrix(part).sum(axis=0).tolist(), strict=True)) for part in parts}
    shown = {part: shown_counts(counts, minimum) for part, counts in sums.items()}
    tested = sum(known.total(site, "test") for site in known.counts)
    rows: Rows = []
    for name in known.classes:
        test = shown["test"][name]
        share = f"{test / tested:.1%}" if test is not None and tested else MISSING
        rows.append([name, *(count_text(shown[part][name], minimum) for part in parts), share])
    unknown = sum(of_site.get("training", {}).get("", 0) for of_site in known.counts.values())
    note = f"; {count_text(unknown, minimum)} training images have no known label" if unknown else ""
    return PageTable(["class", *parts, "prevalence in test"], rows, f"Images of all sites by class{note}")


def _by_site_and_class(known: Population) -> PageTable:
    counts = {part: known.matrix(part) for part in known.parts}
    hidden = {part: suppressed(matrix, known.minimum) for part, matrix in counts.items()}
    rows: Rows = [
        [
            site,
            *(
                " / ".join(known.text(int(counts[part][row, n]), bool(hidden[part][row, n])) for part in counts)
                for n in range(len(known.classes))
            ),
        ]
        for row, site in enumerate(known.counts)
    ]
    return PageTable(["site", *known.classes], rows, f"Images of each site by class: {' / '.join(counts)}")


def _reported(images: Mapping[str, int | None], minimum: int, communities: Mapping[str, str]) -> list[PageTable]:
    """Numbers of test images that the sites have reported, where nothing else is known."""
    rows = [[site, communities.get(site, MISSING), count_text(count, minimum)] for site, count in images.items()]
    caption = (
        "Test images of each site. Numbers of training and validation images and of single classes stay at the sites; the "
        "job statistics asks for them"
    )
    return [PageTable(["site", "community", "test"], rows, caption, text_columns=2)]


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
