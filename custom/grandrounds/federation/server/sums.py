"""Secure sums at the server: who joins, who is in a sum, and what it is. Single contributions stay closed.

A sum is opened over a roster of sites, tasks to these sites are answered masked, and the sum is closed: two small tasks, by
which the contributors agree on who they are and open it. A site that is lost at any time costs this sum at most.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from torch import Tensor

from grandrounds.errors import GrandRoundsError, MessageError
from grandrounds.federation.server.aggregate import Aggregator, Demands, UnmetDemands
from grandrounds.federation.server.exchange import Assignment
from grandrounds.ordering import natural_sorted
from grandrounds.privacy.secure_sums.asked import SUBJECT
from grandrounds.privacy.secure_sums.attempt import Rules
from grandrounds.privacy.secure_sums.messages import Phase, SumAnswer, SumTask
from grandrounds.privacy.secure_sums.numbers import Words
from grandrounds.privacy.secure_sums.opening import open_sum, opened_numbers, tensors_to_words
from grandrounds.privacy.secure_sums.roster import MAX_SITES, Join, Roster
from grandrounds.privacy.secure_sums.summands import WEIGHT, SumTerms
from grandrounds.protocol.messages import (
    SUM,
    SUM_PART,
    UPDATE,
    Payload,
    Release,
    ReleaseKind,
    Result,
    State,
    floating_entries,
    require_like,
)
from grandrounds.protocol.paths import in_kit
from grandrounds.protocol.tensors import FULL

if TYPE_CHECKING:
    from grandrounds.federation.server.averaging import AveragingController
    from grandrounds.federation.server.controller import RoundController

SUM_EVENT = "sum"
OF_UPDATES: Mapping[str, ReleaseKind] = MappingProxyType({UPDATE: ReleaseKind.MODEL_UPDATE})
FEWEST = 3
"""Sites of a sum: of two each would know the other's part."""
MOST_STARTS = 3
"""Of an attempt whose sites are lost before they have sealed their shares."""
SIMULATED = "the secure sums of this simulation prove arithmetic, not privacy: no site has a gate and a key of its own"
CURIOUS = (
    "secure sums hide single sites against a curious server only: pin partners (grandrounds kit partners) at {sites}"
)


@dataclass(frozen=True)
class OpenedSum:
    """A sum, and whose.

    Attributes:
        quantity: what was added.
        contributors: the sites in it.
        weight: the sum of their weights; their number, if they are equal.
        releases: sums in double precision, by release and tensor.
    """

    quantity: str
    contributors: tuple[str, ...]
    weight: float
    releases: Mapping[str, Mapping[str, Tensor]]


@dataclass
class _Attempt:
    """An attempt at a sum, and what has come of it."""

    roster: Roster
    boxes: Mapping[str, Mapping[str, bytes]]
    weighted: bool
    kinds: Mapping[str, ReleaseKind]
    terms: SumTerms | None = None
    subject: bytes = b""
    inputs: dict[str, dict[str, Words]] = field(default_factory=dict)


