"""The two halves of a collaborative epoch at a site: alignment with the other sites, and local training.

MDH-FL (arXiv 2308.00155, section 3), in the order of RHFL's code (Fang & Ye, CVPR 2022): the public images first. Local
training is on noisy labels.

MDH-FL ("Federated Learning for Data and Model Heterogeneity in Medical Imaging", arXiv 2308.00155) and RHFL (Fang & Ye,
"Robust Federated Learning with Noisy and Heterogeneous Clients", CVPR 2022) train on the symmetric cross-entropy of Wang
et al. ("Symmetric Cross Entropy for Robust Learning with Noisy Labels", ICCV 2019). RHFL+ (Fang, Ye & Du, IEEE TMC 2024)
trusts its own predictions more from epoch to epoch; its formula is that of the authors' code. FedMD: Li & Wang, "FedMD:
Heterogenous Federated Learning via Model Distillation", 2019.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from grandrounds.data.images.tensors import to_device
from grandrounds.federation.site.context import SiteContext
from grandrounds.federation.site.training import Adam, Meter, OptimizerStep, train_steps
from grandrounds.methods.mutual.options import AlignmentOptions, LocalOptions
from grandrounds.methods.mutual.public import as_input
from grandrounds.methods.mutual.schedule import label_trust, local_batch_count, local_batches
from grandrounds.methods.supervised.loss import adjusted_logits
from grandrounds.models.norm import adapt_statistics, normalises_by_batch
from grandrounds.protocol.tensors import at_least_single
from grandrounds.seeding import derive_seed, numpy_generator

LABEL_FLOOR = 1e-4


def reverse_cross_entropy(logits: Tensor, labels: Tensor, floor: float = LABEL_FLOOR) -> Tensor:
    r"""Cross-entropy with the roles of prediction and label exchanged; bounded, so that a wrong label costs little.

    .. math:: L_{RCE} = -\frac{1}{B} \sum_i \sum_k p_{ik} \ln \max(y_{ik}, f) = \frac{|A|}{B} \sum_i (1 - p_{i y_i})

    with :math:`A = \ln f` in place of the logarithm of zero.

    Args:
        logits: shape ``(batch, classes)``, floating point.
        labels: class indices, shape ``(batch,)``, int64.
        floor: :math:`f`, in (0, 1). 1e-4 is the authors' (A = -9.21); the A = -4 that is quoted is its decimal logarithm,
            and as a natural one it is the floor exp(-4).

    Returns:
        Scalar in [0, ``-ln floor``], in nats; zero, and still differentiable, for an empty batch.

    Example:
        >>> reverse_cross_entropy(torch.tensor([[2.0, 1.0, 0.0]]), torch.tensor([0]))  # 9.2103 * 0.3348
        tensor(3.0832)
    """
    if not len(labels):
        return logits.sum()
    given = logits.softmax(dim=1).gather(1, labels[:, None])
    return -math.log(floor) * (1 - given).mean()


def symmetric_cross_entropy(
    logits: Tensor, labels: Tensor, ce_weight: float = 0.1, rce_weight: float = 1.0, floor: float = LABEL_FLOOR
) -> Tensor:
    r"""Cross-entropy, which learns, and reverse cross-entropy, which is robust (MDH-FL, Eq. 7, as a mean).

    .. math:: L = \lambda L_{CE} + \beta L_{RCE}, \qquad
        \frac{\partial L}{\partial z_k} = (\lambda + \beta |A| p_y)(p_k - y_k) / B

    So it is cross-entropy that weighs a sample by how probable its label already seems.

    Args:
        logits: shape ``(batch, classes)``, floating point.
        labels: class indices, shape ``(batch,)``, int64.
        ce_weight: :math:`\lambda`, at least zero; 1 with ``rce_weight=0`` is cross-entropy.
        rce_weight: :math:`\beta`, at least zero.
        floor: of the labels, in (0, 1).

    Returns:
        Scalar, in nats; zero, and still differentiable, for an empty batch.

    Example:
        >>> logits, labels = torch.tensor([[2.0, 1.0, 0.0]]), torch.tensor([0])
        >>> symmetric_cross_entropy(logits, labels)
        tensor(3.1240)
        >>> symmetric_cross_entropy(logits, labels, ce_weight=1.0, rce_weight=0.0)  # cross-entropy
        tensor(0.4076)
    """
    reverse = reverse_cross_entropy(logits, labels, floor)
    usual = F.cross_entropy(logits, labels, reduction="sum") / max(len(labels), 1)
    return ce_weight * usual + rce_weight * reverse


def refined_cross_entropy(
    logits: Tensor,
    labels: Tensor,
    trust: float,
    temperature: float = 4.0,
    ce_weight: float = 0.4,
    rce_weight: float = 0.9,
    floor: float = LABEL_FLOOR,
) -> Tensor:
    r"""Symmetric cross-entropy with labels that are refined by the model's own predictions (RHFL+, collaborative epochs).

    .. math::
        p = \mathrm{softmax}(z / T), \quad s = (1 - w) \max(y, f) + w \, p, \quad
        L = -\frac{1}{B} \sum_{i, k} \big( \alpha \, s_{ik} \ln p_{ik} + \beta \, p_{ik} \ln s_{ik} \big)

    The refined labels :math:`s` have no gradient. As in the code both terms use the floor, so that with ``trust=0`` and
    ``temperature=1`` the first term exceeds cross-entropy by the floor times the negative log-probability of the other
    classes.

    Args:
        logits: shape ``(batch, classes)``, floating point.
        labels: class indices, shape ``(batch,)``, int64.
        trust: :math:`w`, weight of the predictions, in [0, 1]; grows with the epochs, see ``schedule.label_trust``.
        temperature: :math:`T`, above zero.
        ce_weight: :math:`\alpha`, at least zero.
        rce_weight: :math:`\beta`, at least zero.
        floor: :math:`f`, in (0, 1).

    Returns:
        Scalar, in nats; zero, and still differentiable, for an empty batch.

    Example:
        >>> logits, labels = torch.zeros(1, 2), torch.tensor([0])
        >>> refined_cross_entropy(logits, labels, trust=1.0, ce_weight=1.0, rce_weight=0.0)  # ln 2
        tensor(0.6931)
    """
    surprise = (logits / temperature).log_softmax(dim=1)
    own = surprise.exp()
    given = F.one_hot(labels, logits.shape[1]).to(logits).clamp(min=floor)
    refined = torch.lerp(given, own.detach(), trust)
    # A probability that has underflowed must not make the logarithm infinite when it is trusted alone.
    logarithm = refined.clamp(min=torch.finfo(refined.dtype).tiny).log()
    losses = -(ce_weight * refined * surprise + rce_weight * own * logarithm).sum(dim=1)
    return losses.sum() / max(len(labels), 1)


def alignment_loss(logits: Tensor, target: Tensor) -> Tensor:
    r"""Divergence of a model's predictions from the mean of the other sites' (MDH-FL, Eq. 3, up to a constant).

    .. math:: L = \frac{1}{B} \sum_{i, c} m_{ic} \ln \frac{m_{ic}}{p_{ic}}, \qquad
        \frac{\partial L}{\partial z} = (p - m) / B

    The target has no gradient; there is no temperature. MDH-FL and RHFL take the mean over the others of
    KL(theirs || own), which differs from KL(mean of theirs || own) by a term without the model's parameters. So the
    gradient is the same, and the mean is all that a site has to know.

    Args:
        logits: the model's, shape ``(batch, classes)``.
        target: :math:`m`, probabilities of that shape; zeros are allowed.

    Returns:
        Scalar, in nats, at least zero; zero, and still differentiable, for an empty batch.

    Example:
        >>> own = torch.tensor([[0.5, 0.5]]).log()
        >>> alignment_loss(own, torch.tensor([[1.0, 0.0]]))  # ln 2
        tensor(0.6931)
        >>> alignment_loss(own, own.softmax(dim=1))  # they agree
        tensor(0.)
    """
    wanted = target.detach()
    divergences = torch.xlogy(wanted, wanted) - wanted * logits.log_softmax(dim=1)
    return divergences.sum() / max(len(logits), 1)


def digest_loss(logits: Tensor, target: Tensor) -> Tensor:
    r"""Mean absolute difference of a model's logits from the mean of all sites' logits (FedMD, "digest").

    .. math:: L = \frac{1}{B C} \sum_{i, c} | z_{ic} - \bar z_{ic} |

    Args:
        logits: the model's, shape ``(batch, classes)``.
        target: :math:`\bar z`, mean of the logits of all sites, this one included; no gradient.

    Returns:
        Scalar, at least zero; zero, and still differentiable, for an empty batch.

    Example:
        >>> digest_loss(torch.tensor([[2.0, 0.0]]), torch.tensor([[1.0, 0.5]]))
        tensor(0.7500)
    """
    return (logits - target.detach()).abs().sum() / max(logits.numel(), 1)


Indices = NDArray[np.int64]


@torch.no_grad()
def fresh_adam_step(parameters: Iterable[Tensor], learning_rate: float = 1e-3, epsilon: float = 1e-8) -> None:
    r"""The first step of Adam, in place and without its state, which RHFL's alignment repeats.

    .. math:: \theta \leftarrow \theta - \eta \frac{g}{|g| + \epsilon}

    RHFL's code makes a new Adam (Kingma & Ba, ICLR 2015) for every public batch. Its first step is descent by the sign of
    the gradient, whatever its scale, so the weights of the clients matter by their proportions only.

    Args:
        parameters: with their gradients; those without (frozen, or no part of the loss) do not change.
        learning_rate: :math:`\eta`, at least zero.
        epsilon: :math:`\epsilon`, above zero; where the gradient is zero nothing changes.
    """
    for parameter in parameters:
        if parameter.grad is not None:
            parameter.addcdiv_(parameter.grad, parameter.grad.abs() + epsilon, value=-learning_rate)


class AlignmentStep:
    """Takes the steps of the alignment: with one Adam, or with a new one for each batch.

    Attributes:
        scale: factor of the loss, see :meth:`~grandrounds.methods.mutual.soft_labels.SoftLabels.loss_scale`.
    """

    def __init__(self, network: nn.Module, options: AlignmentOptions) -> None:
        self.scale = 1.0
        self._network = network
        self._rate = options.alignment_rate
        fresh = options.alignment_optimizer == "fresh_per_batch"
        self._optimizer = None if fresh else Adam(list(network.parameters()), lr=self._rate, fused=True)

    def step(self, losses: Iterable[Tensor]) -> None:
        """Go one step down the sum of the losses."""
        self._network.zero_grad(set_to_none=True)
        for loss in losses:
            torch.autograd.backward(loss * self.scale)
        if self._optimizer is None:
            fresh_adam_step(self._network.parameters(), self._rate)
        else:
            self._optimizer.step()

    def state_dict(self) -> dict[str, Any] | None:
        """The state of the one Adam; None if each batch has a new one."""
        return None if self._optimizer is None else self._optimizer.state_dict()

    def load_state_dict(self, state: dict[str, Any] | None) -> None:
        """Continue from a state of :meth:`state_dict`."""
        if self._optimizer is not None and state is not None:
            self._optimizer.load_state_dict(state)


def align(
    network: nn.Module,
    step: AlignmentStep,
    images: NDArray[np.uint8],
    target: Tensor,
    batches: Sequence[Indices],
    options: AlignmentOptions,
    key: int,
    context: SiteContext,
) -> float:
    """Move a model towards soft labels on public images, one step for each batch.

    Args:
        network: trained in place, in training mode; its batch norm includes the public images.
        step: of its parameters; one for all exchanges of an epoch.
        images: all public images.
        target: probabilities (FedMD: logits) of the public images in their canonical order, shape ``(images, classes)``.
        batches: public images, by row.
        options: how to learn.
        key: of the views, the same at all sites.
        context: of the task.

    Returns:
        The mean loss over the batches, in nats for ``divergence``; nan without batches.

    Raises:
        GrandRoundsError: if the loss is not finite.
    """
    network.train()
    measure = digest_loss if options.alignment == "digest" else alignment_loss
    wanted = target.to(context.device, next(network.parameters()).dtype)
    context.draw_ahead(batches, options.alignment_view, key, images)

    def loss_of(number: int) -> Tensor:
        views = context.views(batches[number], options.alignment_view, key, number, public=images)
        with context.autocast():
            logits = network(as_input(network, views))
        return measure(at_least_single(logits), wanted[to_device(batches[number], context.device)])

    meter = Meter()
    train_steps(context, len(batches), loss_of, step, meter, "executor.alignment_rate", "alignment")
    return meter.total("loss") / len(batches) if batches else float("nan")


def train_locally(
    network: nn.Module, options: LocalOptions, passes: float, epoch: int, epochs: int, context: SiteContext
) -> float:
    """Train a model on the site's own labels, with a new Adam.

    Args:
        network: trained in place, in training mode.
        options: how to learn.
        passes: over the images, above zero.
        epoch: collaborative epoch, which chooses batches and views; 0 comes before the first exchange.
        epochs: collaborative epochs in all.
        context: of the task.

    Returns:
        The mean loss over the batches, in nats.

    Raises:
        GrandRoundsError: if the loss is not finite.
    """
    network.train()
    rows = context.data.rows("labelled")
    generator = numpy_generator(context.seed, "site", context.site, epoch, "private batches")
    count = local_batch_count(len(rows), options.batch_size, passes)
    batches = list(local_batches(rows, options.batch_size, passes, generator))
    key = derive_seed(context.seed, "site", context.site, epoch, "private views")
    trust = label_trust(epoch - 1, epochs) if epoch else None
    context.draw_ahead(batches, options.local_view, key)

    def loss_of(step: int) -> Tensor:
        return _loss(network, batches[step], options, key, step, context, trust, options.local_view)

    meter = Meter()
    optimizer = Adam(network.parameters(), lr=options.learning_rate, fused=True)
    train_steps(context, count, loss_of, OptimizerStep(network, optimizer), meter)
    if options.recalibrate_bn:
        recalibrate_batch_norm(network, rows, context)
    return meter.total("loss") / count


def mean_local_loss(network: nn.Module, options: LocalOptions, context: SiteContext, batch_size: int = 256) -> float:
    """Mean loss over a site's training images in evaluation mode, without views, for client confidence.

    The loss is that of pre-training, see :func:`local_loss`.

    Returns:
        In nats.
    """
    rows, model = context.data.rows("labelled"), context.forward(network)
    parts = [rows[start : start + batch_size] for start in range(0, len(rows), batch_size)]
    losses = [_loss(network, part, options, 0, 0, context, None, "none", model) * len(part) for part in parts]
    return float(torch.stack(losses).sum()) / len(rows)


def local_loss(logits: Tensor, labels: Tensor, options: LocalOptions, trust: float | None = None) -> Tensor:
    """The loss that the options choose, a scalar in nats; see ``loss``.

    Args:
        logits: shape ``(batch, classes)``.
        labels: class indices, shape ``(batch,)``.
        options: which loss.
        trust: in the model's own predictions, for refined labels. None is for pre-training and client confidence, where
            RHFL+'s code takes the symmetric cross-entropy of the same weights, at temperature 1, with the labels as given.
    """
    if options.loss == "cross_entropy":
        return symmetric_cross_entropy(logits, labels, 1.0, 0.0)
    if options.loss == "symmetric":
        weights = _or(options.ce_weight, 0.1), _or(options.rce_weight, 1.0)
        return symmetric_cross_entropy(logits, labels, *weights)
    weights = _or(options.ce_weight, 0.4), _or(options.rce_weight, 0.9)
    if trust is None:
        return symmetric_cross_entropy(logits, labels, *weights)
    return refined_cross_entropy(logits, labels, trust, options.temperature, *weights)


def _loss(
    network: nn.Module,
    batch: Indices,
    options: LocalOptions,
    key: int,
    step: int,
    context: SiteContext,
    trust: float | None,
    view: str,
    compute: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    views = context.views(batch, view, key, step)
    with context.autocast():
        logits = (compute or network)(as_input(network, views))
    logits = at_least_single(logits)
    if options.logit_adjustment:
        counts = to_device(context.data.class_counts("labelled"), context.device)
        logits = adjusted_logits(logits, counts, options.logit_adjustment)
    labels = context.labels(batch)
    return local_loss(logits, labels, options, trust)


def _or(value: float | None, default: float) -> float:
    return default if value is None else value


def recalibrate_batch_norm(
    network: nn.Module,
    rows: Indices,
    context: SiteContext,
    public: NDArray[np.uint8] | None = None,
    batch_size: int = 64,
) -> None:
    """Replace the running statistics of all batch norms by means over batches of (nearly) the same size.

    The moving average of training (a tenth of each batch) describes the weights of the last few dozen steps. Where those
    still change fast, a network that normalises by it predicts far worse than one that normalises by its batch. The remedy
    is "precise" batch norm: Wu & Johnson, "Rethinking 'Batch' in BatchNorm", 2021, section 3.

    Args:
        network: its running statistics change in place, and nothing else; without batch norm nothing does.
        rows: images, at least two.
        context: of the task.
        public: images of a public data set, uint8, shape ``(images, height, width, channels)``; None for the site's own.
        batch_size: approximate number of images in a batch, at least two. Mean and variance are averaged over the batches.
    """
    if not normalises_by_batch(network):
        return
    training = [(module, module.training) for module in network.modules()]

    def batches() -> Iterator[Tensor]:
        """What the network takes."""
        for part in _parts(rows, batch_size):
            context.check_abort()
            yield as_input(network, context.views(part, "none", public=public))

    try:
        with context.autocast():
            adapt_statistics(network, batches())
    finally:
        for module, mode in training:
            module.training = mode


def _parts(rows: Indices, batch_size: int) -> Iterable[Indices]:
    """Batches in a fixed random order that differ in size by one at most, so that a mean over them is one over the images.

    In files that are sorted by class, neighbouring images are of one class, and the mean variance of such batches is far
    below that of all images.
    """
    mixed = numpy_generator("settled statistics").permutation(rows)
    count = max(1, round(len(rows) / batch_size))
    return (mixed[start::count] for start in range(count))
