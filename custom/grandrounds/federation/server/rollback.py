"""Going back to an earlier checkpoint when the newest one cannot be trained from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from grandrounds.errors import GrandRoundsError
from grandrounds.federation.checkpoints import CheckpointFolder
from grandrounds.federation.server.exchange import ReplyOutcome
from grandrounds.ordering import natural_sorted

BOUNDED = "bounded"
"""The key in a round's entry for sites whose update was bounded."""


class UnusableModel(GrandRoundsError):
    """Every site failed in a round, so the model that it started from is not usable."""


def require_usable(
    outcome: ReplyOutcome,
    chosen: Sequence[str],
    round_number: int,
    checkpoints: CheckpointFolder,
    rounds: Sequence[Any],
) -> None:
    """Mark the newest checkpoint bad if every site that was asked replied that its task failed.

    Sites that do not reply, or whose gate refuses, say nothing about the model.

    Args:
        outcome: of the round.
        chosen: the sites that were asked to train.
        round_number: of the round.
        checkpoints: of the run.
        rounds: the record's entries of the rounds before, for the sites that may be the reason.

    Raises:
        UnusableModel: then; the message names the round to which the next start goes back, and the sites that were bounded
            or dropped in the round before.
    """
    if not chosen or not set(chosen) <= set(outcome.failed) or not checkpoints.rounds():
        return
    reasons = "; ".join(f"{site}: {outcome.dropped[site]}" for site in natural_sorted(chosen))
    newest, marked = checkpoints.rounds()[-1], checkpoints.mark_bad()
    if marked:
        names = " and ".join(map(str, marked))
        consequence = (
            f"the checkpoint after round {names} is marked bad, and the next start goes on after round "
            f"{checkpoints.rounds()[-1]}"
        )
    else:
        consequence = (
            f"the checkpoint after round {newest} is the only one; fix the sites, or start again by resume=never"
        )
    suspects = _suspects(rounds[-1]) if rounds else ""
    raise UnusableModel(f"round {round_number}: all {len(chosen)} sites failed ({reasons}); {consequence}{suspects}")


def _suspects(entry: Mapping[str, Any]) -> str:
    found = [f"{site} was {what}" for what in (BOUNDED, "dropped") for site in natural_sorted(entry.get(what) or ())]
    return f"; in round {entry['round']} {', '.join(found)}" if found else ""
