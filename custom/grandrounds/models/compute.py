"""How networks are computed: compiled by torch, and in half precision."""

from __future__ import annotations

import os
import shutil
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from grandrounds.errors import ConfigurationError
from grandrounds.protocol.tensors import at_least_single

CPP_COMPILERS = ("g++", "clang++", "c++", "cl")
_compiled: WeakKeyDictionary[nn.Module, Any] = WeakKeyDictionary()


def compile_network(network: nn.Module, compiler: Any) -> None:
    """Compile a network as a whole by torch, at its first call; ``compiler`` is a backend of ``torch.compile``.

    Parameters, their names and random draws (dropout) do not change. The encoder of
    :func:`~grandrounds.models.split.split_network` is compiled separately; copies are not compiled. Each process compiles at
    its first batch, at the first of another size (then for all sizes), for a single image, for evaluation and without
    gradients.

    Raises:
        ConfigurationError: if the backend is inductor and there is no C++ compiler.
    """
    options: dict[str, Any] = {}
    if compiler == "inductor":
        if not any(shutil.which(name) for name in (os.environ.get("CXX", ""), *CPP_COMPILERS)):
            raise ConfigurationError(
                f"compiler=inductor needs a C++ compiler on the path of this machine ({', '.join(CPP_COMPILERS)}, or $CXX); "
                "install one, or use compiler=none"
            )
        options = {"options": {"fallback_random": True}}
    network.compile(backend=compiler, **options)
    _compiled[network] = compiler


def compile_likewise(part: nn.Module, network: nn.Module) -> None:
    """Compile a part of a network if the network is compiled."""
    if network in _compiled:
        compile_network(part, _compiled[network])


def probabilities_of(logits: Tensor, multi: bool) -> Tensor:
    """Probabilities in single precision at least: of each finding (``multi``), or of the classes, which sum to one.

    Args:
        logits: classes or findings are the last dimension.
        multi: whether an image may have several findings.

    Example:
        >>> probabilities_of(torch.zeros(1, 2), multi=False), probabilities_of(torch.zeros(1, 3), multi=True)
        (tensor([[0.5000, 0.5000]]), tensor([[0.5000, 0.5000, 0.5000]]))
    """
    wide = at_least_single(logits)
    return torch.sigmoid(wide) if multi else torch.softmax(wide, dim=-1)
