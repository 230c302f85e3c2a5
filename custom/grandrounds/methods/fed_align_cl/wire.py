"""Names of what travels, and the discriminators of several sites as one dictionary of tensors."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

BANK, EMBEDDINGS, DISCRIMINATOR = "bank", "embeddings", "discriminator"
BATCH_SIZE, BATCH_SIZES = "batch_size", "batch_sizes"
SEPARATOR = "/"


def pack(states: Mapping[str, Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Join the states of several sites.

    Args:
        states: by site.

    Example:
        >>> import torch
        >>> list(pack({"site-1": {"layers.0.weight": torch.zeros(1)}}))
        ['site-1/layers.0.weight']
    """
    return {f"{site}{SEPARATOR}{name}": value for site, state in states.items() for name, value in state.items()}


def unpack(joined: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """Undo :func:`pack`.

    Example:
        >>> import torch
        >>> unpack({"site-1/layers.0.weight": torch.zeros(1)})
        {'site-1': {'layers.0.weight': tensor([0.])}}
    """
    states: dict[str, dict[str, Tensor]] = {}
    for key, value in joined.items():
        site, _, name = key.rpartition(SEPARATOR)
        states.setdefault(site, {})[name] = value
    return states
