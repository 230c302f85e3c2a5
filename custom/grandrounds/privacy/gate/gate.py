"""Decides what leaves a site: checks an answer, books its cost, treats it and writes the audit trail.

A training whose update leaves with noise has one outcome only: a release. An error, or values that cannot be released,
would answer without noise a question that the server asks by a model of its own making. They are replaced by a zero
update with the same noise and the same cost.

The order matters. Everything is checked before anything is booked, everything is booked before any noise is drawn, and the
message is built anew from treated parts, so that nothing else can leave. If the process dies, the ledger has a release too
many, never one too few: a training that has begun and never answers is booked when the next task comes.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from decimal import ROUND_CEILING, Context
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from grandrounds.errors import GrandRoundsError
from grandrounds.evaluation.metrics import FRACTIONS, OF_CLASSES
from grandrounds.privacy.accounting import exceeds, spent_epsilon
from grandrounds.privacy.gate.audit import Refused, refusing, write_audit
from grandrounds.privacy.gate.inspection import METRIC_VALUES, Answer, Inspected, Part, inspect, may_leave
from grandrounds.privacy.gate.kinds import APP_DEFINED, KINDS, Expected
from grandrounds.privacy.gate.policy import SAMPLES_UNIT, ReleaseRule, SitePolicy, Terms
from grandrounds.privacy.gate.questions import OpenTraining, book_unanswered, count_question
from grandrounds.privacy.gate.sums import KitJob, note_question, party_of, require_large_change
from grandrounds.privacy.gate.treatments import NOT_PRIVATE, ClipAndNoise, Masked, RecordLevel, Unmodified
from grandrounds.privacy.ledger.ledger import BudgetExceeded, Ledger
from grandrounds.privacy.ledger.lines import DatasetIdentity, Purpose
from grandrounds.privacy.secure_sums.asked import AskedSum
from grandrounds.privacy.secure_sums.party import SumParty
from grandrounds.privacy.secure_sums.summands import OF_TRAINING, SUMMANDS
from grandrounds.protocol.messages import (
    COUNTS,
    DATA_CHANGES,
    FACTS,
    JOIN,
    LEDGER_HEAD,
    METRICS,
    PROTOCOL,
    SUM_PART,
    TEST,
    TRAIN,
    TREATED,
    UPDATE,
    VALIDATE,
    WITHHELD,
    ReleaseKind,
    is_running_statistic,
)
from grandrounds.protocol.names import SPENT, VALIDATION
from grandrounds.protocol.refusal import Reason
from grandrounds.protocol.spending import Mechanism, Spending, Unit, counted, outside_budget

MAX_WEIGHT = 1e4
"""Absolute value of a weight in a model of a task, where updates leave with noise: few values overflow."""
SCORES = frozenset({VALIDATE, TEST})
"""Tasks that only score a model: each is counted when it comes, whatever is answered."""
OF_THE_POLICY = frozenset({Reason.DENIED, Reason.PRECISION})
"""Reasons by which an answer is refused for parts that a failed training does not have."""
MOST_CLIPPED = 1e-3
"""Share of numbers of a sum that are clipped to their bound, above which the audit trail has a line."""
LAST_SCORES = 2
"""Tasks of each kind by which a run may be scored once it has spent the budget."""


@dataclass(frozen=True)
class TaskFacts:
    """A task as the site knows it.

    Attributes:
        job: FLARE's identity of the job.
        task: its name.
        run: the run's name.
        dataset: what it is about.
        expected: what an answer must fit.
        terms: what the task asks of the answer.
        question: what it asks, see :func:`~grandrounds.protocol.question.question_id`; empty where that is not known.
        checkpoints: the rounds after which the server may go on, and ask the same again.
        sum: what it says about a secure sum; None if nothing.
    """

    job: str
    task: str
    run: str
    dataset: DatasetIdentity
    expected: Expected
    terms: Terms = field(default_factory=Terms)
    question: str = ""
    checkpoints: tuple[int, ...] = ()
    sum: AskedSum | None = None

    @property
    def repeatable(self) -> bool:
        """Whether the answer costs something, so that it is kept for the case that it is lost.

        One in a secure sum would open nothing when it comes again.
        """
        return bool(self.question) and self.task in {TRAIN, *SCORES} and self.sum is None


class Gate:
    """One site's gate, by the policy of the job's scope; ``folder`` is the site's own, with ledger and audit trail."""

    def __init__(self, policy: SitePolicy, folder: Path, site: str, kit: Callable[[], KitJob] | None = None) -> None:
        self.policy = policy
        self.folder = folder
        self.site = site
        self._kit = kit

    def admit(self, facts: TaskFacts) -> None:
        """Check a task before any work: its name, and that the budget suffices for the expected releases.

        These are the releases of the run's previous round at this site; in the first round, the update. Trainings that
        have ended without an answer are booked before.

        Raises:
            Refused: if the task is not allowed, or the budget is spent.
        """
        if facts.task not in self.policy.tasks:
            raise Refused(Reason.TASK, f"task {facts.task!r}; allowed are {', '.join(self.policy.tasks)}")
        if facts.terms.image_size > self.policy.image_size:
            raise Refused(Reason.SIZE, f"{facts.terms.image_size} pixels a side, allowed are {self.policy.image_size}")
        self._settle()
        self._require_small_weights(facts)
        if facts.task == TRAIN:
            self.policy.demands.require_task(facts.terms)
            self._require_trainable(facts)
        if facts.task in SCORES and self._scored(facts) > self.policy.scored_answers:
            raise Refused(Reason.ANSWERS, f"allowed are {self.policy.scored_answers}")
        expected = self._expected_releases(facts)
        self._require_affordable(facts, [cost for _, cost in expected] if facts.task == TRAIN else [])
        if facts.task != TRAIN and facts.terms.models:
            self._require_unspent(facts, [cost for _, cost in expected])

    def begin(self, facts: TaskFacts, training: Spending | None = None) -> OpenTraining | None:
        """Note an admitted training on disk, so that it is paid for even if it never answers.

        Args:
            facts: of the task.
            training: the cost of a record-level private training, once it is known.

        Returns:
            What the executor is to know of the answer; None if the training costs nothing, or its cost is not known yet.

        Raises:
            Refused: if the disk does not take it.
        """
        rule = self._counted_update()
        if facts.task != TRAIN:
            return None
        if training is not None and rule is not None and isinstance(rule.treatment, RecordLevel):
            expected = [(UPDATE, rule.treatment.spending(training))]
        else:
            expected = self._expected_releases(facts)
        number = facts.expected.round_number
        costs = [(Purpose(facts.job, facts.run, number, name), cost) for name, cost in expected]
        with refusing(Reason.DISK, OSError, where="the training cannot be noted"):
            return OpenTraining(self.folder, facts.dataset, costs, self.policy.delta) if costs else None

    def admit_training(self, facts: TaskFacts, training: Spending | None) -> None:
        """Check a training before it starts: its noise, and its cost if the policy relies on record-level privacy.

        Raises:
            Refused: if it has less noise than the policy requires, or its cost would exceed the budget.
        """
        self.policy.demands.require_noise(training)
        if training is None:
            return
        rule = self.policy.named_rule(UPDATE)
        if rule is None or rule.outside_budget or not isinstance(rule.treatment, RecordLevel):
            return
        with refusing(Reason.DENIED, ValueError):
            cost = rule.treatment.spending(training)
        self._require_affordable(facts, [cost])

    def hides_failures(self, facts: TaskFacts) -> bool:
        """Whether a training's answer leaves with noise, so that a failure must look like any other answer."""
        rule = self._counted_update()
        return facts.task == TRAIN and rule is not None and isinstance(rule.treatment, ClipAndNoise)

    @property
    def relies_on_noise(self) -> bool:
        """Whether the policy protects updates by noise, so that failures must not show."""
        return self._counted_update() is not None

    def counts_updates(self, facts: TaskFacts) -> bool:
        """Whether the task is a training and the policy protects updates by noise."""
        return facts.task == TRAIN and self._counted_update() is not None

    def require_private(self, facts: TaskFacts, trained: Spending | None) -> None:
        """Refuse a training without noise under a policy that relies on noise in the training, whatever came of it.

        Raises:
            Refused: if it was not record-level private; the reason is the same for an error and for an update.
        """
        if facts.task == TRAIN:
            self.policy.demands.require_noise(trained)
        rule = self._counted_update()
        if trained is None and facts.task == TRAIN and rule is not None and isinstance(rule.treatment, RecordLevel):
            raise Refused(Reason.DENIED, f"{UPDATE}: {NOT_PRIVATE}")

    def release(self, facts: TaskFacts, answer: Answer, trained: Spending | None = None) -> Answer:
        """Check, book and treat an answer; ``trained`` is how the training was protected, if it was.

        Returns:
            A new answer with new tensors. Its releases are booked.

        Raises:
            Refused: if it may not leave. What was booked before the refusal stays booked.
        """
        if UPDATE in answer.parts or self.policy.demands.noise_multiplier is not None:
            self.require_private(facts, trained)
        try:
            known = inspect(answer, self.policy, facts.expected)
            self._require_demanded(facts, known)
        except Refused as refused:
            if trained is not None or refused.by_training:
                self.book_failure(facts, trained)
            if refused.by_training and facts.task in SCORES:
                return self.scores_nothing(facts, refused.detail)
            # A part that no rule allows is not in the answer of a training that has failed: the refusal would tell.
            hidden = refused.by_training or refused.reason in OF_THE_POLICY
            if not hidden or not self.hides_failures(facts):
                raise
            return self.release_failure(facts, refused.detail)
        if self.hides_failures(facts) and (fault := _other_form(facts, known)):
            return self.release_failure(facts, fault)
        costs = {name: self._cost(name, known, trained) for name in sorted(known.releases)}
        if facts.task != JOIN and known.facts:
            known = replace(known, facts={}, withheld=tuple(sorted({*known.withheld, *known.facts})))
        return self._released(facts, self._without_signs(facts, known), costs, samples=answer.header["samples"])

    def answer_sum(self, facts: TaskFacts) -> Answer:
        """Answer a question about a secure sum.

        Raises:
            Refused: if what is said about it is not accepted.
        """
        if facts.sum is None:
            raise Refused(Reason.FORM, "the task says nothing about a sum")
        task, party = facts.sum.task, self._party(facts)
        with refusing(Reason.SUM_REFUSED, GrandRoundsError, OSError):
            answer = party.answer(task)
        about = {"phase": task.phase.value, "quantity": task.roster.quantity if task.roster else ""}
        write_audit(self.folder, "sum", {**audit_fields(facts), **about, "contributors": list(task.contributors)})
        part = Part(APP_DEFINED, {"release": ReleaseKind.MASKED_SUM.value}, answer.to_tensors())
        return Answer({**self._header(facts), "samples": 0}, {METRICS: Part(METRIC_VALUES, {}, {}), SUM_PART: part})

    def _kit_job(self) -> KitJob:
        if self._kit is None:
            raise Refused(Reason.SUM_REFUSED, "nothing is known of the kit")
        return self._kit()

    def _party(self, facts: TaskFacts) -> SumParty:
        return party_of(self.folder, self.site, facts.expected.run_id, self.policy, self._kit_job(), self.ledger())

    def _in_sum(self, facts: TaskFacts, known: Inspected) -> list[str]:
        """The releases that leave in a secure sum: those that may in no other way, and where asked for those that may.

        Raises:
            Refused: if one may leave in a sum only, and the task asks for none.
        """
        only = [name for name, (rule, _) in known.releases.items() if isinstance(rule.treatment, Masked)]
        if facts.sum is not None:
            return [
                name
                for name, (rule, _) in known.releases.items()
                if isinstance(rule.treatment, Masked | Unmodified) and rule.kind in SUMMANDS
            ]
        if only:
            raise Refused(Reason.SUM, f"{', '.join(only)} may leave in a secure sum only")
        return []

    def release_failure(self, facts: TaskFacts, detail: str) -> Answer:
        """The answer in place of a training that has failed: a zero update with the policy's noise, booked.

        Raises:
            Refused: if the budget or the ledger does not allow it.
        """
        rule = self._counted_update()
        if rule is None or not facts.expected.template:
            raise Refused(Reason.VALUES, detail)
        zeros = {name: torch.zeros(shape, dtype=dtype) for name, (shape, dtype) in facts.expected.template.items()}
        known = self._without_signs(facts, Inspected({UPDATE: (rule, zeros)}, {}, {}, (), 1))
        return self._released(facts, known, {UPDATE: rule.treatment.spending(None)}, failure=detail)

    def scores_nothing(self, facts: TaskFacts, detail: str) -> Answer:
        """The answer in place of scores, or of a registration, that have failed: like one whose numbers are all withheld.

        Whether the site's images can be read as the task asks, or a model scored on them, is an answer about them.
        """
        return self._released(facts, Inspected({}, {}, {}, (), 0), {}, failure=detail)

    def book_failure(self, facts: TaskFacts, training: Spending | None) -> None:
        """Book a training that has given no release as if it had: whether it has is a result of the training."""
        rule = self._counted_update()
        if facts.task != TRAIN:
            return
        if training is not None and rule is not None and isinstance(rule.treatment, RecordLevel):
            self._book(facts, UPDATE, rule.treatment.spending(training))
        elif rule is None:
            for name, cost in self._expected_releases(facts):
                self._book(facts, name, cost)

    def _released(
        self, facts: TaskFacts, known: Inspected, costs: Mapping[str, Spending], failure: str = "", samples: int = 0
    ) -> Answer:
        self._require_demanded(facts, known)
        summed = self._in_sum(facts, known)
        known = without_small_tables(self._within_scores(facts, known), facts.expected.classes)
        known = coarsened(without_scores_of_classes(known, self._tables()))
        costs = {name: cost for name, cost in costs.items() if name in known.releases}
        self._require_affordable(facts, list(costs.values()))
        for name, cost in costs.items():
            self._book(facts, name, cost)
        alone = sorted(known.releases.keys() - set(summed))
        # In one order, which would else say something that no noise is on.
        treated = {name: dict(sorted(self._treated(name, known).items())) for name in alone}
        masked = self._masked(facts, {name: known.releases[name] for name in summed}, samples) if summed else {}
        self._audit(facts, known, costs, failure)
        numbers = {name: value for name, value in sorted(known.scalars.items()) if name != SPENT}
        reported = {METRICS: Part(METRIC_VALUES, {}, {**numbers, **self._spent(facts, known)})}
        if known.facts:
            reported[FACTS] = Part(APP_DEFINED, {}, dict(known.facts))
        header = {**self._header(facts), "samples": known.samples}
        return Answer(header, {**reported, **_parts(known, treated), **masked})

    def _masked(
        self, facts: TaskFacts, releases: Mapping[str, tuple[ReleaseRule, Mapping[str, Tensor]]], samples: int
    ) -> dict[str, Part]:
        """The part of an answer in a secure sum."""
        assert facts.sum is not None
        party, minima = self._party(facts), []
        numbers: dict[str, tuple[ReleaseKind, Mapping[str, Tensor]]] = {}
        for name, (rule, tensors) in releases.items():
            if not isinstance(rule.treatment, Masked):
                numbers[name] = rule.kind, tensors
                continue
            with refusing(Reason.VALUES, ValueError, where=name):
                numbers[name] = rule.kind, rule.treatment.summed(tensors)
            minima += [] if rule.kind in OF_TRAINING else [rule.treatment.minimum]
        with refusing(Reason.SUM_REFUSED, GrandRoundsError, OSError):
            dataset, started = facts.dataset.name, self._kit_job().started(facts.expected.run_id)
            if minima:
                dataset = require_large_change(self.ledger(), dataset, max(minima))
            for name, (kind, _) in numbers.items():
                note_question(self.ledger(), f"{name} of {dataset}", started, kind, facts.sum)
            fixed = self.policy.sums.fixed_updates or any(kind not in OF_TRAINING for kind, _ in numbers.values())
            tensors, clipped = facts.sum.masked(party, numbers, samples, dataset if fixed else "")
        if clipped > MOST_CLIPPED:
            write_audit(self.folder, "clipped", {**audit_fields(facts), "detail": f"{clipped:.2%} of the numbers"})
        meta = {"release": ReleaseKind.MASKED_SUM.value, TREATED: Masked.name}
        return {SUM_PART: Part(APP_DEFINED, meta, tensors)}

    def _header(self, facts: TaskFacts) -> dict[str, Any]:
        """Of every answer: the task that it is about, and the state of the ledger."""
        content = self.ledger().content()
        changes = content.changes(facts.dataset.name)
        head = {LEDGER_HEAD: content.chain.head, **({DATA_CHANGES: changes} if changes else {})}
        task = {"protocol": PROTOCOL, "round": facts.expected.round_number, "run_id": facts.expected.run_id}
        return {**task, **head}

    def _require_demanded(self, facts: TaskFacts, known: Inspected) -> None:
        if UPDATE in known.releases:
            self.policy.demands.require_task(replace(facts.terms, updates=True))

    def _within_scores(self, facts: TaskFacts, known: Inspected) -> Inspected:
        """Without scores, counts and curves, if the job has got as many answers with some as it may have."""
        scores = {name for name in known.scalars if self._scored_part(name)} | (WITHHELD & known.releases.keys())
        if not scores or facts.task in SCORES or self._scored(facts) <= self.policy.scored_answers:
            return known
        return known.without(scores)

    def _scored(self, facts: TaskFacts) -> int:
        """Count one more question of a job about validation or test images."""
        return self._question(facts.job)

    def _question(self, what: str) -> int:
        where = "the answers with scores cannot be counted"
        with refusing(Reason.AUDIT, OSError, ValueError, KeyError, where=where):
            return count_question(self.folder, what)

    def _scored_part(self, name: str) -> bool:
        rule = self.policy.scalar_rule_for(name)
        return rule is not None and rule.part in ("val", "test")

    def _without_signs(self, facts: TaskFacts, known: Inspected) -> Inspected:
        """Without the numbers that would show whether a training has failed, where updates cost epsilon."""
        if not self.hides_failures(facts) and (UPDATE in known.releases or not self.counts_updates(facts)):
            return known
        shown = facts.expected.images if may_leave(SAMPLES_UNIT, self.policy, facts.expected) else 1
        scores = {name: value for name, value in known.scalars.items() if not self._of_training(name)}
        numbers = {**scores, SAMPLES_UNIT: float(shown)} if shown > 1 else scores
        withheld = sorted({*known.withheld, *(known.scalars.keys() - numbers.keys())})
        return replace(known, scalars=numbers, withheld=tuple(withheld), samples=max(1, shown))

    def _of_training(self, name: str) -> bool:
        rule = self.policy.scalar_rule_for(name)
        return rule is None or rule.part in ("train", "labelled")

    def _counted_update(self) -> ReleaseRule | None:
        """The rule for model updates, if they are protected by noise."""
        rule = self.policy.named_rule(UPDATE)
        if rule is None or rule.outside_budget or not isinstance(rule.treatment, ClipAndNoise | RecordLevel):
            return None
        return rule

    def _require_small_weights(self, facts: TaskFacts) -> None:
        """Refuse a model whose weights are so large that values may overflow, for every task that has one.

        Raises:
            Refused: naming the weight.
        """
        largest = facts.expected.largest
        if self._counted_update() is not None and not largest <= MAX_WEIGHT:
            raise Refused(Reason.VALUES, f"the model from the server has a weight of {largest:.3g}")

    def _require_trainable(self, facts: TaskFacts) -> None:
        """Refuse before the training what would make its answer fail, by the received model alone.

        Raises:
            Refused: if the update would have entries that are refused.
        """
        rule, expected = self._counted_update(), facts.expected
        if rule is None:
            return
        statistics = sorted(filter(is_running_statistic, expected.template))
        if statistics and getattr(rule.treatment, "running_statistics", "refuse") == "refuse":
            raise Refused(
                Reason.VALUES, f"{statistics[0]!r} is a running statistic, which {rule.treatment.name} refuses"
            )

    def _settle(self) -> None:
        with refusing(Reason.LEDGER, OSError, ValueError):
            for booking in book_unanswered(self.folder, self.ledger()):
                purpose = booking.purpose
                fields = {"job": purpose.job, "run": purpose.run, "round": purpose.round_number}
                write_audit(self.folder, "unanswered", {**fields, "dataset": booking.dataset.name})

    def _require_unspent(self, facts: TaskFacts, expected: list[Spending]) -> None:
        """Refuse a task with a model once the budget is spent, but for the last scores of a run that has spent it.

        Raises:
            Refused: if the next release would not be affordable, and the run has had its last scores.
        """
        bookings = self.ledger().content().sharing(facts.dataset.name, self.policy.unit)
        latest = [booking.spending for booking in bookings][-1:]
        try:
            self._require_affordable(facts, expected or latest)
        except Refused as refused:
            paid = [booking.purpose.run for booking in bookings if counted([booking.spending])]
            ends = refused.reason is Reason.BUDGET and paid[-1:] == [facts.run] and facts.task in SCORES
            if not ends or self._question(f"last {facts.task} of {facts.run}") > LAST_SCORES:
                raise

    def _expected_releases(self, facts: TaskFacts) -> list[tuple[str, Spending]]:
        bookings = self.ledger().content().bookings
        # Curves and counts come with scores; a run that is continued sends its earlier kinds of releases again.
        earlier = [b for b in bookings if b.purpose.run == facts.run and b.purpose.release not in WITHHELD]
        last = max((booking.purpose.round_number for booking in earlier), default=0)
        names: dict[str, Spending | None] = {UPDATE: None} if not earlier else {}
        names.update((b.purpose.release, b.spending) for b in earlier if b.purpose.round_number == last)
        expected = []
        for name, spending in names.items():
            rule = self.policy.named_rule(name)
            if rule is None or rule.outside_budget:
                continue  # denied by now, or not counted
            trained = spending is not None and spending.mechanism is Mechanism.DP_SGD
            if isinstance(rule.treatment, RecordLevel) and not trained:
                continue  # the executor knows the cost of its training and calls admit_training
            expected.append((name, rule.treatment.spending(spending)))
        return expected

    def _require_affordable(self, facts: TaskFacts, costs: list[Spending]) -> None:
        policy, name, ledger = self.policy, facts.dataset.name, self.ledger()
        with refusing(Reason.LEDGER, GrandRoundsError):
            content = ledger.content()
        with refusing(Reason.VERSION, GrandRoundsError):
            content.require_known(facts.dataset)
        epsilon = spent_epsilon([*content.spendings(name, policy.unit), *costs], policy.delta, policy.unit)
        if costs and exceeds(epsilon, policy.target(name)):
            raise Refused(
                Reason.BUDGET,
                f"with data set {name!r} epsilon {epsilon:.4g} would be spent at delta {policy.delta:g} for "
                f"{policy.unit.described()}; the target is {policy.target(name):g}",
            )

    def _cost(self, name: str, known: Inspected, trained: Spending | None) -> Spending:
        rule, _ = known.releases[name]
        with refusing(Reason.DENIED, ValueError, where=name):
            cost = rule.treatment.spending(trained)
        return outside_budget(self.policy.unit) if rule.outside_budget else cost

    def _book(self, facts: TaskFacts, name: str, cost: Spending) -> None:
        purpose = Purpose(facts.job, facts.run, facts.expected.round_number, name)
        target = self.policy.target(facts.dataset.name)
        try:
            self.ledger().book(purpose, facts.dataset, cost, self.policy.delta, target)
        except BudgetExceeded as error:
            raise Refused(Reason.BUDGET, str(error)) from error
        except (GrandRoundsError, OSError) as error:
            raise Refused(Reason.LEDGER, str(error)) from error

    def _spent(self, facts: TaskFacts, known: Inspected) -> dict[str, float]:
        """The ledger's epsilon so far, rounded up, if the answer has a release and the policy allows the number to leave."""
        if not known.releases or not may_leave(SPENT, self.policy, facts.expected):
            return {}
        spendings = self.ledger().content().spendings(facts.dataset.name, self.policy.unit)
        epsilon = shown_epsilon(spendings, self.policy.delta, self.policy.unit)
        return {SPENT: epsilon} if math.isfinite(epsilon) else {}

    def _tables(self) -> set[str]:
        """The names of counts that the policy lets out."""
        return {name for name in COUNTS.values() if self.policy.rule_for(ReleaseKind.COUNTS, name) is not None}

    def _treated(self, name: str, known: Inspected) -> dict[str, Tensor]:
        rule, tensors = known.releases[name]
        with refusing(Reason.VALUES, ValueError, where=name):
            treated = rule.treatment.apply(tensors)
        for key, value in treated.items():
            if not bool(value.isfinite().all()):
                raise Refused(Reason.VALUES, f"{name}[{key!r}] exceeds the range of {value.dtype} with its noise")
        return treated

    def _audit(self, facts: TaskFacts, known: Inspected, costs: Mapping[str, Spending], failure: str) -> None:
        releases = {
            name: {"treatment": known.releases[name][0].treatment.name, "mechanism": cost.mechanism.value}
            for name, cost in costs.items()
            if name in known.releases
        }
        details: dict[str, Any] = {
            "releases": releases,
            "scalars": sorted(known.scalars),
            "withheld": list(known.withheld),
        }
        if known.facts:
            details["facts"] = sorted(known.facts)
        if failure:
            details["in_place_of"] = failure
        write_audit(self.folder, "released", {**audit_fields(facts), **details})

    def ledger(self) -> Ledger:
        """The site's ledger.

        Raises:
            Refused: if it is missing, damaged or another site's.
        """
        with refusing(Reason.LEDGER, GrandRoundsError, OSError):
            return Ledger(self.folder, self.site)


