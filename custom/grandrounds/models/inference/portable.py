"""A run's model for programs without this package: TorchScript and ONNX, each compared with the network it was made from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType

import torch
from torch import nn

from grandrounds.checks import did_you_mean
from grandrounds.errors import ConfigurationError, GrandRoundsError
from grandrounds.files import write_bytes
from grandrounds.models.inference.tracing import traced
from grandrounds.protocol.problem import Problem

PORTABLE_TOLERANCE = 1e-4
"""Greatest difference of a number, absolute or relative."""
OUTPUTS = ("risk", "decision")
PORTABLE_FILES: Mapping[str, str] = MappingProxyType({"torchscript": "model.ts", "onnx": "model.onnx"})
"""The name of the file of each form."""


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
