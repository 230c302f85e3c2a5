"""The parts of a network: its stem, its encoder from images to embeddings, and its head from embeddings to logits.

Every backbone of the registry has its head as its last child. A backbone is also a chain of blocks, from
the image to the head, by the names of its entries.
"""

from __future__ import annotations

import copy
import os
import shutil
import stat
from collections.abc import Sequence
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from torch import Tensor, nn

from grandrounds.errors import ConfigurationError
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


CPP_COMPILERS = ("g++", "clang++", "c++", "cl")
_compiled: WeakKeyDictionary[nn.Module, Any] = WeakKeyDictionary()


def compile_network(network: nn.Module, compiler: Any) -> None:
    """Compile a network as a whole by torch, at its first call; ``compiler`` is a backend of ``torch.compile``.

    Parameters, their names and random draws (dropout) do not change. The encoder of
    :func:`~grandrounds.models.split.split_network` is compiled separately; copies are not compiled. Each process compiles at
    its first batch, at the first of another size (then for all sizes), for a single image, for evaluation and without
    gradients.

    Raises:
        ConfigurationError: if the backend is inductor and there is no C++ compiler, or its folder is another user's.
    """
    options: dict[str, Any] = {}
    if compiler == "inductor":
        if not any(shutil.which(name) for name in (os.environ.get("CXX", ""), *CPP_COMPILERS)):
            raise ConfigurationError(
                f"compiler=inductor needs a C++ compiler on the path of this machine ({', '.join(CPP_COMPILERS)}, or $CXX); "
                "install one, or use compiler=none"
            )
        _require_own_cache()
        options = {"options": {"fallback_random": True}}
    network.compile(backend=compiler, **options)
    _compiled[network] = compiler


def _require_own_cache() -> None:
    """Refuse torch's folder of compiled code, below that of temporary files, where another user may have put code."""
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    found = os.stat(folder := os.path.realpath(cache_dir()))
    if found.st_uid != os.geteuid() or found.st_mode & stat.S_IWOTH:
        raise ConfigurationError(
            f"{folder} is another user's, or open to all, and torch would run what is in it; set TORCHINDUCTOR_CACHE_DIR to "
            "a folder of your own, or use compiler=none"
        )


def compile_likewise(part: nn.Module, network: nn.Module) -> None:
    """Compile a part of a network if the network is compiled."""
    if network in _compiled:
        compile_network(part, _compiled[network])
