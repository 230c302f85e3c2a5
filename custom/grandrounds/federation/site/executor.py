"""Tasks at a site: read the message, let the method train, score, and answer with what was declared."""

from __future__ import annotations

import os
import time
from collections import ChainMap
from collections.abc import Mapping
from contextlib import closing, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import FLContextKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal
from torch import nn

from grandrounds.errors import ConfigurationError, GrandRoundsError, MessageError
from grandrounds.federation.executor_options import EXECUTORS, OPTIONS_FACT, agreed_options
from grandrounds.federation.memory import collect_garbage, keep_freed_memory, prepare_job_process
from grandrounds.federation.site import scoring
from grandrounds.federation.site.child_messages import require_shapes
from grandrounds.federation.site.context import SiteContext, TaskAborted
from grandrounds.federation.site.data import SiteAccess
from grandrounds.federation.site.features import FeatureOptions, Features, remove_features
from grandrounds.federation.site.hooks import SiteHooks
from grandrounds.federation.site.isolation import WorkerLost, WorkerStopped
from grandrounds.federation.site.model import ARCHITECTURE_FACTS, SharedNetwork, forget_networks, model_named
from grandrounds.federation.site.options import ComputeOptions, InferenceOptions, SiteOptions
from grandrounds.federation.site.outcomes import cause_of, gate_of, note_failure
from grandrounds.federation.site.store import SiteStore, copy_to_cpu
from grandrounds.federation.site.sums import MASKED_RELEASE, simulated_answer, with_simulated_masks
from grandrounds.federation.site.worker import TrainingChild, require_gate
from grandrounds.logs.lines import enter_round
from grandrounds.models.registry import build_model
from grandrounds.options import Configurable
from grandrounds.privacy.mechanisms.record_level import ProtectionOptions
from grandrounds.privacy.secure_sums.summands import SumOptions
from grandrounds.protocol.messages import (
    GLOBAL,
    JOIN,
    REASON_HEADER,
    SCORED,
    SUM,
    SUMMED,
    TASKS,
    TEST,
    TRAIN,
    VALIDATE,
    Payload,
    Release,
    ReleaseKind,
    Result,
    State,
)
from grandrounds.protocol.names import OWN_ROUND, VALIDATION
from grandrounds.protocol.paths import DETAILS_VARIABLE, claimed_folder, in_kit
from grandrounds.protocol.problem import TRAIN_ALL
from grandrounds.protocol.spending import TRAINING_GATE
from grandrounds.protocol.task import Task
from grandrounds.protocol.wire import decode_payload, decode_result, encode_result, executor_arguments, round_updates
from grandrounds.walls import Isolation


@dataclass
class RunHere:
    """What a site has of the run that it works for: its store, and features of frozen layers if they are kept.

    ``digest`` is of the site's options; empty where they are in no file.
    """

    identity: tuple[Any, ...]
    store: SiteStore
    digest: str
    features: Features | None = None


@dataclass
class _Asked:
    """A training task; ``store`` has the staged state once it has been answered, if it was in this process."""

    payload: Payload
    store: SiteStore | None = None
    answered: bool = False


