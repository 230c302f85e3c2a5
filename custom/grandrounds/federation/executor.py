"""Tasks at a site: take from the wire, let the method train, score, and answer with what was declared."""

from __future__ import annotations

import os
import time
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal
from nvflare.app_opt.pt.decomposers import TensorDecomposer
from nvflare.fuel.utils import fobs
from torch import Tensor, nn

from grandrounds.data.site import SiteData
from grandrounds.errors import ConfigurationError, GrandRoundsError, MessageError
from grandrounds.evaluation.metrics import classification_metrics
from grandrounds.evaluation.predict import predict
from grandrounds.federation.aggregation import difference
from grandrounds.federation.compute import choose_device
from grandrounds.federation.context import SiteContext, StateCache, TaskAborted
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
from grandrounds.federation.problem import Problem
from grandrounds.federation.site_data import load_checked_data
from grandrounds.federation.site_store import SiteStore, copy_to_cpu
from grandrounds.models.registry import build_model


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
    """

    releases: ClassVar[Mapping[str, ReleaseKind]] = MappingProxyType({})
    """What leaves the site beside the model update and metrics, by name; a method declares it here."""
    needs_labels = True
    """Whether a site without a labelled training image cannot take part."""
    models: ClassVar[tuple[str, ...]] = ("shared", "own")
    """What the option ``model`` may be."""

    def __init__(
        self,
        *,
        model: Literal["shared", "own"] = "shared",
        optimizer: Literal["fresh", "kept"] = "fresh",
        device: str = "auto",
        cpu_threads: int | None = None,
        precision: Literal["float32", "bfloat16"] = "float32",
    ) -> None:
        super().__init__()
        if model not in self.models:
            raise ConfigurationError(f"model must be {' or '.join(self.models)}, got {model!r}")
        if optimizer not in ("fresh", "kept"):
            raise ConfigurationError(f"optimizer must be fresh or kept, got {optimizer!r}")
        if precision not in ("float32", "bfloat16"):
            raise ConfigurationError(f"precision must be float32 or bfloat16, got {precision!r}")
        self.model = model
        self.optimizer = optimizer
        self.kept: dict[str, Any] = {}
        self.device = device
        self.cpu_threads = cpu_threads
        self.precision = precision
        self._data: tuple[Problem, SiteData] | None = None
        self._network: tuple[Problem, nn.Module] | None = None

    # What a method says.

    @abstractmethod
    def train(self, payload: Payload, context: SiteContext) -> Result:
        """Train for one round and return the update, further releases and metrics."""

    def introduce(self, context: SiteContext) -> dict[str, float]:
        """What this site tells of itself before it first takes part, if the method asks; it leaves the site as it is."""
        return {}

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
        network.load_state_dict(self._starting_state(payload, context))
        return network.train()

    def make_optimizer(
        self, network: nn.Module, learning_rate: float, algorithm: Literal["adam", "sgd"] = "adam", **options: Any
    ) -> torch.optim.Optimizer:
        """An optimizer, fresh or with the state that it had at the end of the last round here.

        ``options`` are torch's, such as ``betas``; without them there is no weight decay.
        """
        kind = torch.optim.Adam if algorithm == "adam" else torch.optim.SGD
        optimizer: torch.optim.Optimizer = kind(network.parameters(), lr=learning_rate, fused=True, **options)
        if "optimizer" in self.kept:
            optimizer.load_state_dict(self.kept["optimizer"])
            for group in optimizer.param_groups:
                group["lr"] = learning_rate
        return optimizer

    def finish(
        self, payload: Payload, network: nn.Module, optimizer: torch.optim.Optimizer, metrics: Mapping[str, float]
    ) -> Result:
        """Turn a trained network into a result: the update of a shared model; an own model is kept.

        ``metrics`` must have ``samples``, the number of training samples.
        """
        trained = copy_to_cpu(network.state_dict())
        samples = int(metrics["samples"])
        if self.optimizer == "kept":
            self.kept["optimizer"] = optimizer.state_dict()
        if self.model == "own":
            self.kept["model"] = trained
            return Result(metrics=metrics, samples=samples)
        return Result(model_update(difference(trained, payload.parts[GLOBAL])), metrics, samples)

    def build(self, context: SiteContext) -> nn.Module:
        """A network of this site's architecture on the context's device, with the run's initial weights."""
        return build_model(context.problem.model_spec(pretrained=False), context.seed).to(context.device)

    def network(self, context: SiteContext) -> nn.Module:
        """The site's one network, built once; its weights are whatever was loaded last, so a teacher needs its own."""
        if self._network is None or self._network[0] != context.problem:
            self._network = (context.problem, self.build(context))
        return self._network[1]

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """FLARE's hook: prepare what the serialiser needs when the run starts."""
        if event_type == EventType.START_RUN:
            fobs.register(TensorDecomposer)

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        """FLARE's hook: do one task. What goes wrong becomes a reply with its reason, never half a result."""
        tasks = {JOIN: self._join, TRAIN: self._train, VALIDATE: self._validate, TEST: self._test}
        if task_name not in tasks:
            return make_reply(ReturnCode.TASK_UNKNOWN)
        try:
            if self.cpu_threads:
                torch.set_num_threads(self.cpu_threads)
            payload = decode_payload(shareable)
            context, store = self._open(payload, fl_ctx, abort_signal)
            reply = encode_result(tasks[task_name](payload, context, store), self._declared(), payload)
            if task_name == TRAIN:
                # Not before the answer has passed all checks: a diverged model must not be what the next round starts from.
                store.save_state(context.round_number, self.state_dict())
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
        return Result(metrics=self.introduce(context))

    def _validate(self, payload: Payload, context: SiteContext, store: SiteStore) -> Result:
        self.load_state_dict(store.load_state(context.round_number))
        return Result(metrics=self._score(payload, context, store))

    def _score(self, payload: Payload, context: SiteContext, store: SiteStore) -> dict[str, float]:
        if self.model == "own" and "model" not in self.kept:
            return {}  # a site that has not trained yet has nothing to score
        state = payload.parts.get(SCORED) or self._starting_state(payload, context)
        scores = self._metrics(state, context.data.rows("val"), context)[0]
        metric = payload.values["selection_metric"]
        if metric in scores:
            store.offer_best(context.round_number - 1, scores[metric], state)
        return {VALIDATION_PREFIX + name: value for name, value in scores.items()}

    def _test(self, payload: Payload, context: SiteContext, store: SiteStore) -> Result:
        """Test the model that the federation selected (``common``) and the one this site would have (``own``)."""
        context.cache.keep_only([])  # the run is over: what other hospitals have trained does not stay here
        models: dict[str, State] = {}
        if self.model == "shared":
            models["common"] = self._starting_state(payload, context)
        best = store.best()
        if best is None and self.model == "own":
            self.load_state_dict(store.load_state(context.round_number))
            if "model" in self.kept:
                best = (context.round_number - 1, dict(self.kept["model"]))
        if best:
            models["own"] = best[1]
        metrics: dict[str, float] = {"own.round": float(best[0])} if best else {}
        rows = context.data.rows("test")
        for name, state in models.items():
            scores, probabilities = self._metrics(state, rows, context)
            metrics.update({f"{name}.{key}": value for key, value in scores.items()})
            store.write_predictions(f"predictions_{name}", *_prediction_rows(context.data, rows, probabilities))
        return Result(metrics=metrics)

    def _metrics(self, state: State, rows: np.ndarray, context: SiteContext) -> tuple[dict[str, float], Tensor]:
        network = self.network(context)
        network.load_state_dict(state)
        with context.autocast():
            probabilities = predict(network, context.data.images, rows, context.device)
        known = context.data.labels[rows] >= 0
        metrics = classification_metrics(context.data.labels[rows][known], probabilities.numpy()[known])
        return metrics, probabilities

    def _starting_state(self, payload: Payload, context: SiteContext) -> State:
        if self.model == "own":
            if "model" in self.kept:
                return dict(self.kept["model"])
            if GLOBAL not in payload.parts:
                return copy_to_cpu(self.build(context).state_dict())
        if GLOBAL not in payload.parts:
            raise MessageError("the task has no global model; executor option model=own needs none")
        require_like(payload.parts[GLOBAL], self.network(context).state_dict(), "the global model")
        return payload.parts[GLOBAL]

    def _open(self, payload: Payload, fl_ctx: FLContext, abort_signal: Signal) -> tuple[SiteContext, SiteStore]:
        values = payload.values
        problem = Problem.from_dict(values["problem"])
        site = fl_ctx.get_identity_name()
        if self._data is None or self._data[0] != problem:
            self._data = (problem, load_checked_data(problem, site, fl_ctx, self.needs_labels, self.logger))
        folder = state_folder(fl_ctx, values["run_name"], site)
        options = {"problem": problem.to_dict(), "model": self.model, "optimizer": self.optimizer, **self.options()}
        context = SiteContext(
            site=site,
            round_number=payload.round_number,
            problem=problem,
            seed=values["seed"],
            data=self._data[1],
            device=choose_device(self.device),
            precision=self.precision,
            aborted=lambda: bool(abort_signal.triggered),
            cache=StateCache(folder / "received"),
        )
        return context, SiteStore(folder, values["run_id"], options)


def _refusal(task: str, error: Exception) -> Shareable:
    """An error reply. Its reason leaves the site, and most messages may name files or patients of the site."""
    shared = isinstance(error, MessageError) or (isinstance(error, GrandRoundsError) and DETAILS_VARIABLE in os.environ)
    reason = str(error) if shared else f"{type(error).__name__} in task {task}: see the site's log"
    return make_reply(ReturnCode.EXECUTION_EXCEPTION, headers={REASON_HEADER: reason})


def _prediction_rows(data: SiteData, rows: np.ndarray, probabilities: Tensor) -> tuple[list[str], list[list[str]]]:
    header = ["image", "label", "predicted", *(f"probability_{name}" for name in data.classes)]
    lines = []
    for row, values in zip(rows, probabilities.tolist(), strict=True):
        label = data.classes[data.labels[row]] if data.labels[row] >= 0 else ""
        predicted = data.classes[int(np.argmax(values))]
        lines.append([data.names[row], label, predicted, *(f"{value:.6f}" for value in values)])
    return header, lines
