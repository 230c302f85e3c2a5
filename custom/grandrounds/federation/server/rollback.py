"""Going back to an earlier checkpoint when the newest one cannot be trained from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from grandrounds.errors import GrandRoundsError
from grandrounds.federation.checkpoints import CheckpointFolder
from grandrounds.federation.server.exchange import ReplyOutcome
from grandrounds.federation.server.record import RunRecord
from grandrounds.federation.server.subscribers import RoundSubscriber
from grandrounds.ordering import natural_sorted

BOUNDED = "bounded"
"""The key in a round's entry for sites whose update was bounded."""


class UnusableModel(GrandRoundsError):
    """Every site failed in a round, so the model that it started from is not usable."""


class Rollback(RoundSubscriber):
    """Marks the newest checkpoint bad if every site that was asked replies that its task failed.

    Sites that do not reply, or whose gate refuses, say nothing about the model.

    Args:
        checkpoints: of the run.
        record: whose entries of the rounds before name sites that may be the reason.
    """

    def __init__(self, checkpoints: CheckpointFolder, record: RunRecord) -> None:
        self._checkpoints, self._record = checkpoints, record

    def answers_in(self, number: int, chosen: Sequence[str], outcome: ReplyOutcome) -> None:
        """Look whether the model was usable.

        Raises:
            UnusableModel: if not; the message names the round to which the next start goes back, and the sites that were
                bounded or dropped in the round before.
        """
        if not chosen or not set(chosen) <= set(outcome.failed) or not self._checkpoints.rounds():
            return
        reasons = "; ".join(f"{site}: {outcome.dropped[site]}" for site in natural_sorted(chosen))
        newest, marked = self._checkpoints.rounds()[-1], self._checkpoints.mark_bad()
        if marked:
            names = " and ".join(map(str, marked))
            consequence = (
                f"the checkpoint after round {names} is marked bad, and the next start goes on after round "
                f"{self._checkpoints.rounds()[-1]}"
            )
        else:
            consequence = (
                f"the checkpoint after round {newest} is the only one; fix the sites, or start again by resume=never"
            )
        suspects = _suspects(self._record.rounds[-1]) if self._record.rounds else ""
        raise UnusableModel(f"round {number}: all {len(chosen)} sites failed ({reasons}); {consequence}{suspects}")


def _suspects(entry: Mapping[str, Any]) -> str:
    suspects = [f"{site} was {what}" for what in (BOUNDED, "dropped") for site in natural_sorted(entry.get(what) or ())]
    return f"; in round {entry['round']} {', '.join(suspects)}" if suspects else ""
