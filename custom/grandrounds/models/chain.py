"""A backbone as a chain of blocks, from the image to the head, by the names of its entries."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn


def chain_names(model: nn.Module, chain: Sequence[str]) -> list[str]:
    """The full names of the modules in a chain.

    Example:
        >>> network = nn.Sequential()
        >>> network.stem, network.blocks = nn.Flatten(), nn.Sequential(nn.ReLU(), nn.ReLU())
        >>> chain_names(network, ["stem", "blocks.*"])
        ['stem', 'blocks.0', 'blocks.1']
    """
    names: list[str] = []
    for name in chain:
        parent, _, child = name.rpartition(".")
        if child == "*":
            names += [f"{parent}.{inner}" for inner, _ in model.get_submodule(parent).named_children()]
        else:
            names.append(name)
    return names


def block_name(name: str) -> str:
    """What a user calls a module of a chain: the last part of its name."""
    return name.rpartition(".")[2]
