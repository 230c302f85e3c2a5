"""Local training of sites without labels: FedIRM's mean teacher and relation matching, and self-training.

Liu et al. (FedIRM), MICCAI 2021, section 2, and the authors' code. A step takes one pass of the student with gradient and
one of the teacher; with dropout before the last layer the uncertainty needs no further pass.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from grandrounds.data.batches import index_batches
from grandrounds.data.images.tensors import to_device
from grandrounds.data.site import SiteData
from grandrounds.evaluation.prediction import predict
from grandrounds.federation.site.context import SiteContext
from grandrounds.federation.site.training import Meter, OptimizerStep, run_steps, train_steps
from grandrounds.methods.fedirm.loss import (
    consistency_loss,
    ramp_up,
    relation_matching_loss,
    unlabelled_loss,
)
from grandrounds.methods.fedirm.options import ClientOptions, RelationOptions, UnlabelledOptions
from grandrounds.methods.fedirm.relation import (
    Relation,
    pseudo_relation,
    relation_distance,
    withhold_rows,
)
from grandrounds.methods.fedirm.training import Views, patients_of_classes, set_unlabelled_rate
from grandrounds.methods.fedirm.uncertainty import (
    certain,
    ema_alpha,
    full_draws,
    head_draws,
    make_teacher,
    update_teacher,
)
from grandrounds.models.norm import BATCH_NORMS
from grandrounds.models.split import split_network
from grandrounds.protocol.task import UNKNOWN, Task
from grandrounds.protocol.tensors import at_least_single

_logger = logging.getLogger(__name__)


class PseudoRelation:
    """The relation matrix of an unlabelled site: for each row the mean over the batches that have it."""

    def __init__(self, data: SiteData, shape: tuple[int, int], device: torch.device) -> None:
        self._data = data
        self._sum = torch.zeros(shape, device=device)
        self._batches = torch.zeros(len(self._sum), dtype=torch.int64, device=device)
        self._predictions: list[tuple[np.ndarray, Tensor, Tensor]] = []

    def add(self, relation: Relation, rows: np.ndarray, labels: Tensor, keep: Tensor) -> None:
        """Add a batch: its matrix, rows and pseudo-labels, and which of these are certain."""
        self._sum += torch.where(relation.known[:, None], relation.matrix.detach(), 0.0)
        self._batches += relation.known
        self._predictions.append((rows, labels, keep))

    def relation(self) -> Relation:
        """The mean, on the CPU; its support counts the patients with a certain prediction of the class."""
        mean = self._sum / self._batches.clamp(min=1)[:, None]
        uniform = torch.full_like(mean, 1 / mean.shape[1])
        matrix = torch.where(self._batches[:, None] > 0, mean, uniform).cpu()
        rows = np.concatenate([rows for rows, _, _ in self._predictions])
        labels = torch.cat([labels for _, labels, _ in self._predictions]).cpu().numpy()
        keep = torch.cat([keep for _, _, keep in self._predictions]).cpu().numpy()
        return Relation(matrix, patients_of_classes(self._data, rows, np.where(keep, labels, UNKNOWN), len(matrix)))


class SiteTeacher:
    """The mean teacher of a site.

    Args:
        task: what labels are.
        student: with the weights of the round's start, in training mode.
        options: which kind of teacher.
        kept: :meth:`state` of an earlier round; empty in the first one.
    """

    def __init__(self, task: Task, student: nn.Module, options: UnlabelledOptions, kept: Mapping[str, Any]) -> None:
        self.network = make_teacher(student)
        self._options = options
        self._task = task
        self._step = 0
        if options.teacher == "ema_persistent" and kept:
            self.network.load_state_dict(kept["parameters"], strict=False)
            self._step = int(kept["step"])

    @torch.no_grad()
    def predict(self, images: Tensor) -> Tensor:
        """Sharpened probabilities, shape ``(batch, classes)``."""
        logits = at_least_single(self.network(images))
        return self._task.probabilities(logits / self._options.teacher_temperature)

    def follow(self, student: nn.Module) -> None:
        """Update the moving average after a step; without one the teacher becomes the student."""
        alpha = 0.0 if self._options.teacher == "none" else ema_alpha(self._step, self._options.teacher_decay)
        update_teacher(self.network, student, alpha)
        self._step += 1

    def state(self) -> dict[str, Any]:
        """The state to keep for the next round; empty if the teacher is reset."""
        if self._options.teacher != "ema_persistent":
            return {}
        parameters = {name: value.cpu().clone() for name, value in self.network.named_parameters()}
        return {"step": self._step, "parameters": parameters}


class UnlabelledStep:
    """The loss of one step at a site without labels; arguments as for :func:`train_unlabelled`."""

    def __init__(
        self,
        context: SiteContext,
        network: nn.Module,
        teacher: SiteTeacher,
        target: Relation | None,
        options: UnlabelledOptions,
        relations: RelationOptions,
        batch_size: int,
    ) -> None:
        self._context, self._network, self._teacher = context, network, teacher
        self._options, self._relations, self._batch_size = options, relations, batch_size
        self._encoder, self._head = split_network(network)
        self.views = Views(context, "unlabelled")
        self._task = context.problem.kind
        shape = self._task.relation_shape(len(context.problem.classes))
        unknown = Relation(torch.full(shape, 1 / shape[1]), torch.zeros(shape[0], dtype=torch.int64))
        self.target = Relation(*(part.to(context.device) for part in target or unknown))
        self.pseudo_relation = PseudoRelation(context.data, shape, context.device)
        self.meter = Meter()

    def loss(self, rows: np.ndarray, step: int, ramp: float) -> Tensor:
        """The loss of a batch, which is added to :attr:`meter` and :attr:`pseudo_relation`."""
        options = self._options
        first, second = self.views.draw(rows, step, 2)
        with self._context.autocast():
            features = self._encoder(first)
            logits = self._head(features)
            targets = self._teacher.predict(second)
        self.meter.require_finite(logits, "prediction", step)
        wide = at_least_single(logits)
        probabilities = self._task.probabilities(wide)
        confident = self._task.confidence(probabilities) >= options.min_confidence
        keep = self._certain(first, logits, features.detach(), confident)
        temperature, source = self._relations.temperature, self._relations.relation_source
        relation = pseudo_relation(self._task, wide, keep, temperature, source)
        # A batch has one image more than a full one if a single remaining image has joined it.
        divisor = max(self._batch_size, len(rows)) if options.consistency_divisor == "batch_size" else None
        consistency = consistency_loss(probabilities, targets, divisor)
        matching = relation_matching_loss(self.target, relation)
        labels = self._task.likeliest(wide)
        self.pseudo_relation.add(relation, rows, labels, keep)
        self._count(rows, labels, keep)
        self.meter.add("matched_rows", (self.target.known & relation.known).sum())
        total = unlabelled_loss(consistency, matching, ramp, options.consistency_scale, options.relation_weight)
        for name, value in (("loss", total), ("consistency", consistency), ("relation_loss", matching)):
            self.meter.add(name, value)
        return total

    def _certain(self, images: Tensor, logits: Tensor, features: Tensor, confident: Tensor) -> Tensor:
        options, task = self._options, self._task
        if options.mc_dropout == "none":
            return confident
        with self._context.autocast():
            if options.mc_dropout == "head":
                draws = head_draws(task, self._head, features, options.draws)
            else:
                draws = full_draws(task, self._network, images, logits, options.draws)
        return certain(task, draws, options.uncertainty_threshold) & confident

    def _count(self, rows: np.ndarray, labels: Tensor, keep: Tensor) -> None:
        """Count the certain predictions, and the correct ones among those whose hidden label is known."""
        truth = self._context.labels(rows)
        known = keep & (truth >= 0)
        self.meter.add("seen", torch.tensor(keep.numel()))
        self.meter.add("kept", keep.sum())
        self.meter.add("empty_batches", ~keep.any())
        self.meter.add("checked", known.sum())
        self.meter.add("correct", (known & (labels == truth)).sum())


def train_unlabelled(
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
    context: SiteContext,
    local: ClientOptions,
    options: UnlabelledOptions,
    relations: RelationOptions,
    target: Relation | None,
    teacher: SiteTeacher,
) -> tuple[dict[str, float], Relation]:
    """Train in place on unlabelled images.

    Args:
        network: the student, in training mode.
        optimizer: of its parameters.
        context: of the task.
        local: options of batches and steps.
        options: options of the loss.
        relations: options of relation matrices.
        target: the labelled sites' relation matrix; None if there is none yet, so that nothing is matched.
        teacher: updated with the student.

    Returns:
        Means over the steps of ``loss``, ``consistency``, ``relation_loss`` and ``matched_rows`` (rows known in both a
        batch's matrix and ``target``); ``kept`` (share of certain predictions), ``empty_batches`` (steps without any),
        ``pseudo_label_accuracy`` of the certain predictions if hidden labels are known, ``relation_distance`` (mean absolute
        difference of the site's matrix from ``target``) and ``samples``. Second the site's matrix, on the CPU, without the
        rows of too few patients; the number of patients of each class is in the site's log only.

    Raises:
        TaskAborted: if the task was given up.
        ConfigurationError: if dropout is needed and the network has none.
    """
    rows = context.data.rows("unlabelled")
    steps = local.round_steps(len(rows))
    optimizer_step = OptimizerStep(network, optimizer, clip_norm=local.clip_norm)
    work = UnlabelledStep(context, network, teacher, target, options, relations, local.batch_size)
    passes = options.draws + 1 if options.bn_updates == "code" else 1
    batches = list(index_batches(rows, local.batch_size, steps, context.generator("unlabelled batches")))
    work.views.draw_ahead(batches, 2)

    def take(step: int) -> None:
        """Take a step of the student and of the teacher."""
        elapsed = local.elapsed(context.round_number, step, len(rows))
        ramp = ramp_up(elapsed, options.ramp_length, options.ramp_kind)
        set_unlabelled_rate(optimizer, options, ramp)
        loss = work.loss(batches[step], step, ramp)
        work.meter.require_finite(loss, "loss", step)
        optimizer_step.step([loss])
        teacher.follow(network)

    with statistics_of_passes(network, passes):
        run_steps(context, steps, take)
    work.meter.read_checks()
    relation = work.pseudo_relation.relation()
    counts = zip(context.problem.kind.answer_names(context.problem.classes), relation.support.tolist(), strict=True)
    listed = ", ".join(f"{name} {count}" for name, count in counts)
    _logger.info("%s: patients with a certain prediction of each class: %s", context.site, listed)
    released = withhold_rows(relation, relations.min_support)
    metrics = _metrics(work.meter, steps, len(rows))
    distance = relation_distance(work.target, released)
    if bool(torch.isfinite(distance)):
        metrics["relation_distance"] = float(distance)
    return metrics, released


def _metrics(meter: Meter, steps: int, samples: int) -> dict[str, float]:
    metrics = {name: meter.total(name) / steps for name in ("loss", "consistency", "relation_loss", "matched_rows")}
    metrics["kept"] = meter.total("kept") / meter.total("seen")
    metrics["empty_batches"] = meter.total("empty_batches")
    if meter.total("checked"):
        metrics["pseudo_label_accuracy"] = meter.total("correct") / meter.total("checked")
    return {**metrics, "samples": float(samples)}


def self_train(
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
    context: SiteContext,
    local: ClientOptions,
    options: UnlabelledOptions,
) -> dict[str, float]:
    """Label the site's images with the received model once a round, then train it in place on the confident labels.

    This is Fed-SelfTraining, a baseline that the paper names without details (Table 1). Images are labelled without dropout
    and augmentation; a pass is over the confident images.

    Returns:
        ``loss`` (mean over the steps), ``kept`` (share of confident images), ``pseudo_label_accuracy`` of these if hidden
        labels are known, and ``samples``. Without a confident image nothing is trained.

    Raises:
        TaskAborted: if the task was given up.
    """
    rows, task = context.data.rows("unlabelled"), context.problem.kind
    probabilities = predict(network, context.unchanged, rows, task, forward=context.forward)
    confidence, predicted = probabilities.max(dim=1)
    confident = (confidence >= options.min_confidence).numpy()
    kept, labels = rows[confident], predicted.numpy()[confident]
    metrics = {"loss": 0.0, "kept": len(kept) / len(rows), "samples": float(len(rows))}
    truth = context.data.labels[kept]
    if (truth >= 0).any():
        metrics["pseudo_label_accuracy"] = float((labels == truth)[truth >= 0].mean())
    if not len(kept):
        return metrics
    label_of = np.full(len(context.data.labels), -1)
    label_of[kept] = labels
    steps = local.round_steps(len(kept))
    views, meter = Views(context, "unlabelled"), Meter()
    batches = list(index_batches(kept, local.batch_size, steps, context.generator("unlabelled batches")))
    views.draw_ahead(batches, 1)

    def loss_of(step: int) -> Tensor:
        """The loss of a batch's pseudo-labels, times the ramp."""
        batch = batches[step]
        with context.autocast():
            logits = network(views.draw(batch, step, 1)[0])
        ramp = ramp_up(local.elapsed(context.round_number, step, len(kept)), options.ramp_length, options.ramp_kind)
        set_unlabelled_rate(optimizer, options, ramp)
        return ramp * context.problem.kind.smoothed_loss(
            [at_least_single(logits)], to_device(label_of[batch], context.device)
        )

    train_steps(context, steps, loss_of, OptimizerStep(network, optimizer, clip_norm=local.clip_norm), meter)
    return {**metrics, "loss": meter.total("loss") / steps}


@contextmanager
def statistics_of_passes(network: nn.Module, passes: int) -> Iterator[None]:
    r"""Update running statistics as if each batch were passed ``passes`` times: :math:`m' = 1 - (1 - m)^n`.

    The momenta are restored afterwards. Exact for passes with equal statistics, which dropout in the layers changes.

    Example:
        >>> norm = nn.BatchNorm1d(1)
        >>> with statistics_of_passes(norm, 12):
        ...     print(round(norm.momentum, 3))
        0.718
        >>> norm.momentum
        0.1
    """
    momenta = [(m, m.momentum) for m in network.modules() if isinstance(m, BATCH_NORMS) and m.momentum is not None]
    if passes > 1:  # else the momentum must not change in its last bit
        for norm, momentum in momenta:
            norm.momentum = 1 - (1 - momentum) ** passes
    try:
        yield
    finally:
        for norm, momentum in momenta:
            norm.momentum = momentum
