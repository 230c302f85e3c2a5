"""Rounds on the server: who is asked, what is sent, how long it is waited, what is kept, what is told."""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from nvflare.apis.fl_context import FLContext
from nvflare.apis.signal import Signal
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.app_event_type import AppEventType

from grandrounds.errors import ConfigurationError, GrandRoundsError
from grandrounds.evaluation.metrics import SELECTABLE
from grandrounds.federation.checkpoints import CheckpointFolder, save_models
from grandrounds.federation.paths import SERVER, result_folder, state_folder
from grandrounds.federation.server.dispatcher import SiteConversation
from grandrounds.federation.server.exchange import Assignment, RunAborted, training_assignments
from grandrounds.federation.server.health import (
    SiteHealth,
    await_sites,
    joined,
    require_names,
    sample_sites,
    servers_roster,
)
from grandrounds.federation.server.record import RunRecord
from grandrounds.federation.server.selection import ModelSelection
from grandrounds.files import exclusive
from grandrounds.models.registry import require_buildable
from grandrounds.options import Configurable, Min, Options
from grandrounds.ordering import natural_sorted
from grandrounds.protocol.messages import GLOBAL, TEST, VALIDATE, VALIDATION_PREFIX, State, require_run_name
from grandrounds.protocol.problem import Problem
from grandrounds.protocol.registration import Registration

SELECTION = ", ".join(SELECTABLE)


@dataclass(frozen=True)
class RunOptions(Options):
    """A run of rounds. A job that is submitted again under the same ``run_name`` resumes the run."""

    identifies_run: ClassVar[bool] = False

    problem: Annotated[dict[str, Any], "what is learnt: data set, classes, images and network"]
    rounds: Annotated[int, "number of rounds in all; a resumed run does the missing ones", Min(1)]
    run_name: Annotated[str, "names the run's state on all parties"] = "run"
    sites_per_round: Annotated[int | None, "sites that train in a round; null for all"] = None
    min_sites: Annotated[int, "sites that must be there at the start and give an update in every round", Min(1)] = 1
    seed: Annotated[int, "seed of the whole run, sites included"] = 0
    round_timeout: Annotated[float, "seconds that a round may take, waiting for a free machine included"] = 3600.0
    grace: Annotated[float | None, "seconds for stragglers once min_sites have answered; null: until the timeout"] = (
        None
    )
    start_timeout: Annotated[float, "seconds to wait at the start for min_sites and the mandatory sites"] = 300.0
    mandatory_sites: Annotated[tuple[str, ...] | None, "sites that must be there at the start"] = None
    validate_every: Annotated[int, "rounds between validation scores; 0: never score, keep the last model", Min(0)] = 1
    selection_metric: Annotated[str, "validation metric whose mean over sites selects the model"] = "balanced_accuracy"
    resume: Annotated[Literal["auto", "never", "require"], "never: start again; require: fail without a checkpoint"] = (
        "auto"
    )
    checkpoint_every: Annotated[int, "rounds between checkpoints; the last round has one, too", Min(1)] = 1
    preset: Annotated[str, "where the job's options come from, for the record; nothing depends on it"] = ""

    def check(self) -> None:
        """Check names, and options that depend on each other."""
        require_run_name(self.run_name)
        require_names(self.mandatory_sites or (), "mandatory_sites")
        if self.sites_per_round is not None and self.sites_per_round < self.min_sites:
            raise ConfigurationError(f"sites_per_round is {self.sites_per_round}, below min_sites = {self.min_sites}")
        if self.selection_metric not in SELECTABLE:
            raise ConfigurationError(f"selection_metric must be one of {SELECTION}, got {self.selection_metric!r}")


