"""Local training of FedIRM: of labelled sites, with the relation matrix from the logits of training, and of the others.

Liu et al. (FedIRM), MICCAI 2021, section 2, Eq. 2 and 3, and the authors' code. Sites without labels have a mean teacher
and relation matching, or train on their own labels. A step takes one pass of the student with gradient and one of the
teacher; with dropout before the last layer the uncertainty needs no further pass.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from grandrounds.data.batches import eval_batches, index_batches
from grandrounds.data.images.tensors import to_device
from grandrounds.data.site import SiteData
from grandrounds.errors import DataError
from grandrounds.evaluation.prediction import predict
from grandrounds.federation.site.context import SiteContext
from grandrounds.federation.site.training import Meter, OptimizerStep, run_steps, train_steps
from grandrounds.methods.fedirm.options import ClientOptions, LabelledOptions, RelationOptions, UnlabelledOptions
from grandrounds.methods.fedirm.relation import (
    Relation,
    RelationAccumulator,
    consistency_loss,
    pseudo_relation,
    ramp_up,
    relation_distance,
    relation_matching_loss,
    unlabelled_loss,
    withhold_rows,
)
from grandrounds.methods.fedirm.uncertainty import (
    certain,
    ema_alpha,
    full_draws,
    head_draws,
    make_teacher,
    update_teacher,
)
from grandrounds.methods.supervised.loss import adjusted_logits
from grandrounds.models.norm import BATCH_NORMS
from grandrounds.models.split import split_network
from grandrounds.protocol.task import UNKNOWN, Task
from grandrounds.protocol.tensors import at_least_single

EXACT_BATCH = 256
VIEW_PURPOSES = ("first view", "second view")

_logger = logging.getLogger(__name__)


def patients_of_classes(data: SiteData, rows: np.ndarray, labels: np.ndarray, classes: int) -> Tensor:
    """Count the patients (if unknown lesions, if unknown images) behind each class, from rows that may be repeated.

    Args:
        data: of the site.
        rows: shape ``(n,)``.
        labels: of these rows; unknown ones do not count.
        classes: the number of entries of :meth:`Task.answers`.

    Returns:
        Shape ``(classes,)``, int64, on the CPU.
    """
    images, entries = data.task.entries(labels)
    seen = {(int(e), data.groups[row] or ("image", int(row))) for row, e in zip(rows[images], entries, strict=True)}
    return torch.from_numpy(np.bincount([label for label, _ in seen], minlength=classes).astype(np.int64))


def set_unlabelled_rate(optimizer: torch.optim.Optimizer, options: UnlabelledOptions, ramp: float) -> None:
    """Multiply the learning rate of an unlabelled site by the ramp, if configured."""
    if options.ramp_learning_rate:
        for group in optimizer.param_groups:
            group["lr"] = ramp * options.unlabelled_learning_rate


class Views:
    """Independent views of a batch, each from its own random stream, of ``labelled`` or ``unlabelled`` images."""

    def __init__(self, context: SiteContext, kind: str) -> None:
        self._context = context
        self._keys = [context.key(f"{kind} {name}") for name in VIEW_PURPOSES]

    def draw_ahead(self, batches: Sequence[np.ndarray], count: int) -> None:
        """Have one or two views of the batches of all steps drawn in advance, see :meth:`SiteContext.draw_ahead`."""
        for key in self._keys[:count]:
            self._context.draw_ahead(batches, "mild", key)

    def draw(self, rows: np.ndarray, step: int, count: int) -> list[Tensor]:
        """One or two views of these rows, see :meth:`SiteContext.views`."""
        return [self._context.views(rows, "mild", key, step) for key in self._keys[:count]]


class LastPass:
    """The relation matrix of the last pass, the last ``pass_steps`` of a round's steps; its support counts patients."""

    def __init__(self, context: SiteContext, options: RelationOptions, steps: int, pass_steps: int) -> None:
        self._context = context
        self._exact = options.relation_average == "exact"
        problem = context.problem
        self._accumulator = RelationAccumulator(
            problem.kind, len(problem.classes), options.temperature, options.relation_average
        )
        self._first_step = steps - pass_steps
        self._seen: list[np.ndarray] = []

    def add(self, rows: np.ndarray, logits: Tensor, labels: Tensor, step: int) -> None:
        """Add a training step, if it is part of the last pass."""
        if step >= self._first_step and not self._exact:
            self._accumulator.add(logits, labels)
            self._seen.append(rows)

    def relation(self, network: nn.Module, rows: np.ndarray) -> Relation:
        """The matrix, on the CPU; ``exact`` computes it in an additional pass of the trained network."""
        if self._exact:
            self._add_exactly(network, rows)
        matrix = self._accumulator.relation().matrix.cpu()
        data, seen = self._context.data, np.unique(np.concatenate(self._seen))
        return Relation(matrix, patients_of_classes(data, seen, data.labels[seen], len(matrix)))

    def _add_exactly(self, network: nn.Module, rows: np.ndarray) -> None:
        context, model = self._context, self._context.forward(network)
        for batch in eval_batches(rows, EXACT_BATCH):
            with context.autocast():
                logits = model(context.views(batch, "none"))
            self._accumulator.add(logits, context.labels(batch))
        self._seen.append(rows)


