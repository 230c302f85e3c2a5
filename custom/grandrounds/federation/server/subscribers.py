"""Side work of a run: each is a class that subscribes, once, to what happens in the run's rounds."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Concatenate, ParamSpec

from nvflare.apis.analytix import ANALYTIC_EVENT_TYPE, AnalyticsDataType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_constant import FedEventHeader, ReservedKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.utils.analytix_utils import create_analytic_dxo
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.app_event_type import AppEventType
from nvflare.widgets.info_collector import InfoCollector

from grandrounds.errors import GrandRoundsError
from grandrounds.federation.checkpoints import CheckpointFolder
from grandrounds.federation.memory import collect_garbage
from grandrounds.federation.server.exchange import ReplyOutcome
from grandrounds.federation.server.record import RunRecord
from grandrounds.ordering import natural_sorted
from grandrounds.protocol.messages import State

EVENT = f"fed.{ANALYTIC_EVENT_TYPE}"
INCOMING = "in"
About = ParamSpec("About")


class RoundSubscriber:
    """Hears of a run's rounds; an error from it ends the run, so that side work on which a run depends can stop it."""

    def run_started(self) -> None:
        """The run has its folder, and has done nothing yet."""

    def round_started(self, number: int) -> None:
        """A round begins; nobody has been asked."""

    def answered(self, site: str, number: int, metrics: Mapping[str, float]) -> None:
        """A site has given a valid answer, which is recorded and not yet used; FLARE's lock is held."""

    def answers_in(self, number: int, chosen: Sequence[str], outcome: ReplyOutcome) -> None:
        """The training sites of a round have answered or been dropped; the next model is not made yet."""

    def round_done(self, number: int) -> None:
        """A round is complete and recorded."""

    def run_ended(self) -> None:
        """The run has ended in any way; only its record may still be written."""


class Subscribers(list[RoundSubscriber]):
    """Those of a run, in the order in which they have subscribed."""

    def tell(
        self, event: Callable[Concatenate[RoundSubscriber, About], None], *about: About.args, **_: About.kwargs
    ) -> None:
        """Tell all of an event, which is named by its method: ``tell(RoundSubscriber.round_done, 3)``."""
        for subscriber in self:
            getattr(subscriber, event.__name__)(*about)


class FlareEvents(RoundSubscriber):
    """Passes rounds on to FLARE's components as its events ``ROUND_STARTED`` and ``ROUND_DONE``."""

    def __init__(self, component: FLComponent, fl_ctx: FLContext) -> None:
        self._component, self._fl_ctx = component, fl_ctx

    def round_started(self, number: int) -> None:
        """Set FLARE's current round, and fire the event."""
        self._fl_ctx.set_prop(AppConstants.CURRENT_ROUND, number, private=True, sticky=True)
        self._component.fire_event(AppEventType.ROUND_STARTED, self._fl_ctx)

    def round_done(self, number: int) -> None:
        """Fire the event."""
        self._component.fire_event(AppEventType.ROUND_DONE, self._fl_ctx)


class JobStatistics(RoundSubscriber):
    """Adds the run's progress to FLARE's statistics of the job, when they are asked for."""

    def __init__(self, component: FLComponent, rounds: int, record: RunRecord) -> None:
        self._name, self._rounds, self._record = component.name, rounds, record
        self._number = 0
        component.register_event_handler(InfoCollector.EVENT_TYPE_GET_STATS, self.report)

    def round_started(self, number: int) -> None:
        """Note the round."""
        self._number = number

    def report(self, event_type: str, fl_ctx: FLContext) -> None:
        """FLARE's hook: answer the question."""
        collector = fl_ctx.get_prop(InfoCollector.CTX_KEY_STATS_COLLECTOR)
        if collector:
            progress = self._record.progress() if self._number else {}
            collector.add_info(self._name, {"round": self._number, "rounds": self._rounds, **progress})


class Tracking(RoundSubscriber):
    """Sends the scalars of answers to FLARE's tracking receivers (TensorBoard, MLflow, or another component of the job).

    FLARE's own way, by which sites send metrics as federated events, passes no filter of task results. Here the server sends
    its receivers the metrics of the sites' answers, after their filters: a tracker gets nothing that is not in the run's
    record. Without receivers nothing happens.
    """

    def __init__(self, component: FLComponent, fl_ctx: FLContext) -> None:
        self._component, self._fl_ctx = component, fl_ctx

    def answered(self, site: str, number: int, metrics: Mapping[str, float]) -> None:
        """Send them, the round as their step."""
        with self._fl_ctx.get_engine().new_context() as context:
            for name, value in metrics.items():
                data = create_analytic_dxo(
                    name, float(value), AnalyticsDataType.SCALAR, global_step=number
                ).to_shareable()
                data.set_peer_props({ReservedKey.IDENTITY_NAME: site})
                # As if the event had come from the site; one that goes out would be sent to all of them.
                data.set_header(FedEventHeader.DIRECTION, INCOMING)
                self._component.fire_fed_event(EVENT, data, context)


class GarbageCollection(RoundSubscriber):
    """Frees what FLARE's objects hold in cycles."""

    def round_done(self, number: int) -> None:
        """Collect."""
        collect_garbage()


RESERVE = "reserve"
RESERVE_BYTES = 4 * 1024**2
MARGIN_BYTES = 16 * 1024**2
"""For the record, logs and results, beside a checkpoint."""
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
MEBIBYTE = 1024**2


class DiskReserve(RoundSubscriber):
    """A file whose space is given back when a run ends, so that its record can be closed on a full disk.

    Args:
        folder: of the run's record.
        checkpoint: the expected size of the next checkpoint in bytes.
    """

    def __init__(self, folder: Path, checkpoint: Callable[[], int]) -> None:
        self._folder, self._path = folder, folder / RESERVE
        self._checkpoint = checkpoint

    def run_started(self) -> None:
        """Occupy the space.

        Raises:
            GrandRoundsError: if there is too little.
        """
        try:
            with self._path.open("wb") as stream:
                os.posix_fallocate(stream.fileno(), 0, RESERVE_BYTES)
        except OSError as error:
            self.run_ended()
            raise GrandRoundsError(f"{self._folder}: {error.strerror or error}; free some space") from error

    def round_started(self, number: int) -> None:
        """Check that the next checkpoint fits on the disk, before a round is trained for it.

        Raises:
            GrandRoundsError: if it does not fit.
        """
        free, needed = shutil.disk_usage(self._folder).free, self._checkpoint() + MARGIN_BYTES
        if free < needed:
            raise GrandRoundsError(
                f"the server's disk has {free / MEBIBYTE:.0f} MiB free at {self._folder}, the next checkpoint needs "
                f"{needed / MEBIBYTE:.0f} MiB: free some space and submit the job again; it goes on after round "
                f"{number - 1}"
            )

    def run_ended(self) -> None:
        """Give the space back."""
        self._path.unlink(missing_ok=True)


def state_size(model: State | None) -> int:
    """Bytes of a first checkpoint with this model, which it holds twice: as the current and as the selected one."""
    return 2 * sum(value.numel() * value.element_size() for value in (model or {}).values())


def described(error: Exception, folder: Path) -> str:
    """The reason of a failure in one line; torch does not say that a disk is full."""
    full = isinstance(error, OSError) and error.errno in NO_ROOM
    if full or (isinstance(error, RuntimeError) and shutil.disk_usage(folder).free < MARGIN_BYTES):
        return f"no room on the server's disk at {folder} ({error}): free some space and submit the job again"
    return f"{type(error).__name__}: {error}"


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
