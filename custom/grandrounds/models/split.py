"""A network as two parts: the encoder, which makes embeddings, and the head, which makes logits of them.

What compares or aligns hospitals works on embeddings; classification needs both parts. Every backbone of the registry has
its head as its last child, so all of them are split alike.
"""

from __future__ import annotations

import copy
from typing import NamedTuple

import torch
from torch import Tensor, nn

from grandrounds.models.compute import compile_likewise
from grandrounds.models.weights import head_name


class SplitNetwork(NamedTuple):
    """The parts of one network; parameters, buffers and modules are the network's own.

    Attributes:
        encoder: images ``(batch, channels, height, width)`` to embeddings ``(batch, features)``.
        head: embeddings to logits ``(batch, classes)``, with the dropout before it.
    """

    encoder: nn.Module
    head: nn.Module


def split_network(network: nn.Module) -> SplitNetwork:
    """Split a network in two without copying anything of it.

    ``head(encoder(images))`` is ``network(images)``, with one graph. Training steps of the parts are steps of the network,
    and weights loaded into the network are the parts' weights. Modes are set on the parts; ``network.train()`` sets those
    of all modules within, too.

    Args:
        network: as :func:`~grandrounds.models.registry.build_model` makes it: its last child is its head.

    Example:
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


@torch.no_grad()
def embeddings_and_penultimate(network: nn.Module, images: Tensor) -> tuple[Tensor, Tensor]:
    """What the last two layers of a network see, for plots and probes.

    Args:
        network: with a head as its last child; in evaluation mode for a result that does not depend on the batch.
        images: shape ``(batch, channels, height, width)``.

    Returns:
        The encoder's embeddings, shape ``(batch, features)``, and the input of the head's last linear layer; the two are
        the same where the head is one linear layer.
    """
    encoder, head = split_network(network)
    embeddings: Tensor = encoder(images)
    if not isinstance(head, nn.Sequential):
        return embeddings, embeddings
    linear = [index for index, module in enumerate(head) if isinstance(module, nn.Linear)]
    penultimate: Tensor = head[: linear[-1]](embeddings)
    return embeddings, penultimate
