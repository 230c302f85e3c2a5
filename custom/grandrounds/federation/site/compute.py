"""Memory that training frees in one step and asks for again in the next stays with the process.

The C library gives large blocks back to the system at once, and the system clears every page of them when they are asked
for again: with small networks on a CPU that costs more than a tenth of a training step.

Where and how a site computes.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Literal

import torch

from grandrounds.errors import ConfigurationError
from grandrounds.options import require_words

# Numbers of the GNU C library's malloc.h.
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
KEPT_BYTES = 1 << 30
LARGEST_BLOCK = 1 << 25  # the library takes no more than this on 64-bit machines


def keep_freed_memory() -> bool:
    """Ask the C library not to give freed memory back before there is a gigabyte of it.

    Returns:
        Whether it agreed: only the GNU library knows the question, elsewhere nothing changes.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    return bool(mallopt(TRIM_THRESHOLD, KEPT_BYTES)) and bool(mallopt(MMAP_THRESHOLD, LARGEST_BLOCK))


@dataclass(frozen=True)
class ComputeOptions:
    """How a site computes.

    Attributes:
        device: ``auto`` (a GPU if there is one), ``cpu`` or ``cuda[:index]``.
        cpu_threads: threads of torch on the CPU; None leaves torch's default. Sums depend on it in the last bits.
        precision: ``float32``, or ``bfloat16`` for autocast.
        compiler: ``inductor`` compiles the network with torch, see
            :func:`~grandrounds.models.compilation.compile_network`; models differ in the last digits, also between one
            process and another. ``aot_eager`` does the same without generated code, to tell errors of the code from others.
        isolation: ``process`` works on each task in a child process, which opens the images anew: a crash there, or memory
            that runs out, costs this site the round and not the federation its job. Without a compiler models are the same,
            bit for bit.

    Raises:
        ConfigurationError: if a word is not known; whether there is such a device turns out with the first task.
    """

    device: str = "auto"
    cpu_threads: int | None = None
    precision: Literal["float32", "bfloat16"] = "float32"
    compiler: Literal["none", "inductor", "aot_eager"] = "none"
    isolation: Literal["none", "process"] = "none"

    def __post_init__(self) -> None:
        require_words(self, "precision", "compiler", "isolation")


def choose_device(name: str) -> torch.device:
    """The device that an option names.

    Args:
        name: ``auto`` (a GPU if there is one), ``cpu`` or ``cuda[:index]``.

    Raises:
        ConfigurationError: if it is no device, or not here.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigurationError(f"device must be auto, cpu or cuda[:index], got {name!r}") from error
    if device.type not in ("cpu", "cuda"):
        raise ConfigurationError(f"device must be auto, cpu or cuda[:index], got {name!r}")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigurationError(f"device is {name!r}, but torch finds no GPU here; use device=cpu or auto")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigurationError(f"device is {name!r}, but the last GPU here is cuda:{torch.cuda.device_count() - 1}")
    return device
