"""The rounds of a run at the server: which sites train and score, which model is selected, what is kept and recorded."""

from __future__ import annotations

import time
import uuid
from collections import ChainMap
from collections.abc import Mapping, Sequence
from typing import Any

from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal

from grandrounds.checks import reraised_as
from grandrounds.data.keys import KEY_RULE, RULE_VALUE
from grandrounds.errors import ConfigurationError, GrandRoundsError
from grandrounds.evaluation.record import EvalRecord, record_of_sum
from grandrounds.federation.checkpoints import CheckpointFolder, save_models
from grandrounds.federation.executor_options import EXECUTORS
from grandrounds.federation.memory import prepare_job_process
from grandrounds.federation.server.aggregate import UnmetDemands
from grandrounds.federation.server.dispatcher import TaskDispatcher
from grandrounds.federation.server.exchange import Assignment, RunAborted, SignsOfLife, training_assignments
from grandrounds.federation.server.hooks import RoundHooks
from grandrounds.federation.server.options import RunOptions, identifying_options, stated_options
from grandrounds.federation.server.record import SUMMARY, RunRecord
from grandrounds.federation.server.selection import ModelSelection, of_all_sites
from grandrounds.federation.server.sites import SiteRegistry, await_sites, joined_sites, sample_sites, servers_roster
from grandrounds.federation.server.subscribers import (
    DiskReserve,
    FlareEvents,
    GarbageCollection,
    JobStatistics,
    Rollback,
    RoundSubscriber,
    Subscribers,
    Tracking,
    described,
    state_size,
)
from grandrounds.federation.server.sums import SumService
from grandrounds.files import exclusive
from grandrounds.logs.lines import enter_round
from grandrounds.models.inference.forward import EXACT
from grandrounds.models.registry import require_buildable, with_intensities
from grandrounds.options import Configurable
from grandrounds.ordering import natural_sorted
from grandrounds.protocol.messages import (
    COMMON,
    FROZEN,
    GLOBAL,
    OWN_MODEL,
    SCORE_SUMS,
    SUMMED,
    TEST,
    VALIDATE,
    Payload,
    Registration,
    ReleaseKind,
    State,
)
from grandrounds.protocol.names import EXECUTOR, SERVER, VALIDATION, VALIDATION_PREFIX
from grandrounds.protocol.paths import claimed_folder, in_kit, require_confined, result_folder
from grandrounds.protocol.problem import Problem
from grandrounds.protocol.refusal import RefusedBySites
from grandrounds.protocol.tensors import UPDATE_PRECISION
from grandrounds.protocol.wire import asks_for_models, executor_arguments

OF_SINGLE_SITES = ("scores of a site", "curves", "moments of images")
"""What a run does not know whose answers are added up unseen."""


