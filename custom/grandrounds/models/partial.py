"""Partial training: the first layers of a network are frozen, the rest is trained.

The frozen layers become one module, :class:`Front`, which torch sees as a layer without parameters, buffers or children. So
they are out of ``parameters()`` and ``state_dict()``: out of optimizers, messages, clipping, noise, similarity and
checkpoints. They stay in evaluation mode, with their batch norms folded into the convolutions.

A network with a front takes images, or what its front makes of them: features that were computed once and kept can be
trained on without the front.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn

from grandrounds.errors import ConfigurationError
from grandrounds.models.depths import DepthNetwork
from grandrounds.models.inference.forward import Forward
from grandrounds.models.intensities import set_intensities
from grandrounds.models.norm import folded_copy
from grandrounds.models.norm_layers import frozen_statistics, replace_module
from grandrounds.models.split import block_name, chain_names, find_stem, shell, split_network
from grandrounds.protocol.problem import FROM, TRAIN_ALL, FixedIntensities

_shared: WeakValueDictionary[tuple[str, str], nn.Module] = WeakValueDictionary()


class Front(nn.Module):
    """Frozen layers in evaluation mode, without gradients; copies of a network share them.

    Args:
        layers: images ``(batch, channels, height, width)`` in [0, 1] to features ``(batch, features, rows, columns)``.
        channels: of the images.
        digest: SHA-256 of the layers' entries.
    """

    def __init__(self, layers: nn.Module, channels: int, digest: str) -> None:
        super().__init__()
        # No module itself, so that torch does not register the layers as children.
        self._forward = Forward(layers)
        self.channels = channels
        self.digest = digest

    def forward(self, inputs: Tensor) -> Tensor:
        """Map images to features; features, which have another number of channels, stay as they are."""
        if inputs.shape[1] != self.channels:
            return inputs
        return self._forward(inputs)

    @property
    def device(self) -> torch.device:
        """Where the layers are."""
        tensors = itertools.chain(self._forward.network.parameters(), self._forward.network.buffers())
        return next((tensor.device for tensor in tensors), torch.device("cpu"))

    def in_form(self, form: str) -> Forward:
        """The layers alone, in another form."""
        return Forward(self._forward.network, form)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Front:
        self._forward.network._apply(fn)  # type: ignore[no-untyped-call]
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Front:
        return Front(self._forward.network, self.channels, self.digest)


class PooledEncoder(nn.Module):
    """A whole encoder as a front: its embeddings as maps of one position, ``(batch, features, 1, 1)``.

    The layers between encoder and head (mean over positions, ReLU of what one has made) change nothing more in these.
    """

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, images: Tensor) -> Tensor:
        """Map images to embeddings."""
        embeddings: Tensor = self.encoder(images)
        return embeddings[:, :, None, None]


def frozen_names(model: nn.Module, trainable: str, chain: Sequence[str]) -> list[str]:
    """The full names of the modules of a chain that are not to be trained.

    Args:
        model: all of whose layers are there.
        trainable: ``all``, ``head``, or ``from:<block>`` for a block and all after it.
        chain: names of the modules that images pass in this order, up to the pooling; ``name.*`` for a sequence's children.

    Raises:
        ConfigurationError: if there is no such block; all blocks are named.
    """
    if trainable == TRAIN_ALL:
        return []
    names = chain_names(model, chain)
    if not trainable.startswith(FROM):
        return names
    wanted = trainable.removeprefix(FROM)
    blocks = [block_name(name) for name in names]
    # Before the first module with parameters nothing can be frozen.
    first = next(position for position, name in enumerate(names) if list(model.get_submodule(name).parameters()))
    possible = blocks[first + 1 :]
    if wanted not in possible:
        known = f"there are {', '.join(possible)}, and head" if possible else "train all, or the head"
        raise ConfigurationError(
            f"problem.trainable: {type(model).__name__} has no block {wanted!r} to train from; {known}"
        )
    return names[: blocks.index(wanted)]


def freeze_front(
    model: nn.Module, trainable: str, frozen: Sequence[str], channels: int, intensities: FixedIntensities
) -> None:
    """Freeze, in place, all layers of a model that are not to be trained.

    Args:
        model: with its weights.
        trainable: ``head``, or ``from:<block>`` for a block and all after it.
        frozen: of :func:`frozen_names`.
        channels: of the images.
        intensities: how images are normalised before the first layer.
    """
    if isinstance(model, DepthNetwork):
        layers = model.freeze(frozen)
    elif trainable.startswith(FROM):
        layers = nn.Sequential(*(model.get_submodule(name) for name in frozen))
    else:
        # A copy of the outermost modules, whose tables of children change below.
        layers = PooledEncoder(split_network(shell(model, frozen)).encoder)
    digest = _digest(layers.state_dict())
    key = (digest, f"{trainable}/{intensities}/{channels}")
    shared = _shared.get(key)
    if shared is None:
        shared = folded_copy(layers)
        set_intensities(shared, intensities)
        shared.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        _shared[key] = shared
    replace_module(model, frozen[0], Front(shared, channels, digest))
    for name in frozen[1:]:
        replace_module(model, name, nn.Identity())


def front_of(model: nn.Module) -> Front | None:
    """The front of a model; None if all its layers are trained."""
    return next((module for module in model.modules() if isinstance(module, Front)), None)


def input_channels(model: nn.Module) -> int:
    """The number of channels that a model takes.

    Raises:
        ValueError: if the model has no convolution.
    """
    front = front_of(model)
    return front.channels if front else find_stem(model)[1].in_channels


def frozen_digest(model: nn.Module, statistics: bool = True) -> str | None:
    """SHA-256 of what is never trained, which every site must have: the front, frozen statistics. None if there is none.

    Without ``statistics`` it is that of the front alone.
    """
    front, norms = front_of(model), frozen_statistics(model) if statistics else {}
    if front is None and not norms:
        return None
    return hashlib.sha256(f"{front.digest if front else ''} {_digest(norms)}".encode()).hexdigest()


def _digest(state: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(state):
        tensor = state[name].detach().cpu()
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
        # Flat first: a 1x1 kernel in channels-last memory counts as contiguous but has no bytes side by side to view.
        digest.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
