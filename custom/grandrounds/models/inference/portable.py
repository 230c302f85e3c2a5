"""A run's model for programs without this package: TorchScript and ONNX, each compared with the network it was made from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from grandrounds.checks import did_you_mean
from grandrounds.errors import ConfigurationError, GrandRoundsError
from grandrounds.files import write_bytes
from grandrounds.models.depths import risk_logits
from grandrounds.models.inference.tracing import traced
from grandrounds.protocol.problem import Problem
from grandrounds.protocol.task import Task

PORTABLE_TOLERANCE = 1e-4
"""Greatest difference of a number, absolute or relative."""
OUTPUTS = ("risk", "decision")
PORTABLE_FILES: Mapping[str, str] = MappingProxyType({"torchscript": "model.ts", "onnx": "model.onnx"})
"""The name of the file of each form."""


class RiskNetwork(nn.Module):
    """A network that gives the logits of risks, see :func:`~grandrounds.models.depths.risk_logits`.

    Args:
        network: gives the logits of decisions.
        turned: whether logits are averaged over an image and the image turned by 180 degrees (``problem.test_view``).
    """

    def __init__(self, network: nn.Module, turned: bool) -> None:
        super().__init__()
        self.network, self.turned = network, turned

    def logits(self, images: Tensor) -> Tensor:
        """Map images ``(batch, channels, height, width)`` to logits of decisions."""
        logits: Tensor = self.network(images)
        return (logits + self.network(images.flip(2, 3))) / 2 if self.turned else logits

    def forward(self, images: Tensor) -> Any:
        """Map images to logits of risks."""
        return risk_logits(self.network, self.logits(images))


class AnsweringNetwork(RiskNetwork):
    """A network that gives the probabilities of ``OUTPUTS``; further arguments are those of :class:`RiskNetwork`."""

    def __init__(self, network: nn.Module, turned: bool, task: Task) -> None:
        super().__init__(network, turned)
        self.task = task

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Map images to risks, at the classes' shares of training images, and to the probabilities of decisions."""
        logits = self.logits(images)
        return self.task.probabilities(risk_logits(self.network, logits)), self.task.probabilities(logits)


def write_portable(
    network: nn.Module, problem: Problem, form: str, folder: Path, names: Sequence[str] = OUTPUTS
) -> Path:
    """Write a network that maps images in [0, 1] to its outputs, for any number of images.

    Args:
        network: with its weights, on the CPU; it normalises the images itself.
        problem: what it was trained for; channels and size of the images.
        form: ``torchscript`` or ``onnx``.
        folder: of the file.
        names: of the outputs.

    Returns:
        The path of ``model.ts`` or ``model.onnx``.

    Raises:
        ConfigurationError: if the form is unknown, or ONNX's packages are not installed.
        GrandRoundsError: if what was written does not compute what the network computes; no file is left then.
    """
    if form not in PORTABLE_FILES:
        raise ConfigurationError(
            f"format must be one of {', '.join(PORTABLE_FILES)}, got {form!r}{did_you_mean(form, PORTABLE_FILES)}"
        )
    generator = torch.Generator().manual_seed(0)
    size = (problem.channels, problem.image_size, problem.image_size)
    content, compute = traced(form, network.eval(), torch.rand(2, *size, generator=generator), names)
    images = torch.rand(3, *size, generator=generator)
    with torch.inference_mode():
        outputs = network(images), compute(images)
    expected, computed = (one if isinstance(one, tuple) else (one,) for one in outputs)
    near = partial(torch.allclose, rtol=PORTABLE_TOLERANCE, atol=PORTABLE_TOLERANCE)
    if [one.shape for one in computed] != [one.shape for one in expected] or not all(map(near, computed, expected)):
        raise GrandRoundsError(f"{form}: the exported network gives other numbers than {type(network).__name__}")
    write_bytes(path := folder / PORTABLE_FILES[form], content)
    return path
