"""Side work of a run: each is a class that subscribes, once, to what happens in the run's rounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Concatenate, ParamSpec

from nvflare.apis.analytix import ANALYTIC_EVENT_TYPE, AnalyticsDataType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_constant import FedEventHeader, ReservedKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.utils.analytix_utils import create_analytic_dxo
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.app_event_type import AppEventType
from nvflare.widgets.info_collector import InfoCollector

from grandrounds.federation.memory import collect_garbage
from grandrounds.federation.server.exchange import ReplyOutcome
from grandrounds.federation.server.record import RunRecord

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
