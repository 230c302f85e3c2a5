"""A site's task in a child process, which has a substitute of FLARE's engine and asks the site's gate in its parent."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from nvflare.apis.fl_context import FLContext, FLContextManager
from nvflare.apis.signal import Signal
from nvflare.apis.workspace import Workspace

from grandrounds.errors import ConfigurationError, Fault
from grandrounds.federation.memory import keep_freed_memory
from grandrounds.federation.site.context import TaskAborted
from grandrounds.federation.site.isolation import WorkerStopped, ask_parent, run_isolated
from grandrounds.protocol.messages import Payload, ReleaseKind
from grandrounds.protocol.paths import in_kit
from grandrounds.protocol.spending import TRAINING_GATE, Spending, TrainingGate

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
        root, hidden = str(workspace.get_root_dir()), (hides_failures(fl_ctx, own) for own in (False, True))
        gated = fl_ctx.get_prop(TRAINING_GATE) is not None
        return cls(fl_ctx.get_identity_name(), fl_ctx.get_job_id(), root, gated, *hidden)

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

    def admit_training(self, training: Spending | None) -> None:
        """As the privacy gate's, which only the parent has."""
        ask_parent(_Question("admit_training", (training,)))

    def row_noise(self, release: str) -> tuple[float, float] | None:
        """As the privacy gate's."""
        found: tuple[float, float] | None = ask_parent(_Question("row_noise", (release,)))
        return found

    def release_minimum(self, kind: ReleaseKind, release: str) -> int | None:
        """As the privacy gate's."""
        found: int | None = ask_parent(_Question("release_minimum", (kind, release)))
        return found

    def begin_reading(self) -> None:
        """As the privacy gate's."""
        ask_parent(_Question("begin_reading"))

    def note_failure(self, cause: str, fault: Fault) -> None:
        """As the privacy gate's."""
        ask_parent(_Question("note_failure", (cause, fault)))


@dataclass(frozen=True)
class _Question:
    """A call of one of the methods of :class:`TrainingGate`."""

    method: str
    arguments: tuple[Any, ...] = ()


def release_minimum(kind: ReleaseKind, release: str, fl_ctx: FLContext) -> int | None:
    """How many cases the site's gate, if there is one, asks behind a release's counts, see :class:`TrainingGate`."""
    gate: TrainingGate | None = fl_ctx.get_prop(TRAINING_GATE)
    return gate.release_minimum(kind, release) if gate is not None else 1


def row_noise(release: str, fl_ctx: FLContext) -> tuple[float, float] | None:
    """What the site's gate, if there is one, does to each row of a release, see :class:`TrainingGate`."""
    gate: TrainingGate | None = fl_ctx.get_prop(TRAINING_GATE)
    return gate.row_noise(release) if gate is not None else None


def require_gate(fl_ctx: FLContext) -> None:
    """Check that a kit with a lock has a gate that has seen the task.

    Raises:
        ConfigurationError: if it has none: nothing would decide what leaves.
    """
    if in_kit(fl_ctx) and fl_ctx.get_prop(TRAINING_GATE) is None:
        raise ConfigurationError(
            "this kit has no privacy gate, so it works on no task: see local/privacy.json, and run grandrounds doctor"
        )


def hides_failures(fl_ctx: FLContext, own_model: bool) -> bool:
    """Whether the site has a gate that hides that a training has failed; ``own_model``: no update leaves."""
    gate: TrainingGate | None = fl_ctx.get_prop(TRAINING_GATE)
    return gate is not None and (gate.counts_updates if own_model else gate.hides_failures)


def declare_training(training: Spending | None, fl_ctx: FLContext) -> None:
    """Ask the site's gate, if there is one, before a training.

    Args:
        training: its cost, if it hides single images; None is any other training.
        fl_ctx: FLARE's context of the site.

    Raises:
        GrandRoundsError: if the gate refuses.
    """
    gate: TrainingGate | None = fl_ctx.get_prop(TRAINING_GATE)
    if gate is not None:
        gate.admit_training(training)


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
            reply=lambda question: getattr(fl_ctx.get_prop(TRAINING_GATE), question.method)(*question.arguments),
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
