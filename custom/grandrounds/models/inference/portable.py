"""A run's model for programs without this package: TorchScript and ONNX, each compared with the network it was made from."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import torch
from torch import Tensor, nn

from grandrounds.errors import ConfigurationError, GrandRoundsError
from grandrounds.files import write_bytes
from grandrounds.models.inference.forward import Forward
from grandrounds.models.inference.tracing import traced
from grandrounds.protocol.problem import Problem

PORTABLE_TOLERANCE = 1e-4
"""Greatest difference of a logit, absolute or relative."""
PORTABLE_FILES: Mapping[str, str] = MappingProxyType({"torchscript": "model.ts", "onnx": "model.onnx"})
"""The name of the file of each form."""


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
    if form not in PORTABLE_FILES:
        raise ConfigurationError(f"format must be one of {', '.join(PORTABLE_FILES)}, got {form!r}")
    network = (AveragedView(network) if problem.test_view else network).eval()
    generator = torch.Generator().manual_seed(0)
    size = (problem.channels, problem.image_size, problem.image_size)
    content, compute = traced(form, network, torch.rand(2, *size, generator=generator))
    images = torch.rand(3, *size, generator=generator)
    expected, computed = Forward(network)(images), compute(images)
    if computed.shape != expected.shape or not torch.allclose(
        computed, expected, PORTABLE_TOLERANCE, PORTABLE_TOLERANCE
    ):
        raise GrandRoundsError(f"{form}: the exported network gives other logits than {type(network).__name__}")
    write_bytes(path := folder / PORTABLE_FILES[form], content)
    return path
