"""A site whose training crashes on purpose; jobs name the class by its path."""

from __future__ import annotations

import os
import signal
from typing import Any

from grandrounds.federation.site.context import SiteContext
from grandrounds.methods.fedperl.executor import FedPerlExecutor
from grandrounds.protocol.messages import Payload, Result


class CrashingExecutor(FedPerlExecutor):
    """FedPerl whose process ends at one site in one round.

    Args:
        at: the site.
        in_round: when.
        how: ``killed`` or ``segfault``.
        options: of FedPerl.
    """

    def __init__(self, *, at: str, in_round: int, how: str, **options: Any) -> None:
        super().__init__(**options)
        self.at, self.in_round, self.how = at, in_round, how

    def train(self, payload: Payload, context: SiteContext) -> Result:
        """Train, or not."""
        if (context.site, context.round_number) == (self.at, self.in_round):
            os.kill(os.getpid(), signal.SIGSEGV if self.how == "segfault" else signal.SIGKILL)
        return super().train(payload, context)
