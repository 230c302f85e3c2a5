"""Local semi-supervised training: supervised loss on labelled images, pseudo-labels on the others.

FixMatch labels an unlabelled image from its weak view and learns the label on its strong view. A :class:`PseudoLabeler`
replaces the model's own labels; FedPerl's peers do. Corrections of pseudo-labels are learned on
strongly augmented images.

Sohn et al., "FixMatch: Simplifying Semi-Supervised Learning with Consistency and Confidence", NeurIPS 2020, Eq. 4, is
:meth:`~grandrounds.protocol.task.Task.pseudo_labels` and ``pseudo_label_loss`` of the task; in federated averaging it is
the SSFL baseline of Bdair et al. (FedPerl), MELBA 2022, Eq. 3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from grandrounds.data.batches import eval_batches, index_batches
from grandrounds.data.images.tensors import to_device
from grandrounds.data.images.views import MAGNITUDE_LEVELS
from grandrounds.errors import ConfigurationError
from grandrounds.federation.site.context import SiteContext
from grandrounds.federation.site.training import Meter, OptimizerStep, train_steps
from grandrounds.methods.supervised.training import LabelledBatches, TrainingOptions, labelled_rows
from grandrounds.models.inference.forward import Forward
from grandrounds.models.norm import fixed_statistics, normalises_by_batch, statistics_untouched
from grandrounds.options import FRACTION, METHOD, Min, Options, Range
from grandrounds.protocol.messages import State
from grandrounds.protocol.task import PseudoLabels, Reduction
from grandrounds.protocol.tensors import at_least_single


def class_thresholds(confident: Tensor, threshold: float) -> Tensor:
    r"""Lower the threshold of classes that are seldom predicted with confidence.

    .. math:: \tau_c = \frac{\beta_c}{2 - \beta_c} \tau, \qquad \beta_c = \sigma_c / \max_j \sigma_j

    Curriculum pseudo-labels of Zhang et al., "FlexMatch: Boosting Semi-Supervised Learning with Curriculum Pseudo
    Labeling", NeurIPS 2021, Eq. 6, 7 and 10.

    Args:
        confident: :math:`\sigma`, unlabelled images that reach the threshold, by predicted class, shape ``(classes,)``.
        threshold: :math:`\tau`, in [0, 1].

    Returns:
        :math:`\tau_c`, shape ``(classes,)``, float32; the threshold itself for all classes where no image reaches it.

    Example:
        >>> import torch
        >>> class_thresholds(torch.tensor([30, 15, 0]), 0.9)  # 0.9, 0.9 / 3, 0
        tensor([0.9000, 0.3000, 0.0000])
    """
    most = confident.max()
    if not most:
        return confident.new_full(confident.shape, threshold, dtype=torch.float32)
    learnt = confident.float() / most
    return learnt / (2 - learnt) * threshold


def aligned(probabilities: Tensor, predicted: Tensor, expected: Tensor) -> Tensor:
    r"""Scale predictions so that the classes are predicted as often as they are expected.

    .. math:: \tilde p_{ic} \propto p_{ic} \, q_c / \bar p_c

    Distribution alignment of Berthelot et al., "ReMixMatch: Semi-Supervised Learning with Distribution Alignment and
    Augmentation Anchoring", ICLR 2020, Section 3.1.

    Args:
        probabilities: :math:`p`, shape ``(batch, classes)``.
        predicted: :math:`\bar p`, mean prediction on unlabelled images, shape ``(classes,)``.
        expected: :math:`q`, shares of the classes, shape ``(classes,)``, summing to one.

    Returns:
        Probabilities, shape ``(batch, classes)``; rows sum to one.

    Example:
        >>> import torch
        >>> aligned(torch.tensor([[0.6, 0.4]]), torch.tensor([0.75, 0.25]), torch.tensor([0.5, 0.5]))  # 0.4 : 0.8
        tensor([[0.3333, 0.6667]])
    """
    scaled = probabilities * (expected / predicted.clamp_min(torch.finfo(predicted.dtype).eps))
    return scaled / scaled.sum(dim=1, keepdim=True)


Teacher = Literal["local", "received", "average"]
TEACHER_BATCH = 64


def averaged(average: Mapping[str, Tensor], received: State, times: int, decay: float) -> dict[str, Tensor]:
    r"""Exponential moving average of the models that a site was sent.

    .. math:: \bar\theta_t = \alpha_t \bar\theta_{t-1} + (1 - \alpha_t) \theta_t, \qquad
        \alpha_t = \min\big(1 - \tfrac{1}{t}, \alpha\big)

    Tarvainen and Valpola, "Mean teachers are better role models", NeurIPS 2017; the first models count equally.

    Args:
        average: :math:`\bar\theta_{t-1}`; not looked at the first time.
        received: :math:`\theta_t`.
        times: :math:`t`, how many models have been received, with this one.
        decay: :math:`\alpha`, in [0, 1).

    Returns:
        The new average; integer entries are those received.

    Example:
        >>> averaged({"w": torch.tensor([1.0])}, {"w": torch.tensor([2.0])}, times=2, decay=0.9)  # the mean of two
        {'w': tensor([1.5000])}
    """
    alpha = min(1 - 1 / times, decay)
    if not alpha:
        return dict(received)
    return {
        name: torch.lerp(value, average[name], alpha) if value.is_floating_point() else value
        for name, value in received.items()
    }


def mean_predictions(
    model: Callable[[Tensor], Tensor], context: SiteContext, rows: np.ndarray, view: str, views: int = 1
) -> Tensor:
    """Probabilities of a site's images, averaged over weak views.

    Averaging over views is the label guessing of Berthelot et al., "MixMatch", NeurIPS 2019, Eq. 2.

    Args:
        model: images to logits, without gradients.
        context: of the task.
        rows: the images.
        view: the kind of weak view.
        views: how many of each image, at least one.

    Returns:
        Shape ``(rows, classes)``.
    """
    keys = [context.key("expectations"), *(context.key(f"expectations, view {number}") for number in range(1, views))]
    batches = list(enumerate(eval_batches(rows, TEACHER_BATCH)))
    probabilities = context.problem.kind.probabilities
    with context.autocast():
        predicted = [
            torch.cat([probabilities(model(context.views(batch, view, key, step))) for step, batch in batches])
            for key in keys
        ]
    return torch.stack(predicted).mean(dim=0)


class Expectations:
    """What the model at the start of a round predicts for a site's unlabelled images, to correct what comes.

    Args:
        predicted: of all unlabelled images, shape ``(images, classes)``.
        expected: images of each class among the labelled ones, shape ``(classes,)``; one is added to each.
    """

    def __init__(self, predicted: Tensor, expected: np.ndarray) -> None:
        self._predicted = predicted
        counts = torch.from_numpy(expected).to(predicted) + 1
        self._expected = counts / counts.sum()
        self._mean = predicted.mean(dim=0)

    def aligned(self, probabilities: Tensor) -> Tensor:
        """Predictions whose classes are as frequent as among the labelled images."""
        return aligned(probabilities, self._mean, self._expected)

    def thresholds(self, threshold: float, align: bool) -> Tensor:
        """The threshold of each class."""
        confidence, labels = (self.aligned(self._predicted) if align else self._predicted).max(dim=1)
        confident = torch.bincount(labels[confidence >= threshold], minlength=len(self._mean))
        return class_thresholds(confident, threshold)


MIN_AND_MAX = 2
StrongNorm = Literal["batch", "batch_untracked", "running"]
NORMS: dict[StrongNorm, Callable[[nn.Module], AbstractContextManager[None]]] = {
    "batch": lambda network: nullcontext(),
    "batch_untracked": statistics_untouched,
    "running": fixed_statistics,
}


@dataclass(frozen=True)
class SemiSupervisedOptions(Options):
    """What FixMatch adds to supervised training."""

    threshold: Annotated[
        float, "minimum confidence of a pseudo-label (FedPerl: 0.6 federated, 0.9 alone)", FRACTION, METHOD
    ] = 0.6
    unsupervised_weight: Annotated[float, "factor of the unsupervised loss (FedPerl: beta = 0.5)", Min(0), METHOD] = 0.5
    unsupervised_reduction: Annotated[
        Reduction, "mean over accepted images (FedPerl's code) or over the batch (FixMatch)"
    ] = "accepted_mean"
    equalize_noop: Annotated[bool, "leave out RandAugment's equalisation, as FedPerl's code does"] = False
    supervised_weight: Annotated[float, "factor of the supervised loss", Min(0)] = 1.0
    unlabelled_batch_size: Annotated[int | None, "unlabelled images per step; null for batch_size", Min(2)] = None
    strong_levels: Annotated[
        tuple[int, int] | None,
        "minimum and maximum strength of RandAugment (FedMatch: 2 to 5)",
        Range(1, MAGNITUDE_LEVELS),
    ] = None
    weak_pass: Annotated[
        Literal["train", "eval"], "the network's mode on weak views; train updates batch norm (FedPerl's code)"
    ] = "train"
    teacher: Annotated[
        Teacher,
        "model that labels weak views: the trained one, the received one (SemiFL), or the average of the received",
    ] = "local"
    teacher_decay: Annotated[float, "decay of the average of received models", Range(0, 1, open_maximum=True)] = 0.8
    teacher_statistics: Annotated[
        Literal["received", "site"],
        "batch norm of a received teacher: its own statistics, or those of the site's images",
    ] = "received"
    teacher_views: Annotated[
        int,
        "weak views over which a received teacher averages, once a round (SemiFL); 0 predicts each step's view",
        Min(0),
    ] = 0
    unsupervised_start: Annotated[int, "first round with pseudo-labels", Min(1)] = 1
    align_distribution: Annotated[
        bool,
        "scale predictions to the class shares of the site's labelled images (ReMixMatch); not of findings, nor without any",
    ] = False
    adaptive_thresholds: Annotated[bool, "lower the threshold of classes seldom predicted surely (FlexMatch)"] = False
    strong_norm: Annotated[
        StrongNorm, "batch norm on strong views: statistics of the batch, without a trace in the running ones, or those"
    ] = "batch"
    accept_unlabelled: Annotated[bool, "let sites without labelled images train on pseudo-labels alone"] = False

    def learnt_images(self, network: nn.Module, device: torch.device) -> Callable[[PseudoLabels], Learnt | None]:
        """Which strong views a step computes.

        Those of accepted images, as in FedPerl's code. An accelerator computes all in place of waiting, unless the others
        would change something: the statistics of the batch, or whether a site without labels takes a step.
        """
        apart = self.strong_norm == "running" or not normalises_by_batch(network)
        return all_images if device.type != "cpu" and apart and not self.accept_unlabelled else accepted_images

    def check(self) -> None:
        """Refuse strengths that are not an interval, and what needs another teacher than the trained model."""
        for name, needs in (
            ("teacher_statistics=site", self.teacher_statistics == "site"),
            ("teacher_views", self.teacher_views),
        ):
            if needs and self.teacher == "local":
                raise ConfigurationError(f"{name} needs teacher=received or average")
        if self.strong_levels is not None and (
            len(self.strong_levels) != MIN_AND_MAX or self.strong_levels[0] > self.strong_levels[1]
        ):
            raise ConfigurationError(
                f"strong_levels must be a minimum and a maximum strength, got {list(self.strong_levels)}"
            )


class Learnt(NamedTuple):
    """The images of a batch whose strong views the network sees.

    Attributes:
        positions: of these images; None for all.
        labels: their pseudo-labels.
        accepted: which of these labels are learnt.
    """

    positions: np.ndarray | None
    labels: Tensor
    accepted: Tensor


def accepted_images(pseudo: PseudoLabels) -> Learnt | None:
    """Images with something accepted, or None. Only their views are drawn, but the host must wait to know which they are."""
    (positions,) = pseudo.accepted.reshape(len(pseudo.accepted), -1).any(dim=1).cpu().numpy().nonzero()
    if not len(positions):
        return None
    chosen = to_device(positions, pseudo.labels.device)
    return Learnt(positions, pseudo.labels[chosen], pseudo.accepted[chosen])


def all_images(pseudo: PseudoLabels) -> Learnt:
    """All, so that the host need not know which labels are accepted."""
    return Learnt(None, pseudo.labels, pseudo.accepted)


class PseudoLabeler(Protocol):
    """Assigns pseudo-labels to unlabelled images."""

    needs_gradient: bool

    def __call__(self, images: Tensor, local: Tensor, threshold: float | Tensor) -> tuple[PseudoLabels, Tensor | None]:
        """Label a batch.

        Args:
            images: weak views of the unlabelled batch, shape ``(batch, channels, height, width)``.
            local: the local model's probabilities, shape ``(batch, classes)``, with a graph if ``needs_gradient``.
            threshold: minimum confidence of an accepted label, or that of each class.

        Returns:
            The pseudo-labels, and an additional loss or None.
        """


class UnlabelledBatches:
    """The unlabelled part of each step.

    Args:
        context: of the task.
        training: options of supervised training.
        options: options of pseudo-labels.
        network: the model that the round starts from.
        teacher: labels weak views, in evaluation mode; None for the model that is trained.
    """

    def __init__(
        self,
        context: SiteContext,
        training: TrainingOptions,
        options: SemiSupervisedOptions,
        network: nn.Module,
        teacher: Forward | None = None,
    ) -> None:
        self._context = context
        self._options = options
        self._task = context.problem.kind
        self._weak = training.view
        self._teacher = teacher
        started = context.round_number >= options.unsupervised_start
        self.rows = context.data.rows("unlabelled") if started else np.empty(0, np.int64)
        size = options.unlabelled_batch_size or training.batch_size
        generator = context.generator("unlabelled batches")
        self._batches = list(index_batches(self.rows, size, training.steps, generator)) if len(self.rows) else None
        self._key = context.key("unlabelled views")
        self._learnt = options.learnt_images(network, context.device)
        self._strong: dict[str, Any] = {"equalize_noop": options.equalize_noop, "strong_levels": options.strong_levels}
        self._expectations: Expectations | None = None
        self._threshold: float | Tensor = options.threshold
        self._predicted: Tensor | None = None
        if len(self.rows) and options.teacher_views and teacher is not None:
            self._predicted = mean_predictions(teacher, context, self.rows, self._weak, options.teacher_views)
        if len(self.rows):
            self._expect(context.forward(network) if teacher is None else teacher, training)
        if self._batches:
            context.draw_ahead(self._batches, self._weak, self._key)
            context.draw_ahead(self._batches, "strong", self._key, **self._strong)

    def _expect(self, model: Forward, training: TrainingOptions) -> None:
        """Compare the predictions of a round's beginning with the class shares of the site's labels, where options ask."""
        context, options, predicted = self._context, self._options, self._predicted
        labels = context.data.labels[labelled_rows(context.data, training.labels)]
        expected = self._task.expected_counts(labels, len(context.problem.classes))
        align = options.align_distribution and expected is not None and bool(expected.any())
        if expected is None or not (align or options.adaptive_thresholds):
            return
        predicted = mean_predictions(model, context, self.rows, self._weak) if predicted is None else predicted
        expectations = Expectations(predicted, expected)
        self._expectations = expectations if align else None
        if options.adaptive_thresholds:
            self._threshold = expectations.thresholds(options.threshold, align)

    def losses(self, network: nn.Module, step: int, labeler: PseudoLabeler | None, meter: Meter) -> Iterator[Tensor]:
        """The labeler's loss of a step's batch and the weighted unsupervised one, as far as there is something to learn."""
        if self._batches is None:
            return
        rows = self._batches[step]
        with self._context.autocast():
            pseudo, extra = self._labelled(network, rows, step, labeler, meter)
        self._count(rows, pseudo, meter)
        if extra is not None:
            yield extra
        learnt = self._learnt(pseudo)
        if learnt is not None:
            with self._context.autocast(), NORMS[self._options.strong_norm](network):
                strong = at_least_single(network(self._views(rows, step, "strong", learnt.positions)))
            reduction = self._options.unsupervised_reduction
            unsupervised = self._task.pseudo_label_loss(strong, learnt.labels, learnt.accepted, len(rows), reduction)
            meter.add("loss_unlabelled", unsupervised)
            yield self._options.unsupervised_weight * unsupervised

    def _labelled(
        self, network: nn.Module, rows: np.ndarray, step: int, labeler: PseudoLabeler | None, meter: Meter
    ) -> tuple[PseudoLabels, Tensor | None]:
        """Pseudo-labels of a batch, and the labeler's loss."""
        weak = None if labeler is None and self._predicted is not None else self._views(rows, step, self._weak)
        local = self._predict(network, rows, weak, labeler is not None and labeler.needs_gradient)
        meter.require_finite(local, "prediction", step)
        if self._expectations:
            local = self._expectations.aligned(local)
        if labeler is None or weak is None:
            return self._task.pseudo_labels(local, self._threshold), None
        return labeler(weak, local, self._threshold)

    def _predict(self, network: nn.Module, rows: np.ndarray, weak: Tensor | None, with_gradient: bool) -> Tensor:
        """Probabilities of a batch: those of the round, or of its weak views by the teacher if there is one."""
        if self._predicted is not None:
            return self._predicted[to_device(np.searchsorted(self.rows, rows), self._predicted.device)]
        if self._teacher is not None and weak is not None:
            return self._task.probabilities(self._teacher(weak))
        network.train(self._options.weak_pass == "train")
        with torch.set_grad_enabled(with_gradient):
            local = self._task.probabilities(network(weak))
        network.train()
        return local

    def _views(self, rows: np.ndarray, step: int, view: str, positions: np.ndarray | None = None) -> Tensor:
        strong = self._strong if view == "strong" else {}
        return self._context.views(rows, view, self._key, step, positions=positions, **strong)

    def _count(self, rows: np.ndarray, pseudo: PseudoLabels, meter: Meter) -> None:
        """Count the accepted labels, and the correct ones among those whose hidden label is known."""
        labels, accepted, _ = pseudo
        truth = self._context.labels(rows)
        known = accepted & (truth >= 0)
        meter.add("seen", torch.tensor(labels.numel()))
        meter.add("accepted", accepted.sum())
        meter.add("checked", known.sum())
        meter.add("correct", (known & (labels == truth)).sum())