class SumService:
    """Opens sums of what sites release, over rosters of at least three of them.

    Args:
        controller: of the run, whose dispatcher asks the sites.

    Attributes:
        masked_kinds: the kinds of releases that the gate of any joined site lets out masked only.
    """

    def __init__(self, controller: RoundController) -> None:
        self._controller = controller
        self._joins: dict[str, Join] = {}
        self._rules: dict[str, Rules] = {}
        self._nonces: dict[str, bytes] = {}
        self._open: _Attempt | None = None
        self._next: _Attempt | None = None
        self._pinned: dict[str, bool] = {}
        self._reasons: dict[str, str] = {}
        self.masked_kinds: frozenset[ReleaseKind] = frozenset()

    def join(self, sites: Sequence[str]) -> list[str]:
        """Ask sites, once, for their keys of this run and what their gates mask.

        Returns:
            Those that have joined, now or before, in canonical order.
        """
        self._ask_to_join([site for site in sites if site not in self._joins])
        return natural_sorted(site for site in sites if site in self._joins)

    def _ask_to_join(self, sites: Sequence[str]) -> None:
        for site, answer in self._ask({site: SumTask(Phase.JOIN) for site in sites}).items():
            if answer.join is None or answer.join.site != site:
                continue
            self._joins[site], self._rules[site], self._pinned[site] = answer.join, answer.rules, answer.pinned
            known = {kind for kind in ReleaseKind if kind.value in answer.kinds}
            self.masked_kinds = self.masked_kinds | known

    def covers(self, aggregation: str, kind: ReleaseKind) -> bool:
        """Whether releases of a kind are seen as sums alone, by the option ``aggregation`` and what gates mask."""
        return aggregation == "secure" or (aggregation == "auto" and kind in self.masked_kinds)

    def settle(self, aggregation: str, kind: ReleaseKind, sites: Sequence[str]) -> bool:
        """Have the sites say what leaves them masked, where sums may be secure: as the option says, ``auto`` in kits.

        Returns:
            Whether releases of the kind are seen as sums alone, which the record then has a remark about.
        """
        if aggregation == "secure" or (aggregation == "auto" and in_kit(self._controller.fl_ctx)):
            self.join(sites)
        if covered := self.covers(aggregation, kind):
            self.remark()
        return covered

    def remark(self) -> None:
        """Note in the record against whom the sums protect, if that is not everybody."""
        if any(not join.certificate for join in self._joins.values()):
            self._controller.record.remark(SIMULATED)
        elif open_to := natural_sorted(site for site, pinned in self._pinned.items() if not pinned):
            self._controller.record.remark(CURIOUS.format(sites=", ".join(open_to)))

    def open(
        self, quantity: str, sites: Sequence[str], weighted: bool = False, kinds: Mapping[str, ReleaseKind] = OF_UPDATES
    ) -> list[str]:
        """Begin a sum: the next answers of these sites are their parts of it.

        Args:
            quantity: what is added, such as ``update 3``.
            sites: that are asked.
            weighted: whether each adds its numbers times its training images.
            kinds: of the releases that are added up, by name.

        Returns:
            The sites of the roster.

        Raises:
            GrandRoundsError: if fewer than three have joined and sealed their shares.
        """
        planned, self._open = self._next, None
        roster = self.join(sites)
        if planned and planned.roster.quantity == quantity:  # sums of something else may have come in between
            self._next = None
        if planned and not self._next and list(planned.roster.sites) == sorted(roster):
            self._open = replace(planned, weighted=weighted, kinds=kinds)
            return roster
        for _ in range(MOST_STARTS):
            self._require_enough(quantity, roster)
            self._ask_to_join([site for site in roster if site not in self._nonces])
            roster = [site for site in roster if site in self._nonces]
            self._require_enough(quantity, roster)
            drawn = self._roster(quantity, roster)
            answers = self._ask({site: SumTask(Phase.SHARES, drawn) for site in roster})
            sealed = {site: answer.boxes for site, answer in answers.items()}
            if boxes := _exchanged(drawn, sealed):
                self._open = _Attempt(drawn, boxes, weighted, kinds)
                return roster
            roster = [site for site in roster if site in sealed]
        raise GrandRoundsError(f"{quantity}: sites were lost before the sum could begin, {MOST_STARTS} times")

    def attached(self, site: str, task: str, payload: Payload) -> Payload:
        """A task with the open sum, if the site is in its roster."""
        attempt = self._open
        if attempt is None or task == SUM or site not in attempt.roster.sites:
            return payload
        about = SumTask(Phase.INPUT, attempt.roster, attempt.weighted, attempt.boxes[site])
        values = {**payload.values, SUM: about.to_json()}
        if attempt.terms is None:
            job = self._controller.job_arguments
            attempt.terms = SumTerms(len(attempt.roster.sites), attempt.weighted, job, payload.values)
        return replace(payload, values=values)

    def check(self, site: str, result: Result) -> None:
        """Refuse an answer that should be a part of the open sum and cannot be.

        Raises:
            MessageError: naming what is wrong.
        """
        attempt, masked = self._open, result.releases.get(SUM_PART)
        if attempt is None or site not in attempt.roster.sites:
            if masked is not None:
                raise MessageError("masked numbers came without a sum that is open")
            return
        if masked is None or masked.kind is not ReleaseKind.MASKED_SUM:
            raise MessageError("the answer has no masked numbers, and a secure sum was asked for")
        names = {name.partition("/")[0] for name in masked.tensors} - {WEIGHT, SUBJECT}
        if names != attempt.kinds.keys() or SUBJECT not in masked.tensors:
            raise MessageError(f"the masked numbers are of {sorted(names)}, asked for were {sorted(attempt.kinds)}")
        subject = bytes(masked.tensors[SUBJECT].tolist())
        if attempt.subject and subject != attempt.subject:
            raise MessageError("its task was another than that of the sites before: tasks of a sum must be equal")

    def take(self, site: str, release: Release) -> None:
        """Take a site's masked numbers, which have passed the check; FLARE's lock is held."""
        attempt = self._open
        if attempt is None or site in attempt.inputs:
            return
        tensors = dict(release.tensors)
        attempt.subject = bytes(tensors.pop(SUBJECT).tolist())
        attempt.inputs[site] = tensors_to_words(tensors)

    def close(self, following: str = "") -> OpenedSum | None:
        """Have the contributors open the sum.

        Args:
            following: the next quantity, if its sites will be the same: its shares then come along.

        Returns:
            The sum; None if it is lost, which the record says with the reason.
        """
        attempt, self._open = self._open, None
        if attempt is None:
            return None
        try:
            return self._opened(attempt, following)
        except MessageError as error:
            self._note(attempt, str(error))
            return None

    def _opened(self, attempt: _Attempt, following: str) -> OpenedSum:
        roster, chosen = attempt.roster, tuple(sorted(attempt.inputs))
        rules = [self._rules[site] for site in roster.sites]
        needed = max(rule.needed(len(roster.sites)) for rule in rules)
        least = max(rule.contributors(len(roster.sites)) for rule in rules)
        if len(chosen) < least:
            raise MessageError(f"{len(chosen)} contributors are fewer than {least}: the sum is not opened")
        about = SumTask(Phase.CONTRIBUTORS, roster, attempt.weighted, contributors=chosen, subject=attempt.subject)
        asked = {site: replace(about, boxes=attempt.boxes[site]) for site in chosen}
        signatures = {site: answer.signature for site, answer in self._ask(asked, needed).items()}
        planned = self._planned(following, list(signatures)) if set(signatures) == set(roster.sites) else None
        unmask = {
            site: replace(asked[site], phase=Phase.UNMASK, signatures=signatures, following=planned)
            for site in signatures
        }
        answers = self._ask(unmask, needed)
        if planned is not None:
            sealed = {site: answer.boxes for site, answer in answers.items()}
            boxes = _exchanged(planned, sealed)
            self._next = _Attempt(planned, boxes, attempt.weighted, attempt.kinds) if boxes else None
        opened = {site: answer.unmasking for site, answer in answers.items()}
        words = open_sum(roster, needed, attempt.inputs, opened)
        assert attempt.terms is not None
        sums, weight = opened_numbers(words, attempt.kinds, len(chosen), attempt.terms)
        self._note(attempt)
        return OpenedSum(roster.quantity, chosen, weight, sums)

    def _planned(self, quantity: str, sites: Sequence[str]) -> Roster | None:
        return self._roster(quantity, sites) if quantity and all(site in self._nonces for site in sites) else None

    def _roster(self, quantity: str, sites: Sequence[str]) -> Roster:
        nonces = {site: self._nonces.pop(site) for site in sites}
        return Roster(quantity, {site: self._joins[site] for site in sites}, nonces)

    def _require_enough(self, quantity: str, sites: Collection[str]) -> None:
        if not FEWEST <= len(sites) <= MAX_SITES:
            reasons = [f"{site}: {self._reasons[site]}" for site in natural_sorted(self._reasons)]
            raise GrandRoundsError(
                f"{quantity}: a secure sum has {FEWEST} to {MAX_SITES} sites, and {len(sites)} can take part "
                f"({'; '.join([', '.join(natural_sorted(sites)) or 'none', *reasons])}); with fewer use the policy open "
                "and aggregation=mean"
            )

    def _ask(self, tasks: Mapping[str, SumTask], enough: int | None = None) -> dict[str, SumAnswer]:
        """Ask sites about a sum; who has not answered is missing."""
        payload, answers = self._controller.payload(), dict[str, SumAnswer]()
        assignments = {
            site: Assignment(SUM, replace(payload, values={**payload.values, SUM: task.to_json()}))
            for site, task in tasks.items()
        }

        def received(site: str, _: str, result: Result) -> None:
            release = result.releases.get(SUM_PART)
            answer = SumAnswer.from_tensors({} if release is None else release.tensors)
            if answer.nonce:
                self._nonces[site] = answer.nonce
            answers[site] = answer

        if assignments:
            needed = len(tasks) if enough is None else enough
            self._reasons = dict(self._controller.dispatcher.ask(assignments, received, needed).dropped)
        return answers

    def _note(self, attempt: _Attempt, reason: str = "") -> None:
        """One line of the record and the terminal: who was in the sum, or why there is none."""
        left_out = [site for site in attempt.roster.sites if site not in attempt.inputs]
        fields: dict[str, Any] = {"quantity": attempt.roster.quantity, "contributors": natural_sorted(attempt.inputs)}
        fields |= {"left_out": natural_sorted(left_out)} if left_out else {}
        silent = [f"{site}: {why}" for site, why in self._reasons.items()]
        fields |= {"lost": "; ".join([reason, *silent])} if reason else {}
        self._controller.record.event(SUM_EVENT, round=self._controller.round_number, **fields)


