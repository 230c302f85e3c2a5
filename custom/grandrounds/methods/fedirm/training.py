"""Local training of labelled sites, with the relation matrix from the logits of training.

Liu et al. (FedIRM), MICCAI 2021, Eq. 2 and 3, and the authors' code.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from grandrounds.data.batches import eval_batches, index_batches
from grandrounds.data.images.tensors import to_device
from grandrounds.data.site import SiteData
from grandrounds.errors import DataError
from grandrounds.federation.site.context import SiteContext
from grandrounds.federation.site.training import Meter, OptimizerStep, train_steps
from grandrounds.methods.fedirm.options import ClientOptions, LabelledOptions, RelationOptions, UnlabelledOptions
from grandrounds.methods.fedirm.relation import Relation, RelationAccumulator, withhold_rows
from grandrounds.methods.supervised.loss import adjusted_logits
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
