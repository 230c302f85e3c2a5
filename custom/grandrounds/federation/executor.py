"""Tasks at a site: take from the wire, let the method train, score, and answer with what was declared."""

from __future__ import annotations

import os
import time
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, replace
from types import MappingProxyType
from typing import Any, ClassVar, Literal

import torch
from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import FLContextKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal
from nvflare.app_opt.pt.decomposers import TensorDecomposer
from nvflare.fuel.utils import fobs
from torch import nn

from grandrounds.errors import ConfigurationError, GrandRoundsError, MessageError
from grandrounds.federation.aggregation import difference
from grandrounds.federation.context import SiteContext, TaskAborted
from grandrounds.federation.introduction import Introduction
from grandrounds.federation.memory import keep_freed_memory
from grandrounds.federation.messages import (
    GLOBAL,
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
    model_update,
    require_like,
)
from grandrounds.federation.places import DETAILS_VARIABLE, state_folder
from grandrounds.federation.release_facts import announce
from grandrounds.federation.site_access import SiteAccess
from grandrounds.federation.site_store import SiteStore, copy_to_cpu
from grandrounds.federation.testing import prediction_rows, scored
from grandrounds.federation.training import Algorithm, new_optimizer
from grandrounds.models.registry import ModelSpec, architecture_fingerprint, build_model
from grandrounds.privacy.record_level import ProtectionOptions
from grandrounds.privacy.spending import Spending

OPTIMIZER = "optimizer"
ARCHITECTURE_FACTS = ("backbone", "architecture")


