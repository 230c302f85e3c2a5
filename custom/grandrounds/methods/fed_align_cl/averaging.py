"""What of a network is averaged over hospitals, and what stays at each.

Fed-Align-CL averages everything, the running statistics of batch norm included, with equal weights. Hospitals whose
scanners differ may do better with normalisation of their own (FedBN: Li et al., ICLR 2021) or statistics of their own
(SiloBN: Andreux et al., DART 2020).
"""

from __future__ import annotations

from typing import Literal, get_args

from torch import nn

from grandrounds.models.norm import norm_entries

Averaged = Literal["all", "local_norm", "local_statistics"]
STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


def averaged_entries(network: nn.Module, averaged: Averaged = "all") -> frozenset[str]:
    """The ``state_dict`` names that a hospital sends and takes over.

    Args:
        network: whose.
        averaged: ``all``; ``local_norm`` all but normalisation layers (FedBN); ``local_statistics`` all but their running
            statistics (SiloBN).

    Raises:
        ValueError: if ``averaged`` is unknown.

    Example:
        >>> network = nn.Sequential(nn.Linear(1, 2, bias=False), nn.BatchNorm1d(2))
        >>> sorted(averaged_entries(network, "local_norm")), sorted(averaged_entries(network, "local_statistics"))
        (['0.weight'], ['0.weight', '1.bias', '1.weight'])
    """
    if averaged not in get_args(Averaged):
        raise ValueError(f"averaged must be one of {', '.join(get_args(Averaged))}, got {averaged!r}")
    names = frozenset(network.state_dict())
    local: frozenset[str] = frozenset()
    if averaged != "all":
        local = norm_entries(network)
    if averaged == "local_statistics":
        local = frozenset(name for name in local if name.rpartition(".")[2] in STATISTICS)
    return names - local
