"""Which round's model is the run's result: the best on all sites' validation images together, or on the server's."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch
from nvflare.apis.fl_context import FLContext
from torch import nn

from grandrounds.data.site import SiteData
from grandrounds.errors import ConfigurationError, DataError
from grandrounds.evaluation.bootstrap import MIN_CASES, Estimate
from grandrounds.evaluation.counts import SiteCounts, counts_from_json, counts_to_json, pooled_counts
from grandrounds.evaluation.estimates import MEANS, score_estimates
from grandrounds.evaluation.external import predict
from grandrounds.evaluation.metrics import SELECTABLE, classification_metrics
from grandrounds.evaluation.multi_label.metrics import multi_label_metrics
from grandrounds.federation.server.options import ServerComputeOptions
from grandrounds.federation.server.record import AT_SERVER, MEAN, POOLED
from grandrounds.federation.site.context import SiteContext, StateCache, choose_device
from grandrounds.federation.site.data import load_checked_data, load_dataset
from grandrounds.models.registry import build_model
from grandrounds.ordering import natural_sorted
from grandrounds.protocol.messages import State
from grandrounds.protocol.names import SERVER, VALIDATION_PREFIX
from grandrounds.protocol.problem import Problem

_logger = logging.getLogger(__name__)


LIKELIHOOD = "log_likelihood"
BASES = (POOLED, LIKELIHOOD, MEAN)
"""From the most to the least demanding; a run that has left one does not return to it."""
LINEAR = ("accuracy", "recall_weighted", "log_likelihood")
"""Metrics whose pooled value is their mean weighted by the sites' numbers of images."""


class _Scores(NamedTuple):
    """The last scores on every basis on which they are known.

    Attributes:
        values: by basis.
        pooled: the score of all images together with its interval, where that is known.
        support: validation cases of each class, where they are known.
        note: why the score is not of all images together.
    """

    values: dict[str, float]
    pooled: Estimate | None = None
    support: Mapping[str, int] = MappingProxyType({})
    note: str = ""


