"""A run as a report sees it: its log, the tests of its model, and where it comes from."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grandrounds.data.population import NOTHING_TO_DO
from grandrounds.evaluation.bootstrap import Cases
from grandrounds.evaluation.clinical.suppression import MIN_SHOWN
from grandrounds.evaluation.curves.binned import SiteCurves
from grandrounds.evaluation.history import Event, RunHistory
from grandrounds.evaluation.record import EvalRecord, pooled
from grandrounds.federation.server.record import REFERENCES, Traffic, traffic
from grandrounds.ordering import natural_sorted
from grandrounds.protocol.tasks import task_of

if TYPE_CHECKING:
    from grandrounds.protocol.task import Task

FINISHED = "finished"
LOCAL = "Local"
MODELS: Mapping[str, str] = {
    "common": "the one model that the federation selected",
    "own": "each site's own choice by its validation images",
}


@dataclass(frozen=True)
class Spent:
    """The privacy budget that a site's ledger has booked for one data set.

    Attributes:
        unit: what is protected, for example a patient.
        epsilon: of all releases together, None if infinite.
        history: round and epsilon after each release, in order.
    """

    site: str
    unit: str
    epsilon: float | None
    delta: float
    history: tuple[tuple[int, float | None], ...] = ()


@dataclass(frozen=True, eq=False)
class RunLog:
    """What the server has recorded.

    Attributes:
        method: the method's name.
        status: ``finished``, ``failed``, ``aborted`` or ``running``.
        reason: why, where it did not finish.
        configuration: the controller's options.
        sites: all that took part or were there, in natural order.
        events: of the run, in order.
        bytes: of tensors, by site and ``down.NAME`` or ``up.NAME``.
        contributions: rounds to which each site gave an update.
        untested: sites without a test of the final model.
        rounds_done: complete rounds.
        seconds: how long it took.
        selected: round, metric and score of the selected model.
        versions: of the software that computed the result.
        started: date and time in UTC, ISO 8601; empty where it is not recorded.
        remarks: what a reader of the run must know, such as a checkpoint that was damaged.
        privacy: by site the treatments that its gate has reported, and the epsilon that it has reported.
        machine: of the server, in a simulation of all sites; empty where it is not recorded.
        image_moments: of the training images, or why there are none; empty where that is not recorded.
    """

    method: str
    status: str
    reason: str
    configuration: Mapping[str, Any]
    sites: tuple[str, ...]
    events: Sequence[Event]
    bytes: Mapping[str, Mapping[str, int]]
    contributions: Mapping[str, int]
    untested: tuple[str, ...]
    rounds_done: int
    seconds: float
    selected: Mapping[str, Any]
    versions: Mapping[str, str]
    started: str = ""
    remarks: tuple[str, ...] = ()
    privacy: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    machine: Mapping[str, Any] = field(default_factory=dict)
    image_moments: Mapping[str, Any] = field(default_factory=dict)

    @property
    def seed(self) -> int | None:
        """Of the run; None if it is not recorded."""
        return self.configuration.get("seed")

    @property
    def problem(self) -> Mapping[str, Any]:
        """The job's ``problem`` entry; empty where it is not recorded."""
        return dict(self.configuration.get("problem", {}))

    @property
    def rounds(self) -> int:
        """How many rounds were planned."""
        return int(self.configuration.get("rounds", self.rounds_done))

    @property
    def is_local(self) -> bool:
        """Whether every site trained for itself."""
        return self.method.startswith(LOCAL) or self.method.startswith(LOCAL.lower())

    @property
    def complete(self) -> bool:
        """Whether it finished."""
        return self.status == FINISHED

    @property
    def traffic(self) -> Traffic:
        """Bytes of its tensors, over all sites."""
        return traffic(self.bytes)

    def noted(self, what: str) -> dict[str, list[int]]:
        """The rounds in which the server has noted something of a site, such as ``bounded``."""
        rounds: dict[str, list[int]] = {}
        for event in self.events:
            for site in event.get(what, ()) if event["event"] == "round_end" else ():
                rounds.setdefault(site, []).append(int(event["round"]))
        return rounds

    def dropped(self) -> dict[str, list[int]]:
        """The rounds in which each site was asked and gave no usable answer."""
        rounds: dict[str, list[int]] = {}
        for event in self.events:
            if event["event"] == "dropped":
                rounds.setdefault(event["site"], []).append(int(event["round"]))
        return rounds