class SiteExecutor(Configurable, SiteHooks, Executor):
    """Works on the tasks ``join``, ``train``, ``validate`` and ``test`` of a :class:`RoundController`.

    A method implements :meth:`train`. What must last from one round to the next it puts into ``kept``.
    """

    site_options: SiteOptions
    compute: ComputeOptions
    protection: ProtectionOptions
    feature_options: FeatureOptions
    inference: InferenceOptions
    summing: SumOptions

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.take_groups(options)
        self.protection.require_possible(type(self).__name__, self.record_level_obstacle)
        site = self.site_options
        if site.model not in self.models:
            raise ConfigurationError(f"model must be {' or '.join(self.models)}, got {site.model!r}")
        if self.compute.compiler != "none" and self.protection.record_noise_multiplier is not None:
            raise ConfigurationError("record_noise_multiplier takes the gradient of each image: set compiler=none")
        if self.compute.precision == "float16" and (
            not self.scales_gradients or self.protection.record_noise_multiplier is not None
        ):
            raise ConfigurationError(
                "precision=float16 needs scaled gradients, which this training has not; use bfloat16"
            )
        exact = {type(self).__name__: self.needs_float32} if self.needs_float32 else {}
        if self.protection.record_noise_multiplier is not None:
            exact["record_noise_multiplier"] = "an epsilon rests on what it trains"
        for needed_by, reason in exact.items():
            if self.compute.precision == "tf32":
                raise ConfigurationError(f"{needed_by} needs another precision than tf32: {reason}; use float32")
        self.kept: dict[str, Any] = {}
        self.model = model_named(site, self.network, self.build)
        self._access = SiteAccess(self.model.spec, self.compute, self.logger)
        self._shared_network = SharedNetwork(self.compute.compiler, self.build)
        self._run_here: RunHere | None = None
        self._asked: _Asked | None = None
        self._isolation: Isolation | None = None
        self._child: TrainingChild | None = None
        self._hides_failures = False
        # For these events FLARE calls no ``handle_event``, also none of a method's own.
        self.register_event_handler(EventType.START_RUN, self._prepare_process)
        self.register_event_handler(EventType.END_RUN, self._end_child)
        self.register_event_handler(EventType.AFTER_TASK_RESULT_FILTER, self._commit_released)

    def starting_model(self, payload: Payload, context: SiteContext) -> nn.Module:
        """The network in training mode with the weights this round starts from."""
        return self._loaded(self.starting_state(payload, context), context).train()

    def starting_state(self, payload: Payload, context: SiteContext) -> State:
        """What this round starts from: the model that was sent, or where sites have models of their own this site's.

        Raises:
            ConfigurationError: if a site with another network than the problem's is sent the problem's trained weights.
            MessageError: if there is no model, or it does not fit.
        """
        return self.model.start(payload, context, self.kept)

    def finish(
        self,
        payload: Payload,
        network: nn.Module,
        optimizer: torch.optim.Optimizer | Mapping[str, torch.optim.Optimizer],
        metrics: Mapping[str, float],
        releases: Mapping[str, Release] = MappingProxyType({}),
    ) -> Result:
        """Turn a trained network into a result: the update of a shared model; an own model is kept.

        Args:
            payload: the task.
            network: as trained.
            optimizer: one, or several by role.
            metrics: to report; must have ``samples``, the number of training samples.
            releases: what leaves beside the update.
        """
        trained = copy_to_cpu(network.state_dict())
        if self.site_options.optimizer == "kept":
            self.keep_optimizers(optimizer)
        of_model = self.model.finish(trained, payload, self.kept)
        return Result({**of_model, **releases}, metrics, int(metrics["samples"]))

    def tested_models(self, payload: Payload, context: SiteContext, store: SiteStore) -> dict[str, State]:
        """The models that are tested at the end, by name; their scores leave the site under these names, nothing else.

        ``common`` is the one that the federation selected, ``own`` the one that scored best here or, if none was scored, a
        site's own model as it is, ``own_last`` that of the last round, with ``test_last``.
        """
        return self.model.tested(partial(self.starting_state, payload, context), self.kept, store)

    def build(self, context: SiteContext) -> nn.Module:
        """A network of this site's architecture on the context's device, with the run's initial weights."""
        return build_model(context.model_spec, context.seed).to(context.device)

    def network(self, context: SiteContext) -> nn.Module:
        """The network of all sites of this process; its weights are whatever was loaded last, so a teacher needs its own."""
        return self._shared_network.of(context)

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        """FLARE's hook: do one task. An error becomes a reply with its reason, never half a result."""
        if task_name not in TASKS:
            return make_reply(ReturnCode.TASK_UNKNOWN)
        self._asked = None
        try:
            require_gate(fl_ctx)
            if gate_of(fl_ctx).is_answered:
                return make_reply(ReturnCode.OK)
            payload = decode_payload(shareable)
            enter_round(payload.round_number)
            self._require_allowed(task_name, fl_ctx)
            if task_name == SUM:
                return encode_result(simulated_answer(fl_ctx.get_identity_name(), payload), MASKED_RELEASE, payload)
            self._asked = asked = _Asked(payload) if task_name == TRAIN else None
            if child := self._child_for(fl_ctx):
                result = self._result_of(child, task_name, payload, fl_ctx, abort_signal)
                reply, store = self._reply(task_name, result or self.model.nothing_learnt(payload), payload), None
            else:
                result, reply, store = self.work(task_name, payload, fl_ctx, abort_signal)
            if SUM in payload.values and fl_ctx.get_prop(TRAINING_GATE) is None and result is not None:
                reply = self._simulated_part(task_name, payload, result, fl_ctx)
            collect_garbage()
            if asked:
                asked.answered, asked.store = result is not None, store
            return reply
        except TaskAborted:
            return make_reply(ReturnCode.TASK_ABORTED)
        except GrandRoundsError as error:
            # As an event FLARE's own components could send it away.
            self.log_error(fl_ctx, f"{task_name}: {error}", fire_event=False)
            return _noted_refusal(task_name, error, fl_ctx)
        except Exception as error:
            self.log_exception(fl_ctx, f"{task_name}: {error}")
            return _noted_refusal(task_name, error, fl_ctx)

    def work(
        self, task_name: str, payload: Payload, fl_ctx: FLContext, abort_signal: Signal
    ) -> tuple[Result, Shareable, SiteStore]:
        """Do one task in this process; return the result, the answer, and where the state after a training is staged."""
        torch.set_num_threads(self.compute.threads(in_kit(fl_ctx)))
        tasks = {JOIN: self._join, TRAIN: self._train, VALIDATE: self._validate, TEST: self._test}
        unread, run = self._prepared(payload, fl_ctx, abort_signal)
        context, store = self._access.with_images(unread, fl_ctx, self.needs_labels), run.store
        if task_name != JOIN:
            context = replace(context, features=self._features_of(context, run))
        self._hides_failures = self.model.hides_failures(context.gate)
        if task_name == TRAIN:
            context.gate.admit_training(self.model.spending(partial(self.spending, context)))
        with closing(context.ahead), closing(context.features) if context.features else nullcontext():
            result = tasks[task_name](payload, context, store)
        reply = self._reply(task_name, result, payload)
        if task_name == TRAIN:
            # Not before the answer has passed all checks: a diverged model must not be what the next round starts from.
            store.stage_state(context.round_number, self.kept)
        return result, reply, store

    def keep_state(self, left: Result, payload: Payload, store: SiteStore) -> None:
        """Keep the staged state of a training, whose answer has left as the filters have made it."""
        self.on_result_released(left, payload, store)
        store.commit(payload.values.get("checkpoints"))

    def _reply(self, task_name: str, result: Result, payload: Payload) -> Shareable:
        """The answer, whose parts are declared and finite; an update is one of the model that was sent."""
        if result.update is not None and GLOBAL in payload.parts:
            require_shapes(result.update, payload.parts[GLOBAL])
        facts = (*self.registration_facts, *ARCHITECTURE_FACTS, OPTIONS_FACT) if task_name == JOIN else ()
        return encode_result(result, self._declared(task_name), payload, facts)

    def _simulated_part(self, task_name: str, payload: Payload, result: Result, fl_ctx: FLContext) -> Shareable:
        """The answer in a secure sum where no gate masks it."""
        job = dict(ChainMap(*(executor_arguments(fl_ctx) or {}).values()))
        masked = with_simulated_masks(fl_ctx.get_identity_name(), task_name, payload, result, job)
        return encode_result(masked, {**self._declared(task_name), **MASKED_RELEASE}, payload)

    def _result_of(
        self, child: TrainingChild, task_name: str, payload: Payload, fl_ctx: FLContext, abort_signal: Signal
    ) -> Result | None:
        """What a child has made of a task; None for a failure that the site's gate hides, which a child might choose."""
        gate = gate_of(fl_ctx)
        hides = task_name == TRAIN and self.model.hides_failures(gate)
        try:
            return child.work(task_name, payload, fl_ctx, abort_signal)
        except (TaskAborted, WorkerStopped):
            raise
        except Exception as error:
            if not hides or not (child.admitted or isinstance(error, WorkerLost)):
                raise
            self.logger.error(f"{TRAIN}: {cause_of(error)}; the gate hides it")
            note_failure(error, gate)
            return None

    def _require_allowed(self, task_name: str, fl_ctx: FLContext) -> None:
        """Refuse, before any image is read, a job whose releases the site's policy keeps."""
        if task_name in (JOIN, TRAIN):
            gate_of(fl_ctx).require_releases(self.releases_with({**self.options(), "model": self.site_options.model}))

    def _child_for(self, fl_ctx: FLContext) -> TrainingChild | None:
        """The process that does the job's tasks; None if it is this one."""
        if self._isolation is None:
            self._isolation = Isolation.chosen(in_kit(fl_ctx))
            if self._isolation is Isolation.NONE:
                keep_freed_memory()
            else:
                self._child = TrainingChild(type(self), self._given, self._isolation)
        return self._child

    def _end_child(self, event_type: str, fl_ctx: FLContext) -> None:
        if self._child is not None:
            self._child.close()

    def require_kind(self, kind: Task) -> None:
        """Refuse options that need mutually exclusive classes if the labels are not exclusive.

        Raises:
            ConfigurationError: naming the option and what to set.
        """
        if self.needs_exclusive:
            kind.require_exclusive(type(self).__name__)

    def _prepared(self, payload: Payload, fl_ctx: FLContext, abort_signal: Signal) -> tuple[SiteContext, RunHere]:
        """All that is checked before the site's images are read: such a fault is no answer about them."""
        context = self._access.without_images(payload, fl_ctx, abort_signal)
        self.require_kind(context.problem.kind)
        self.inference.require_possible(context.model_spec.backbone, context.model_spec.trainable, context.device)
        run = self._run_of(payload, context, fl_ctx)
        self.model.require_received(payload, context)
        return context, run

    def _features_of(self, context: SiteContext, run: RunHere) -> Features | None:
        if (context.own_spec or context.problem).trainable == TRAIN_ALL and not self.feature_options.feature_cache:
            return None
        if run.features is None:
            network = self.network(context)
            run.features = Features(
                run.store.folder, self.feature_options, network, context.seed, context.site, self.inference.inference
            )
            run.features.held = context.held
        return run.features

    def _prepare_process(self, event_type: str, fl_ctx: FLContext) -> None:
        prepare_job_process(fl_ctx)
        forget_networks()

    def _commit_released(self, event_type: str, fl_ctx: FLContext) -> None:
        """Commit the state of an answer that leaves; what a filter has refused, or emptied, has not left."""
        asked, self._asked = self._asked, None
        reply = fl_ctx.get_prop(FLContextKey.TASK_RESULT)
        if not isinstance(reply, Shareable) or reply.get_return_code() != ReturnCode.OK:
            return
        # Also where the gate has answered in place of a training that failed.
        error = _round_update(reply, asked.payload) if asked else None
        if error:
            self.log_error(fl_ctx, f"{TRAIN}: {error}", fire_event=False)
            note_failure(error, gate_of(fl_ctx))
        else:
            gate_of(fl_ctx).leaves(reply)
        if error or asked is None or not asked.answered:
            return
        changes = type(self).on_result_released is not SiteHooks.on_result_released
        left = decode_result(reply, asked.payload) if changes else Result()
        if asked.store is not None:
            self.keep_state(left, asked.payload, asked.store)
        elif self._child is not None:
            self._child.keep_state(left, fl_ctx)

    def _join(self, payload: Payload, context: SiteContext, store: SiteStore) -> Result:
        registration = self.register(payload, context)
        facts = {**registration.facts, **self.model.facts(context)}
        if self._run_here and self._run_here.digest:
            facts[OPTIONS_FACT] = self._run_here.digest
        return Result(metrics=registration.scalars, facts=facts)

    def _train(self, payload: Payload, context: SiteContext, store: SiteStore) -> Result:
        self.kept = store.load_state(context.round_number)
        scored = self._score(payload, context, store) if payload.values.get("validate") else Result()
        started = time.perf_counter()
        result = self._trained(payload, context, store)
        metrics = {"train_seconds": round(time.perf_counter() - started, 4), **result.metrics, **scored.metrics}
        return replace(result, releases={**result.releases, **scored.releases}, metrics=metrics)

    def _trained(self, payload: Payload, context: SiteContext, store: SiteStore) -> Result:
        try:
            result = self.train(payload, context)
            if self._hides_failures:
                encode_result(result, self._declared(TRAIN), payload)  # it may have a value that cannot be sent
            return result
        except Exception as error:
            if not self._hides_failures or isinstance(error, TaskAborted):
                raise
            self.logger.error(f"{TRAIN}: {cause_of(error)}; the gate hides it")
            note_failure(error, context.gate)
        self.kept = store.load_state(context.round_number)
        return self.model.nothing_learnt(payload)

    def _validate(self, payload: Payload, context: SiteContext, store: SiteStore) -> Result:
        self.kept = store.load_state(context.round_number)
        return self._score(payload, context, store)

    def _score(self, payload: Payload, context: SiteContext, store: SiteStore) -> Result:
        if not self.model.is_begun(self.kept):
            return Result()  # a site that has not trained yet has nothing to score
        state = payload.parts.get(SCORED) or self.starting_state(payload, context)
        rows = context.data.rows("val")
        record, predicted = scoring.score(self._loaded(state, context), rows, context)
        metric = payload.values["selection_metric"]
        if metric in record.exact:
            # A server that goes on after a round has that round's model scored again.
            needed = [number - 1 for number in payload.values.get("checkpoints", [])]
            store.offer_best(context.round_number - 1, record.exact[metric], state, needed)
        if payload.values.get(SUMMED):
            return scoring.released_table(VALIDATION, record, rows, predicted, context.data)
        return scoring.released(VALIDATION, record, context.data.min_support)

    def _test(self, payload: Payload, context: SiteContext, store: SiteStore) -> Result:
        remove_features(store.folder)
        context.cache.keep_only([])  # the run is over: what other hospitals have trained does not stay here
        self.kept = store.load_state(context.round_number)
        models = self.tested_models(payload, context, store)
        own_round = {}
        if "own" in models:
            best = store.best_round()
            own_round[OWN_ROUND] = float(context.round_number - 1 if best is None else best)
        adds_up, load = bool(payload.values.get(SUMMED)), partial(self._loaded, context=context)
        result = scoring.evaluate_models(models, load, context, store, self.model.write, adds_up)
        if adds_up:
            return result
        releases = {**result.releases, **scoring.image_moments(context.data)}
        return replace(result, releases=releases, metrics={**own_round, **result.metrics})

    def _declared(self, task_name: str) -> Mapping[str, ReleaseKind]:
        if task_name == TEST:
            return scoring.TEST_RELEASES
        return {**self.releases, **self.model.releases, **scoring.SCORE_RELEASES}

    def _loaded(self, state: State, context: SiteContext) -> nn.Module:
        network = self.network(context)
        network.load_state_dict(state)
        return network

    def _run_of(self, payload: Payload, context: SiteContext, fl_ctx: FLContext) -> RunHere:
        identity = (payload.values["run_name"], payload.values["run_id"], context.problem, context.own_spec)
        if self._run_here and self._run_here.identity == identity:
            self._run_here.store.claim()
            return self._run_here
        options = {
            "problem": context.problem.to_dict(),
            "model": self.site_options.model,
            "optimizer": self.site_options.optimizer,
            "own_model": asdict(context.own_spec) if context.own_spec else None,
        }
        digest = agreed_options(type(self), self._given, context.site, payload.values.get(EXECUTORS), fl_ctx)
        folder = claimed_folder(fl_ctx, payload.values["run_name"], context.site)
        store = SiteStore(folder, payload.values["run_id"], {**options, **self.options()})
        self._run_here = RunHere(identity, store, digest)
        return self._run_here


def _noted_refusal(task: str, error: Exception, fl_ctx: FLContext) -> Shareable:
    note_failure(error, gate_of(fl_ctx))
    return _refusal(task, error)


def _refusal(task: str, error: Exception) -> Shareable:
    """An error reply. Its reason leaves the site, and most messages may name files or patients of the site."""
    shared = isinstance(error, MessageError | WorkerLost | WorkerStopped) or (
        isinstance(error, GrandRoundsError) and DETAILS_VARIABLE in os.environ
    )
    reason = str(error) if shared else f"{type(error).__name__} in task {task}: see the site's log"
    return make_reply(ReturnCode.EXECUTION_EXCEPTION, headers={REASON_HEADER: reason})


def _round_update(reply: Shareable, payload: Payload) -> Exception | None:
    """Round the update of an answer as the task asks, after all filters.

    Returns:
        What prevented it; the answer has then become a refusal.
    """
    try:
        round_updates(reply, payload.values)
    except Exception as error:
        reply.clear()
        reply.update(_refusal(TRAIN, error))
        return error
    return None
