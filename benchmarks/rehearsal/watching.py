"""Begins the faults of a rehearsal one after another, and measures what each has cost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks.rehearsal.faults import FAULT_KINDS, DrawnFault, FaultStage, Undo
from benchmarks.rehearsal.federated_run import CompleteRound, RoundsSeen

UNRECOVERED_SECONDS = 300.0
"""After which a fault counts as not recovered, and the next one may begin."""
NOTHING_TO_HARM_SECONDS = 60.0
"""For which a fault waits for the process that it harms; then the next one is drawn."""


@dataclass
class FaultCost:
    """A fault that has come, and what it has cost.

    Attributes:
        kind: as in the table of faults.
        site: the site that was drawn.
        run: name of the run.
        after_round: complete rounds when it began, those that were repeated included.
        moment: of the site's round at which it came, if one was drawn.
        lasted: seconds.
        recovered: seconds from its end to the end of the first round that began later and that every site has answered,
            or to the end of the run; None if there was none.
        missed: rounds times sites without an answer meanwhile.
        repeated: complete rounds that were done again.
        usable: whether the run has ended with a usable model.
    """

    kind: str
    site: str
    run: str
    after_round: int
    lasted: float = 0.0
    recovered: float | None = None
    missed: int = 0
    repeated: int = 0
    usable: bool = False
    moment: str = ""


class FaultWatch:
    """Begins the next fault when the last one has been recovered from, and its pause is over.

    Attributes:
        costs: of the faults so far, in their order.
        skipped: kinds of faults for which there was nothing to harm, as often as that was.
    """

    def __init__(self, faults: Iterator[DrawnFault], sites: Sequence[str], now: float) -> None:
        self.costs: list[FaultCost] = []
        self.skipped: list[str] = []
        self._faults, self._sites = faults, frozenset(sites)
        self._next = next(faults)
        self._from = now + self._next.pause
        self._undo: Undo | None = None
        self._began = self._ended = 0.0
        self._before = self._begun = 0
        self._waiting = False
        self._seen: int | None = None

    def look(self, now: float, stage: FaultStage, more: bool = True) -> None:
        """End the fault that has lasted long enough, see whether it is recovered from, and begin the next one.

        Without ``more`` no fault begins.
        """
        seen = stage.run.progress()
        if self._undo is not None and now >= self._began + self._next.seconds:
            self.end(now, seen.begun)
        if self._undo is not None:
            return
        if self._waiting:
            self._settle(now, seen)
        if more and not self._waiting and now >= self._from and seen.rounds and self._has_come(now, stage):
            self._begin(now, stage)

    def end(self, now: float, begun: int = 0) -> None:
        """End the fault that lasts, if there is one; so many rounds have begun."""
        if self._undo is None:
            return
        self._undo()
        self._undo, self._ended, self._begun = None, now, begun
        self.costs[-1].lasted = round(now - self._began, 1)

    def close(self, now: float, seen: RoundsSeen, name: str, usable: bool) -> None:
        """The run of this name has ended: end the fault that lasts, and note how the run has ended for all of its faults."""
        self.end(now)
        if self._waiting:
            self._charge(seen.rounds, None, now if usable else None)
            self._resume(now)
        for cost in self.costs:
            if cost.run == name:
                cost.usable = usable

    def _settle(self, now: float, seen: RoundsSeen) -> None:
        whole = (
            index
            for index, one in enumerate(seen.rounds)
            if one.beginning > self._begun and self._sites <= one.answered
        )
        found = next(whole, None)
        if found is None and now < self._ended + UNRECOVERED_SECONDS:
            return
        self._charge(seen.rounds, found, None if found is None else now)
        self._resume(now)

    def _charge(self, rounds: Sequence[CompleteRound], found: int | None, recovered: float | None) -> None:
        """Count what the last fault has cost in the rounds since it began, as far as the one that has recovered from it."""
        cost, last = self.costs[-1], len(rounds) if found is None else found + 1
        for index in range(self._before, last):
            cost.missed += len(self._sites - rounds[index].answered)
            cost.repeated += any(earlier.number >= rounds[index].number for earlier in rounds[:index])
        cost.recovered = None if recovered is None else round(recovered - self._ended, 1)

    def _resume(self, now: float) -> None:
        self._waiting, self._seen = False, None
        self._next = next(self._faults)
        self._from = now + self._next.pause

    def _has_come(self, now: float, stage: FaultStage) -> bool:
        """Whether the site has come to the drawn moment since the pause was over; one that never comes is passed over."""
        if not self._next.moment:
            return True
        times = stage.run.passed(self._next.moment, self._next.site)
        if self._seen is None:
            self._seen = times
        if now > self._from + NOTHING_TO_HARM_SECONDS:
            self.skipped.append(f"{self._next.kind}, {self._next.moment}")
            self._resume(now)
            return False
        return times > self._seen

    def _begin(self, now: float, stage: FaultStage) -> None:
        undo = FAULT_KINDS[self._next.kind].begin(stage, self._next.site)
        if undo is None:
            if now > self._from + NOTHING_TO_HARM_SECONDS:
                self.skipped.append(self._next.kind)
                self._resume(now)
            return
        seen = stage.run.progress()  # a round may have ended while the process was looked for
        self._undo, self._began, self._before, self._waiting = undo, now, len(seen.rounds), True
        name = stage.run.record.parent.name
        self.costs.append(FaultCost(self._next.kind, self._next.site, name, len(seen.rounds), moment=self._next.moment))
        if not self._next.seconds:
            self.end(now, seen.begun)