def _exchanged(roster: Roster, sealed: Mapping[str, Mapping[str, bytes]]) -> dict[str, dict[str, bytes]]:
    """The shares that each site gets from its partners; empty if some site's are missing."""
    partners = {site: set(roster.sites) - {site} for site in roster.sites}
    if any(set(sealed.get(site, ())) != others for site, others in partners.items()):
        return {}
    return {site: {other: sealed[other][site] for other in others} for site, others in partners.items()}


class SecureMean(Aggregator):
    """The mean of updates that the server sees as a sum only.

    Args:
        controller: of the run, whose sums are used.
        weighted: by training images; else all sites count the same.

    Attributes:
        opened: the last sum, with what was added up beside the updates; None if it is lost.
    """

    def __init__(self, controller: AveragingController, weighted: bool) -> None:
        self._controller, self._weighted = controller, weighted
        self._model: State = {}
        self.opened: OpenedSum | None = None

    def require_possible(self, demands: Demands) -> None:
        """Refuse what needs single updates, and half precision, which words do not have."""
        if demands.readers:
            raise UnmetDemands(
                f"aggregation=secure shows the server no single update, but {'; '.join(demands.readers)}: leave that out, "
                "or have the sites take the policy open, and set controller.aggregation=mean"
            )
        if demands.precision != FULL:
            raise UnmetDemands(f"aggregation=secure adds up whole words: set update_precision={FULL}")

    def open(self, sites: Sequence[str]) -> None:  # type: ignore[override]
        """Begin the sum of the round."""
        self._controller.sums.open(self._quantity(0), sites, self._weighted, self._controller.summed_releases())

    def _quantity(self, ahead: int) -> str:
        return f"update {self._controller.round_number + ahead}"

    def check(self, site: str, result: Result, model: State) -> None:
        """Refuse an update that the server could read."""
        if result.update is not None:
            raise MessageError("the update came plain, and a secure sum was asked for")
        self._model = floating_entries(model)

    def add(self, site: str, update: State, weight: float = 1.0) -> None:
        """Never called: the service takes what is masked."""
        raise MessageError("an update came plain")

    def skip(self, site: str) -> None:
        """A site is not in the sum."""

    def close(self) -> dict[str, Tensor] | None:
        """The mean over the contributors; None if the sum is lost."""
        self.opened = opened = self._controller.sums.close(self._quantity(1))
        if opened is None or not opened.weight:
            return None
        update = opened.releases[UPDATE]
        if unknown := update.keys() - self._model.keys():
            raise GrandRoundsError(f"the sum of updates has {min(unknown)!r}, which the model has not")
        mean = {name: (total / opened.weight).to(self._model[name].dtype) for name, total in update.items()}
        require_like(mean, self._model, "the mean update")
        return mean
