"""Frozen layers by OpenVINO, on the CPU."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from grandrounds.errors import ConfigurationError
from grandrounds.models.inference.tracing import onnx_bytes

Compute = Callable[[Tensor], Tensor]
PIECE, LARGE_PIECE, LARGE_PIXELS = 8, 4, 176**2
"""Images at a time, the second for images of this number of pixels or more: with others their maps leave a CPU's cache."""
_compiled: WeakKeyDictionary[nn.Module, dict[tuple[object, ...], Compute]] = WeakKeyDictionary()


def capabilities() -> list[str]:
    """What OpenVINO finds this processor to compute in, such as ``FP32`` and ``BF16``.

    Raises:
        ConfigurationError: if the extra ``fast`` is not installed.
    """
    return list(_core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"))


def compiled(network: nn.Module, inputs: Tensor, precision: str) -> Compute:
    """A network in evaluation mode for any number of inputs, in as many threads as torch has; once for a process.

    Args:
        network: on the CPU, with its weights of the first call.
        inputs: at least one of what it takes, shape ``(batch, channels, height, width)``.
        precision: ``f32`` or ``bf16``.
    """
    shape, threads = inputs.shape[1:], torch.get_num_threads()
    ways = _compiled.setdefault(network, {})
    key = (*shape, precision, threads, os.getpid())  # a fork has not its parent's threads
    if key not in ways:
        piece = LARGE_PIECE if shape[1] * shape[2] >= LARGE_PIXELS else PIECE
        core = _core()
        model = core.read_model(onnx_bytes(network, inputs[:1].expand(2, -1, -1, -1).contiguous()))
        model.reshape([piece, *shape])
        hints = {"INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": 1, "INFERENCE_PRECISION_HINT": precision}
        request = core.compile_model(model, "CPU", hints).create_infer_request()

        def compute(given: Tensor) -> Tensor:
            missing = -len(given) % piece
            pieces = torch.split(F.pad(given, (0, 0) * 3 + (0, missing)).contiguous(), piece)
            made = [torch.from_numpy(request.infer([part.numpy()])[0].copy()) for part in pieces]
            return torch.cat(made)[: len(given)]

        ways[key] = compute
    return ways[key]


def _core() -> Any:
    # OpenVINO reports its import to its makers where this package is installed; without it, it has a stub in its place.
    sys.modules["openvino_telemetry"] = None  # type: ignore[assignment]
    try:
        import onnx  # noqa: F401 - torch writes with it
        import openvino
    except ImportError as error:
        raise ConfigurationError(
            "executor.inference: this form needs the extra fast: pip install 'grandrounds[fast]', or use exact"
        ) from error
    return openvino.Core()
