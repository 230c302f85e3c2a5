"""A site's task in a child process, which has a substitute of FLARE's engine and asks the site's gate in its parent."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partialmethod
from operator import methodcaller
from typing import Any, TypeVar

from nvflare.apis.fl_context import FLContext, FLContextManager
from nvflare.apis.signal import Signal
from nvflare.apis.workspace import Workspace

from grandrounds.errors import ConfigurationError
from grandrounds.federation.memory import keep_freed_memory
from grandrounds.federation.site.context import TaskAborted
from grandrounds.federation.site.isolation import WorkerStopped, ask_parent, run_isolated
from grandrounds.federation.site.outcomes import gate_of
from grandrounds.protocol.messages import Payload
from grandrounds.protocol.paths import in_kit
from grandrounds.protocol.spending import TRAINING_GATE

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class SiteIdentity:
    """Who and where a site is: all that a task needs of FLARE.

    Attributes:
        site: the site's name.
        job: FLARE's id.
        root: of the site's FLARE workspace.
        gated: whether the site has a privacy gate.
        hides_failures: whether it hides that a training has failed.
        counts_updates: whether it does so where the model stays at the site.
    """

    site: str
    job: str
    root: str
    gated: bool = False
    hides_failures: bool = False
    counts_updates: bool = False

    @classmethod
    def of(cls, fl_ctx: FLContext) -> SiteIdentity:
        """Read it from FLARE's context of the site."""
        workspace = fl_ctx.get_engine().get_workspace()
        gate, gated = gate_of(fl_ctx), fl_ctx.get_prop(TRAINING_GATE) is not None
        of_gate = gated, gate.hides_failures, gate.counts_updates
        return cls(fl_ctx.get_identity_name(), fl_ctx.get_job_id(), str(workspace.get_root_dir()), *of_gate)

    def context(self) -> FLContext:
        """A context for the child, which passes on to the parent what the site's gate is asked."""
        context = FLContextManager(_Engine(self), self.site, self.job).new_context()
        gate = _GateOfParent(self.hides_failures, self.counts_updates) if self.gated else None
        context.set_prop(TRAINING_GATE, gate, private=True, sticky=False)
        return context


class _Engine:
    """FLARE's engine as far as a task needs it."""

    def __init__(self, identity: SiteIdentity) -> None:
        self._workspace = Workspace(identity.root, identity.site)

    def get_workspace(self) -> Workspace:
        """The site's own, as FLARE's engine gives it."""
        return self._workspace

    def fire_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """No component listens in the child."""


@dataclass(frozen=True)
class _GateOfParent:
    hides_failures: bool
    counts_updates: bool

    def _ask(self, method: str, *arguments: Any) -> Any:
        """What the privacy gate answers, which only the parent has."""
        return ask_parent((method, arguments))

    admit_training = partialmethod(_ask, "admit_training")
    begin_reading = partialmethod(_ask, "begin_reading")
    note_failure = partialmethod(_ask, "note_failure")
    row_noise = partialmethod(_ask, "row_noise")
    release_minimum = partialmethod(_ask, "release_minimum")


def require_gate(fl_ctx: FLContext) -> None:
    """Check that a kit with a lock has a gate that has seen the task.

    Raises:
        ConfigurationError: if it has none: nothing would decide what leaves.
    """
    if in_kit(fl_ctx) and fl_ctx.get_prop(TRAINING_GATE) is None:
        raise ConfigurationError(
            "this kit has no privacy gate, so it works on no task: see local/privacy.json, and run grandrounds doctor"
        )


def run_in_child(
    work: Callable[[str, Payload, FLContext, Signal], Answer],
    task_name: str,
    payload: Payload,
    fl_ctx: FLContext,
    abort_signal: Signal,
) -> Answer:
    """Do one task in a child process, by a method of an executor that can be pickled.

    Raises:
        TaskAborted: if the server gives the task up.
        WorkerLost: if the child dies.
        WorkerStopped: if it takes longer than the server waits for.
        Exception: whatever keeps the task from being done.
    """
    try:
        answer: Answer = run_isolated(
            _work,
            work,
            task_name,
            payload,
            SiteIdentity.of(fl_ctx),
            aborted=lambda: bool(abort_signal.triggered),
            seconds=seconds_left(payload),
            reply=lambda question: methodcaller(question[0], *question[1])(gate_of(fl_ctx)),
        )
        return answer
    except WorkerStopped:
        if abort_signal.triggered:
            raise TaskAborted from None
        raise


def _work(
    work: Callable[[str, Payload, FLContext, Signal], Answer], task_name: str, payload: Payload, identity: SiteIdentity
) -> Answer:
    keep_freed_memory()
    return work(task_name, payload, identity.context(), Signal())


def seconds_left(payload: Payload) -> float | None:
    """How long the server waits for the answer to a task; None if the task does not have it."""
    seconds: Any = payload.values.get("round_timeout")
    limited = isinstance(seconds, int | float) and math.isfinite(seconds) and seconds > 0
    return float(seconds) if limited else None
