"""Tasks at a site: take from the wire, let the method train, score, and answer with what was declared."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

import torch
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import FLContextKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal
from nvflare.app_opt.pt.decomposers import TensorDecomposer
from nvflare.fuel.utils import fobs
from torch import nn

from grandrounds.errors import ConfigurationError, GrandRoundsError, MessageError
from grandrounds.evaluation.curves import SiteCurves
from grandrounds.federation.curves import curve_counts, curve_releases, keep_curves
from grandrounds.federation.paths import DETAILS_VARIABLE, state_folder
from grandrounds.federation.site.access import SiteAccess
from grandrounds.federation.site.compute import keep_freed_memory
from grandrounds.federation.site.context import SiteContext, TaskAborted
from grandrounds.federation.site.hooks import SiteHooks
from grandrounds.federation.site.isolation import WorkerLost, WorkerStopped, run_isolated
from grandrounds.federation.site.scoring import prediction_rows, scored
from grandrounds.federation.site.store import SiteStore
from grandrounds.federation.site.worker import SiteIdentity, declare_dp_training, seconds_left, work_in_child
from grandrounds.models.registry import architecture_fingerprint
from grandrounds.options import Configurable
from grandrounds.protocol.messages import (
    CURVES,
    JOIN,
    REASON_HEADER,
    SCORED,
    TEST,
    TRAIN,
    UPDATE,
    VALIDATE,
    VALIDATION_PREFIX,
    Payload,
    ReleaseKind,
    Result,
    State,
    decode_payload,
    encode_result,
    round_updates,
)
from grandrounds.protocol.problem import ModelSpec

TASKS = (JOIN, TRAIN, VALIDATE, TEST)
ARCHITECTURE_FACTS = ("backbone", "architecture")


class SiteExecutor(Configurable, SiteHooks):
    """Works on the tasks ``join``, ``train``, ``validate`` and ``test`` of a :class:`RoundController`.

    A method implements :meth:`train`, and :meth:`state_dict` and :meth:`load_state_dict` if something must last from one
    round to the next.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.take_groups(options)
        self.protection.require_possible(type(self).__name__, self.record_level_obstacle)
        if self.site_options.model not in self.models:
            raise ConfigurationError(
                f"model must be {' or '.join(self.models)} for {type(self).__name__}, got {self.site_options.model!r}"
            )
        if self.compute.compiler != "none" and self.protection.record_noise_multiplier is not None:
            raise ConfigurationError(
                "record_noise_multiplier takes gradients image by image, which needs compiler=none"
            )
        self.kept: dict[str, Any] = {}
        self._access = SiteAccess(self.own_model, self.site_options.backbones or {}, self.compute, self.logger)
        self._network: tuple[ModelSpec, nn.Module] | None = None
        self._staged: tuple[SiteStore, Payload] | None = None
        self._store_of: tuple[tuple[Any, ...], SiteStore] | None = None
        # For these events FLARE calls no ``handle_event``, also none of a method's own.
        self.register_event_handler(EventType.START_RUN, self._prepare_process)
        self.register_event_handler(EventType.AFTER_TASK_RESULT_FILTER, self._keep_what_left)

    def _prepare_process(self, event_type: str, fl_ctx: FLContext) -> None:
        fobs.register(TensorDecomposer)
        keep_freed_memory()

    def _keep_what_left(self, event_type: str, fl_ctx: FLContext) -> None:
        """Keep the state of an answer that leaves; what a filter has refused, or emptied, has not left."""
        if not self._staged:
            return
        (store, payload), self._staged = self._staged, None
        reply = fl_ctx.get_prop(FLContextKey.TASK_RESULT)
        if isinstance(reply, Shareable) and self._rounded(reply, payload, fl_ctx):
            self.on_result_released(reply, payload, store)
            store.settle_state(payload.values.get("checkpoints"))

    def _rounded(self, reply: Shareable, payload: Payload, fl_ctx: FLContext) -> bool:
        """Whether the reply is an answer, whose update is now as the server asks; if it cannot be, the reply says why."""
        if reply.get_return_code() != ReturnCode.OK:
            return False
        try:
            round_updates(reply, payload.values)
        except MessageError as error:
            self.log_error(fl_ctx, f"{TRAIN}: {error}", fire_event=False)
            reply.clear()
            reply.update(_refusal(TRAIN, error))
            return False
        return True

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        """FLARE's hook: do one task. What goes wrong becomes a reply with its reason, never half a result."""
        if task_name not in TASKS:
            return make_reply(ReturnCode.TASK_UNKNOWN)
        self._staged = None
        try:
            payload = decode_payload(shareable)
            work = self._work_in_child if self.compute.isolation == "process" else self.work
            reply, store = work(task_name, payload, fl_ctx, abort_signal)
            if task_name == TRAIN:
                self._staged = (store, payload)
            return reply
        except TaskAborted:
            return make_reply(ReturnCode.TASK_ABORTED)
        except GrandRoundsError as error:
            # As an event FLARE's own components could send it away.
            self.log_error(fl_ctx, f"{task_name}: {error}", fire_event=False)
            return _refusal(task_name, error)
        except Exception as error:
            self.log_exception(fl_ctx, f"{task_name}: {error}")
            return _refusal(task_name, error)

    def work(
        self, task_name: str, payload: Payload, fl_ctx: FLContext, abort_signal: Signal
    ) -> tuple[Shareable, SiteStore]:
        """Do one task, in this process.

        Returns:
            The answer, and where the state after a training is staged.

        Raises:
            TaskAborted: if the server gives the task up.
            Exception: whatever keeps the task from being done.
        """
        if self.compute.cpu_threads:
            torch.set_num_threads(self.compute.cpu_threads)
        tasks = {JOIN: self._join, TRAIN: self._train, VALIDATE: self._validate, TEST: self._test}
        context = self._access.context(payload, fl_ctx, abort_signal, self.needs_labels)
        store = self._store(payload, context, fl_ctx)
        facts = (*self.registration_facts, *ARCHITECTURE_FACTS) if task_name == JOIN else ()
        declare_dp_training(self.spending(context) if task_name == TRAIN else None, fl_ctx)
        reply = encode_result(tasks[task_name](payload, context, store), self._declared(task_name), payload, facts)
        if task_name == TRAIN:
            # Not before the answer has passed all checks: a diverged model must not be what the next round starts from.
            store.stage_state(context.round_number, self.state_dict())
        return reply, store

    def _work_in_child(
        self, task_name: str, payload: Payload, fl_ctx: FLContext, abort_signal: Signal
    ) -> tuple[Shareable, SiteStore]:
        try:
            answer: tuple[Shareable, SiteStore] = run_isolated(
                work_in_child,
                self.work,
                task_name,
                payload,
                SiteIdentity.of(fl_ctx),
                aborted=lambda: bool(abort_signal.triggered),
                seconds=seconds_left(payload),
                reply=lambda training: declare_dp_training(training, fl_ctx),
            )
            return answer
        except WorkerStopped:
            if abort_signal.triggered:
                raise TaskAborted from None
            raise

    def _declared(self, task_name: str) -> Mapping[str, ReleaseKind]:
        if task_name == TEST:
            return dict.fromkeys(CURVES.values(), ReleaseKind.CURVES)
        return self.releases if self.own_model else {**self.releases, UPDATE: ReleaseKind.MODEL_UPDATE}

    def _train(self, payload: Payload, context: SiteContext, store: SiteStore) -> Result:
        self.load_state_dict(store.load_state(context.round_number))
        scores = self._score(payload, context, store) if payload.values.get("validate") else {}
        started = time.perf_counter()
        result = self.train(payload, context)
        seconds = time.perf_counter() - started
        return replace(result, metrics={**result.metrics, "train_seconds": round(seconds, 4), **scores})

    def _join(self, payload: Payload, context: SiteContext, store: SiteStore) -> Result:
        said = self.register(payload, context)
        facts = dict(said.facts)
        if self.own_model:
            values = (context.model_spec.backbone, architecture_fingerprint(self.network(context).state_dict()))
            facts |= dict(zip(ARCHITECTURE_FACTS, values, strict=True))
        return Result(metrics=said.scalars, facts=facts)

    def _validate(self, payload: Payload, context: SiteContext, store: SiteStore) -> Result:
        self.load_state_dict(store.load_state(context.round_number))
        return Result(metrics=self._score(payload, context, store))

    def _score(self, payload: Payload, context: SiteContext, store: SiteStore) -> dict[str, float]:
        if self.own_model and "model" not in self.kept:
            return {}  # a site that has not trained yet has nothing to score
        state = payload.parts.get(SCORED) or self.starting_state(payload, context)
        scores = scored(self._loaded(state, context), context.data.rows("val"), context)[0]
        metric = payload.values["selection_metric"]
        if metric in scores:
            # A server that goes on after a round has that round's model scored again.
            needed = [number - 1 for number in payload.values.get("checkpoints", [])]
            store.offer_best(context.round_number - 1, scores[metric], state, needed)
        return {VALIDATION_PREFIX + name: value for name, value in scores.items()}

    def _test(self, payload: Payload, context: SiteContext, store: SiteStore) -> Result:
        context.cache.keep_only([])  # the run is over: what other hospitals have trained does not stay here
        self.load_state_dict(store.load_state(context.round_number))
        models = self.tested_models(payload, context, store)
        metrics: dict[str, float] = {}
        curves: dict[str, SiteCurves] = {}
        if "own" in models:
            best = store.best_round()
            metrics["own.round"] = float(context.round_number - 1 if best is None else best)
        rows = context.data.rows("test")
        for name, state in models.items():
            scores, probabilities = scored(self._loaded(state, context), rows, context)
            metrics.update({f"{name}.{key}": value for key, value in scores.items()})
            store.write_predictions(f"predictions_{name}", *prediction_rows(context.data, rows, probabilities))
            curves[name] = curve_counts(context.data, rows, probabilities)
            if self.own_model:
                store.write_model(name, state, _description(context))
        classes = context.data.classes
        keep_curves(store.folder, {CURVES[name]: found for name, found in curves.items() if name in CURVES}, classes)
        return Result(curve_releases(curves, classes), metrics)

    def _loaded(self, state: State, context: SiteContext) -> nn.Module:
        network = self.network(context)
        network.load_state_dict(state)
        return network

    def _store(self, payload: Payload, context: SiteContext, fl_ctx: FLContext) -> SiteStore:
        run = (payload.values["run_name"], payload.values["run_id"], context.problem, context.own_spec)
        if self._store_of and self._store_of[0] == run:
            self._store_of[1].claim()
            return self._store_of[1]
        site = self.site_options
        options = {"problem": context.problem.to_dict(), "model": site.model, "optimizer": site.optimizer}
        own = {"own_model": asdict(context.own_spec)} if context.own_spec else {}
        folder = state_folder(fl_ctx, payload.values["run_name"], context.site)
        store = SiteStore(folder, payload.values["run_id"], {**options, **self.options(), **own})
        self._store_of = (run, store)
        return store


def _description(context: SiteContext) -> dict[str, Any]:
    problem = context.problem
    # What training started from is no part of a network's shape, and may be a path of this machine.
    model = {**asdict(context.model_spec), "weights": None}
    return {"model": model, "classes": list(problem.classes), "image_size": problem.image_size}


def _refusal(task: str, error: Exception) -> Shareable:
    """An error reply. Its reason leaves the site, and most messages may name files or patients of the site."""
    shared = isinstance(error, MessageError | WorkerLost | WorkerStopped) or (
        isinstance(error, GrandRoundsError) and DETAILS_VARIABLE in os.environ
    )
    reason = str(error) if shared else f"{type(error).__name__} in task {task}: see the site's log"
    return make_reply(ReturnCode.EXECUTION_EXCEPTION, headers={REASON_HEADER: reason})