def _other_form(facts: TaskFacts, known: Inspected) -> str:
    """How the form of a counted update would say something that no noise is on; empty if it has the model's entries."""
    if UPDATE not in known.releases:
        return "" if known.releases or not facts.expected.template else "the training has no update"
    missing = facts.expected.template.keys() - known.releases[UPDATE][1].keys()
    return f"the update lacks {', '.join(sorted(missing))}" if missing else ""


def audit_fields(facts: TaskFacts | None) -> dict[str, str | int]:
    """The fields of a task in the audit trail."""
    if facts is None:
        return {}
    round_number = facts.expected.round_number
    return {
        "job": facts.job,
        "run": facts.run,
        "task": facts.task,
        "round": round_number,
        "dataset": facts.dataset.name,
    }


def _parts(known: Inspected, treated: Mapping[str, dict[str, Tensor]]) -> dict[str, Part]:
    parts = {}
    for name in sorted(treated):
        rule, _ = known.releases[name]
        meta = {"release": rule.kind.value, TREATED: rule.treatment.name}
        parts[name] = Part(KINDS[rule.kind].data_kind, meta, treated[name])
    return parts


TENS = 10
"""Totals leave as multiples of it."""
EPSILON_DIGITS = Context(prec=2, rounding=ROUND_CEILING)
RATES, RATE_ERROR = 1.1, 1e-9
"""Sampling rates are shown as powers of it; by how much a power's logarithm may be above a whole number."""
SIZE, INTENSITY = "size.", "intensity."
INTENSITY_DIGITS = 3
"""Of a share of pixels, which is as much of one image among a few hundred as moments of images say."""
STEPS = (0.01, 0.02, 0.05, 0.1, 0.2)
"""Of scores that leave without a table: the finest of at least one image, so that a value excludes no number of images."""
FEW_IMAGES = 20.0
"""Images that scores count as of whose number does not leave."""
UNROUNDED = frozenset({"log_loss", "log_likelihood"})
CLASS_COUNT = re.compile(r"(images\.\w+)\.(\d+)")
"""The number of images of a class in a part of the data set: its table, and the class."""


