"""What a site without labels takes the diseases for, over a round: for its own log, and for figures in simulations.

Local training of sites without labels: agree with a teacher, and see the classes as the labelled sites do.

Liu et al. (FedIRM), MICCAI 2021, section 2, and the authors' code. A step costs one pass of the student with its
gradient and one of the teacher; finding out what is certain needs no further pass where dropout is before the last layer.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from grandrounds.data.batches import index_batches
from grandrounds.data.site import SiteData
from grandrounds.federation.site.context import SiteContext
from grandrounds.federation.site.training import Meter, OptimizerStep, require_finite
from grandrounds.methods.fedirm.loss import consistency_loss, relation_matching_loss, unlabelled_loss
from grandrounds.methods.fedirm.options import LocalOptions, RelationOptions, UnlabelledOptions
from grandrounds.methods.fedirm.relation import Relation, pseudo_relation, relation_distance, withhold_rows
from grandrounds.methods.fedirm.schedule import ramp_up
from grandrounds.methods.fedirm.teacher import ema_alpha, make_teacher, update_teacher
from grandrounds.methods.fedirm.training import Views, patients_of_classes, set_unlabelled_rate
from grandrounds.methods.fedirm.uncertainty import certain, full_draws, head_draws
from grandrounds.models.compute import at_least_single
from grandrounds.models.norm import BATCH_NORMS
from grandrounds.models.split import split_network


class OwnRelation:
    """The relation matrix of a site without labels: the mean of its batches' matrices, row by row where there is one.

    Args:
        data: of the site.
        classes: how many classes there are.
        device: where the batches are.
    """

    def __init__(self, data: SiteData, classes: int, device: torch.device) -> None:
        self._data = data
        self._sum = torch.zeros(classes, classes, device=device)
        self._batches = torch.zeros(classes, dtype=torch.int64, device=device)
        self._seen: list[tuple[np.ndarray, Tensor, Tensor]] = []

    def add(self, own: Relation, rows: np.ndarray, labels: Tensor, keep: Tensor) -> None:
        """Take in a batch: its matrix, its images, what they were taken for, and which of these predictions are certain."""
        self._sum += torch.where(own.known[:, None], own.matrix.detach(), 0.0)
        self._batches += own.known
        self._seen.append((rows, labels, keep))

    def relation(self) -> Relation:
        """The mean, on the CPU; ``support`` is how many patients (else lesions, else images) were surely of the class."""
        mean = self._sum / self._batches.clamp(min=1)[:, None]
        uniform = torch.full_like(mean, 1 / len(mean))
        matrix = torch.where(self._batches[:, None] > 0, mean, uniform).cpu()
        rows = np.concatenate([rows for rows, _, _ in self._seen])
        labels = torch.cat([labels for _, labels, _ in self._seen]).cpu().numpy()
        keep = torch.cat([keep for _, _, keep in self._seen]).cpu().numpy()
        return Relation(matrix, patients_of_classes(self._data, rows[keep], labels[keep], len(matrix)))


_logger = logging.getLogger(__name__)


class SiteTeacher:
    """Who gives the second opinion on an image, and how it follows the student.

    Args:
        student: with the weights the round starts from, in training mode.
        options: which kind of teacher.
        kept: what :meth:`state` has given in an earlier round; empty in the first one.
    """

    def __init__(self, student: nn.Module, options: UnlabelledOptions, kept: Mapping[str, Any]) -> None:
        self.network = make_teacher(student)
        self._options = options
        self._step = 0
        if options.teacher == "ema_persistent" and kept:
            self.network.load_state_dict(kept["parameters"], strict=False)
            self._step = int(kept["step"])

    @torch.no_grad()
    def predict(self, images: Tensor) -> Tensor:
        """Probabilities of shape ``(batch, classes)``, sharpened if that is asked for."""
        logits = at_least_single(self.network(images))
        return torch.softmax(logits / self._options.teacher_temperature, dim=1)

    def follow(self, student: nn.Module) -> None:
        """Move towards the student after a step; without a moving average become the student."""
        alpha = 0.0 if self._options.teacher == "none" else ema_alpha(self._step, self._options.teacher_decay)
        update_teacher(self.network, student, alpha)
        self._step += 1

    def state(self) -> dict[str, Any]:
        """What must last from one round to the next; nothing if the teacher begins anew."""
        if self._options.teacher != "ema_persistent":
            return {}
        parameters = {name: value.cpu().clone() for name, value in self.network.named_parameters()}
        return {"step": self._step, "parameters": parameters}


class UnlabelledStep:
    """The loss of one step at a site without labels.

    Args:
        context: of the task.
        network: the student, in training mode.
        teacher: the second opinion.
        target: the labelled sites' relation matrix; None where there is none yet.
        options: the loss.
        relations: how rows are made.
        batch_size: of a full batch.
    """

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
        self._views = Views(context, "unlabelled")
        classes = len(context.problem.classes)
        unknown = Relation(torch.full((classes, classes), 1 / classes), torch.zeros(classes, dtype=torch.int64))
        self.target = Relation(*(part.to(context.device) for part in target or unknown))
        self.own = OwnRelation(context.data, classes, context.device)
        self.meter = Meter()

    def loss(self, rows: np.ndarray, step: int, ramp: float) -> Tensor:
        """The loss of a batch; :attr:`meter` and :attr:`own` take in what is to be told of it."""
        return self.loss_of_views(rows, self._views.draw(rows, step, 2), step, ramp)

    def loss_of_views(self, rows: np.ndarray, views: Sequence[Tensor], step: int, ramp: float) -> Tensor:
        """The same where the two views are drawn already, the student's first."""
        options = self._options
        first, second = views
        with self._context.autocast():
            features = self._encoder(first)
            logits = self._head(features)
            taught = self._teacher.predict(second)
        require_finite(logits, "prediction", step)
        wide = at_least_single(logits)
        probabilities = torch.softmax(wide, dim=1)
        keep = self._certain(first, logits, features.detach()) & (probabilities.amax(dim=1) >= options.min_confidence)
        own = pseudo_relation(wide, keep, self._relations.temperature, source=self._relations.relation_source)
        # A batch may have one image more than a full one: a single one that was left over has joined it.
        divisor = max(self._batch_size, len(rows)) if options.consistency_divisor == "batch_size" else None
        consistency = consistency_loss(probabilities, taught, divisor)
        matching = relation_matching_loss(self.target, own)
        labels = wide.detach().argmax(dim=1)
        self.own.add(own, rows, labels, keep)
        self._count(rows, labels, keep)
        self.meter.add("matched_rows", (self.target.known & own.known).sum())
        total = unlabelled_loss(consistency, matching, ramp, options.consistency_scale, options.relation_weight)
        for name, value in (("loss", total), ("consistency", consistency), ("relation_loss", matching)):
            self.meter.add(name, value)
        return total

    def _certain(self, images: Tensor, logits: Tensor, features: Tensor) -> Tensor:
        options = self._options
        if options.mc_dropout == "none":
            return torch.ones(len(logits), dtype=torch.bool, device=logits.device)
        with self._context.autocast():
            if options.mc_dropout == "head":
                draws = head_draws(self._head, features, options.draws)
            else:
                draws = full_draws(self._network, images, logits, options.draws)
        return certain(draws, options.uncertainty_threshold)

    def _count(self, rows: np.ndarray, labels: Tensor, keep: Tensor) -> None:
        """Count how many are kept, and how many of those rightly where the hidden label is known."""
        truth = torch.from_numpy(self._context.data.labels[rows]).to(labels.device)
        known = keep & (truth >= 0)
        self.meter.add("seen", torch.tensor(len(rows)))
        self.meter.add("kept", keep.sum())
        self.meter.add("empty_batches", ~keep.any())
        self.meter.add("checked", known.sum())
        self.meter.add("right", (known & (labels == truth)).sum())


