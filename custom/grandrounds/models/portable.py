"""A run's model for programs without this package: TorchScript and ONNX, each compared with the network it was made from."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Literal

import torch
from torch import Tensor, nn

from grandrounds.errors import ConfigurationError, GrandRoundsError
from grandrounds.files import replacing
from grandrounds.protocol.problem import Problem

Format = Literal["torchscript", "onnx"]
PORTABLE_TOLERANCE = 1e-4
"""Greatest difference of a logit, absolute or relative."""
INPUT, OUTPUT = "images", "logits"
OPSET = 18


class AveragedView(nn.Module):
    """A network whose logits are averaged over an image and the image turned by 180 degrees (``problem.test_view``)."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        """Map images ``(batch, channels, height, width)`` to logits."""
        averaged: Tensor = (self.network(images) + self.network(images.flip(2, 3))) / 2
        return averaged


def write_portable(network: nn.Module, problem: Problem, form: str, folder: Path) -> Path:
    """Write a network that maps images in [0, 1] to logits, for any number of images.

    Args:
        network: with its weights, on the CPU; it normalises the images itself.
        problem: what it was trained for; channels and size of the images.
        form: ``torchscript`` or ``onnx``.
        folder: of the file.

    Returns:
        The path of ``model.ts`` or ``model.onnx``.

    Raises:
        ConfigurationError: if the form is unknown, or ONNX's packages are not installed.
        GrandRoundsError: if what was written does not compute what the network computes; no file is left then.
    """
    if form not in WRITERS:
        raise ConfigurationError(f"format must be one of {', '.join(WRITERS)}, got {form!r}")
    name, make = WRITERS[form]
    network = (AveragedView(network) if problem.test_view else network).eval()
    generator = torch.Generator().manual_seed(0)
    size = (problem.channels, problem.image_size, problem.image_size)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's tracers warn about every shape that they read
        content, compute = make(network, torch.rand(2, *size, generator=generator))
        images = torch.rand(3, *size, generator=generator)
        expected, found = network(images), compute(images)
    if found.shape != expected.shape or not torch.allclose(found, expected, PORTABLE_TOLERANCE, PORTABLE_TOLERANCE):
        raise GrandRoundsError(f"{form}: the exported network gives other logits than {type(network).__name__}")
    with replacing(folder / name) as stream:
        stream.write(content)
    return folder / name


Made = tuple[bytes, Callable[[Tensor], Tensor]]


def _torchscript(network: nn.Module, images: Tensor) -> Made:
    stream = io.BytesIO()
    torch.jit.save(torch.jit.trace(network, images, check_trace=False), stream)  # type: ignore[no-untyped-call]
    content = stream.getvalue()
    loaded: Callable[[Tensor], Tensor] = torch.jit.load(io.BytesIO(content))  # type: ignore[no-untyped-call]
    return content, loaded


def _onnx(network: nn.Module, images: Tensor) -> Made:
    try:
        import onnx  # noqa: F401 - torch writes with it
        import onnxruntime
    except ImportError as error:
        raise ConfigurationError("ONNX needs the extra onnx: pip install 'grandrounds[onnx]'") from error
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
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    return content, lambda given: torch.from_numpy(session.run([OUTPUT], {INPUT: given.numpy()})[0])


WRITERS: Mapping[str, tuple[str, Callable[[nn.Module, Tensor], Made]]] = MappingProxyType(
    {"torchscript": ("model.ts", _torchscript), "onnx": ("model.onnx", _onnx)}
)
"""File name and writer of each form."""
