"""Sites of mutual learning that are away in some rounds; jobs name them by their class paths."""

from __future__ import annotations

from typing import Any

from grandrounds.federation.site.context import SiteContext
from grandrounds.methods.mutual.executor import MutualExecutor
from grandrounds.protocol.messages import Payload, Registration, Result


class AbsentExecutor(MutualExecutor):
    """Gives no answer at one site in some rounds.

    Args:
        at: the site.
        away: in which rounds.
        forgets: in which round the site has lost what it kept.
        options: of mutual learning.
    """

    def __init__(self, *, at: str, away: list[int], forgets: int = 0, **options: Any) -> None:
        super().__init__(**options)
        self.at = at
        self.away = away
        self.forgets = forgets

    def register(self, payload: Payload, context: SiteContext) -> Registration:
        """Say who this is, unless away."""
        self._require_here(context)
        return super().register(payload, context)

    def train(self, payload: Payload, context: SiteContext) -> Result:
        """Train, unless away."""
        self._require_here(context)
        if context.site == self.at and context.round_number == self.forgets:
            self.kept = {}
        return super().train(payload, context)

    def _require_here(self, context: SiteContext) -> None:
        if context.site == self.at and context.round_number in self.away:
            raise RuntimeError("away")
