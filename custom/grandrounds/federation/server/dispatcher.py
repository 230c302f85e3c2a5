"""Asking sites and taking in what they answer: registrations, tasks, who is dropped and who is refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal
from nvflare.app_opt.pt.decomposers import TensorDecomposer
from nvflare.fuel.utils import fobs
from nvflare.widgets.info_collector import InfoCollector

from grandrounds.errors import GrandRoundsError
from grandrounds.federation.curves import keep_curves, received_curves
from grandrounds.federation.paths import result_folder
from grandrounds.federation.server.exchange import Assignment, Exchange, Outcome, RunAborted
from grandrounds.federation.server.health import SiteHealth
from grandrounds.federation.server.hooks import RoundHooks
from grandrounds.federation.server.record import RunRecord, track
from grandrounds.ordering import natural_sorted
from grandrounds.protocol.messages import JOIN, TEST, TRAIN, Payload, ReleaseKind, Result, State, tensor_bytes
from grandrounds.protocol.precision import UPDATE_PRECISION
from grandrounds.protocol.registration import Registration


class SiteConversation(RoundHooks, Controller):
    """The part of a :class:`~grandrounds.federation.server.controller.RoundController` that talks with sites."""

    seed: int
    run_id: str
    run: Any
    round_number: int
    rounds: int
    health: SiteHealth
    record: RunRecord
    fl_ctx: FLContext
    refused: dict[str, str]
    """Sites whose registration was refused in this start of the run, with the reason; another start asks them again."""
    _abort_signal: Signal
    _metrics: dict[str, dict[str, float]]
    _checkpointed: list[int]

    def payload(self, parts: Mapping[str, State] | None = None, **values: Any) -> Payload:
        """A payload with these parts and values, and with the problem, the run and its seed.

        ``checkpoints`` are the rounds after which the server may go on: a site keeps its states of these.
        ``round_timeout`` is how long the answer is waited for.
        """
        shared = {
            "problem": {**self.problem.to_dict(), "weights": None},  # a path of the server is nobody else's business
            "seed": self.seed,
            "run_name": self.run.run_name,
            "run_id": self.run_id,
            "selection_metric": self.run.selection_metric,
            "checkpoints": list(self._checkpointed),
            "round_timeout": self.run.round_timeout,
            UPDATE_PRECISION: self.update_precision(),
        }
        return Payload(self.round_number, {**values, **shared}, parts or {})

    def start_controller(self, fl_ctx: FLContext) -> None:
        """FLARE's hook: prepare what the serialiser needs."""
        fobs.register(TensorDecomposer)

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """FLARE's hook: tell a person who asks for the job's statistics how far the run is."""
        super().handle_event(event_type, fl_ctx)
        collector = fl_ctx.get_prop(InfoCollector.CTX_KEY_STATS_COLLECTOR)
        if event_type == InfoCollector.EVENT_TYPE_GET_STATS and collector:
            collector.add_info(self.name, {"round": self.round_number, "rounds": self.rounds})

    def stop_controller(self, fl_ctx: FLContext) -> None:
        """FLARE's hook: nothing is left to do."""

    def process_result_of_unknown_task(
        self, client: Any, task_name: str, client_task_id: str, result: Shareable, fl_ctx: FLContext
    ) -> None:
        """FLARE's hook: an answer that came after its round was closed is not used."""
        self.log_warning(fl_ctx, f"{client.name}: an answer to {task_name} came too late and is not used")

    def connected_sites(self) -> list[str]:
        """The connected sites that have not been refused."""
        names = natural_sorted(client.name for client in self.fl_ctx.get_engine().get_clients())
        return [name for name in names if name not in self.refused]

    def check_abort(self) -> None:
        """Stop when the run is to end, in work that takes long at the server.

        Raises:
            RunAborted: then.
        """
        if self._abort_signal.triggered:
            raise RunAborted

    def refuse(self, site: str, reason: str) -> None:
        """Go on without a site in this start of the run; the record says why."""
        self.refused[site] = reason
        self.record.refused = dict(self.refused)

    def register_sites(self, well: list[str]) -> list[str]:
        """Ask those who they are that have not said it, and return those that have.

        Raises:
            GrandRoundsError: if they are too few, see :meth:`require_enough`.
        """
        new = [site for site in well if site not in self.registered and site not in self.refused]
        dropped: dict[str, str] = {}
        if new:
            # Newcomers are not waited for longer than stragglers where those that are known could work without them.
            enough = max(0, self.run.min_sites - sum(site in self.registered for site in well))
            tasks = {site: Assignment(JOIN, self.registration_for(site)) for site in new}
            dropped = self._exchange(tasks, self.run.grace, enough).dropped
            self.registered = {site: self.registered[site] for site in natural_sorted(self.registered)}
        ready = [site for site in well if site in self.registered]
        if new:
            self.require_enough(ready, dropped)
        return ready

    def require_enough(self, ready: list[str], dropped: Mapping[str, str] | None = None) -> None:
        """Stop where too few sites can take part, with the reason of each that cannot.

        Args:
            ready: the sites that can.
            dropped: sites that were asked who they are and gave no valid answer, with the reason.

        Raises:
            GrandRoundsError: if there are fewer than ``min_sites``, and one was refused or could not join.
        """
        gone = {site: reason for site, reason in (dropped or {}).items() if site not in self.refused}
        if len(ready) >= self.run.min_sites or not (gone or self.refused):
            return
        told = [
            f"{what} {_listed(sites)}"
            for what, sites in (("refused were", self.refused), ("could not join:", gone))
            if sites
        ]
        raise GrandRoundsError(
            f"{len(ready)} of the connected sites can take part, min_sites is {self.run.min_sites}; "
            + "; ".join([*told, *filter(None, [self.joining_needs()]), "mend these sites and submit the job again"])
        )

    def _exchange(self, assignments: dict[str, Assignment], grace: float | None, enough: int | None = None) -> Outcome:
        self._metrics = {}
        for site, (_, payload) in assignments.items():
            self.record.count_bytes(site, "down", tensor_bytes(payload.parts))
        exchange = Exchange(self, self.fl_ctx, self.run.round_timeout, grace, self._received)
        # Scores come quickly; only training answers may end the wait for others that train.
        training = [site for site, assignment in assignments.items() if assignment.task == TRAIN]
        least = self.run.min_sites if enough is None else enough
        outcome = exchange.run(assignments, least, self._abort_signal, training or None)
        for site in assignments:
            if site in outcome.answered:
                self.health.answered(site)
            else:
                self.health.missed(site, self.round_number)
                self.record.event("dropped", round=self.round_number, site=site, reason=outcome.dropped.get(site, ""))
                self.log_warning(
                    self.fl_ctx, f"round {self.round_number}: {site} is dropped: {outcome.dropped.get(site)}"
                )
        return outcome

    def _received(self, site: str, task: str, result: Result) -> None:
        if task == TRAIN:
            self.check(site, result)
        if task == JOIN:
            self._welcome(site, Registration(dict(result.metrics), dict(result.facts)))
        if task == TEST:
            keep_curves(result_folder(self.fl_ctx) / site, received_curves(result, self.problem.classes))
        # Curves are no part of what training costs; like the scores they come with, they are not counted.
        released = {n: one.travelled_bytes for n, one in result.releases.items() if one.kind is not ReleaseKind.CURVES}
        facts = {"facts": dict(result.facts)} if result.facts else {}
        self.record.event("answer", round=self.round_number, site=site, task=task, metrics=result.metrics, **facts)
        track(self, self.fl_ctx, site, self.round_number, result.metrics)
        self.record.count_bytes(site, "up", released)
        self.record.note_privacy(
            site, {name: release.treated for name, release in result.releases.items()}, result.metrics
        )
        # Last, when nothing can go wrong any more: what is absorbed counts.
        if task == TRAIN:
            self.absorb(site, result)
        self._metrics[site] = dict(result.metrics)

    def _welcome(self, site: str, registration: Registration) -> None:
        try:
            self.check_registration(site, registration)
        except GrandRoundsError as error:
            self.refuse(site, str(error))
            raise
        self.registered[site] = registration
        self.record.registered[site] = registration.to_dict()


def _listed(reasons: Mapping[str, str]) -> str:
    return ", ".join(f"{site}: {reasons[site]}" for site in natural_sorted(reasons))
