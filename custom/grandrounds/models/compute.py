"""Networks compiled by torch."""

from __future__ import annotations

import os
import shutil
from typing import Any
from weakref import WeakKeyDictionary

from torch import nn

from grandrounds.errors import ConfigurationError

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