def train_unlabelled(
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
    context: SiteContext,
    local: LocalOptions,
    options: UnlabelledOptions,
    relations: RelationOptions,
    target: Relation | None,
    teacher: SiteTeacher,
) -> tuple[dict[str, float], Relation]:
    """Train in place on images whose labels nobody may use.

    Args:
        network: the student, in training mode.
        optimizer: of its parameters.
        context: of the task.
        local: batches and steps.
        options: the loss.
        relations: how rows are made.
        target: the labelled sites' relation matrix; None where there is none yet, and nothing is matched.
        teacher: moves with the student.

    Returns:
        Means over the steps of ``loss``, ``consistency`` and ``relation_loss``; ``kept`` (share of the images that are
        certain), ``empty_batches`` (steps without any), ``matched_rows`` (rows that a step's batch and ``target`` both have,
        mean over the steps) and, where hidden labels are known, ``pseudo_label_accuracy`` of the kept;
        ``relation_distance`` (mean absolute difference of the site's own matrix from ``target``); ``samples``. And that
        matrix, on the CPU. Rows of too few patients are neither in it nor in the distance; how many are sure of each class
        is in the site's log alone.

    Raises:
        TaskAborted: if the task was given up.
        ConfigurationError: if dropout is to be drawn and the network has none.
    """
    rows = context.data.rows("unlabelled")
    steps = local.round_steps(len(rows))
    descent = OptimizerStep(network, optimizer)
    work = UnlabelledStep(context, network, teacher, target, options, relations, local.batch_size)
    passes = options.draws + 1 if options.bn_updates == "code" else 1
    with context.torch_seeded("training"), statistics_of_passes(network, passes):
        batches = index_batches(rows, local.batch_size, steps, context.generator("unlabelled batches"))
        for step, batch in enumerate(batches):
            context.check_abort()
            elapsed = local.elapsed(context.round_number, step, len(rows))
            ramp = ramp_up(elapsed, options.ramp_length, options.ramp_kind)
            set_unlabelled_rate(optimizer, options, ramp)
            loss = work.loss(batch, step, ramp)
            require_finite(loss, "loss", step)
            descent.step(loss)
            teacher.follow(network)
    own = work.own.relation()
    _log_support(context, own)
    shown = withhold_rows(own, relations.min_support)
    metrics = _metrics(work.meter, steps, len(rows))
    distance = relation_distance(work.target, shown)
    if bool(torch.isfinite(distance)):
        metrics["relation_distance"] = float(distance)
    return metrics, shown


