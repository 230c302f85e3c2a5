"""Which round's model is the run's result: the best on all sites' validation images together, or on the server's."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch
from nvflare.apis.fl_context import FLContext
from torch import nn

from grandrounds.checks import reraised_as
from grandrounds.data.site import SiteData
from grandrounds.errors import ConfigurationError, DataError
from grandrounds.evaluation.counts import SiteCounts, counts_shape
from grandrounds.evaluation.estimates import score_estimates
from grandrounds.evaluation.metrics import LINEAR_SCORES, OF_CLASSES, SELECTABLE, site_metrics, total_probabilities
from grandrounds.evaluation.prediction import Predicted, predict
from grandrounds.evaluation.record import EvalRecord, pooled, received
from grandrounds.evaluation.score import MIN_CASES, Score
from grandrounds.evaluation.site_record import NUMBER
from grandrounds.federation.server.options import ServerComputeOptions
from grandrounds.federation.server.record import AT_SERVER, MEAN, POOLED
from grandrounds.federation.site.context import SiteContext, StateCache, choose_device
from grandrounds.federation.site.data import load_checked_data, load_dataset
from grandrounds.models.registry import build_model
from grandrounds.ordering import natural_sorted
from grandrounds.protocol.messages import State
from grandrounds.protocol.names import SERVER, VALIDATION, VALIDATION_PREFIX
from grandrounds.protocol.problem import Problem

_logger = logging.getLogger(__name__)


LIKELIHOOD = "log_likelihood"
BASES = (POOLED, LIKELIHOOD, MEAN)
"""From the most to the least demanding; a run that has left one does not return to it."""
BASES_OF_SITES = (POOLED, MEAN, LIKELIHOOD)
"""The same where counts do not give a score of all images together: of several questions, and of an area."""
OF_RANKS = frozenset({"auc_macro"})
"""Metrics that need every image's probability: they are means over the sites that have them."""


class _Scores(NamedTuple):
    """The last scores on every basis on which they are known.

    Attributes:
        values: by basis.
        pooled: the score of all images together with its interval, where that is known.
        support: validation cases of each class, where they are known: at most, as in the record.
        note: why the score is not of all images together.
    """

    values: dict[str, float]
    pooled: Score | None = None
    support: Mapping[str, int] = MappingProxyType({})
    note: str = ""