class SiteExecutor(Executor):
    """Works on the tasks ``join``, ``train``, ``validate`` and ``test`` of a :class:`RoundController`.

    A method implements :meth:`train`, and :meth:`state_dict` and :meth:`load_state_dict` if something must last from one
    round to the next.

    Args:
        model: ``shared`` starts each round from the model that the server sends and answers with the update; ``own`` goes on
            with the site's own model, which never leaves it.
        optimizer: ``fresh`` in every round, or ``kept`` from round to round.
        device: ``auto`` (a GPU if there is one), ``cpu`` or ``cuda[:index]``.
        cpu_threads: threads of torch on the CPU; None leaves torch's default. Sums depend on it in the last bits.
        precision: ``float32``, or ``bfloat16`` for autocast.
        backbones: names of backbones by site, where sites have models of their own; the others, and None, take the
            problem's. What a site's ``grandrounds.json`` says under ``models`` overrides it.
        test_last: where sites have models of their own, test that of the last round too, as ``own_last``.
        protection: of :class:`~grandrounds.privacy.record_level.ProtectionOptions`.
    """

    releases: ClassVar[Mapping[str, ReleaseKind]] = MappingProxyType({})
    """What leaves the site beside the model update and metrics, by name; a method declares it here."""
    introduction_facts: ClassVar[tuple[str, ...]] = ()
    """Names of the short texts that :meth:`introduce` may tell; a method declares them here."""
    needs_labels = True
    """Whether a site without a labelled training image cannot take part."""
    models: ClassVar[tuple[str, ...]] = ("shared", "own")
    """What the option ``model`` may be."""
    record_level_obstacle: ClassVar[str] = "it has no loss that is a mean over single images"
    """Why a method's training cannot be record-level private; empty where it can."""
    option_groups: ClassVar[tuple[type, ...]] = (ProtectionOptions,)

    def __init__(
        self,
        *,
        model: Literal["shared", "own"] = "shared",
        optimizer: Literal["fresh", "kept"] = "fresh",
        device: str = "auto",
        cpu_threads: int | None = None,
        precision: Literal["float32", "bfloat16"] = "float32",
        backbones: dict[str, str] | None = None,
        test_last: bool = False,
        **protection: Any,
    ) -> None:
        super().__init__()
        self.protection = ProtectionOptions(**protection)
        self.protection.require_possible(type(self).__name__, self.record_level_obstacle)
        if model not in self.models:
            raise ConfigurationError(f"model must be {' or '.join(self.models)}, got {model!r}")
        if optimizer not in ("fresh", "kept"):
            raise ConfigurationError(f"optimizer must be fresh or kept, got {optimizer!r}")
        if precision not in ("float32", "bfloat16"):
            raise ConfigurationError(f"precision must be float32 or bfloat16, got {precision!r}")
        if test_last and model != "own":
            raise ConfigurationError("test_last tests a site's own model of the last round, which needs model=own")
        self.model = model
        self.test_last = test_last
        self.optimizer = optimizer
        self.kept: dict[str, Any] = {}
        self.cpu_threads = cpu_threads
        self._access = SiteAccess(model == "own", backbones or {}, device, precision, self.logger)
        self._network: tuple[ModelSpec, nn.Module] | None = None
        self._staged: tuple[SiteStore, Payload] | None = None

    # What a method says.

    @abstractmethod
    def train(self, payload: Payload, context: SiteContext) -> Result:
        """Train for one round and return the update, further releases and metrics."""

    def spending(self, context: SiteContext) -> Spending | None:
        """What a round's training costs where it protects single images itself and something leaves; else None."""
        return None

    def introduce(self, payload: Payload, context: SiteContext) -> Introduction:
        """What this site tells of itself before it first takes part, if the method asks; it leaves the site as it is."""
        return Introduction()

    def tested_models(self, payload: Payload, context: SiteContext, store: SiteStore) -> dict[str, State]:
        """The models that are tested at the end, by name; their scores leave the site under these names, nothing else.

        ``common`` is the one that the federation selected, ``own`` the one that scored best here or, if none was scored, a
        site's own model as it is, ``own_last`` that of the last round, with ``test_last``.
        """
        common = self.starting_state(payload, context) if self.model == "shared" else None
        last, best = self.kept.get("model"), store.best()
        models = {"common": common, "own": best[1] if best else last, "own_last": last if self.test_last else None}
        return {name: state for name, state in models.items() if state is not None}

    def options(self) -> dict[str, Any]:
        """The method's options as plain values: a state saved under others is refused."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """What must last from one round to the next: what the method puts into ``self.kept``."""
        return self.kept

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what has lasted; an empty state means the first round here."""
        self.kept = dict(state)

    # What all methods share.

    def starting_model(self, payload: Payload, context: SiteContext) -> nn.Module:
        """The network in training mode with the weights this round starts from."""
        network = self.network(context)
        network.load_state_dict(self.starting_state(payload, context))
        return network.train()

    def starting_state(self, payload: Payload, context: SiteContext) -> State:
        """What this round starts from: the model that was sent, or where sites have models of their own this site's.

        Raises:
            ConfigurationError: if a site with another network than the problem's is sent the problem's trained weights.
            MessageError: if there is no model, or it does not fit.
        """
        if self.model == "own":
            if "model" in self.kept:
                return dict(self.kept["model"])
            if GLOBAL not in payload.parts:
                return copy_to_cpu(self.build(context).state_dict())
            if context.own_spec:
                raise ConfigurationError(
                    f"{context.site}: the job starts from weights of {context.problem.backbone}, this site has "
                    f"{context.model_spec.backbone}; set problem.weights to null"
                )
        if GLOBAL not in payload.parts:
            raise MessageError("the task has no global model; executor option model=own needs none")
        require_like(payload.parts[GLOBAL], self.network(context).state_dict(), "the global model")
        return payload.parts[GLOBAL]

    def make_optimizer(
        self, network: nn.Module, learning_rate: float, algorithm: Algorithm = "adam", *, role: str = "", **options: Any
    ) -> torch.optim.Optimizer:
        """An optimizer, fresh or with the state that it had at the end of the last round here.

        Args:
            network: whose parameters it is for.
            learning_rate: of all of them.
            algorithm: ``adam`` or ``sgd``.
            role: tells several optimizers of a method apart.
            options: torch's, such as ``betas``; without them there is no weight decay.
        """
        optimizer = new_optimizer(network.parameters(), algorithm, learning_rate, **options)
        kept = self.kept.get(_optimizer_key(role))
        if kept is not None:
            optimizer.load_state_dict(kept)
            for group in optimizer.param_groups:
                group["lr"] = learning_rate
        return optimizer

    def finish(
        self,
        payload: Payload,
        network: nn.Module,
        optimizer: torch.optim.Optimizer | Mapping[str, torch.optim.Optimizer],
        metrics: Mapping[str, float],
    ) -> Result:
        """Turn a trained network into a result: the update of a shared model; an own model is kept.

        Args:
            payload: the task.
            network: as trained.
            optimizer: one, or several by role.
            metrics: what is told; must have ``samples``, the number of training samples.
        """
        trained = copy_to_cpu(network.state_dict())
        samples = int(metrics["samples"])
        if self.optimizer == "kept":
            optimizers = optimizer if isinstance(optimizer, Mapping) else {"": optimizer}
            self.kept.update({_optimizer_key(role): made.state_dict() for role, made in optimizers.items()})
        if self.model == "own":
            self.kept["model"] = trained
            return Result(metrics=metrics, samples=samples)
        return Result(model_update(difference(trained, payload.parts[GLOBAL])), metrics, samples)

    def build(self, context: SiteContext) -> nn.Module:
        """A network of this site's architecture on the context's device, with the run's initial weights."""
        return build_model(context.model_spec, context.seed).to(context.device)

    def network(self, context: SiteContext) -> nn.Module:
        """The site's one network, built once; its weights are whatever was loaded last, so a teacher needs its own."""
        if self._network is None or self._network[0] != context.model_spec:
            self._network = (context.model_spec, self.build(context))
        return self._network[1]

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """FLARE's hook: prepare what the serialiser needs when the run starts, and keep the state of an answer that leaves.

        What a filter has refused, or emptied, has not left.
        """
        if event_type == EventType.START_RUN:
            fobs.register(TensorDecomposer)
            keep_freed_memory()
        if event_type == EventType.AFTER_TASK_RESULT_FILTER and self._staged:
            (store, payload), self._staged = self._staged, None
            reply = fl_ctx.get_prop(FLContextKey.TASK_RESULT)
            if isinstance(reply, Shareable) and reply.get_return_code() == ReturnCode.OK:
                store.settle_state(payload.values.get("checkpoints"))

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        """FLARE's hook: do one task. What goes wrong becomes a reply with its reason, never half a result."""
        tasks = {JOIN: self._join, TRAIN: self._train, VALIDATE: self._validate, TEST: self._test}
        if task_name not in tasks:
            return make_reply(ReturnCode.TASK_UNKNOWN)
        self._staged = None
        try:
            if self.cpu_threads:
                torch.set_num_threads(self.cpu_threads)
            payload = decode_payload(shareable)
            context = self._access.context(payload, fl_ctx, abort_signal, self.needs_labels)
            store = self._store(payload, context, fl_ctx)
            facts = (*self.introduction_facts, *ARCHITECTURE_FACTS) if task_name == JOIN else ()
            announce(self.spending(context) if task_name == TRAIN else None, fl_ctx)
            reply = encode_result(tasks[task_name](payload, context, store), self._declared(), payload, facts)
            if task_name == TRAIN:
                # Not before the answer has passed all checks: a diverged model must not be what the next round starts from.
                store.stage_state(context.round_number, self.state_dict())
                self._staged = (store, payload)
            return reply
        except TaskAborted:
            return make_reply(ReturnCode.TASK_ABORTED)
        except GrandRoundsError as error:
            self.log_error(fl_ctx, f"{task_name}: {error}")
            return _refusal(task_name, error)
        except Exception as error:
            self.log_exception(fl_ctx, f"{task_name}: {error}")
            return _refusal(task_name, error)

    def _declared(self) -> Mapping[str, ReleaseKind]:
        return {**self.releases, UPDATE: ReleaseKind.MODEL_UPDATE} if self.model == "shared" else self.releases

    def _train(self, payload: Payload, context: SiteContext, store: SiteStore) -> Result:
        self.load_state_dict(store.load_state(context.round_number))
        scores = self._score(payload, context, store) if payload.values.get("validate") else {}
        started = time.perf_counter()
        result = self.train(payload, context)
        seconds = time.perf_counter() - started
        return replace(result, metrics={**result.metrics, "train_seconds": round(seconds, 4), **scores})

    def _join(self, payload: Payload, context: SiteContext, store: SiteStore) -> Result:
        said = self.introduce(payload, context)
        facts = dict(said.facts)
        if self.model == "own":
            values = (context.model_spec.backbone, architecture_fingerprint(self.network(context).state_dict()))
            facts |= dict(zip(ARCHITECTURE_FACTS, values, strict=True))
        return Result(metrics=said.scalars, facts=facts)

    def _validate(self, payload: Payload, context: SiteContext, store: SiteStore) -> Result:
        self.load_state_dict(store.load_state(context.round_number))
        return Result(metrics=self._score(payload, context, store))

    def _score(self, payload: Payload, context: SiteContext, store: SiteStore) -> dict[str, float]:
        if self.model == "own" and "model" not in self.kept:
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
        if "own" in models:
            best = store.best_round()
            metrics["own.round"] = float(context.round_number - 1 if best is None else best)
        rows = context.data.rows("test")
        for name, state in models.items():
            scores, probabilities = scored(self._loaded(state, context), rows, context)
            metrics.update({f"{name}.{key}": value for key, value in scores.items()})
            store.write_predictions(f"predictions_{name}", *prediction_rows(context.data, rows, probabilities))
            if self.model == "own":
                store.write_model(name, state, _description(context))
        return Result(metrics=metrics)

    def _loaded(self, state: State, context: SiteContext) -> nn.Module:
        network = self.network(context)
        network.load_state_dict(state)
        return network

    def _store(self, payload: Payload, context: SiteContext, fl_ctx: FLContext) -> SiteStore:
        options = {"problem": context.problem.to_dict(), "model": self.model, "optimizer": self.optimizer}
        own = {"own_model": asdict(context.own_spec)} if context.own_spec else {}
        folder = state_folder(fl_ctx, payload.values["run_name"], context.site)
        return SiteStore(folder, payload.values["run_id"], {**options, **self.options(), **own})


def _optimizer_key(role: str) -> str:
    return f"{OPTIMIZER}.{role}" if role else OPTIMIZER


def _description(context: SiteContext) -> dict[str, Any]:
    problem = context.problem
    return {"model": asdict(context.model_spec), "classes": list(problem.classes), "image_size": problem.image_size}


def _refusal(task: str, error: Exception) -> Shareable:
    """An error reply. Its reason leaves the site, and most messages may name files or patients of the site."""
    shared = isinstance(error, MessageError) or (isinstance(error, GrandRoundsError) and DETAILS_VARIABLE in os.environ)
    reason = str(error) if shared else f"{type(error).__name__} in task {task}: see the site's log"
    return make_reply(ReturnCode.EXECUTION_EXCEPTION, headers={REASON_HEADER: reason})
