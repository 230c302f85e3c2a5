"""The evaluation record: what is known of one model on one set of images, and the only definition of a score.

A site makes it once, from its predictions. What leaves is ``suppressed``; the server keeps it in ``summary.json``;
selection, tables, the API, the report, the model card and the monitor read it. Records of sites are added up by
:func:`pooled`: counts (and predictions, where they are here) add up, exact values do not, but for those that are means over
images.

A score is in one of three states: *exact*, as the site computed it; *released*, computed from counts without a hidden
class; or *withheld*, without a value and with the reason. A mean over the classes that are shown has another name.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from operator import or_
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grandrounds.evaluation.bootstrap import Cases, joined_questions
from grandrounds.evaluation.confidence import confidence_metrics
from grandrounds.evaluation.counts import (
    HIDDEN,
    IMAGES,
    PATIENTS,
    UNITS,
    SiteCounts,
    counts_from_json,
    counts_shape,
    counts_to_json,
)
from grandrounds.evaluation.estimates import (
    NO_CLASS,
    ClassCounts,
    auc_estimates,
    class_correlations,
    class_estimates,
    counts_of,
    macro_auroc,
    mean_over,
    pooled_counts,
    question_correlations,
    reference_scores,
    score_estimates,
)
from grandrounds.evaluation.metrics import LINEAR_SCORES, OF_CLASSES
from grandrounds.evaluation.score import CHANCE, MIN_CASES, Score, ScoreSheet, WithinClass, named, no_score
from grandrounds.evaluation.score_sums import AREAS, HISTOGRAMS, TOTALS, score_shapes
from grandrounds.evaluation.site_record import NUMBER, UNIT, SiteRecord
from grandrounds.evaluation.tables_of_cases import histogram_areas, site_counts
from grandrounds.evaluation.within import WithinSites, macro_within, within_sites
from grandrounds.protocol.task import Task
from grandrounds.seeding import numpy_generator

NO_COUNTS = "the site keeps its counts"
NO_PREDICTIONS = "not known from counts of predictions"
NO_IMAGES = "no test image"
OF_GUESSING = frozenset({"accuracy", "accuracy_one_vs_rest", "balanced_accuracy", "recall_weighted", "auc_macro"})
"""Scores of guessing that do not depend on how common the classes are."""


@dataclass(frozen=True, eq=False)
class EvalRecord(SiteRecord):
    """One model on one set of images, of one site or several.

    Tables read ``scores`` (by name, the names of means over some classes among them), ``classes`` (by name for each class
    or finding of the vocabulary), ``references``, ``images``, ``cases`` and ``unit``; a cell that has a score shows its
    ``value`` with the mark of ``few``, else its ``reason``. ``best(name)`` is the score that a column called ``name`` shows.
    What must not be shown is None here already: no reader decides it.

    Attributes beside those of :class:`SiteRecord`:
        sites: how many sites the images are of.
        questions: the predictions by case, for each question of the task, where they are here; else empty.
        stream: purpose of the random streams of intervals.
        minimum: smallest number of cases that may be shown; scores of fewer are withheld.
        masked: whether the numbers of images and cases must not be shown.
        beside: records of models that this one is compared with, on the same images, by name.
        strata: the predictions of each site, where they are of several and here.
        summed: areas within sites, where they are known from sums alone.
        part: of which sites the images are where these are not all, such as ``3 of 4 sites``: scores have other names then.
    """

    sites: int = 1
    questions: tuple[Cases, ...] = ()
    stream: tuple[str, ...] = ("pooled",)
    minimum: int = 1
    masked: bool = False
    beside: Mapping[str, EvalRecord] = field(default_factory=dict)
    strata: tuple[tuple[Cases, ...], ...] = ()
    summed: WithinSites | None = None
    part: str = ""

    @classmethod
    def of(cls, task: Task, names: Sequence[str], questions: Sequence[Cases], **known: Any) -> EvalRecord:
        """The record of predictions that are here; ``known`` are further attributes."""
        images = max(len(question.labels) for question in questions)
        return cls(task, tuple(names), images, counts=(site_counts(questions),), questions=tuple(questions), **known)

    def __add__(self, other: EvalRecord) -> EvalRecord:
        return pooled([self, other])

    def without(self, hidden: Sequence[bool]) -> EvalRecord:
        """Without the counts of these names of the vocabulary."""
        tables = []
        for table in self._tables:
            images, patients = table.images.copy(), table.patients.copy()
            for (question, row), hides in zip(self.places, hidden, strict=True):
                if hides:
                    images[question, row] = patients[question, row] = HIDDEN
            tables.append(SiteCounts(images, patients))
        beside = {name: one.without(hidden) for name, one in self.beside.items()}
        return replace(self, counts=tuple(tables), exact=beside_counts(self.exact, tuple(tables)), beside=beside)

    def suppressed(self, minimum: int) -> EvalRecord:
        """See :meth:`SiteRecord.suppressed`; predictions go with their counts."""
        record = super().suppressed(minimum)
        return record if record is self else replace(record, questions=(), strata=())

    @property
    def _tables(self) -> tuple[SiteCounts, ...]:
        return self.counts or ((site_counts(self.questions),) if self.questions else ())

    @cached_property
    def places(self) -> list[tuple[int, int]]:
        """Question and class of each name of the vocabulary."""
        return [(question, row) for question, rows in enumerate(self._rows) for row in rows]

    @property
    def _rows(self) -> list[tuple[int, ...]]:
        """The classes of each question that have scores of their own."""
        asked = self.task.questions(self.task.read_labels([], self.names), np.zeros((0, len(self.names))))
        return [question.scored for question in asked]

    @cached_property
    def hidden(self) -> NDArray[np.bool_]:
        """The classes of each question that a site hides, shape ``(questions, classes)``."""
        shape = counts_shape(self.task.answers(len(self.names)))[:2]
        return reduce(or_, (site.hidden for site in self.counts), np.zeros(shape, np.bool_))

    @cached_property
    def tallies(self) -> list[ClassCounts]:
        """The counts by class of each question, from the predictions where they are here; empty where neither is known."""
        if self.questions:
            return [counts_of(question) for question in self.questions]
        if len(self.counts) < self.sites or not self.images:
            return []
        # Of several questions not every image has an answer to each.
        images = self.images if len(self._rows) == 1 else math.nan
        right = images * self.exact.get("accuracy", math.nan)
        return [pooled_counts(self.counts, number, rows, images, right) for number, rows in enumerate(self._rows)]

    @property
    def cases(self) -> int | None:
        """How many independent cases there are; None where it must not be shown or is not known."""
        if self.masked or not self.tallies or (not self.questions and self.hidden.any()):
            return None
        if self.questions:
            return len(np.unique(np.concatenate([question.groups for question in self.questions])))
        return max(tally.cases for tally in self.tallies)

    @cached_property
    def scores(self) -> dict[str, Score]:
        """All scores, in the order of tables: with values, or with the reason why there is none."""
        found = {}
        for name in dict.fromkeys([*self._computed, *(key for key in self.exact if key not in (UNIT, NUMBER))]):
            found[name] = self.score(name)
            if not found[name].known and name in self._shown and self._shown[name].of:
                found[named(name, self._shown[name])] = self._shown[name]
        return self._of_part(found) if self.part else found

    def _of_part(self, scores: Mapping[str, Score]) -> dict[str, Score]:
        """Scores under the names that they have where the images are of some sites only."""
        whole = {name: one._replace(of=self.part) if one.known else one for name, one in scores.items() if not one.of}
        return {named(name, one): one for name, one in whole.items()}

    def score(self, name: str) -> Score:
        """A score over all classes: its value, interval and cases, or the reason why there is none."""
        computed = self._computed.get(name)
        if name == "auc_macro" and self._of_one_class:
            return no_score(NO_CLASS, 0)
        if name in self.exact:
            return self._exact(self.exact[name], computed)
        if not self.images and not self.exact:
            return no_score(NO_IMAGES)
        if computed is None:
            return no_score(NO_PREDICTIONS if self.counts else NO_COUNTS)
        if self.hidden.any() and not self._known_beside_hidden(name):
            return no_score(f"of few cases and hidden: {', '.join(self._hidden_names)}")
        return self._masked(computed)

    def _known_beside_hidden(self, name: str) -> bool:
        """Whether a score over all classes is known although a class is hidden: only the accuracies, if one is exact.

        Of predictions that are here all scores of images are.
        """
        if self.questions:
            return name in (*LINEAR_SCORES, "accuracy_one_vs_rest")
        return name == "accuracy_one_vs_rest" and "accuracy" in self.exact and len(self.tallies) == 1

    @property
    def _of_one_class(self) -> bool:
        """Whether the images are known to be of one class, so that there is no area."""
        return len(self.tallies) == 1 and not self.hidden.any() and int(self.tallies[0].occurs.sum()) == 1

    @property
    def positives(self) -> list[int]:
        """How many cases the sensitivity for each name of the vocabulary rests on; 0 where it is not known."""
        if not self.tallies:
            return [0] * len(self.names)
        several = len(self.tallies) > 1
        return [
            0 if self._hiding_sites(question, row) == len(self.counts) > 0 else max(int(behind), 0)
            for question, row in self.places
            for rows in [self.tallies[question].positives]
            for behind in [rows.min() if several else rows[row]]
        ]

    def _hiding_sites(self, question: int, row: int) -> int:
        """How many sites hide a class."""
        return sum(bool(site.hidden[question, row]) for site in self.counts)

    def best(self, name: str) -> Score:
        """The score over all classes, else that over the classes that are shown, with its part, else the reason."""
        score = self.score(name)
        return score if score.known else self._shown.get(name, score)

    @cached_property
    def classes(self) -> list[dict[str, Score]]:
        """Sensitivity, specificity, precision, F1 and areas of each class, or of each finding its balanced accuracy too."""
        by_class = [self._class(question, row) for question, row in self.places]
        return [{name: one._replace(of=self.part or one.of) for name, one in scores.items()} for scores in by_class]

    def _class(self, question: int, row: int) -> dict[str, Score]:
        if not self.tallies:
            return dict.fromkeys(("precision", "sensitivity", "f1", "specificity"), no_score(NO_COUNTS))
        scores = dict(self._of_classes[question][row])
        if len(self.tallies) > 1:
            behind = int(self.tallies[question].positives.min())
            scores = {
                name: score._replace(cases=None if behind < 0 else min(score.cases or 0, behind))
                for name, score in scores.items()
            }
            scores["balanced_accuracy"] = self._of_questions[question]["balanced_accuracy"]
        hiding = self._hiding_sites(question, row)
        if hiding == len(self.counts) > 0:
            return {name: no_score("of few cases and hidden") for name in scores}
        shown = {name: self._masked(score) for name, score in scores.items()}
        if hiding:
            part = f"{len(self.counts) - hiding} of {len(self.counts)} sites"
            return {name: score._replace(of=part if score.known else "") for name, score in shown.items()}
        return shown

    @cached_property
    def confidence(self) -> dict[str, float]:
        """Calibration and risk of the probabilities, without intervals; empty where they are not known or masked."""
        if self.masked:
            return {}
        first = self.questions[0] if self.questions else None
        if len(self.questions) != 1 or first is None or first.probabilities is None or first.count < MIN_CASES:
            return {}
        return confidence_metrics(first.labels, first.probabilities)

    @cached_property
    def references(self) -> dict[str, dict[str, float]]:
        """The scores of models beside this one, of always predicting the most frequent class, and of guessing.

        Where numbers are hidden only those of guessing are left that do not depend on how common the classes are: the others
        would give the numbers away.
        """
        return {**self._of_beside, **self._of_no_model}

    @property
    def _of_beside(self) -> dict[str, dict[str, float]]:
        shown = {name: replace(one, minimum=self.minimum, masked=self.masked) for name, one in self.beside.items()}
        known = {
            name: {key: score.value for key, score in one.scores.items() if score.known} for name, one in shown.items()
        }
        return {name: scores for name, scores in known.items() if scores}

    @property
    def _of_no_model(self) -> dict[str, dict[str, float]]:
        """Always predicting the most frequent class, and guessing, as far as the task has them."""
        if not self.tallies:
            return {}
        if len(self.tallies) > 1:
            guess = 1 / len(self.tallies[0].correct)
            return {CHANCE: {"auc_macro": 0.5, "balanced_accuracy": guess}}
        references = reference_scores(self.tallies[0], self.names)
        if self.masked or self.hidden.any():
            references = {CHANCE: {name: value for name, value in references[CHANCE].items() if name in OF_GUESSING}}
        wanted = self.task.references
        return {name: one for name, one in references.items() if (CHANCE if name == CHANCE else "majority") in wanted}

    @property
    def shares(self) -> tuple[float, ...]:
        """The share of each name of the vocabulary among the images whose answer is known; NaN where it is not known."""
        if not self.tallies:
            return tuple(math.nan for _ in self.names)
        return tuple(
            math.nan if self.hidden[question, row] else float((one.correct[row] + one.missed[row]) / max(one.images, 1))
            for question, row in self.places
            for one in [self.tallies[question]]
        )

    def to_json(self) -> dict[str, Any]:
        """What is kept of it in ``summary.json``; of one site's record."""
        counts = {"counts": counts_to_json(self.counts[0])} if self.counts else {}
        part = {"part": self.part} if self.part else {}
        within = {"within": self.summed.to_json()} if self.summed else {}
        return {"images": self.images, "unit": self.unit, "exact": dict(self.exact), **counts, **within, **part}

    @classmethod
    def from_json(cls, task: Task, names: Sequence[str], content: Mapping[str, Any]) -> EvalRecord:
        """The record that :meth:`to_json` gave.

        Raises:
            ValueError: if it is damaged; also :class:`LookupError`, :class:`TypeError` and :class:`AttributeError`.
        """
        shape = counts_shape(task.answers(len(names)))
        counts = (counts_from_json(content["counts"], shape),) if "counts" in content else ()
        exact = {str(name): float(value) for name, value in content["exact"].items()}
        within = WithinSites.from_json(content["within"], len(names)) if "within" in content else None
        record = cls(task, tuple(names), int(content["images"]), exact, counts, unit=str(content["unit"]))
        return replace(record, summed=within, part=str(content.get("part", "")))

    @cached_property
    def sheet(self) -> ScoreSheet:
        """What tables show of it."""
        return ScoreSheet(
            None if self.masked or (self.exact and not self.images) else self.images,
            self.cases,
            self.unit,
            self.scores,
            dict(zip(self.names, self.classes, strict=True)),
            self.confidence,
            self.references,
            dict(zip(self.names, self.shares, strict=True)),
            NO_PREDICTIONS if self.counts or self.questions else NO_COUNTS,
            {} if self.masked else self.within,
        )

    @cached_property
    def _of_classes(self) -> list[list[dict[str, Score]]]:
        """The scores of each class of each question."""
        classes = [class_estimates(tally) for tally in self.tallies]
        if not self._has_probabilities:
            return classes
        for rows, one in zip(classes, self.questions, strict=False):
            for row, areas in zip(rows, auc_estimates(one), strict=True):
                row |= areas
        return classes

    @cached_property
    def _of_questions(self) -> list[dict[str, Score]]:
        """The scores of each question over its classes."""
        single = len(self.tallies) == 1
        questions = []
        for number, tally in enumerate(self.tallies):
            cases = self.questions[number] if self.questions else None
            related = class_correlations(cases, numpy_generator("report", *self.stream)) if cases and single else None
            scores = score_estimates(tally, related)
            if cases is not None and cases.probabilities is not None:
                scores["auc_macro"] = macro_auroc(cases, self._of_classes[number], numpy_generator("report", "areas"))
            if not tally.occurs.all() and self.task.min_images:
                scores = {name: no_score(NO_CLASS, 0) for name in scores}
            questions.append(scores)
        return questions

    @cached_property
    def within(self) -> dict[str, WithinClass]:
        """The areas within sites of the classes that may be shown; empty of a single site, or where they are not known."""
        areas = (
            within_sites(self.strata)
            if len(self.strata) > 1 and self.images and self._has_probabilities
            else self.summed
        )
        hidden = [bool(self.hidden[place]) for place in self.places]
        known = areas.classes(self.names, hidden) if areas and areas.sites > 1 else {}
        small = {name for name, one in known.items() if one.lost and one.lost < self.minimum}
        return {
            name: one._replace(lost=None, score=one.score._replace(cases=None)) if name in small else one
            for name, one in known.items()
        }

    @property
    def _has_probabilities(self) -> bool:
        return all(question.probabilities is not None for question in self.questions)

    @cached_property
    def _within_means(self) -> dict[str, Score]:
        """The means of areas within sites and across them; empty where there are none."""
        return macro_within(self.within, len(self.names)) if self.within else {}

    @cached_property
    def _computed(self) -> dict[str, Score]:
        """The scores over all questions, hidden classes included as far as they are known."""
        whole = {name: no_score(f"known of {one.of}") if one.of else one for name, one in self._within_means.items()}
        return {**self._means(self._of_questions), **whole}

    @cached_property
    def _shown(self) -> dict[str, Score]:
        """Means over a part of the names of the vocabulary: those that have an area within sites, or that no site hides."""
        return {**self._of_shown, **{name: one for name, one in self._within_means.items() if one.of}}

    @cached_property
    def _of_shown(self) -> dict[str, Score]:
        """Means over the names of the vocabulary that no site hides, where some are hidden and two are shown."""
        shown = [not self.hidden[question].any() if len(self.hidden) > 1 else not self.hidden[question, row]
                 for question, row in self.places]  # fmt: skip
        if all(shown) or sum(shown) < 2 or not self.tallies:
            return {}
        part = f"{sum(shown)} of {len(shown)} classes"
        if len(self.tallies) == 1:
            estimates = score_estimates(self.tallies[0], among=~self.hidden[0])
        else:
            estimates = self._means(
                [scores if kept else {} for scores, kept in zip(self._of_questions, shown, strict=True)]
            )
        return {name: one._replace(of=part) for name, one in estimates.items() if one.known and name in OF_CLASSES}

    def _means(self, questions: Sequence[Mapping[str, Score]]) -> dict[str, Score]:
        wanted = {*self.task.selectable}
        if len(questions) == 1:
            return dict(questions[0])
        if not questions:
            return {}
        several = len(self.questions) > 1 and all(question.probabilities is not None for question in self.questions)
        generator = numpy_generator("report", "findings", *self.stream)
        related = question_correlations(self.questions, generator) if several else {}
        means = mean_over(questions, "classes", related)
        return {name: score._replace(of="") for name, score in means.items() if name in wanted}

    @property
    def _hidden_names(self) -> list[str]:
        return [name for name, (q, row) in zip(self.names, self.places, strict=True) if self.hidden[q, row]]

    def _exact(self, value: float, computed: Score | None) -> Score:
        """An exact value with the interval of the counts or predictions, where these give one."""
        if computed is None or not computed.known:
            return self._masked(Score(value, math.nan, math.nan, self.cases))
        return self._masked(
            computed._replace(value=value, low=min(computed.low, value), high=max(computed.high, value))
        )

    def _masked(self, score: Score) -> Score:
        behind = self.images if score.cases is None or score.cases < 0 else score.cases
        if 0 < behind < self.minimum:
            return no_score(f"fewer than {self.minimum} cases")
        return score._replace(cases=None) if self.masked else score


