"""A backbone as a chain of blocks, from the image to the head, by the names of its entries."""

from __future__ import annotations

import copy
from collections.abc import Sequence

from torch import nn

from grandrounds.models.norm_layers import replace_module


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


def shell(model: nn.Module, names: Sequence[str]) -> nn.Module:
    """A copy of the modules that contain those of these names, whose tables of children can be changed.

    All other modules are the model's own.
    """
    parents = {name.rpartition(".")[0] for name in names} - {""}
    copied = copy.copy(model)
    copied._modules = dict(model._modules)
    for parent in sorted(parents):
        container = copy.copy(model.get_submodule(parent))
        container._modules = dict(container._modules)
        replace_module(copied, parent, container)
    return copied


def without(model: nn.Module, names: Sequence[str]) -> nn.Module:
    """What a model does beside the modules of these names, which pass on what they get."""
    rest = shell(model, names)
    for name in names:
        replace_module(rest, name, nn.Identity())
    return rest