class ModelSelection:
    """Keeps the best model so far.

    Models are compared by the metric over all sites' validation images together, from counts that the sites release. If a
    class has fewer than ``MIN_CASES`` cases in them, one image could decide, and the mean log-likelihood of all images takes
    the metric's place. If a site releases no counts, it is the unweighted mean over the sites. The choice has the reason.

    Rounds are compared over the same sites: one that has not scored a round counts with its last score, and when a site
    scores for the first time the comparison begins anew, because its earlier scores are unknown.

    Args:
        metric: name of a validation metric; higher is better.
        classes: the vocabulary; empty where no counts are released.
        multi: whether the classes are findings; their areas are not known from counts.

    Attributes:
        choice: round, metric, score, basis and support of the best model.
        model: the best model.
    """

    def __init__(self, metric: str, classes: Sequence[str] = (), multi: bool = False) -> None:
        self._metric, self._classes, self._multi = metric, tuple(classes), multi
        self._last: dict[str, dict[str, float]] = {}
        self._counts: dict[str, dict[str, Any]] = {}
        self._basis = POOLED
        self._kept: dict[str, float] = {}
        self.choice: dict[str, Any] = {}
        self.model: State | None = None

    def offer(
        self,
        model_round: int,
        metrics: Mapping[str, Mapping[str, float]],
        model: State | None,
        counts: Mapping[str, SiteCounts] | None = None,
    ) -> dict[str, Any] | None:
        """Take a scored model, and keep it if none was better (ties go to the later, as in FedPerl).

        Args:
            model_round: the round after which the model was made.
            metrics: of the sites that have answered.
            model: the model, or None where every site has its own.
            counts: of these sites' predictions, where they have released them.

        Returns:
            What models are compared by: ``metric``, its ``score``, ``low`` and ``high`` (the ends of its 95 % interval,
            where it is known), ``basis``, ``support`` (cases by class, where it is known) and ``note``, the reason if that
            is not as asked; and ``mean``, the unweighted mean over sites of the metric that was asked for. None when no site
            has scored.

        Raises:
            ConfigurationError: if a site's metrics lack the one that selects.
        """
        scored = {site: values for site, values in metrics.items() if values.get(VALIDATION_PREFIX + "n", 0) > 0}
        for site, values in scored.items():
            self._take(site, values, (counts or {}).get(site))
        if not scored:
            return None
        values, pooled, support, note = self._scores()
        self._basis = BASES[max(BASES.index(self._basis), min(BASES.index(basis) for basis in values))]
        if (
            not note
            and not self._multi
            and self._basis not in (POOLED, *([MEAN] if list(self._last) == [SERVER] else []))
        ):
            note = "the counts of an earlier round were not enough"
        compared: dict[str, Any] = {
            "metric": LIKELIHOOD if self._basis == LIKELIHOOD else self._metric,
            "score": values[self._basis],
            **({"low": pooled.low, "high": pooled.high} if pooled and self._basis == POOLED else {}),
            "basis": AT_SERVER if list(self._last) == [SERVER] else MEAN if self._basis == MEAN else POOLED,
            **({"support": dict(support)} if support else {}),
            **({"note": note} if note else {}),
        }
        if values[self._basis] >= self._kept.get(self._basis, float("-inf")):
            self.keep(model_round, values[self._basis], model)
            self.choice, self._kept = {**self.choice, **compared}, values
        return {**compared, "mean": values.get(MEAN, values[self._basis])}

    def _take(self, site: str, values: Mapping[str, float], counts: SiteCounts | None) -> None:
        """Remember a site's last scores and counts."""
        if VALIDATION_PREFIX + (LIKELIHOOD if self._multi else self._metric) not in values:
            prefixed = (key for key in values if key.startswith(VALIDATION_PREFIX))
            offered = ", ".join(sorted(key.removeprefix(VALIDATION_PREFIX) for key in prefixed))
            raise ConfigurationError(f"selection_metric {self._metric!r} is not among the metrics of {site}: {offered}")
        if site not in self._last:
            self.choice, self._kept, self._basis = {}, {}, POOLED
        names = {name: VALIDATION_PREFIX + name for name in {self._metric, "n", *LINEAR}}
        self._last[site] = {name: values[key] for name, key in names.items() if key in values}
        self._counts.pop(site, None)
        if counts is not None and not self._multi:
            self._counts[site] = counts_to_json(counts)

    def keep(self, model_round: int, score: float | None, model: State | None) -> None:
        """Keep this model, whatever came before."""
        self.choice = {"round": model_round, "metric": None if score is None else self._metric, "score": score}
        self.model = model

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {
            "last": self._last,
            "counts": self._counts,
            "basis": self._basis,
            "kept": self._kept,
            "choice": self.choice,
            "model": self.model,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what a checkpoint has kept."""
        self._last, self._counts, self._kept = dict(state["last"]), dict(state["counts"]), dict(state["kept"])
        self._basis, self.choice, self.model = state["basis"], dict(state["choice"]), state["model"]

    def _scores(self) -> _Scores:
        sites = natural_sorted(self._last)
        images = sum(self._last[site]["n"] for site in sites)
        if self._multi:
            return self._scores_of_findings(sites, images)
        values = {MEAN: sum(self._last[site][self._metric] for site in sites) / len(sites)}
        pooled = {
            name: sum(self._last[site][name] * self._last[site]["n"] for site in sites) / images
            for name in {*LINEAR, self._metric}
            if all(name in self._last[site] for site in sites)
        }
        if self._metric not in SELECTABLE:
            return _Scores(values, note=f"{self._metric} is not known from counts of predictions: mean over sites")
        linear = self._metric in LINEAR and sites != [SERVER]
        if linear:
            values[POOLED] = pooled[self._metric]
        silent = [site for site in sites if site not in self._counts]
        if silent or not self._classes:
            known = linear or sites == [SERVER]
            return _Scores(values, note="" if known else f"no counts from {', '.join(silent)}: mean over sites")
        parts = [counts_from_json(self._counts[site], len(self._classes)) for site in sites]
        counts = pooled_counts(parts, images, pooled.get("accuracy", 0.0) * images)
        if linear:
            return _Scores(values, score_estimates(counts)["accuracy"] if self._metric == "accuracy" else None)
        support = dict(zip(self._classes, counts.positives.tolist(), strict=True))
        few = [f"{name} ({'hidden' if count < 0 else count})" for name, count in support.items() if count < MIN_CASES]
        if "log_likelihood" in pooled:
            values[LIKELIHOOD] = pooled["log_likelihood"]
        score = score_estimates(counts)[self._metric] if self._metric in MEANS else None
        if not few and score and not math.isnan(score.value):
            return _Scores({**values, POOLED: score.value}, score, support)
        reason = (
            f"fewer than {MIN_CASES} validation cases of {', '.join(few)} in the sites' counts"
            if few
            else f"{self._metric} is not known from the sites' counts"
        )
        instead = "log-likelihood of all images" if LIKELIHOOD in values else "mean over sites"
        return _Scores(values, None, support, f"{reason}: {instead} instead of {self._metric}")

    def _scores_of_findings(self, sites: Sequence[str], images: float) -> _Scores:
        """The mean over the sites with enough images of a finding, or the log-likelihood of all images."""
        likelihood = sum(self._last[site][LIKELIHOOD] * self._last[site]["n"] for site in sites) / images
        if self._metric == LIKELIHOOD:
            return _Scores({POOLED: likelihood, MEAN: likelihood})
        known = [self._last[site][self._metric] for site in sites if self._metric in self._last[site]]
        if known:
            return _Scores({MEAN: sum(known) / len(known)})
        reason = f"no finding has {MIN_CASES} validation images with it and {MIN_CASES} without at a site"
        return _Scores(
            {LIKELIHOOD: likelihood}, note=f"{reason}: log-likelihood of all images instead of {self._metric}"
        )


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
        network = self.network(state)
        probabilities = predict(network, lambda rows: context.views(rows, "none"), self._rows, context.problem.kind)
        return context.data.labels[self._rows], probabilities

    def metrics(self, state: State) -> dict[str, float]:
        """A model's scores on the validation images."""
        labels, probabilities = self.predictions(state)
        measure = multi_label_metrics if self._context.problem.multi else classification_metrics
        return measure(labels, probabilities.numpy())