@dataclass(frozen=True, eq=False)
class Tests:
    """The tests of one model at the sites of a run.

    Attributes:
        model: ``common`` or ``own``.
        sites: the record of each tested site, with the predictions where they are here.
        together: the record of all images, where it is not the sum of the sites' records.
        validation: predictions for validation images of the common model by site and question, where they are here.
        curves: of the sites whose predictions are not here.
        columns: further columns of the manifests, a value for each predicted image in the order of the sites.
    """

    __test__ = False

    model: str
    sites: Mapping[str, EvalRecord] = field(default_factory=dict)
    together: EvalRecord | None = None
    validation: Mapping[str, Sequence[Cases]] = field(default_factory=dict)
    curves: Mapping[str, SiteCurves] = field(default_factory=dict)
    columns: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @cached_property
    def _pooled(self) -> EvalRecord:
        return pooled([self.sites[site] for site in natural_sorted(self.sites)])

    def at(self, sites: Collection[str]) -> EvalRecord:
        """The record of some sites together; that of all keeps the scores that have been computed of it."""
        if set(sites) == set(self.sites):
            return self._pooled
        return pooled([self.sites[site] for site in natural_sorted(sites)])

    @property
    def questions(self) -> dict[str, tuple[Cases, ...]]:
        """The predictions by site, for each question of the task, where they are here."""
        return {site: record.questions for site, record in self.sites.items() if record.questions}

    @property
    def predictions(self) -> dict[str, Cases]:
        """The predictions by site where the task is one question; else empty."""
        return {site: questions[0] for site, questions in self.questions.items() if len(questions) == 1}

    @property
    def unit(self) -> str:
        """What a case is."""
        return " or ".join(sorted({record.unit for record in self.sites.values()})) or "image"


@dataclass(frozen=True, eq=False)
class Origin:
    """Where a run comes from, and what lies beside it.

    Attributes:
        provenance: of a simulation the command and its sites' data, see
            :func:`~grandrounds.data.population.describe_population`.
        communities: the community of each site, where it is known.
        options: the executors' options, where the job's files are there.
        weights: the selected model's file, if it is there.
        spent: the budgets booked in the sites' privacy ledgers.
        notes: what is missing or damaged in the record.
        reference: which ridge head the run is compared with, or why there is none; empty where that was switched off.
    """

    provenance: Mapping[str, Any] = field(default_factory=dict)
    communities: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    weights: Path | None = None
    spent: tuple[Spent, ...] = ()
    notes: tuple[str, ...] = ()
    reference: str = ""

    @property
    def idle(self) -> str:
        """Why the method had nothing of its own to do; empty where it had, or that is not known."""
        return str(self.provenance.get(NOTHING_TO_DO, ""))

    @property
    def minimum(self) -> int:
        """The smallest count that a report may show: of a simulation any, else ``MINIMUM``."""
        return 1 if self.provenance.get("simulated") else MIN_SHOWN


@dataclass(frozen=True, eq=False)
class ReadRun:
    """One run: how the report calls it, its vocabulary in the order of the model's outputs, and the three parts above."""

    name: str
    classes: tuple[str, ...]
    log: RunLog
    tests: Tests
    origin: Origin

    @property
    def task(self) -> Task:
        """What a label is."""
        return task_of(self.log.problem)

    def site_name(self, site: str) -> str:
        """What a site calls itself, where its own name has letters that an id has not."""
        data = self.origin.provenance.get("data") or {}
        return str(data.get("site_names", {}).get(site, site))

    @property
    def history(self) -> RunHistory:
        """What its figures over rounds are drawn from."""
        return RunHistory(self.log.events, self.log.sites, self.origin.communities, self.classes)


def tested_models(summary: Mapping[str, Any]) -> list[str]:
    """The models that were tested: ``common``, the one that the federation selected, and ``own``, each site's choice."""
    return [model for model in MODELS if any(model in record for record in summary["records"].values())]


def reference_sentences(summary: Mapping[str, Any]) -> list[str]:
    """A sentence on each model that a simulation's run is compared with: what it is and what it took, or why it is missing.

    Example:
        >>> reference_sentences({"references": {"ridge": {"reason": "not computed: policy"}}})
        ['ridge: not computed: policy']
    """
    sentences = []
    for name, entry in summary.get(REFERENCES, {}).items():
        seconds = f" ({entry['cpu_seconds']:.0f} CPU seconds)" if entry.get("cpu_seconds") else ""
        sentences.append(f"{name}: {entry.get('reason') or entry['told'] + seconds}")
    return sentences