class RoundController(Configurable, RoundHooks, Controller):
    """A federation that works in rounds; a method defines what travels and what is made of it.

    In each round a seeded sample of the available sites trains. Every site (or, as configured, none) scores the model that
    the round starts from on its own validation images, in the same exchange, so that scoring costs no extra trip. The model
    with the best mean score over sites is the run's result, and every site tests it at the end on its test images.

    A method implements :meth:`payload_for`, :meth:`absorb`, :meth:`close_round` and :meth:`model`, and overrides the other
    hooks of :class:`~grandrounds.federation.server.hooks.RoundHooks` where it needs to.

    Attributes:
        round_number: counts from 1; 0 before the first round.
        run_id: identifies this start of the run; a resumed run keeps it.
        frozen_digest: of the layers that are not trained, which the sites' must be equal to; None without such layers.
        checkpointed: the rounds with checkpoints at the server.
        sites: who has registered, was refused or has missed rounds.
        dispatcher: sends tasks; from the start of the run on, as ``record``, ``folder`` and ``fl_ctx``.
        sums: opens secure sums of what sites release.
    """

    run: RunOptions

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.take_groups(options)
        self.problem = Problem.from_dict(self.run.problem)
        if self.needs_exclusive:
            self.problem.kind.require_exclusive(type(self).__name__)
        require_buildable(self.problem.model_spec(pretrained=False), self.problem.image_size)
        self.rounds, self.seed = self.run.rounds, self.run.seed
        self.round_number = 0
        self.run_id = uuid.uuid4().hex
        self.frozen_digest: str | None = None
        self.checkpointed: list[int] = []
        self.sites = SiteRegistry()
        self.sums = SumService(self)
        self._selection = ModelSelection(self.run.metric, self.problem)
        self._summed: tuple[EvalRecord, tuple[str, ...]] | None = None
        self._under_way = False
        self._executors: dict[str, dict[str, Any]] | None = None

    @property
    def most_rounds(self) -> int:
        """After which a saved run is accepted as finished."""
        return self.rounds

    @property
    def adds_up(self) -> bool:
        """Whether the server learns sums over sites and nothing of a single one: their scores, too.

        Where gates mask updates and not scores, their other rules decide about these.
        """
        masked = self.sums.masked_kinds
        return ReleaseKind.SCORES in masked or (self.is_secure() and not masked)

    @property
    def registered(self) -> dict[str, Registration]:
        """What each site has registered."""
        return self.sites.registered

    @property
    def job_arguments(self) -> dict[str, Any]:
        """The arguments of the job's executors, by name."""
        return dict(ChainMap(*(self._executors or {}).values()))

    def fingerprint(self) -> dict[str, Any]:
        """What must be equal for a checkpoint to fit, beside the problem and the seed."""
        return self.options()

    def payload(self, parts: Mapping[str, State] | None = None, **values: Any) -> Payload:
        """A payload with these parts and values, and with the problem, the run and its seed.

        ``checkpoints`` are the rounds after which the server may go on: a site keeps its states of these.
        ``round_timeout`` is how long the answer is waited for.
        """
        run = self.run
        shared = {
            "problem": self.problem.for_sites(),
            FROZEN: self.frozen_digest,
            "seed": run.seed,
            "run_name": run.run_name,
            "run_id": self.run_id,
            "selection_metric": run.metric,
            "checkpoints": list(self.checkpointed),
            "round_timeout": run.round_timeout,
            UPDATE_PRECISION: self.update_precision(),
            EXECUTORS: self._executors,
            RULE_VALUE: KEY_RULE,
        }
        return Payload(self.round_number, {**values, **shared}, parts or {})

    def registration_for(self, site: str) -> Payload:
        """The problem and the run."""
        return self.payload()

    def check_abort(self) -> None:
        """Stop when the run is to end, in work that takes long at the server.

        Raises:
            RunAborted: then.
        """
        if self._abort_signal.triggered:
            raise RunAborted

    def start_controller(self, fl_ctx: FLContext) -> None:
        """FLARE's hook: prepare what the serialiser needs, and the process for many rounds."""
        prepare_job_process(fl_ctx)

    def stop_controller(self, fl_ctx: FLContext) -> None:
        """FLARE's hook: nothing is left to do."""

    def process_result_of_unknown_task(
        self, client: Any, task_name: str, client_task_id: str, result: Shareable, fl_ctx: FLContext
    ) -> None:
        """FLARE's hook: an answer that came after its round was closed is not used."""
        self.log_warning(fl_ctx, f"{client.name}: an answer to {task_name} came too late and is not used")

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        """FLARE's hook: run all rounds; the record has how the run ended, in any case."""
        self.fl_ctx, self._abort_signal = fl_ctx, abort_signal
        self._executors = executor_arguments(fl_ctx)
        self.folder = claimed_folder(fl_ctx, self.run.run_name, SERVER)
        self.record = RunRecord(self.folder, {})
        self.record.refused, self.record.refusals = self.sites.refused, self.sites.refusals
        self._checkpoints = CheckpointFolder(self.folder, {})
        self._subscribers = Subscribers(
            [
                DiskReserve(self.folder, lambda: self._checkpoints.size() or state_size(self.model())),
                FlareEvents(self, fl_ctx),
                JobStatistics(self, self.rounds, self.record),
                Tracking(self, fl_ctx),
                GarbageCollection(),
            ]
        )
        self.dispatcher = TaskDispatcher(
            *(self, self, self.run, self.problem, self.sites, self.record, self._subscribers, fl_ctx, abort_signal),
            sums=self.sums,
            signs=SignsOfLife(self.communicator) if in_kit(fl_ctx) else None,
            takes_models=self._executors is None or asks_for_models(self._executors),
        )
        try:
            with exclusive(self.folder):
                self._run_recorded()
        except GrandRoundsError as error:
            if not (result_folder(fl_ctx) / SUMMARY).exists():  # another job has the run, or it was finished before
                self.record.refuse(error, result_folder(fl_ctx))
            self.system_panic(str(error), fl_ctx)

    def _run_recorded(self) -> None:
        try:
            try:
                self._subscribers.tell(RoundSubscriber.run_started)
                self._run()
            finally:
                self._subscribers.tell(RoundSubscriber.run_ended)
        except RunAborted:
            self._close_record("aborted", "FLARE's abort signal was triggered")
        except GrandRoundsError as error:
            self.record.final = isinstance(error, RefusedBySites | UnmetDemands)
            self.record.event("failed", reason=str(error))
            self._close_record("failed", str(error))
            raise
        except Exception as error:
            self._close_record("failed", described(error, self.folder))
            raise

    def _close_record(self, status: str, reason: str) -> None:
        """Write why the run ended early, for the next start and for the job's download: both have the same record."""
        if self._under_way:
            self._note_state()
        # A mistake in submitting a run again must not overwrite what the run has achieved.
        if self.record.close(status, reason, begun=self._under_way):
            self.record.publish(result_folder(self.fl_ctx), [])

    def _note_state(self) -> None:
        """Let the record know the sites and checkpoints of this moment."""
        self.record.run_id = self.run_id
        self.record.connected = self.dispatcher.connected_sites()
        self.record.paused = self.sites.health.pauses(self.round_number + 1)
        self.record.checkpoints = self._checkpoints.rounds()
        self.record.bad_checkpoints = [n for n in self._checkpoints.bad_rounds() if n not in self.record.checkpoints]
        self.record.selected = self._selection.choice

    def _run(self) -> None:
        require_confined(self.problem.weights, "problem.weights", self.fl_ctx)
        self.problem = with_intensities(self.problem)
        self.start()
        identity = {**self._identity(), **self.fingerprint(), EXECUTOR: identifying_options(self._executors)}
        schedule = ("rounds", "run_name", "min_sites", "mandatory_sites", "preset")
        # Of the sites' options the one that changes what a given model predicts.
        form = self.job_arguments.get("inference", EXACT)
        chosen = {name: getattr(self.run, name) for name in schedule} | {"inference": form}
        self.record.configuration = {**identity, **chosen, EXECUTOR: stated_options(self._executors)}
        self._checkpoints = CheckpointFolder(self.folder, identity)
        self._subscribers.append(Rollback(self._checkpoints, self.record))
        remarks = self._resume()
        if in_kit(self.fl_ctx) and self._is_done() and self.record.finished_before():
            self.record.publish_again(result_folder(self.fl_ctx))
            return
        if self.round_number:
            self.record.event("resume", after_round=self.round_number)
        for remark in remarks:
            self.record.remark(remark)
        roster = joined_sites(servers_roster(self.fl_ctx), self.run.mandatory_sites or ())
        run, connected = self.run, self.dispatcher.connected_sites
        if not await_sites(connected, run.min_sites, run.start_timeout, self._abort_signal, mandatory=roster):
            raise RunAborted
        self._under_way = True
        self.sites_ready(connected())
        self.record.event("start", rounds=self.rounds, sites=self.dispatcher.connected_sites())
        self._note_state()
        self.record.write("running")
        while not self._is_done():
            self.round_number += 1
            self._run_round()
            if self.round_number % self.run.checkpoint_every == 0 or self._is_done():
                self.record.sync()
                self._checkpoints.save(self.round_number, self._saved(), self.snapshots())
                self.checkpointed = self._checkpoints.rounds()
            self._note_state()
            self.record.write("running")
        self._finish()

    def _is_done(self) -> bool:
        return self.round_number >= self.rounds or bool(self.stop_reason(self._selection.choice.get("round")))

    def _run_round(self) -> None:
        started, number = time.monotonic(), self.round_number
        enter_round(number)
        self._subscribers.tell(RoundSubscriber.round_started, number)
        available, chosen = self._choose_sites()
        every = self.run.validate_every
        validate = every > 0 and (number - 1) % every == 0 and (number > 1 or self.starts_trained())
        self.record.event("round_start", round=number, sites=chosen)
        if apart := validate and self.adds_up:
            self._ask_scores(VALIDATE, available, self.model())
            self._score(number - 1)
        self.open_round(chosen)
        assignments = self._assignments(available, chosen, validate and not apart)
        outcome = self.dispatcher.exchange(assignments, self.run.grace)
        self._subscribers.tell(RoundSubscriber.answers_in, number, chosen, outcome)
        trained = outcome.require(self.run.min_sites, chosen, number)
        if validate and not apart:
            self._score(number - 1)
        for site in (site for site in chosen if site not in trained):
            self.missed(site)
        self.close_round()
        known = {"round": number, "asked": chosen, "answered": trained, "dropped": outcome.dropped}
        known["silent"] = natural_sorted(outcome.silent)
        seconds = round(time.monotonic() - started, 4)
        self.record.close_round({**known, "round_seconds": seconds, **self.round_notes()})
        self._subscribers.tell(RoundSubscriber.round_done, number)

    def _choose_sites(self) -> tuple[list[str], list[str]]:
        """The sites that are available, and those of them that train in this round."""
        available = self._available_sites()
        if self.registrations:
            available = self.dispatcher.register(available)
        candidates = self.participants(available)
        return available, sample_sites(candidates, self.run.sites_per_round, self.seed, self.round_number)

    def _assignments(self, available: list[str], chosen: list[str], validate: bool) -> dict[str, Assignment]:
        """What each site is asked: the chosen ones to train, all to score if that is due."""
        payloads = {site: self.payload_for(site) for site in chosen}
        assignments = training_assignments(payloads, validate, self.model())
        if validate:
            for site in available:
                assignments.setdefault(site, Assignment(VALIDATE, self.payload(_shared(self.model()))))
        return assignments

    def _available_sites(self) -> list[str]:
        connected = self.dispatcher.connected_sites()
        return self.sites.health.available_sites(connected, self.round_number, self.run.min_sites)

    def _ask_scores(self, task: str, sites: list[str], model: State | None, grace: float | None = None) -> None:
        """Have sites score or test a model; where answers are added up unseen, keep the record of the sum."""
        model_name = VALIDATION if task == VALIDATE else self._tested_model
        self._summed = None
        if self.adds_up:
            name = SCORE_SUMS[model_name]
            self.record.note_void(OF_SINGLE_SITES)
            quantity = f"{name} {self.round_number}"
            try:
                self.sums.open(quantity, sites, kinds={name: ReleaseKind.SCORES})
            except GrandRoundsError as error:  # without scores the models are still there
                self.record.event("sum", round=self.round_number, quantity=quantity, contributors=[], lost=str(error))
                return
        shared, values = _shared(model), {SUMMED: True} if self.adds_up else {}
        payloads = dict.fromkeys(sites, self.payload(shared, **values))
        for site in sites if task == TEST else ():
            if more := self.parts_for_test(site):
                payloads[site] = self.payload({**shared, **more}, **values)
        self.dispatcher.exchange({site: Assignment(task, payload) for site, payload in payloads.items()}, grace)
        self._summed = self._summed_scores(model_name) if self.adds_up else None

    def parts_for_test(self, site: str) -> Mapping[str, State]:
        """What a site is sent with the selected model, by name; equal for all where scores are added up."""
        return {}

    @property
    def _tested_model(self) -> str:
        """The one that is tested at the end: the common one, or each site's own."""
        return OWN_MODEL if self._selection.model is None else COMMON

    def _summed_scores(self, model: str) -> tuple[EvalRecord, tuple[str, ...]] | None:
        """The record of all contributors' images, and the contributors; None if the sum is lost."""
        opened = self.sums.close()
        if opened is None:
            return None
        table = {name: value.numpy() for name, value in opened.releases[SCORE_SUMS[model]].items()}
        with reraised_as(GrandRoundsError, ValueError, where=SCORE_SUMS[model]):
            return record_of_sum(self.problem.kind, self.problem.classes, table), opened.contributors

    def _score(self, model_round: int) -> None:
        scores = self.server_scores()
        at_server = {SERVER: {VALIDATION_PREFIX + name: value for name, value in (scores or {}).items()}}
        counts = {
            site: of_site[VALIDATION] for site, of_site in self.dispatcher.counts.items() if VALIDATION in of_site
        }
        metrics, counts = (at_server, {}) if scores else (self.dispatcher.metrics, counts)
        if self._summed:
            metrics, counts = of_all_sites(self._summed[0], self.run.metric)
        compared = self._selection.offer(model_round, metrics, self.model(), counts)
        if compared is not None:
            self.record.note_score(model_round, self.run.metric, compared)

    def _finish(self) -> None:
        done = self.round_number
        reason = "" if done >= self.rounds else self.stop_reason(self._selection.choice.get("round"))
        self.round_number += 1
        sites = self._available_sites()
        if self.run.validate_every:
            self._ask_scores(VALIDATE, sites, self.model(), self.run.grace)
            self._score(done)
            sites = self._available_sites()  # a site that has not answered this is not waited for a second time
        if not self._selection.choice:
            self._selection.keep(done, None, self.model())
        self._ask_scores(TEST, sites, self._selection.model)
        if self._summed:
            self.record.note_summed({self._tested_model: self._summed[0]}, self._summed[1])
        elif not self.adds_up:
            self.record.note_tests(self.problem, self.dispatcher.metrics, self.dispatcher.counts)
        self.record.note_moments(self.dispatcher.moments)
        self.record.untested = [site for site in self.dispatcher.connected_sites() if site not in self.record.tested]
        self.round_number -= 1
        self._note_state()
        models = {"selected": self._selection.model, "last": self.model()}
        saved = save_models(self.folder, {name: state for name, state in models.items() if state is not None})
        self.record.note_models(saved)
        self.record.write("finished", reason)
        self.record.event("finished", selected=self.record.selected)
        self.record.publish(result_folder(self.fl_ctx), saved, may_link=not in_kit(self.fl_ctx))

    def _resume(self) -> list[str]:
        """Take up the run where it was left; what a reader must know of that."""
        run = self.run
        if run.resume == "never":
            self._checkpoints.discard_from(0)
        before = self.record.checkpoints_before() if run.resume != "never" else []
        known = {*self._checkpoints.rounds(), *self._checkpoints.bad_rounds()}
        gone = [number for number in before if number not in known]
        checkpoint = self._checkpoints.load(round_number=run.resume_from)
        if checkpoint is None:
            if run.resume == "require":
                raise ConfigurationError(f"resume=require, but {self.folder} has no checkpoint of {run.run_name!r}")
            self._checkpoints.discard_from(0)
            self.record.restart()
            return _missing(gone, 0)
        if checkpoint.round_number > self.most_rounds:
            raise ConfigurationError(
                f"run {run.run_name!r} has done {checkpoint.round_number} rounds, rounds is {self.rounds}: set "
                "controller.rounds to at least that, use another run_name, or resume=never to start again"
            )
        self._checkpoints.discard_from(checkpoint.round_number + 1)
        self.round_number, self.run_id = checkpoint.round_number, checkpoint.content["run_id"]
        self.checkpointed = self._checkpoints.rounds()
        self.sites.load_state_dict(checkpoint.content["sites"])
        self.record.registered = dict(checkpoint.content["sites"]["registered"])
        self.record.load_state_dict(checkpoint.content["record"])
        self._selection.load_state_dict(checkpoint.content["selection"])
        self.load_state_dict(checkpoint.content["method"])
        self.load_snapshots(checkpoint.parts)
        return [
            *checkpoint.remarks,
            *_missing([number for number in gone if number > self.round_number], self.round_number),
        ]

    def _saved(self) -> dict[str, Any]:
        return {
            "run_id": self.run_id,
            "sites": self.sites.state_dict(),
            "selection": self._selection.state_dict(),
            "record": self.record.state_dict(),
            "method": self.state_dict(),
        }

    def _identity(self) -> dict[str, Any]:
        return {
            "method": type(self).__name__,
            "problem": self.problem.to_dict(),
            "frozen": self.frozen_digest,
            "seed": self.seed,
            "sites_per_round": self.run.sites_per_round,
            "validate_every": self.run.validate_every,
            "selection_metric": self.run.metric,
        }


def _missing(gone: Sequence[int], after: int) -> list[str]:
    return [f"the checkpoint after round {gone[-1]} is missing; the run goes on after round {after}"] if gone else []


def _shared(model: State | None) -> dict[str, State]:
    return {} if model is None else {GLOBAL: model}