def coarsened(known: Inspected) -> Inspected:
    """The answer with its totals as multiples of ten and shares of intensities as multiples of a thousandth.

    Scores beside which no table of their images leaves are rounded, too: the exact area under a curve is a fraction whose
    denominator tells the numbers of images of two classes. Mean logarithms select the model and stay exact: they tell the
    shares of classes to a server that makes up a model for that.

    Example:
        >>> coarsened(Inspected({}, {"size.256": 44.0, "loss": 0.4, "intensity.0.3": 0.12345}, {}, (), 236)).scalars
        {'size.256': 40.0, 'loss': 0.4, 'intensity.0.3': 0.123}
    """
    scalars = {name: _coarse(name, value, known) for name, value in known.scalars.items()}
    scalars = {name: value for name, value in scalars.items() if value > 0 or not _is_total(name)}
    # One sample is no number of images but the weight of a site that does not tell it.
    return replace(known, scalars=scalars, samples=max(int(_tens(known.samples)), min(known.samples, 1)))


def shown_epsilon(spendings: Iterable[Spending], delta: float, unit: Unit) -> float:
    """The spent epsilon as it leaves: never below the exact one, and of two digits.

    The exact one tells the number of training images, which the sampling rate of record-level noise depends on. Rounding it
    alone would not help: each round has another figure, and ten of them together leave one number. So the rates are rounded
    up first, to powers of ``RATES``.

    Example:
        >>> from grandrounds.protocol.spending import Mechanism
        >>> rounds = [Spending(Mechanism.DP_SGD, Unit.RECORD, 1.0, 1.5, 16 / images, 60) for images in (240, 236)]
        >>> [shown_epsilon([cost], 1e-5, Unit.RECORD) for cost in rounds]
        [1.9, 1.9]
    """
    powers = [(cost, math.ceil(math.log(cost.sampling_rate, RATES) - RATE_ERROR)) for cost in spendings]
    epsilon = spent_epsilon([replace(cost, sampling_rate=min(RATES**n, 1.0)) for cost, n in powers], delta, unit)
    return float(EPSILON_DIGITS.create_decimal(epsilon)) if math.isfinite(epsilon) else epsilon


