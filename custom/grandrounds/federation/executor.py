"""Tasks at a site: take from the wire, let the method train, score, and answer with what was declared."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
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
from grandrounds.federation.context import SiteContext, TaskAborted
from grandrounds.federation.messages import (
    GLOBAL,
    REASON_HEADER,
    TEST,
    TRAIN,
    UPDATE,
    VALIDATE,
    VALIDATION_PREFIX,
    Payload,
    Result,
    State,
    decode_payload,
    encode_result,
    require_like,
)
from grandrounds.federation.places import state_folder
from grandrounds.federation.problem import Problem
from grandrounds.federation.site_data import load_checked_data
from grandrounds.federation.site_store import SiteStore, copy_to_cpu
from grandrounds.models.registry import build_model


class SiteExecutor(Executor):
    """Works on the tasks ``train``, ``validate`` and ``test`` of a :class:`RoundController`.

    A method implements :meth:`train`, and :meth:`state_dict` and :meth:`load_state_dict` if something must last from one
    round to the next.

    Args:
        exchange: ``model`` starts each round from the model that the server sends and answers with the update; ``none``
            goes on with the site's own model and sends nothing but metrics (local-only baselines).
        device: ``auto`` (a GPU if there is one), ``cpu`` or ``cuda[:index]``.
        cpu_threads: threads of torch on the CPU; None leaves torch's default. Sums depend on it in the last bits.
        precision: ``float32``, or ``bfloat16`` for autocast.
    """

    releases: ClassVar[tuple[str, ...]] = ()
    needs_labels: ClassVar[bool] = True

    def __init__(
        self,
        *,
        exchange: Literal["model", "none"] = "model",
        device: str = "auto",
        cpu_threads: int | None = None,
        precision: Literal["float32", "bfloat16"] = "float32",
    ) -> None:
        super().__init__()
        if exchange not in ("model", "none"):
            raise ConfigurationError(f"exchange must be model or none, got {exchange!r}")
        if precision not in ("float32", "bfloat16"):
            raise ConfigurationError(f"precision must be float32 or bfloat16, got {precision!r}")
        self.exchange = exchange
        self.device = device
        self.cpu_threads = cpu_threads
        self.precision = precision
        self._data: tuple[Problem, SiteData] | None = None
        self._network: tuple[Problem, nn.Module] | None = None
        self._own: dict[str, Any] = {}

    # What a method says.

    @abstractmethod
    def train(self, payload: Payload, context: SiteContext) -> Result:
        """Train for one round and return the update, further releases and metrics."""

    def options(self) -> dict[str, Any]:
        """The method's options as plain values: a state saved under others is refused."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """What must last from one round to the next."""
        return self._own

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what has lasted; an empty state means the first round here."""
        self._own = dict(state)

    # What all methods share.

    def starting_model(self, payload: Payload, context: SiteContext) -> nn.Module:
        """The network in training mode with the weights this round starts from."""
        network = self.network(context)
        network.load_state_dict(self._starting_state(payload, context))
        return network.train()

    def adam(self, network: nn.Module, learning_rate: float) -> torch.optim.Adam:
        """Adam without weight decay: fresh in every round, as in FedPerl, or going on where nothing is exchanged."""
        optimizer = torch.optim.Adam(network.parameters(), lr=learning_rate, fused=True)
        if "optimizer" in self._own:
            optimizer.load_state_dict(self._own["optimizer"])
        return optimizer

    def finish(
        self, payload: Payload, network: nn.Module, optimizer: torch.optim.Optimizer, metrics: Mapping[str, float]
    ) -> Result:
        """Turn a trained network into a result: the update, or nothing but a kept model where nothing is exchanged.

        ``metrics`` must have ``samples``, the number of training samples.
        """
        trained = copy_to_cpu(network.state_dict())
        samples = int(metrics["samples"])
        if self.exchange == "none":
            self._own = {"model": trained, "optimizer": optimizer.state_dict()}
            return Result(metrics=metrics, samples=samples)
        return Result(update=difference(trained, payload.models[GLOBAL]), metrics=metrics, samples=samples)

    def network(self, context: SiteContext) -> nn.Module:
        """The network of the problem on the context's device, built once; its weights are whatever was loaded last."""
        if self._network is None or self._network[0] != context.problem:
            network = build_model(context.problem.model_spec(pretrained=False), context.seed).to(context.device)
            self._network = (context.problem, network)
        return self._network[1]

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """FLARE's hook: prepare what the serialiser needs when the run starts."""
        if event_type == EventType.START_RUN:
            fobs.register(TensorDecomposer)

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        """FLARE's hook: do one task. What goes wrong becomes a reply with its reason, never half a result."""
        tasks = {TRAIN: self._train, VALIDATE: self._validate, TEST: self._test}
        if task_name not in tasks:
            return make_reply(ReturnCode.TASK_UNKNOWN)
        try:
            if self.cpu_threads:
                torch.set_num_threads(self.cpu_threads)
            payload = decode_payload(shareable)
            context, store = self._open(payload, fl_ctx, abort_signal)
            return encode_result(tasks[task_name](payload, context, store), self._declared())
        except TaskAborted:
            return make_reply(ReturnCode.TASK_ABORTED)
        except GrandRoundsError as error:
            self.log_error(fl_ctx, f"{task_name}: {error}")
            return make_reply(ReturnCode.EXECUTION_EXCEPTION, headers={REASON_HEADER: str(error)})
        except Exception as error:
            # The message may hold what must not leave the site; the name of the error may.
            self.log_exception(fl_ctx, f"{task_name}: {error}")
            reason = f"{type(error).__name__} in task {task_name}: see the site's log"
            return make_reply(ReturnCode.EXECUTION_EXCEPTION, headers={REASON_HEADER: reason})

    def _declared(self) -> tuple[str, ...]:
        return (*self.releases, UPDATE) if self.exchange == "model" else self.releases

    def _train(self, payload: Payload, context: SiteContext, store: SiteStore) -> Result:
        self.load_state_dict(store.load_state(context.round_number))
        scores = self._score(payload, context, store) if payload.values.get("validate") else {}
        started = time.perf_counter()
        result = self.train(payload, context)
        seconds = time.perf_counter() - started
        store.save_state(context.round_number, self.state_dict())
        return replace(result, metrics={**result.metrics, "train_seconds": round(seconds, 4), **scores})

    def _validate(self, payload: Payload, context: SiteContext, store: SiteStore) -> Result:
        self.load_state_dict(store.load_state(context.round_number))
        return Result(metrics=self._score(payload, context, store))

    def _score(self, payload: Payload, context: SiteContext, store: SiteStore) -> dict[str, float]:
        state = self._starting_state(payload, context)
        scores = self._metrics(state, context.data.rows("val"), context)[0]
        metric = payload.values["selection_metric"]
        if metric in scores:
            store.offer_best(context.round_number - 1, scores[metric], state)
        return {VALIDATION_PREFIX + name: value for name, value in scores.items()}

    def _test(self, payload: Payload, context: SiteContext, store: SiteStore) -> Result:
        """Test the model that the federation selected (``common``) and the one this site would have (``own``)."""
        models: dict[str, State] = {}
        if self.exchange == "model":
            models["common"] = self._starting_state(payload, context)
        best = store.best()
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
        if self.exchange == "none":
            if "model" in self._own:
                return dict(self._own["model"])
            return build_model(context.problem.model_spec(pretrained=False), context.seed).state_dict()
        if GLOBAL not in payload.models:
            raise MessageError("the task has no global model; a site with exchange=none needs none")
        require_like(payload.models[GLOBAL], self.network(context).state_dict(), "the global model")
        return payload.models[GLOBAL]

    def _open(self, payload: Payload, fl_ctx: FLContext, abort_signal: Signal) -> tuple[SiteContext, SiteStore]:
        values = payload.values
        problem = Problem.from_dict(values["problem"])
        site = fl_ctx.get_identity_name()
        if self._data is None or self._data[0] != problem:
            self._data = (problem, load_checked_data(problem, site, fl_ctx, self.needs_labels, self.logger))
        folder = state_folder(fl_ctx, values["run_name"], site)
        options = {"problem": problem.to_dict(), "exchange": self.exchange, **self.options()}
        context = SiteContext(
            site=site,
            round_number=payload.round_number,
            problem=problem,
            seed=values["seed"],
            data=self._data[1],
            device=_device(self.device),
            precision=self.precision,
            folder=folder,
            aborted=lambda: bool(abort_signal.triggered),
            log=self.logger,
        )
        return context, SiteStore(folder, values["run_id"], options)


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigurationError(f"device must be auto, cpu or cuda[:index], got {name!r}") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigurationError(f"device is {name!r}, but torch finds no GPU here; use device=cpu or auto")
    return device


def _prediction_rows(data: SiteData, rows: np.ndarray, probabilities: Tensor) -> tuple[list[str], list[list[str]]]:
    header = ["image", "label", "predicted", *(f"probability_{name}" for name in data.classes)]
    lines = []
    for row, values in zip(rows, probabilities.tolist(), strict=True):
        label = data.classes[data.labels[row]] if data.labels[row] >= 0 else ""
        predicted = data.classes[int(np.argmax(values))]
        lines.append([data.names[row], label, predicted, *(f"{value:.6f}" for value in values)])
    return header, lines