def pooled(records: Sequence[EvalRecord], stream: Sequence[str] = ("pooled",)) -> EvalRecord:
    """The record of several sites together; ``stream`` as in :class:`EvalRecord`.

    Raises:
        ValueError: if there is no record.
    """
    if not records:
        raise ValueError("there are no sites")
    images = sum(record.images for record in records)
    known = all(record.questions for record in records)
    return replace(
        records[0],
        images=images,
        exact={name: value / images for name, value in _sums(records).items() if images},
        counts=tuple(counts for record in records for counts in record.counts),
        sites=sum(record.sites for record in records),
        unit=" or ".join(sorted({part for record in records for part in record.unit.split(" or ")})),
        questions=tuple(joined_questions([record.questions for record in records])) if known else (),
        strata=tuple(one for record in records for one in record.strata or (record.questions,)) if known else (),
        summed=None,
        stream=tuple(stream),
        masked=False,
        beside=_pooled_beside([record.beside for record in records]),
    )


def _pooled_beside(beside: Sequence[Mapping[str, EvalRecord]]) -> dict[str, EvalRecord]:
    shared = [name for name in beside[0] if all(name in records for records in beside)]
    return {name: pooled([records[name] for records in beside]) for name in shared}


def _sums(records: Sequence[EvalRecord]) -> dict[str, float]:
    """Sums over images of the scores that are means over images, where all records have them."""
    shared = [name for name in LINEAR_SCORES if all(name in record.exact for record in records)]
    return {name: sum(record.exact[name] * record.images for record in records) for name in shared}


