"""The parts of a network: its stem, its encoder from images to embeddings, and its head from embeddings to logits.

Every backbone of the registry has its head as its last child.
"""

from __future__ import annotations

import copy
from typing import NamedTuple

from torch import Tensor, nn

from grandrounds.models.compute import compile_likewise
from grandrounds.models.norm_layers import replace_module


def find_stem(model: nn.Module) -> tuple[str, nn.Conv2d]:
    """The name of the first convolution, and the convolution.

    Raises:
        ValueError: if the model has none.
    """
    for name, module in model.named_modules():
        if isinstance(module, nn.Conv2d):
            return name, module
    raise ValueError(f"{type(model).__name__} has no convolution")


def head_name(model: nn.Module) -> str:
    """The name of the head, which maps pooled features ``(batch, features)`` to logits: the model's last child."""
    *_, (name, _) = model.named_children()
    return str(name)


def head_of(model: nn.Module) -> nn.Module:
    """The head, with the dropout before it."""
    return model.get_submodule(head_name(model))


class SplitNetwork(NamedTuple):
    """The parts of one network; parameters, buffers and modules are the network's own.

    Attributes:
        encoder: images ``(batch, channels, height, width)`` to embeddings ``(batch, features)``.
        head: embeddings to logits ``(batch, classes)``, with the dropout before it.
    """

    encoder: nn.Module
    head: nn.Module


def split_network(network: nn.Module) -> SplitNetwork:
    """Split a network into encoder and head, which share its parameters.

    ``head(encoder(images))`` is ``network(images)``, with one graph. Training and evaluation modes are set on the parts;
    ``network.train()`` sets those of all modules within, too.

    Example:
        >>> import torch
        >>> network = nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.Linear(3, 2))
        >>> encoder, head = split_network(network)
        >>> images = torch.ones(5, 1, 2, 2)
        >>> encoder(images).shape, torch.equal(head(encoder(images)), network(images))
        (torch.Size([5, 3]), True)
    """
    name = head_name(network)
    # A copy of the outermost module alone: its table of children is its own, the children are shared.
    encoder = copy.copy(network)
    encoder._modules = {**network._modules, name: nn.Identity()}
    compile_likewise(encoder, network)
    return SplitNetwork(encoder, network.get_submodule(name))


def split_last_layer(network: nn.Module) -> tuple[nn.Module, Tensor]:
    """A copy of a network that ends before its last linear layer, and this layer's weights, shape ``(classes, features)``.

    Raises:
        ValueError: if its head has no linear layer.

    Example:
        >>> import torch
        >>> network = nn.Sequential(nn.Flatten(), nn.Sequential(nn.Dropout(), nn.Linear(4, 2))).eval()
        >>> before, weights = split_last_layer(network)
        >>> before(torch.ones(1, 1, 2, 2)).shape, weights.shape
        (torch.Size([1, 4]), torch.Size([2, 4]))
    """
    copied = copy.deepcopy(network)
    linear = [name for name, module in copied.named_modules() if isinstance(module, nn.Linear)]
    inside = [name for name in linear if name.split(".")[0] == head_name(copied)]
    if not inside:
        raise ValueError(f"{type(network).__name__} has no linear layer in its head")
    weights = copied.get_submodule(inside[-1]).weight
    replace_module(copied, inside[-1], nn.Identity())
    assert isinstance(weights, Tensor)
    return copied, weights.detach()


def embedding_width(head: nn.Module) -> int:
    """The number of features of an embedding, from the first linear layer of the head.

    Raises:
        ValueError: if the head has none.

    Example:
        >>> embedding_width(nn.Sequential(nn.Dropout(), nn.Linear(256, 2)))
        256
    """
    for module in head.modules():
        if isinstance(module, nn.Linear):
            return module.in_features
    raise ValueError(f"{type(head).__name__} has no linear layer, so the width of its embeddings is not known")
