"""Networks as programs of other engines: TorchScript and ONNX."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch
from torch import Tensor, nn

from grandrounds.errors import ConfigurationError
from grandrounds.models.inference.script import script_bytes

INPUT, OUTPUT = "images", "logits"
OPSET = 18
Made = tuple[bytes, Callable[[Tensor], Tensor]]


def traced(form: str, network: nn.Module, inputs: Tensor) -> Made:
    """Record what a network in evaluation mode computes, for any number of inputs.

    Args:
        form: ``torchscript`` or ``onnx``.
        network: on the CPU.
        inputs: two of what it takes.

    Returns:
        The content of a file, and what computes outputs from it.

    Raises:
        ConfigurationError: if ONNX's packages are not installed.
    """
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's tracers warn about every shape that they read
        return TRACERS[form](network, inputs)


def require_onnx() -> None:
    """Check that the extra ``onnx`` is installed.

    Raises:
        ConfigurationError: if it is not.
    """
    try:
        import onnx  # noqa: F401 - torch writes with it
        import onnxruntime  # noqa: F401
    except ImportError as error:
        raise ConfigurationError("ONNX needs the extra onnx: pip install 'grandrounds[onnx]'") from error


def _torchscript(network: nn.Module, images: Tensor) -> Made:
    content = script_bytes(torch.jit.trace(network, images, check_trace=False))  # type: ignore[no-untyped-call]
    loaded: Callable[[Tensor], Tensor] = torch.jit.load(io.BytesIO(content))  # type: ignore[no-untyped-call]
    return content, loaded


def _onnx(network: nn.Module, images: Tensor) -> Made:
    require_onnx()
    import onnxruntime

    stream = io.BytesIO()
    torch.onnx.export(
        network,
        (images,),
        stream,  # type: ignore[arg-type]
        input_names=[INPUT],
        output_names=[OUTPUT],
        dynamic_axes={INPUT: {0: "batch"}, OUTPUT: {0: "batch"}},
        opset_version=OPSET,
        dynamo=False,
    )
    content = stream.getvalue()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    return content, lambda given: torch.from_numpy(session.run([OUTPUT], {INPUT: given.float().numpy()})[0])


TRACERS: Mapping[str, Callable[[nn.Module, Tensor], Made]] = MappingProxyType(
    {"torchscript": _torchscript, "onnx": _onnx}
)