def received(
    task: Task, names: Sequence[str], model: str, metrics: Mapping[str, float], counts: SiteCounts | None
) -> EvalRecord:
    """The record of a model from what a site has released: metrics ``<model>.<score>``, and counts where it sends them."""
    exact = {name.removeprefix(f"{model}."): value for name, value in metrics.items() if name.startswith(f"{model}.")}
    images, number = int(exact.pop(NUMBER, 0)), int(exact.pop(UNIT, 0))
    unit = UNITS[number if number in range(len(UNITS)) else 0]
    return EvalRecord(task, tuple(names), images, exact, () if counts is None else (counts,), unit=unit)


def record_of_sum(task: Task, names: Sequence[str], table: Mapping[str, NDArray[np.floating]]) -> EvalRecord:
    """The record of the images of several sites, of which only the sum of their tables is known.

    Args:
        task: of the labels.
        names: the vocabulary.
        table: the sum of :func:`~grandrounds.evaluation.score_sums.summable_scores` over the sites.

    Raises:
        ValueError: if it cannot be a sum of such tables.
    """
    if (came := {name: value.shape for name, value in table.items()}) != score_shapes(task, len(names)):
        raise ValueError(f"scores must be of shapes {score_shapes(task, len(names))}, got {came}")
    counts = SiteCounts(*(np.rint(table[name]).astype(np.int64) for name in (IMAGES, PATIENTS)))
    if (counts.images < 0).any() or (counts.patients > counts.images).any():
        raise ValueError("counts of images are below 0, or below those of patients")
    images, units = round(float(table[TOTALS][0])), table[TOTALS][1 : 1 + len(UNITS)]
    unit = " or ".join(name for name, sites in zip(UNITS, units, strict=True) if sites > 0.5) or UNITS[0]
    if not images:
        return EvalRecord(task, tuple(names), 0, unit=unit)
    known = [name in task.selectable for name in LINEAR_SCORES]
    sums = dict(zip(LINEAR_SCORES, table[TOTALS][1 + len(UNITS) :] / images, strict=True))
    exact = {name: float(sums[name]) for name, has in zip(LINEAR_SCORES, known, strict=True) if has}
    used, without, lost = np.asarray(table[HISTOGRAMS], np.float64).transpose(1, 0, 2)
    areas, across = (histogram_areas(np.stack([side, without], axis=1)) for side in (used + lost, used))
    exact |= {} if np.isnan(areas).any() else {"auc_macro": float(areas.mean())}
    within = WithinSites(np.asarray(table[AREAS], np.float64), across, round(float(units.sum())))
    return EvalRecord(task, tuple(names), images, exact, (counts,), unit=unit, summed=within)


def beside_counts(exact: Mapping[str, float], counts: Sequence[SiteCounts]) -> dict[str, float]:
    """The exact scores that may leave beside counts: those of single classes only where no class is hidden.

    The number of images, the accuracy and scores that counts do not determine stay: suppression takes them to be known.
    """
    hides = any(site.hidden.any() for site in counts)
    return {name: value for name, value in exact.items() if not (hides and name in OF_CLASSES)}
