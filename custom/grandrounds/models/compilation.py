"""Compiled networks."""

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
    """Let torch compile a network as a whole, when it is first called.

    Parameters, their names and their values stay as they are, and what is drawn (dropout) is drawn alike. The encoder of
    :func:`~grandrounds.models.split.split_network` is compiled for itself; copies are not. Each process compiles at its
    first batch, at the first of another size (then for all sizes), for a single image, for evaluation and without gradients.

    Args:
        network: it is changed.
        compiler: a backend of ``torch.compile``.

    Raises:
        ConfigurationError: if the backend is inductor and there is no C++ compiler.
    """
    options: dict[str, Any] = {}
    if compiler == "inductor":
        if not any(shutil.which(name) for name in (os.environ.get("CXX", ""), *CPP_COMPILERS)):
            raise ConfigurationError(
                f"compiler=inductor needs a C++ compiler on the path of this machine ({', '.join(CPP_COMPILERS)}, or one "
                "that $CXX names); install one, or use compiler=none"
            )
        options = {"options": {"fallback_random": True}}
    network.compile(backend=compiler, **options)
    _compiled[network] = compiler


def compile_likewise(part: nn.Module, network: nn.Module) -> None:
    """Let torch compile a part if the network that it is of is compiled."""
    if network in _compiled:
        compile_network(part, _compiled[network])