class RoundController(Configurable, SiteConversation):
    """A federation that works in rounds; a method says what travels and what is made of it.

    In each round a seeded sample of the sites that are well trains; every site (or, as configured, none) scores the model
    that the round starts from on its own validation images, in the same exchange, so that scoring costs no extra trip. The
    model with the best mean score over sites is the run's result, and every site tests it at the end on its test images.

    A method implements :meth:`payload_for`, :meth:`absorb` and :meth:`close_round`, and overrides the other hooks where it
    has something to say.
    """

    run: RunOptions

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.take_groups(options)
        self.problem = Problem.from_dict(self.run.problem)
        require_buildable(self.problem.model_spec(pretrained=False), self.problem.image_size)
        self.rounds = self.run.rounds
        self.seed = self.run.seed
        self.round_number = 0
        self.run_id = uuid.uuid4().hex
        self.health = SiteHealth()
        self.registered = {}
        self.refused = {}
        self._metrics = {}
        self._checkpointed = []
        self._selection = ModelSelection(self.run.selection_metric)
        self._under_way = False

    def fingerprint(self) -> dict[str, Any]:
        """What must be equal for a checkpoint to fit, beside the problem and the seed."""
        return self.options()

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        """FLARE's hook: run all rounds and leave a record that tells the truth, whatever happens."""
        self.fl_ctx, self._abort_signal = fl_ctx, abort_signal
        self.folder = state_folder(fl_ctx, self.run.run_name, SERVER)
        self.record = RunRecord(self.folder, {})
        try:
            with exclusive(self.folder):
                self._run_recorded()
        except GrandRoundsError as error:
            self.system_panic(str(error), fl_ctx)

    def _run_recorded(self) -> None:
        try:
            self._run()
        except RunAborted:
            self._close_record("aborted", "FLARE's abort signal was triggered")
        except GrandRoundsError as error:
            self.record.event("failed", reason=str(error))
            # A mistake in submitting a run again must not overwrite what the run has achieved.
            if self._under_way or not self.record.exists():
                self._close_record("failed", str(error))
            raise
        except Exception as error:
            self._close_record("failed", f"{type(error).__name__}: {error}")
            raise

    def _close_record(self, status: str, reason: str) -> None:
        """Write why the run ended early, for the next start and for whoever downloads the job."""
        self.record.write(status, reason)
        self.record.publish(result_folder(self.fl_ctx), [])

    def _run(self) -> None:
        self.start()
        identity = {**self._identity(), **self.fingerprint()}
        schedule = {
            name: getattr(self.run, name) for name in ("rounds", "run_name", "min_sites", "mandatory_sites", "preset")
        }
        self.record.configuration = {**identity, **schedule}
        self._checkpoints = CheckpointFolder(self.folder, identity)
        self._resume()
        roster = joined(servers_roster(self.fl_ctx), self.run.mandatory_sites or ())
        if not await_sites(
            self.connected_sites, self.run.min_sites, self.run.start_timeout, self._abort_signal, mandatory=roster
        ):
            raise RunAborted
        self._under_way = True
        self.record.event("start", rounds=self.rounds, sites=self.connected_sites())
        while self.round_number < self.rounds:
            self.round_number += 1
            self._run_round()
            if self.round_number % self.run.checkpoint_every == 0 or self.round_number == self.rounds:
                self._checkpoints.save(self.round_number, self._saved(), self.snapshots())
                self._checkpointed = self._checkpoints.rounds()
            self.record.selected = self._selection.choice
            self.record.write("running")
        self._finish()

    def _run_round(self) -> None:
        started = time.monotonic()
        self.fl_ctx.set_prop(AppConstants.CURRENT_ROUND, self.round_number, private=True, sticky=True)
        self.fire_event(AppEventType.ROUND_STARTED, self.fl_ctx)
        well = self.health.well(self.connected_sites(), self.round_number, self.run.min_sites)
        if self.registrations:
            well = self.register_sites(well)
        chosen = sample_sites(self.participants(well), self.run.sites_per_round, self.seed, self.round_number)
        done = self.round_number - 1
        validate = done > 0 and self.run.validate_every > 0 and done % self.run.validate_every == 0
        self.record.event("round_start", round=self.round_number, sites=chosen)
        self.open_round(chosen)
        payloads = {site: self.payload_for(site) for site in chosen}
        assignments = training_assignments(payloads, validate, self.model())
        if validate:
            for site in well:
                assignments.setdefault(site, Assignment(VALIDATE, self.payload(_shared(self.model()))))
        outcome = self._exchange(assignments, self.run.grace)
        trained = outcome.require(self.run.min_sites, chosen, self.round_number)
        if validate:
            self._score(done)
        for site in chosen:
            if site not in trained:
                self.missed(site)
        self.close_round()
        self.record.close_round(
            {
                "round": self.round_number,
                "asked": chosen,
                "answered": trained,
                "dropped": outcome.dropped,
                "round_seconds": round(time.monotonic() - started, 4),
                **self.round_notes(),
            }
        )
        self.fire_event(AppEventType.ROUND_DONE, self.fl_ctx)

    def _score(self, model_round: int) -> None:
        scores = self.server_scores()
        at_server = {SERVER: {VALIDATION_PREFIX + name: value for name, value in (scores or {}).items()}}
        score = self._selection.offer(model_round, at_server if scores else self._metrics, self.model())
        if score is not None:
            self.record.event("score", round=model_round, metric=self.run.selection_metric, mean=score)

    def _finish(self) -> None:
        self.round_number += 1
        sites = self.health.well(self.connected_sites(), self.round_number, self.run.min_sites)
        if self.run.validate_every:
            payload = self.payload(_shared(self.model()))
            self._exchange({site: Assignment(VALIDATE, payload) for site in sites}, self.run.grace)
            self._score(self.rounds)
            # Who has not answered this is not waited for a second time.
            sites = self.health.well(self.connected_sites(), self.round_number, self.run.min_sites)
        if not self._selection.choice:
            self._selection.keep(self.rounds, None, self.model())
        payload = self.payload(_shared(self._selection.model))
        self._exchange({site: Assignment(TEST, payload) for site in sites}, None)
        self.record.test = {site: self._metrics[site] for site in natural_sorted(self._metrics)}
        self.record.untested = [site for site in self.connected_sites() if site not in self.record.test]
        self.round_number -= 1
        self.record.selected = self._selection.choice
        models = {"selected": self._selection.model, "last": self.model()}
        saved = save_models(self.folder, {name: state for name, state in models.items() if state is not None})
        self.record.note_models(saved)
        self.record.write("finished")
        self.record.event("finished", selected=self.record.selected)
        self.record.publish(result_folder(self.fl_ctx), saved)

    def _resume(self) -> None:
        if self.run.resume == "never":
            self._checkpoints.discard_from(0)
        checkpoint = self._checkpoints.load()
        if checkpoint is None:
            if self.run.resume == "require":
                raise ConfigurationError(
                    f"resume=require, but {self.folder} has no checkpoint of {self.run.run_name!r}"
                )
            self._checkpoints.discard_from(0)
            self.record.restart()
            return
        if checkpoint.round_number > self.rounds:
            raise ConfigurationError(
                f"run {self.run.run_name!r} has done {checkpoint.round_number} rounds, rounds is {self.rounds}: ask for at "
                "least as many, use another run_name, or resume=never to start again"
            )
        self._checkpoints.discard_from(checkpoint.round_number + 1)
        self.round_number = checkpoint.round_number
        self.run_id = checkpoint.content["run_id"]
        self.health.load_state_dict(checkpoint.content["health"])
        self._checkpointed = self._checkpoints.rounds()
        self.registered = {site: Registration(**said) for site, said in checkpoint.content["registered"].items()}
        self.record.registered = dict(checkpoint.content["registered"])
        self.record.load_state_dict(checkpoint.content["record"])
        self._selection.load_state_dict(checkpoint.content["selection"])
        self.load_state_dict(checkpoint.content["method"])
        self.load_snapshots(checkpoint.parts)
        self.record.event("resume", after_round=self.round_number)

    def _saved(self) -> dict[str, Any]:
        return {
            "run_id": self.run_id,
            "health": self.health.state_dict(),
            "registered": {site: registration.to_dict() for site, registration in self.registered.items()},
            "selection": self._selection.state_dict(),
            "record": self.record.state_dict(),
            "method": self.state_dict(),
        }

    def _identity(self) -> dict[str, Any]:
        return {
            "method": type(self).__name__,
            "problem": self.problem.to_dict(),
            "seed": self.seed,
            "sites_per_round": self.run.sites_per_round,
            "validate_every": self.run.validate_every,
            "selection_metric": self.run.selection_metric,
        }


def _shared(model: State | None) -> dict[str, State]:
    return {} if model is None else {GLOBAL: model}
