"""Which round's model is the run's result: the best on average over the sites' validation images, or on the server's."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from nvflare.apis.fl_context import FLContext
from torch import nn

from grandrounds.data.site import SiteData
from grandrounds.errors import ConfigurationError, DataError
from grandrounds.evaluation.external import predict
from grandrounds.evaluation.metrics import classification_metrics
from grandrounds.federation.paths import SERVER
from grandrounds.federation.server.options import ServerComputeOptions
from grandrounds.federation.site.context import SiteContext, StateCache, choose_device
from grandrounds.federation.site.data import load_checked_data, load_dataset
from grandrounds.models.registry import build_model
from grandrounds.ordering import natural_sorted
from grandrounds.protocol.messages import VALIDATION_PREFIX, State
from grandrounds.protocol.problem import Problem

_logger = logging.getLogger(__name__)


class ModelSelection:
    """Keeps the best model so far.

    Rounds are compared over the same sites: one that has not scored a round counts with its last score, and when a site
    scores for the first time the comparison begins anew, because its earlier scores are unknown.

    Args:
        metric: name of a validation metric; higher is better.

    Attributes:
        by_site: the scores of the model that was offered last.
        choice: round, metric and score of the best model.
        model: the best model.
    """

    def __init__(self, metric: str) -> None:
        self._metric = metric
        self._last: dict[str, float] = {}
        self.by_site: dict[str, float] = {}
        self.choice: dict[str, Any] = {}
        self.model: State | None = None

    def offer(self, model_round: int, metrics: Mapping[str, Mapping[str, float]], model: State | None) -> float | None:
        """Take a scored model, and keep it if none was better (ties go to the later, as in FedPerl).

        Args:
            model_round: the round after which the model was made.
            metrics: of the sites that have answered.
            model: the model, or None where every site has its own.

        Returns:
            The mean score; None when no site has scored.

        Raises:
            ConfigurationError: if a site's metrics lack the one that selects.
        """
        name = VALIDATION_PREFIX + self._metric
        scored = {site: values for site, values in metrics.items() if values.get(VALIDATION_PREFIX + "n", 0) > 0}
        for site, values in scored.items():
            if name not in values:
                prefixed = (key for key in values if key.startswith(VALIDATION_PREFIX))
                offered = ", ".join(sorted(key.removeprefix(VALIDATION_PREFIX) for key in prefixed))
                raise ConfigurationError(
                    f"selection_metric {self._metric!r} is not among the metrics of {site}: {offered}"
                )
            if site not in self._last:
                self.choice = {}
            self._last[site] = values[name]
        if not scored:
            return None
        self.by_site = {site: values[name] for site, values in scored.items()}
        score = sum(self._last[site] for site in natural_sorted(self._last)) / len(self._last)
        if score >= self.choice.get("score", float("-inf")):
            self.keep(model_round, score, model)
        return score

    def keep(self, model_round: int, score: float | None, model: State | None) -> None:
        """Keep this model, whatever came before."""
        self.choice = {"round": model_round, "metric": None if score is None else self._metric, "score": score}
        self.model = model

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {"last": self._last, "choice": self.choice, "model": self.model}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what a checkpoint has kept."""
        self._last, self.choice, self.model = dict(state["last"]), dict(state["choice"]), state["model"]


class ServerImages:
    """Scores models on the server's validation images, and gives training there its context.

    The server finds its images as a site does, by the data set's name, under the name ``server``.

    Args:
        problem: what is learnt.
        seed: of the run.
        fl_ctx: FLARE's context of the server.
        compute: where and how to compute.
        needed_by: the option that asks for images, for errors.

    Raises:
        ConfigurationError: if the server has no such data set.
        DataError: if the images are not as they must be (for example a label that is not a class of the job).
    """

    def __init__(
        self, problem: Problem, seed: int, fl_ctx: FLContext, compute: ServerComputeOptions, needed_by: str
    ) -> None:
        try:
            data = load_checked_data(problem, SERVER, fl_ctx, False, _logger, trains=False)
        except ConfigurationError as error:
            raise ConfigurationError(f"{needed_by} needs images at the server: {error}") from error
        self._rows = data.rows("val")
        self._needed_by = needed_by
        self._network: nn.Module | None = None
        self._threads = compute.server_threads
        self._context = SiteContext(
            site=SERVER,
            round_number=0,
            problem=problem,
            seed=seed,
            data=data,
            device=choose_device(compute.server_device),
            precision="float32",
            aborted=lambda: False,
            cache=StateCache(Path()),
            datasets=lambda name: load_dataset(name, problem, SERVER, fl_ctx),
        )

    @property
    def data(self) -> SiteData:
        """The images."""
        return self._context.data

    def require_validation(self) -> None:
        """Check that there are validation images.

        Raises:
            DataError: if there are none.
        """
        if not len(self._rows):
            raise DataError(
                f"{self._needed_by} needs validation images at the server: no image of {SERVER} has split val"
            )

    def context(self, round_number: int) -> SiteContext:
        """What training at the server in this round needs to know."""
        return replace(self._context, round_number=round_number)

    def network(self, state: State) -> nn.Module:
        """The server's one network with these weights, in evaluation mode."""
        if self._threads:
            torch.set_num_threads(self._threads)
        if self._network is None:
            context = self._context
            self._network = build_model(context.model_spec, context.seed).to(context.device)
        self._network.load_state_dict(state)
        return self._network.eval()

    def predictions(self, state: State) -> tuple[np.ndarray, torch.Tensor]:
        """Labels of the validation images, shape ``(n,)``, and a model's probabilities, shape ``(n, classes)``."""
        context = self._context
        probabilities = predict(self.network(state), lambda rows: context.views(rows, "none"), self._rows)
        return context.data.labels[self._rows], probabilities

    def metrics(self, state: State) -> dict[str, float]:
        """A model's scores on the validation images."""
        labels, probabilities = self.predictions(state)
        return classification_metrics(labels, probabilities.numpy())