def train_labelled(
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
    context: SiteContext,
    local: ClientOptions,
    options: LabelledOptions,
    relations: RelationOptions,
) -> tuple[dict[str, float], Relation]:
    """Train in place, in training mode, on the labelled images.

    Returns:
        ``loss`` (mean over the steps) and ``samples`` (labelled training images); and the relation matrix, on the CPU,
        without the rows of too few patients, which only the site's log names.

    Raises:
        TaskAborted: if the task was given up.
        DataError: if the site has no labelled training image, naming the site.
    """
    rows = context.data.rows("labelled")
    if not len(rows):
        raise DataError(f"{context.site}: the labelled set is empty: no training image has a label that may be used")
    steps = local.round_steps(len(rows))
    kind, classes = context.problem.kind, len(context.problem.classes)
    counts = to_device(kind.class_counts(context.data.labels[rows], classes), context.device)
    views, meter = Views(context, "labelled"), Meter()
    last_pass = LastPass(context, relations, steps, local.pass_steps(len(rows)))
    batches = list(index_batches(rows, local.batch_size, steps, context.generator("labelled batches")))
    count = 2 if options.two_views else 1
    views.draw_ahead(batches, count)

    def loss_of(step: int) -> Tensor:
        """The loss of a step; its logits are added to the relation matrix."""
        batch = batches[step]
        labels = context.labels(batch)
        with context.autocast():
            logits = [network(view) for view in views.draw(batch, step, count)]
        logits = [at_least_single(values) for values in logits]
        last_pass.add(batch, logits[0], labels, step)
        if options.logit_adjustment:
            logits = [adjusted_logits(values, counts, options.logit_adjustment) for values in logits]
        return kind.smoothed_loss(logits, labels, options.smoothing)

    train_steps(context, steps, loss_of, OptimizerStep(network, optimizer, clip_norm=local.clip_norm), meter)
    relation = last_pass.relation(network, rows)
    _log_withheld(context, relation, relations.min_support)
    metrics = {"loss": meter.total("loss") / steps, "samples": float(len(rows))}
    return metrics, withhold_rows(relation, relations.min_support)


def _log_withheld(context: SiteContext, relation: Relation, min_support: int) -> None:
    few = (relation.known & (relation.support < min_support)).tolist()
    rows = context.problem.kind.answer_names(context.problem.classes)
    names = [name for name, withheld in zip(rows, few, strict=True) if withheld]
    if names:
        _logger.info(
            "%s: the relation matrix leaves the site without the rows of classes with fewer than %d patients: %s",
            context.site,
            min_support,
            ", ".join(names),
        )


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
    probabilities = predict(network, context.unchanged, rows, task, forward=context.forward).decisions
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
