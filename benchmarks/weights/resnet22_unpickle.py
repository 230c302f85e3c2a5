"""A program that extracts the tensors of an old pickle, and nothing else.

A pickle may call any function of any module. Here only a short list of names is resolved; any other name becomes an inert
object that accepts every argument and does nothing. ``resnet22.py`` beside it runs this program in
another process with an empty environment and limited resources. It imports nothing of this package.

    python -I resnet22_unpickle.py SOURCE ENTRY TARGET
"""

from __future__ import annotations

import pickle
import resource
import sys
import types
from collections.abc import Mapping
from typing import Any

MEMORY_BYTES = 16 << 30
FILE_BYTES = 1 << 30
SECONDS = 300
SAFE_GLOBALS = frozenset(
    {
        ("collections", "OrderedDict"),
        ("torch._utils", "_rebuild_tensor"),
        ("torch._utils", "_rebuild_tensor_v2"),
        ("torch._utils", "_rebuild_parameter"),
        *(("torch", f"{kind}Storage") for kind in ("Float", "Double", "Half", "Long", "Int", "Byte", "Bool")),
    }
)


class Inert:
    """Replaces every object that is not a tensor: accepts any arguments and does nothing."""

    def __new__(cls, *_: Any, **__: Any) -> Inert:
        """Take any arguments."""
        return object.__new__(cls)

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __call__(self, *_: Any, **__: Any) -> Inert:
        """Do nothing."""
        return self

    def __setstate__(self, _: Any) -> None:
        pass

    def __setitem__(self, _: Any, __: Any) -> None:
        pass

    def append(self, _: Any) -> None:
        """Do nothing."""

    def extend(self, _: Any) -> None:
        """Do nothing."""


class TensorsOnly(pickle.Unpickler):
    """Resolves the names that tensors need; every other name is an inert object."""

    def find_class(self, module: str, name: str) -> Any:
        """Resolve a name."""
        return super().find_class(module, name) if (module, name) in SAFE_GLOBALS else Inert


def limit_resources() -> None:
    """Limit memory, file size and time of this process."""
    for limit, value in (
        (resource.RLIMIT_AS, MEMORY_BYTES),
        (resource.RLIMIT_FSIZE, FILE_BYTES),
        (resource.RLIMIT_CPU, SECONDS),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(limit, (value, value))


def unpickler_module() -> types.ModuleType:
    """A replacement of the module ``pickle`` for ``torch.load``."""
    module = types.ModuleType("tensors_only")
    module.Unpickler = TensorsOnly  # type: ignore[attr-defined]
    module.load = lambda stream, **options: TensorsOnly(stream, **options).load()  # type: ignore[attr-defined]
    return module


def main(source: str, entry: str, target: str) -> None:
    """Write the tensors of the source's dictionary ``entry`` by name, as a file of tensors alone."""
    limit_resources()
    import torch

    content = torch.load(source, map_location="cpu", weights_only=False, pickle_module=unpickler_module())
    named = content.get(entry) if isinstance(content, Mapping) else None
    if not isinstance(named, Mapping):
        raise SystemExit(f"there is no entry {entry!r} with weights in it")
    tensors = {
        name: value.detach().clone()
        for name, value in named.items()
        if isinstance(name, str) and isinstance(value, torch.Tensor)
    }
    torch.save(tensors, target)


if __name__ == "__main__":
    main(*sys.argv[1:])