def _log_support(context: SiteContext, own: Relation) -> None:
    counts = zip(context.problem.classes, own.support.tolist(), strict=True)
    told = ", ".join(f"{name} {count}" for name, count in counts)
    _logger.info("%s: patients surely taken for each class: %s", context.site, told)


def _metrics(meter: Meter, steps: int, samples: int) -> dict[str, float]:
    metrics = {name: meter.total(name) / steps for name in ("loss", "consistency", "relation_loss", "matched_rows")}
    metrics["kept"] = meter.total("kept") / meter.total("seen")
    metrics["empty_batches"] = meter.total("empty_batches")
    if meter.total("checked"):
        metrics["pseudo_label_accuracy"] = meter.total("right") / meter.total("checked")
    return {**metrics, "samples": float(samples)}


@contextmanager
def statistics_of_passes(network: nn.Module, passes: int) -> Iterator[None]:
    r"""Let running statistics follow each batch as fast as if it had been passed so many times.

    .. math:: m' = 1 - (1 - m)^n

    Exact for passes with the same statistics; with dropout in the layers they would differ a little.

    Args:
        network: its batch norms are as before afterwards.
        passes: :math:`n`, at least one.

    Example:
        >>> norm = nn.BatchNorm1d(1)
        >>> with statistics_of_passes(norm, 12):
        ...     print(round(norm.momentum, 3))
        0.718
        >>> norm.momentum
        0.1
    """
    momenta = [(m, m.momentum) for m in network.modules() if isinstance(m, BATCH_NORMS) and m.momentum is not None]
    if passes > 1:  # else the number must stay as it is, to the last bit
        for norm, momentum in momenta:
            norm.momentum = 1 - (1 - momentum) ** passes
    try:
        yield
    finally:
        for norm, momentum in momenta:
            norm.momentum = momentum
