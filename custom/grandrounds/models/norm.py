"""Normalisation layers: their entries, passes without running statistics, folding, and group norm in place of batch norm.

Batch statistics of hospitals with different scanners and case mixes average badly (Hsieh et al., "The Non-IID Data
Quagmire of Decentralized Machine Learning", ICML 2020). A federation can keep them local, for which it must know their
names, or use group norm (Wu & He, "Group Normalization", ECCV 2018), which has no statistics.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from grandrounds.models.norm_layers import FrozenBatchNorm

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
NORM_LAYERS = (
    *BATCH_NORMS,
    nn.SyncBatchNorm,
    nn.InstanceNorm1d,
    nn.InstanceNorm2d,
    nn.InstanceNorm3d,
    nn.GroupNorm,
    nn.LayerNorm,
)


@contextmanager
def statistics_untouched(network: nn.Module) -> Iterator[None]:
    """Let the batch norms of a network in training mode normalise by the batch without updating running statistics.

    A second pass over the same batch, for another loss or to recompute activations, must not count as another batch.

    Example:
        >>> import torch
        >>> norm = nn.BatchNorm1d(1)
        >>> with statistics_untouched(norm):
        ...     _ = norm(torch.tensor([[0.0], [2.0]]))
        >>> norm.running_mean, norm.num_batches_tracked
        (tensor([0.]), tensor(0))
    """
    norms = [module for module in network.modules() if isinstance(module, BATCH_NORMS) and module.track_running_stats]
    momenta = [norm.momentum for norm in norms]
    counters = [norm.num_batches_tracked for norm in norms if norm.num_batches_tracked is not None]
    counted = [counter.clone() for counter in counters]
    for norm in norms:
        # Not track_running_stats = False: then fewer tensors are saved for the backward pass, which torch's checkpointing
        # takes for an error when one of two passes is in such a block.
        norm.momentum = 0.0
    try:
        yield
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
        for counter, count in zip(counters, counted, strict=True):
            counter.copy_(count)


@contextmanager
def fixed_statistics(network: nn.Module) -> Iterator[None]:
    """Let the batch norms of a network in training mode normalise by running statistics, as in evaluation mode.

    The running statistics do not change; dropout and all else stay in training mode.

    Example:
        >>> import torch
        >>> norm = nn.BatchNorm1d(1, eps=0.0)
        >>> with fixed_statistics(norm):
        ...     norm(torch.tensor([[0.0], [2.0]])).tolist()
        [[0.0], [2.0]]
        >>> norm.training, norm.running_mean
        (True, tensor([0.]))
    """
    norms = [part for part in network.modules() if isinstance(part, BATCH_NORMS) and part.track_running_stats]
    before = [norm.training for norm in norms]
    for norm in norms:
        norm.eval()
    try:
        yield
    finally:
        for norm, training in zip(norms, before, strict=True):
            norm.train(training)


def adapt_statistics(network: nn.Module, batches: Iterable[Tensor]) -> None:
    """Replace the running statistics of batch norms by those of other images, without labels.

    Adaptive batch normalisation (Li et al., "Adaptive Batch Normalization for Practical Domain Adaptation", Pattern
    Recognition 2018): a network that was trained on several devices takes the statistics of the one it is used with.

    Args:
        network: changed in place and left in evaluation mode; its weights stay.
        batches: what it takes; statistics are means over the batches, each counting once.

    Example:
        >>> import torch
        >>> norm = nn.BatchNorm1d(1)
        >>> adapt_statistics(norm, [torch.tensor([[0.0], [2.0]]), torch.tensor([[4.0], [8.0]])])  # means 1 and 6
        >>> norm.running_mean, norm.running_var  # variances 2 and 8, of two images each
        (tensor([3.5000]), tensor([5.]))
    """
    network.eval()
    norms = [module for module in network.modules() if isinstance(module, BATCH_NORMS) and module.track_running_stats]
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # torch's word for a cumulative mean
        norm.train()
    try:
        with torch.no_grad():
            for batch in batches:
                network(batch)
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
        network.eval()


def normalises_by_batch(network: nn.Module) -> bool:
    """Whether a network has batch norms, which cannot train on a single sample.

    Example:
        >>> normalises_by_batch(nn.BatchNorm1d(1)), normalises_by_batch(nn.GroupNorm(1, 1))
        (True, False)
    """
    return any(isinstance(module, BATCH_NORMS) for module in network.modules())


def folded_copy(model: nn.Module) -> nn.Module:
    r"""Copy a model for prediction only: evaluation mode, no gradients, batch norms folded into their convolutions.

    .. math:: W' = s W, \qquad b' = \beta + s (b - \mu), \qquad s = \gamma / \sqrt{\sigma^2 + \epsilon}

    Jacob et al., "Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only Inference", CVPR 2018,
    section 3.2. Only a batch norm that directly follows a convolution in an ``nn.Sequential`` is folded; elsewhere the order
    of the modules need not be the order of their use.

    The copy has the same outputs up to rounding and other ``state_dict`` names, and must stay in evaluation mode. No module
    may be used twice.
    """
    frozen = copy.deepcopy(model).eval().requires_grad_(False)
    for module in list(frozen.modules()):
        # A subclass with a forward of its own may use its children in another order.
        if isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward:
            _fold(module)
    return frozen


def _fold(sequence: nn.Sequential) -> None:
    for index, (first, second) in enumerate(pairwise(list(sequence))):
        if isinstance(first, nn.Conv2d) and isinstance(second, nn.BatchNorm2d) and second.track_running_stats:
            sequence[index] = fuse_conv_bn_eval(first, second)
            sequence[index + 1] = nn.Identity().eval()


def norm_entries(model: nn.Module) -> frozenset[str]:
    """The ``state_dict`` names that belong to normalisation layers: scales, shifts, running statistics and counters.

    Example:
        >>> sorted(norm_entries(nn.Sequential(nn.Conv2d(3, 4, 1), nn.GroupNorm(2, 4))))
        ['1.bias', '1.weight']
    """
    return frozenset(
        f"{name}.{entry}" if name else entry
        for name, module in model.named_modules()
        if isinstance(module, (*NORM_LAYERS, FrozenBatchNorm))
        for entry in module.state_dict()
    )
