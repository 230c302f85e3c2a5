"""Rounds on the server: who is asked, what is sent, how long it is waited, what is kept, what is told."""

from __future__ import annotations

import time
import uuid
from typing import Any, Literal

from nvflare.apis.fl_context import FLContext
from nvflare.apis.signal import Signal
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.app_event_type import AppEventType

from grandrounds.errors import ConfigurationError, GrandRoundsError
from grandrounds.evaluation.metrics import SELECTABLE
from grandrounds.federation.paths import SERVER, result_folder, state_folder
from grandrounds.federation.server.checkpoint import CheckpointFolder, save_models
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
from grandrounds.ordering import natural_sorted
from grandrounds.protocol.messages import GLOBAL, TEST, VALIDATE, VALIDATION_PREFIX, State, require_run_name
from grandrounds.protocol.problem import Problem
from grandrounds.protocol.registration import Registration

LEAST = {"rounds": 1, "min_sites": 1, "validate_every": 0, "checkpoint_every": 1}
"""The smallest values of options."""


class RoundController(SiteConversation):
    """A federation that works in rounds; a method says what travels and what is made of it.

    In each round a seeded sample of the sites that are well trains; every site (or, as configured, none) scores the model
    that the round starts from on its own validation images, in the same exchange, so that scoring costs no extra trip. The
    model with the best mean score over sites is the run's result, and every site tests it at the end on its test images.

    A method implements :meth:`payload_for`, :meth:`absorb` and :meth:`close_round`, and overrides the other hooks where it
    has something to say.

    Args:
        problem: what is learnt, see :class:`~grandrounds.protocol.problem.Problem`.
        rounds: number of rounds in all; a resumed run does the missing ones.
        run_name: names the run's state on all parties. A job submitted again under the same name resumes it.
        sites_per_round: how many sites train in a round; None for all.
        min_sites: fewest sites that must be there at the start and give an update in every round.
        seed: of the whole run, sites included.
        round_timeout: seconds that a round may take, the waiting for a free machine included.
        grace: seconds that stragglers get once ``min_sites`` have answered; None waits for all until the timeout.
        start_timeout: seconds to wait for ``min_sites`` sites, and the mandatory ones, at the start.
        mandatory_sites: who must be there at the start, beside those that the server asks for in every job
            (:mod:`~grandrounds.federation.server.health`); later they may miss rounds as others may.
        validate_every: rounds between scores on validation images; 0 never scores and keeps the last model.
        selection_metric: the validation metric whose mean over sites selects the model; higher is better.
        resume: ``auto`` goes on where a checkpoint ends, ``never`` starts again, ``require`` fails without a checkpoint.
        checkpoint_every: rounds between checkpoints; the last round has one. A resumed run goes on after the last
            checkpoint and does the rounds since then again.
        preset: where the job's options come from, for the record; nothing depends on it.
    """

    def __init__(
        self,
        *,
        problem: dict[str, Any],
        rounds: int,
        run_name: str = "run",
        sites_per_round: int | None = None,
        min_sites: int = 1,
        seed: int = 0,
        round_timeout: float = 3600.0,
        grace: float | None = None,
        start_timeout: float = 300.0,
        mandatory_sites: list[str] | None = None,
        validate_every: int = 1,
        selection_metric: str = "balanced_accuracy",
        resume: Literal["auto", "never", "require"] = "auto",
        checkpoint_every: int = 1,
        preset: str = "",
    ) -> None:
        super().__init__()
        require_run_name(run_name)
        self.mandatory_sites = require_names(mandatory_sites or (), "mandatory_sites")
        self.problem = Problem.from_dict(problem)
        self.rounds = rounds
        self.run_name = run_name
        self.sites_per_round = sites_per_round
        self.min_sites = min_sites
        self.seed = seed
        self.round_timeout = round_timeout
        self.grace = grace
        self.start_timeout = start_timeout
        self.validate_every = validate_every
        self.selection_metric = selection_metric
        self.resume = resume
        self.checkpoint_every = checkpoint_every
        self.preset = preset
        self._require_values()
        self.round_number = 0
        self.run_id = uuid.uuid4().hex
        self.health = SiteHealth()
        self.registered = {}
        self.refused = {}
        self._metrics = {}
        self._checkpointed = []
        self._selection = ModelSelection(selection_metric)
        self._under_way = False

    def _require_values(self) -> None:
        """Check options whose values must be some of what their types allow."""
        for name, least in LEAST.items():
            value = getattr(self, name)
            if not isinstance(value, int) or value < least:
                raise ConfigurationError(f"{name} must be an integer of at least {least}, got {value!r}")
        if self.sites_per_round is not None and self.sites_per_round < self.min_sites:
            raise ConfigurationError(f"sites_per_round is {self.sites_per_round}, below min_sites = {self.min_sites}")
        if self.selection_metric not in SELECTABLE:
            raise ConfigurationError(
                f"selection_metric must be one of {', '.join(SELECTABLE)}, got {self.selection_metric!r}"
            )
        if self.resume not in ("auto", "never", "require"):
            raise ConfigurationError(f"resume must be auto, never or require, got {self.resume!r}")

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        """FLARE's hook: run all rounds and leave a record that tells the truth, whatever happens."""
        self.fl_ctx, self._abort_signal = fl_ctx, abort_signal
        self.folder = state_folder(fl_ctx, self.run_name, SERVER)
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
            name: getattr(self, name) for name in ("rounds", "run_name", "min_sites", "mandatory_sites", "preset")
        }
        self.record.configuration = {**identity, **schedule}
        self._checkpoints = CheckpointFolder(self.folder, identity)
        self._resume()
        roster = joined(servers_roster(self.fl_ctx), self.mandatory_sites)
        if not await_sites(
            self.connected_sites, self.min_sites, self.start_timeout, self._abort_signal, mandatory=roster
        ):
            raise RunAborted
        self._under_way = True
        self.record.event("start", rounds=self.rounds, sites=self.connected_sites())
        while self.round_number < self.rounds:
            self.round_number += 1
            self._run_round()
            if self.round_number % self.checkpoint_every == 0 or self.round_number == self.rounds:
                self._checkpoints.save(self.round_number, self._saved(), self.snapshots())
                self._checkpointed = self._checkpoints.rounds()
            self.record.selected = self._selection.choice
            self.record.write("running")
        self._finish()

    def _run_round(self) -> None:
        started = time.monotonic()
        self.fl_ctx.set_prop(AppConstants.CURRENT_ROUND, self.round_number, private=True, sticky=True)
        self.fire_event(AppEventType.ROUND_STARTED, self.fl_ctx)
        well = self.health.well(self.connected_sites(), self.round_number, self.min_sites)
        if self.registrations:
            well = self.register_sites(well)
        chosen = sample_sites(self.participants(well), self.sites_per_round, self.seed, self.round_number)
        done = self.round_number - 1
        validate = done > 0 and self.validate_every > 0 and done % self.validate_every == 0
        self.record.event("round_start", round=self.round_number, sites=chosen)
        self.open_round(chosen)
        payloads = {site: self.payload_for(site) for site in chosen}
        assignments = training_assignments(payloads, validate, self.model())
        if validate:
            for site in well:
                assignments.setdefault(site, Assignment(VALIDATE, self.payload(_shared(self.model()))))
        outcome = self._exchange(assignments, self.grace)
        trained = outcome.require(self.min_sites, chosen, self.round_number)
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
            self.record.event("score", round=model_round, metric=self.selection_metric, mean=score)

    def _finish(self) -> None:
        self.round_number += 1
        sites = self.health.well(self.connected_sites(), self.round_number, self.min_sites)
        if self.validate_every:
            payload = self.payload(_shared(self.model()))
            self._exchange({site: Assignment(VALIDATE, payload) for site in sites}, self.grace)
            self._score(self.rounds)
            # Who has not answered this is not waited for a second time.
            sites = self.health.well(self.connected_sites(), self.round_number, self.min_sites)
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
        if self.resume == "never":
            self._checkpoints.discard_from(0)
        checkpoint = self._checkpoints.load()
        if checkpoint is None:
            if self.resume == "require":
                raise ConfigurationError(f"resume=require, but {self.folder} has no checkpoint of {self.run_name!r}")
            self._checkpoints.discard_from(0)
            self.record.restart()
            return
        if checkpoint.round_number > self.rounds:
            raise ConfigurationError(
                f"run {self.run_name!r} has done {checkpoint.round_number} rounds, rounds is {self.rounds}: ask for at "
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
            "sites_per_round": self.sites_per_round,
            "validate_every": self.validate_every,
            "selection_metric": self.selection_metric,
        }


def _shared(model: State | None) -> dict[str, State]:
    return {} if model is None else {GLOBAL: model}
