"""A site's task in a child process: what the child gets in place of FLARE's engine, and what it asks its parent."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nvflare.apis.fl_context import FLContext, FLContextManager
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal
from nvflare.apis.workspace import Workspace

from grandrounds.federation.site.compute import keep_freed_memory
from grandrounds.federation.site.isolation import ask_parent
from grandrounds.federation.site.release_facts import ADMISSION
from grandrounds.federation.site.store import SiteStore
from grandrounds.protocol.messages import Payload
from grandrounds.protocol.spending import Spending

if TYPE_CHECKING:
    from grandrounds.federation.site.executor import SiteExecutor


@dataclass(frozen=True)
class SitePlace:
    """Who and where a site is: all that a task needs of FLARE.

    Attributes:
        site: the site's name.
        job: FLARE's id.
        root: of the site's FLARE workspace.
    """

    site: str
    job: str
    root: str

    @classmethod
    def of(cls, fl_ctx: FLContext) -> SitePlace:
        """Read it from FLARE's context of the site."""
        workspace = fl_ctx.get_engine().get_workspace()
        return cls(fl_ctx.get_identity_name(), fl_ctx.get_job_id(), str(workspace.get_root_dir()))

    def context(self) -> FLContext:
        """A context in the child that tells the same, and passes on what the site's gate is asked."""
        context = FLContextManager(_Engine(self), self.site, self.job).new_context()
        context.set_prop(ADMISSION, _AdmissionOfParent(), private=True, sticky=False)
        return context


class _Engine:
    """FLARE's engine as far as a task needs it."""

    def __init__(self, place: SitePlace) -> None:
        self._workspace = Workspace(place.root, place.site)

    def get_workspace(self) -> Workspace:
        """The site's own, as FLARE's engine gives it."""
        return self._workspace

    def fire_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """No component listens in the child."""


class _AdmissionOfParent:
    def admit_training(self, training: Spending) -> None:
        """As the privacy gate's, which only the parent has."""
        ask_parent(training)


def work_in_child(
    executor: SiteExecutor, task_name: str, payload: Payload, place: SitePlace
) -> tuple[Shareable, SiteStore]:
    """Do one task, in the child; see :meth:`~grandrounds.federation.site.executor.SiteExecutor.work`."""
    keep_freed_memory()
    return executor.work(task_name, payload, place.context(), Signal())


def seconds_left(payload: Payload) -> float | None:
    """How long a task may take: after that, nobody waits for its answer. None if the server does not say."""
    seconds: Any = payload.values.get("round_timeout")
    limited = isinstance(seconds, int | float) and math.isfinite(seconds) and seconds > 0
    return float(seconds) if limited else None
