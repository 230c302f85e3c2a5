"""Passes that normalise by the batch and leave the running statistics alone.

A second pass over the same batch, for another loss or to compute activations again, must not count as another batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


@contextmanager
def statistics_untouched(network: nn.Module) -> Iterator[None]:
    """Let the batch norms of a network in training mode normalise by the batch without noting its statistics.

    Args:
        network: any module.

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


def normalises_by_batch(network: nn.Module) -> bool:
    """Whether a network has batch norms, which cannot train on a single sample.

    Example:
        >>> normalises_by_batch(nn.BatchNorm1d(1)), normalises_by_batch(nn.GroupNorm(1, 1))
        (True, False)
    """
    return any(isinstance(module, BATCH_NORMS) for module in network.modules())
