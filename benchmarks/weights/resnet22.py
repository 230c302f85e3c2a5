"""Convert the published weights of ResNet-22 to a file for ``problem.weights``, without running their pickle.

Their file contains a model of four views; each view's residual network has our structure under other names. Only the
residual network is taken; the classifier starts untrained. A pickle may call any function when it is read, so it is read in
another process that calls none.

    python -m benchmarks.weights.resnet22 sample_image_model.p resnet22.pt --view cc
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, get_args

import torch
from torch import Tensor

from benchmarks.weights import resnet22_unpickle
from grandrounds.errors import ConfigurationError
from grandrounds.files import replacing
from grandrounds.models.backbones.resnet22 import BLOCKS, ResNet22
from grandrounds.models.split import head_name

View = Literal["cc", "mlo"]
ENTRY = "model"
TIMEOUT_SECONDS = 300.0
LAYER = re.compile(r"layer_list\.(\d+)\.(\d+)\.(.+)")
PUBLISHED_PARTS: Mapping[str, str] = {
    "bn1": "norm1",
    "bn2": "norm2",
    "conv1": "conv1",
    "conv2": "conv2",
    "downsample.0": "shortcut",
}


def published_name(name: str) -> str | None:
    """Our name of an entry of one view's residual network; None for any other entry.

    Example:
        >>> published_name("layer_list.1.0.downsample.0.weight"), published_name("fc1_cc.weight")
        ('blocks.2.shortcut.weight', None)
    """
    whole, _, entry = name.rpartition(".")
    if whole in ("first_conv", "final_bn"):
        return f"{'stem.0' if whole == 'first_conv' else 'norm'}.{entry}"
    found = LAYER.fullmatch(whole)
    if found is None or found[3] not in PUBLISHED_PARTS:
        return None
    return f"blocks.{int(found[1]) * BLOCKS + int(found[2])}.{PUBLISHED_PARTS[found[3]]}.{entry}"


def from_published(weights: Mapping[str, Tensor], view: View = "cc") -> dict[str, Tensor]:
    """The published residual network of one view, under our names; Fed-Align-CL uses the craniocaudal one for every image.

    Returns:
        All entries but the classifier's. Counters of batch norm may be missing, as in old files.

    Raises:
        ConfigurationError: if there is no such view, or an entry is missing or of another shape (the first is named).
    """
    if view not in get_args(View):
        raise ConfigurationError(f"view must be cc or mlo, got {view!r}")
    prefix = f"four_view_resnet.{view}."
    renamed = {
        ours: tensor
        for name, tensor in weights.items()
        if name.startswith(prefix) and (ours := published_name(name.removeprefix(prefix)))
    }
    network = ResNet22(classes=2, channels=1)
    head = f"{head_name(network)}."
    for name, expected in network.state_dict().items():
        if name.startswith(head) or (name.endswith("num_batches_tracked") and name not in renamed):
            continue
        shape = tuple(renamed[name].shape) if name in renamed else None
        if shape != tuple(expected.shape):
            raise ConfigurationError(
                f"the weights of view {view} do not fit resnet22: {name} must have shape {tuple(expected.shape)}, got "
                f"{'no such entry' if shape is None else shape}"
            )
    return renamed


def convert_published(source: Path, target: Path, view: View = "cc", timeout: float = TIMEOUT_SECONDS) -> None:
    """Convert the published file to one for the option ``problem.weights``, in at most ``timeout`` seconds; it is untrusted.

    Raises:
        ConfigurationError: if the file cannot be read or does not fit; then nothing is written.
    """
    if not source.is_file():
        raise ConfigurationError(f"there is no file {source}; expected the published weights of ResNet-22")
    converted = from_published(_read_isolated(source, timeout), view)
    with replacing(target) as stream:
        torch.save({"state_dict": converted}, stream)


def _read_isolated(source: Path, timeout: float) -> dict[str, Tensor]:
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "tensors.pt"
        command = [sys.executable, "-I", resnet22_unpickle.__file__, str(source.resolve()), ENTRY, str(result)]
        try:
            # The empty environment contains no path, token or proxy.
            done = subprocess.run(command, cwd=folder, env={}, capture_output=True, timeout=timeout, check=False)
        except subprocess.TimeoutExpired:
            raise ConfigurationError(
                f"{source}: reading took more than {timeout:g} s; is it the published file?"
            ) from None
        if done.returncode:
            reason = (done.stderr.decode(errors="replace").strip().splitlines() or [f"status {done.returncode}"])[-1]
            raise ConfigurationError(f"{source} cannot be read ({reason}); expected the published weights of ResNet-22")
        return dict(torch.load(result, map_location="cpu", weights_only=True))


def main() -> None:
    """Convert from the command line."""
    parser = argparse.ArgumentParser(description="Convert the published weights of ResNet-22.")
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--view", choices=get_args(View), default="cc")
    arguments = parser.parse_args()
    try:
        convert_published(arguments.source, arguments.target, arguments.view)
    except ConfigurationError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