def train_semi_supervised(
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
    context: SiteContext,
    training: TrainingOptions,
    options: SemiSupervisedOptions,
    labeler: PseudoLabeler | None = None,
    teacher: Forward | None = None,
) -> dict[str, float]:
    """Train in place.

    Three forward passes per step, in this order: labelled, weak, strong (accepted images only). A site without labels keeps
    the unchanged model until the first round with pseudo-labels.

    Args:
        network: in training mode.
        optimizer: of its parameters.
        context: of the task.
        training: options of supervised training.
        options: options of pseudo-labels.
        labeler: assigns pseudo-labels; None for FixMatch's own.
        teacher: labels weak views, in evaluation mode; None for the model that is trained.

    Returns:
        Means over the steps of ``loss``, ``loss_labelled``, ``loss_unlabelled``; ``accepted`` (share of unlabelled images
        or of their findings) and ``pseudo_label_accuracy`` (where the true label is known); ``samples`` (training images
        of both kinds).

    Raises:
        TaskAborted: if the task was given up.
        DataError: if the site has no labelled image, unless it may train on pseudo-labels alone and has unlabelled images.
    """
    unlabelled = UnlabelledBatches(context, training, options, network, teacher)
    without_labels = context.data.rows("unlabelled")
    pseudo_labels_only = options.accept_unlabelled and len(without_labels) and not len(context.data.rows("labelled"))
    labelled = None if pseudo_labels_only else LabelledBatches(context, training)
    meter = Meter()

    def losses_of(step: int) -> Iterator[Tensor]:
        """The losses of a step, as far as images contribute."""
        if labelled:
            supervised = labelled.loss(network, step)
            meter.add("loss_labelled", supervised)
            yield options.supervised_weight * supervised
        yield from unlabelled.losses(network, step, labeler, meter)

    descent = OptimizerStep(network, optimizer, training.proximal_weight, context.gradient_scaler())
    train_steps(context, training.steps, losses_of, descent, meter)
    metrics = {name: meter.total(name) / training.steps for name in ("loss", "loss_labelled", "loss_unlabelled")}
    if meter.total("seen"):
        metrics["accepted"] = meter.total("accepted") / meter.total("seen")
    if meter.total("checked"):
        metrics["pseudo_label_accuracy"] = meter.total("correct") / meter.total("checked")
    samples = len(labelled.rows) + len(unlabelled.rows) if labelled else len(without_labels)
    return {**metrics, "samples": float(samples)}