def without_small_tables(known: Inspected, classes: int) -> Inspected:
    """Without tables in which a count is too small to leave, and without numbers of images that lack a class.

    Args:
        known: the checked answer, whose small numbers of images are withheld already.
        classes: how many there are.

    Raises:
        Refused: if a release does not have the form that its treatment needs.

    Example:
        >>> numbers = {"images.val.0": 40.0, "images.test.0": 0.0, "images.test.1": 12.0}
        >>> without_small_tables(Inspected({}, numbers, {}, (), 1), classes=2).scalars
        {'images.test.0': 0.0, 'images.test.1': 12.0}
    """
    with refusing(Reason.VALUES, ValueError):
        releases = {name for name, (rule, tensors) in known.releases.items() if rule.treatment.withholds(tensors)}
    matches = {name: CLASS_COUNT.fullmatch(name) for name in known.scalars}
    counts = {name: (match[1], int(match[2])) for name, match in matches.items() if match}
    shown = Counter(table for table, number in {*counts.values()} if number < classes)
    return known.without(releases | {name for name, (table, _) in counts.items() if shown[table] != classes})


def without_scores_of_classes(known: Inspected, tables: Collection[str]) -> Inspected:
    """Without exact scores of single classes of a model whose table stays: they say much of a class of few patients.

    A model without a table in the answer keeps none where the policy lets tables of its part of the data set out: whether
    its table would stay is not known.

    Args:
        known: the checked answer.
        tables: the names of counts that the policy lets out.
    """
    kept = set()
    for name in known.scalars:
        model, _, score = name.rpartition(".")
        if model and score in OF_CLASSES and _beside(model) & set(tables) and COUNTS.get(model) not in known.releases:
            kept.add(name)
    return known.without(kept)


def _is_total(name: str) -> bool:
    return name == SAMPLES_UNIT or name.startswith(SIZE)


def _beside(model: str) -> set[str]:
    """The tables of the images that a model is scored on."""
    return {table for key, table in COUNTS.items() if (key == VALIDATION) == (model == VALIDATION)}


def _coarse(name: str, value: float, known: Inspected) -> float:
    model, _, score = name.rpartition(".")
    images = known.scalars.get(f"{model}.n", FEW_IMAGES if score in FRACTIONS else 0.0)
    if model and images and score not in UNROUNDED and not _beside(model) & known.releases.keys():
        step = next((step for step in STEPS if step * images >= 1), STEPS[-1])
        return max(_tens(value), float(TENS)) if score == "n" else round(round(value / step) * step, 2)
    return round(value, INTENSITY_DIGITS) if name.startswith(INTENSITY) else _tens(value) if _is_total(name) else value


def _tens(value: float) -> float:
    return float(math.floor(value / TENS + 0.5) * TENS)
