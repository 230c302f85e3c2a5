"""A run as a report sees it: what was trained, at which sites, what happened, and the model's test predictions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from grandrounds.evaluation.bootstrap import Cases
from grandrounds.evaluation.clinical.suppression import MINIMUM
from grandrounds.evaluation.counts import SiteCounts
from grandrounds.evaluation.curves import SiteCurves
from grandrounds.evaluation.history import Event, RunHistory
from grandrounds.protocol.problem import MULTI

FINISHED = "finished"
LOCAL = "Local"
MODELS: Mapping[str, str] = {
    "common": "the one model that the federation selected",
    "own": "each site's own choice by its validation images",
}
GLOBAL = "down.global"


class Traffic(NamedTuple):
    """Bytes of tensors of a run, over all sites: global models received (also for scoring), all else received, and sent."""

    down_global: int
    down_extra: int
    up: int


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
class Run:
    """One run.

    Attributes:
        name: how the report calls it.
        method: the method's name.
        seed: of the run; None if it is not recorded.
        classes: the vocabulary, in the order of the model's outputs.
        status: ``finished``, ``failed``, ``aborted`` or ``running``.
        reason: why, where it did not finish.
        configuration: the controller's options.
        sites: all that took part or were there, in natural order.
        predictions: test images by site, where the sites' predictions are here; of a run of findings empty.
        findings: of such a run the test images by site, as cases of each finding.
        site_metrics: mean scores of each site's test images and ``n``, their number, as the site reported them.
        curve_counts: of the sites whose predictions are not here.
        validation: the common model's predictions for validation images by site, where they are here.
        validation_findings: of a run of findings the same as cases of each finding.
        provenance: of a simulation the command and its sites' data, see
            :func:`~grandrounds.data.population.describe_population`.
        started: date and time in UTC, ISO 8601; empty where it is not recorded.
        columns: further columns of the manifests, a value for each predicted image in the order of the sites.
        class_counts: of correct, missed and false predictions of these sites, as far as they released them.
        reported_metrics: scores of all test images together and ``n``, where the result has only these.
        model: whose predictions they are: ``common`` or ``own``.
        events: of the run, in order.
        bytes: of tensors, by site and ``down.NAME`` or ``up.NAME``.
        contributions: rounds to which each site gave an update.
        untested: sites without a test of the final model.
        rounds_done: complete rounds.
        seconds: how long it took.
        selected: round, metric and score of the selected model.
        spent: the budgets booked in the sites' privacy ledgers.
        communities: the community of each site, where it is known.
        unit: what a case is: ``patient or lesion``, or ``image``.
        options: the executors' options, where the job's files are there.
        versions: of the software that computed the result.
        weights: the selected model's file, if it is there.
        notes: what is missing or damaged in the record.
    """

    name: str
    method: str
    seed: int | None
    classes: tuple[str, ...]
    status: str
    reason: str
    configuration: Mapping[str, Any]
    sites: tuple[str, ...]
    predictions: Mapping[str, Cases]
    site_metrics: Mapping[str, Mapping[str, float]]
    model: str
    events: Sequence[Event]
    bytes: Mapping[str, Mapping[str, int]]
    contributions: Mapping[str, int]
    untested: tuple[str, ...]
    rounds_done: int
    seconds: float
    selected: Mapping[str, Any]
    spent: tuple[Spent, ...] = ()
    communities: Mapping[str, str] = field(default_factory=dict)
    unit: str = "image"
    options: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    weights: Path | None = None
    notes: tuple[str, ...] = ()
    reported_metrics: Mapping[str, float] = field(default_factory=dict)
    curve_counts: Mapping[str, SiteCurves] = field(default_factory=dict)
    class_counts: Mapping[str, SiteCounts] = field(default_factory=dict)
    validation: Mapping[str, Cases] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)
    started: str = ""
    columns: Mapping[str, Sequence[str]] = field(default_factory=dict)
    findings: Mapping[str, Sequence[Cases]] = field(default_factory=dict)
    validation_findings: Mapping[str, Sequence[Cases]] = field(default_factory=dict)

    @property
    def minimum(self) -> int:
        """The smallest count that a report may show: of a simulation any, else ``MINIMUM``."""
        return 1 if self.provenance.get("simulated") else MINIMUM

    @property
    def problem(self) -> Mapping[str, Any]:
        """The job's ``problem`` entry; empty where it is not recorded."""
        return dict(self.configuration.get("problem", {}))

    @property
    def multi(self) -> bool:
        """Whether the classes are findings, of which an image may have several."""
        return self.problem.get("task") == MULTI

    @property
    def predicted(self) -> frozenset[str]:
        """The sites whose predictions are here."""
        return frozenset(self.findings if self.multi else self.predictions)

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
    def history(self) -> RunHistory:
        """What its figures over rounds are drawn from."""
        return RunHistory(self.events, self.sites, self.communities, self.classes)

    @property
    def traffic(self) -> Traffic:
        """Bytes of its tensors, over all sites."""
        return traffic(self.bytes)

    def dropped(self) -> dict[str, list[int]]:
        """The rounds in which each site was asked and gave no usable answer."""
        found: dict[str, list[int]] = {}
        for event in self.events:
            if event["event"] == "dropped":
                found.setdefault(event["site"], []).append(int(event["round"]))
        return found


def traffic(sizes: Mapping[str, Mapping[str, int]]) -> Traffic:
    """Add up the bytes of a run's record, by site and by ``down.NAME`` or ``up.NAME``.

    Raises:
        ValueError: if a name begins with neither.

    Example:
        >>> traffic({"site-1": {"down.global": 40, "down.peer-1": 10, "up.update": 20}})
        Traffic(down_global=40, down_extra=10, up=20)
    """
    down_global = down_extra = up = 0
    for site, parts in sizes.items():
        for name, size in parts.items():
            if name == GLOBAL:
                down_global += size
            elif name.startswith("down."):
                down_extra += size
            elif name.startswith("up."):
                up += size
            else:
                raise ValueError(f"{site}: expected down.NAME or up.NAME, got {name!r}")
    return Traffic(down_global, down_extra, up)
