"""Memory that training frees in one step and asks for again in the next stays with the process.

The C library gives large blocks back to the system at once, and the system clears every page of them when they are asked
for again: with small networks on a CPU that costs more than a tenth of a training step.

Where and how a site computes.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch

from grandrounds.errors import ConfigurationError
from grandrounds.options import Min, Options

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
class ComputeOptions(Options):
    """How a site computes. Whether the device exists turns out with the first task.

    Models of a compiled network differ in the last digits, also between two processes. Without a compiler, isolation leaves
    models the same to the bit: a crash or a lack of memory in the child process costs the site one round, not its job.
    """

    identifies_run: ClassVar[bool] = False

    device: Annotated[str, "auto (a GPU if there is one), cpu or cuda[:index]"] = "auto"
    cpu_threads: Annotated[int | None, "torch's threads on the CPU; null for torch's default", Min(1)] = None
    precision: Annotated[Literal["float32", "bfloat16"], "bfloat16 uses autocast"] = "float32"
    compiler: Annotated[Literal["none", "inductor", "aot_eager"], "torch.compile's backend for the network"] = "none"
    isolation: Annotated[Literal["none", "process"], "process runs each task in a child process"] = "none"


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