class ModelSelection:
    """Keeps the best model so far.

    Models are compared by the metric over all sites' validation images together, from counts that the sites release. If a
    class has fewer than ``MIN_CASES`` cases in them, one image could decide, and the mean log-likelihood of all images takes
    the metric's place. If a site releases no counts, it is the unweighted mean over the sites, and the
    log-likelihood where one keeps the metric with its counts. The choice has the reason.

    Rounds are compared over the same sites: one that has not scored a round counts with its last score, and when a site
    scores for the first time the comparison begins anew, because its earlier scores are unknown. The metric of findings, and
    an area, is a mean over the sites that have it at their first score; when one of them has it no more, the log-likelihood
    of all images takes its place. A site that has images and does not send what selects is left out of this round's
    comparison, as if it had not scored, and named in the note.

    Args:
        metric: name of a validation metric; higher is better.
        problem: whose vocabulary and task the counts have.

    Attributes:
        choice: round, metric, score, basis and support of the best model.
        model: the best model.
    """

    def __init__(self, metric: str, problem: Problem) -> None:
        self._metric, self._task, self._classes = metric, problem.kind, problem.classes
        # Counts of the classes of one question give its scores for all images together, but not areas.
        self._one_question = counts_shape(self._task.answers(len(self._classes)))[0] == 1
        self._pools = self._one_question and metric not in OF_RANKS
        self._bases = BASES if self._pools else BASES_OF_SITES
        self._last: dict[str, EvalRecord] = {}
        self._having: set[str] = set()
        self._counted: dict[str, int] = {}
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
            where it is known), ``basis``, ``support`` (cases by class from the first counts that all sites showed: at
            most these, as a patient with right and with wrong predictions counts twice) and
            ``note``, the reason if that is not as asked; and ``mean``, the unweighted mean over sites of the metric that was
            asked for, where it is known. None when no site has scored.

        Raises:
            ConfigurationError: if no site has ever sent the metric that selects, or nothing that all sites send can select.
        """
        records = {
            site: received(self._task, self._classes, VALIDATION, values, (counts or {}).get(site))
            for site, values in metrics.items()
        }
        scored = {site: record for site, record in records.items() if record.images > 0}
        lacking = natural_sorted(site for site, record in scored.items() if not self._selects(record))
        usable = {site: record for site, record in scored.items() if site not in lacking}
        if lacking:
            self._require_metric(lacking, scored, usable)
        for site, record in usable.items():
            self._take(site, record)
        if not usable:
            return None
        scores, of_all = self._scores(), list(self._last) == [POOLED]
        values = scores.values
        if not values:
            raise ConfigurationError(self._nothing_selects())
        self._leave_bases(values)
        compared = self._compared(scores, lacking, of_all)
        if values[self._basis] >= self._kept.get(self._basis, float("-inf")):
            self.keep(model_round, values[self._basis], model)
            self.choice, self._kept = {**self.choice, **compared}, values
        return {**compared, **({"mean": values[MEAN]} if MEAN in values and not of_all else {})}

    def _compared(self, scores: _Scores, lacking: list[str], of_all: bool) -> dict[str, Any]:
        """What a model is compared by, without the mean over sites."""
        at_server, bounds = list(self._last) == [SERVER], scores.pooled if self._basis == POOLED else None
        note = "; ".join(filter(None, [scores.note or self._earlier(at_server), self._left_out(lacking)]))
        return {
            "metric": LIKELIHOOD if self._basis == LIKELIHOOD else self._metric,
            "score": scores.values[self._basis],
            **({"low": bounds.low, "high": bounds.high} if bounds else {}),
            "basis": AT_SERVER if at_server else MEAN if self._basis == MEAN and not of_all else POOLED,
            **({"support": dict(scores.support)} if scores.support else {}),
            **({"note": note} if note else {}),
        }

    def _leave_bases(self, values: Mapping[str, float]) -> None:
        """Go on to the first basis that is known, or back to the last that is where no later one is."""
        left = [basis for basis in self._bases[self._bases.index(self._basis) :] if basis in values]
        self._basis = left[0] if left else max(values, key=self._bases.index)

    def _earlier(self, at_server: bool) -> str:
        """Why a basis that an earlier round has left is not returned to; empty where none was."""
        if self._pools:
            fallen = self._basis == LIKELIHOOD or (self._basis == MEAN and not at_server)
            return "the counts of an earlier round were not enough" if fallen else ""
        fallen = self._basis == LIKELIHOOD
        instead = f"log-likelihood of all images instead of {self._metric}"
        return f"a site had no {self._metric} in an earlier round: {instead}" if fallen else ""

    def _nothing_selects(self) -> str:
        """What no basis has values of, with the sites that withhold it and the remedy."""
        lacking = [
            f"{site} withholds {' and '.join(missing)}"
            for site in natural_sorted(self._last)
            if (missing := [name for name in (self._metric, LIKELIHOOD) if name not in self._last[site].exact])
        ]
        return (
            f"no score of all sites selects a model by {self._metric}: {', '.join(lacking)}; "
            f"their privacy policies must allow {VALIDATION_PREFIX}{LIKELIHOOD}"
        )

    def _take(self, site: str, record: EvalRecord) -> None:
        """Remember a site's last record."""
        if site not in self._last:
            self.choice, self._kept, self._basis, self._counted = {}, {}, POOLED, {}
            self._having |= {site} if self._has(record) else set()
        self._last[site] = record

    def _selects(self, record: EvalRecord) -> bool:
        """Whether a site has sent what models are compared by."""
        return self._metric in record.exact or (LIKELIHOOD in record.exact and self._may_be_withheld(record))

    def _require_metric(self, lacking: list[str], scored: Mapping[str, EvalRecord], usable: Collection[str]) -> None:
        """One site cannot end the run of the others, but a metric that none has ever sent selects nothing."""
        if usable or self._last:
            _logger.warning("%s", self._left_out(lacking))
            return
        offered = ", ".join(sorted(scored[lacking[0]].exact))
        raise ConfigurationError(
            f"selection_metric {self._metric!r} is not among the metrics of {lacking[0]}: {offered}"
        )

    def _left_out(self, lacking: list[str]) -> str:
        """Who is not compared in this round; empty if all are."""
        return (
            f"not compared, because {self._metric} is not among their metrics: {', '.join(lacking)}" if lacking else ""
        )

    def _may_be_withheld(self, record: EvalRecord) -> bool:
        """Whether a record may lack the metric: where the site keeps its counts, or no question has enough images."""
        return not self._pools or (self._metric in OF_CLASSES and not record.counts)

    def keep(self, model_round: int, score: float | None, model: State | None) -> None:
        """Keep this model, whatever came before."""
        self.choice = {"round": model_round, "metric": None if score is None else self._metric, "score": score}
        self.model = model

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {
            "last": {site: record.to_json() for site, record in self._last.items()},
            "having": natural_sorted(self._having),
            "counted": self._counted,
            "basis": self._basis,
            "kept": self._kept,
            "choice": self.choice,
            "model": self.model,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what a checkpoint has kept."""
        last = state["last"].items()
        self._last = {site: EvalRecord.from_json(self._task, self._classes, content) for site, content in last}
        self._having, self._kept = set(state["having"]), dict(state["kept"])
        self._basis, self.choice, self.model = state["basis"], dict(state["choice"]), state["model"]
        self._counted = dict(state["counted"])

    def _scores(self) -> _Scores:
        """The scores by basis: of all images together only where every class has enough cases in the counts."""
        records = [self._last[site] for site in natural_sorted(self._last)]
        together = pooled(records)
        # A patient with right and with wrong predictions counts twice, so whether a site has enough is decided only once.
        if not self._pools:
            asked = [self._last[site] for site in natural_sorted(self._having)]
            return self._without_counts(self._mean_over(asked), together)
        values = self._mean_over(records) if all(self._metric in record.exact for record in records) else {}
        if self._metric not in SELECTABLE:
            return _Scores(values, note=f"{self._metric} is not known from counts of predictions: mean over sites")
        silent = [site for site in natural_sorted(self._last) if not self._last[site].counts]
        if self._metric in LINEAR_SCORES and list(self._last) != [SERVER]:
            values[POOLED] = together.exact[self._metric]
            return _Scores(values, None if silent or self._metric != "accuracy" else together.score("accuracy"))
        return self._without_some_counts(values, together, silent) if silent else self._of_counts(values, together)

    def _without_some_counts(self, values: dict[str, float], together: EvalRecord, silent: list[str]) -> _Scores:
        instead = "mean over sites"
        if not values and LIKELIHOOD in together.exact:
            values[LIKELIHOOD] = together.exact[LIKELIHOOD]
            instead = f"log-likelihood of all images instead of {self._metric}"
        at_server = list(self._last) == [SERVER]
        return _Scores(values, note="" if at_server else f"no counts from {', '.join(silent)}: {instead}")

    def _mean_over(self, records: Sequence[EvalRecord]) -> dict[str, float]:
        known = [record.exact[self._metric] for record in records if self._metric in record.exact]
        return {MEAN: sum(known) / len(known)} if known else {}

    def _has(self, record: EvalRecord) -> bool:
        """Whether a site has the metric, of enough cases of one question at least as far as its counts tell."""
        of_all = self._one_question or self._metric == LIKELIHOOD or not record.counts
        if of_all or self._metric not in record.exact:
            return self._metric in record.exact
        few = [bool((tally.positives >= 0).all() and tally.positives.min() < MIN_CASES) for tally in record.tallies]
        return not all(few)

    def _of_counts(self, values: dict[str, float], together: EvalRecord) -> _Scores:
        """The metric from the counts, if all sites show them and they are enough of each class."""
        (tally,) = together.tallies
        # A patient with right and with wrong predictions counts twice, so whether there are enough is decided only once.
        support = self._counted = self._counted or dict(zip(self._classes, tally.positives.tolist(), strict=True))
        bound = "" if together.unit == "image" else "at most "
        few = [f"{name} ({bound}{count})" for name, count in support.items() if count < MIN_CASES]
        if LIKELIHOOD in together.exact:
            values[LIKELIHOOD] = together.exact[LIKELIHOOD]
        score = score_estimates(tally).get(self._metric)
        if not few and score and score.known:
            return _Scores({**values, POOLED: score.value}, score, support)
        reason = (
            f"fewer than {MIN_CASES} validation cases of {', '.join(few)} in the sites' counts"
            if few
            else f"{self._metric} is not known from the sites' counts"
        )
        instead = "log-likelihood of all images" if LIKELIHOOD in values else "mean over sites"
        return _Scores(values, None, support, f"{reason}: {instead} instead of {self._metric}")

    def _without_counts(self, values: dict[str, float], together: EvalRecord) -> _Scores:
        """The mean over the sites that have the metric, always the same ones, or the log-likelihood of all images."""
        likelihood = together.exact.get(LIKELIHOOD)
        everywhere = {} if likelihood is None else {LIKELIHOOD: likelihood}
        if self._metric == LIKELIHOOD:
            return _Scores({**values, **({} if likelihood is None else {POOLED: likelihood})})
        lost = [site for site in natural_sorted(self._having) if self._metric not in self._last[site].exact]
        if values and not lost:
            return _Scores({**values, **everywhere})
        keeping = [site for site in natural_sorted(self._last) if not self._last[site].counts]
        reason = (
            f"{', '.join(lost)} had {self._metric} in an earlier round"
            if lost
            else f"no {self._task.noun} has enough validation images with it and without at a site"
        )
        keeps = f" ({', '.join(keeping)} keeps its counts)" if keeping else ""
        return _Scores(everywhere, note=f"{reason}{keeps}: log-likelihood of all images instead of {self._metric}")


def of_all_sites(record: EvalRecord, metric: str) -> tuple[dict[str, dict[str, float]], dict[str, SiteCounts]]:
    """Metrics and counts of all sites' images together, of which none is known alone, as those of one site."""
    score = record.score(metric)
    exact = {NUMBER: float(record.images), **record.exact, **({metric: score.value} if score.known else {})}
    counts = {POOLED: record.counts[0]} if record.counts else {}
    return {POOLED: {VALIDATION_PREFIX + name: value for name, value in exact.items()}}, counts


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
        with reraised_as(None, ConfigurationError, where=f"{needed_by} needs images at the server"):
            data = load_checked_data(problem, SERVER, fl_ctx, False, _logger, trains=False)
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

    def predictions(self, state: State) -> tuple[np.ndarray, Predicted]:
        """Labels of the validation images, shape ``(n,)``, and a model's probabilities."""
        context = self._context
        problem, labels = context.problem, context.data.labels[self._rows]
        return labels, predict(self.network(state), context.unchanged, self._rows, problem.kind, problem.test_view)

    def metrics(self, state: State) -> dict[str, float]:
        """A model's scores on the validation images."""
        labels, predicted = self.predictions(state)
        task = self._context.problem.kind
        risks, decisions = (total_probabilities(task, labels, one.numpy()) for one in predicted)
        return site_metrics(task, labels, risks, task.decide(decisions))
