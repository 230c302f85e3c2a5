"""ResNet-22 for mammograms in full resolution, with the classifier of Fed-Align-CL.

The residual network of Wu et al., "Deep Neural Networks Improve Radiologists' Performance in Breast Cancer Screening", IEEE
TMI 2020: pre-activation blocks (He et al., "Identity Mappings in Deep Residual Networks", ECCV 2016), narrow and early
halved, so that 2048 x 2048 pixels fit. The classifier on top is that of Jiménez-Sánchez et al., "Memory-aware curriculum
federated learning for breast cancer classification", 2021; its first convolution is the 7x7 of the published weights, not
the 3x3 of the paper's table. With 1 channel and 2 classes: 2,799,536 + 41,666 parameters, and 11.85 billion multiply-adds
for an image of 2048 x 2048.

The program in this module converts the published weights without running their pickle. Their file contains a model of
four views; each view's residual network has our structure under other names. Only the residual network is taken; the
classifier starts untrained. A pickle may call any function when it is read, so it is read in another process that calls
none.

    python -m grandrounds.models.backbones.resnet22 sample_image_model.p resnet22.pt --view cc
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from grandrounds.errors import ConfigurationError
from grandrounds.files import replacing
from grandrounds.models.backbones import resnet22_unpickle
from grandrounds.models.norm import statistics_untouched
from grandrounds.models.split import head_name

RESNET22_STEM_WIDTH = 16
RESNET22_WIDTHS = (16, 32, 64, 128, 256)
BLOCKS = 2
HEAD_WIDTHS = (128, 64)
HEAD_DROPOUT = 0.5
INPUT_NOISE = 0.01


class InputNoise(nn.Module):
    """Gaussian noise of a standard deviation on images in training mode.

    It is a module, so that its mode is set with the network's also where the network is split.
    """

    def __init__(self, deviation: float) -> None:
        super().__init__()
        self.deviation = deviation

    def forward(self, images: Tensor) -> Tensor:
        """Map images to images of the same shape."""
        return images + self.deviation * torch.randn_like(images) if self.training and self.deviation else images


class PreActivationBlock(nn.Module):
    """Norm, ReLU, 3x3 convolution, twice, beside a shortcut.

    The first block of a stage has a 1x1 convolution of the normalised, rectified input in the shortcut.
    """

    def __init__(self, channels_in: int, channels_out: int, stride: int, first: bool) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(channels_in)
        self.conv1 = nn.Conv2d(channels_in, channels_out, 3, stride, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels_out)
        self.conv2 = nn.Conv2d(channels_out, channels_out, 3, padding=1, bias=False)
        self.shortcut = nn.Conv2d(channels_in, channels_out, 1, stride, bias=False) if first else None

    def forward(self, maps: Tensor) -> Tensor:
        """Map ``(batch, channels_in, h, w)`` to ``(batch, channels_out, ceil(h / stride), ceil(w / stride))``."""
        active = F.relu(self.norm1(maps), inplace=True)
        residual: Tensor = self.conv2(F.relu(self.norm2(self.conv1(active)), inplace=True))
        return residual + (maps if self.shortcut is None else self.shortcut(active))


class ResNet22(nn.Module):
    """Stem, five stages of two blocks, global average, classifier of three layers; the total stride is 64.

    ``input_noise`` is the standard deviation of the Gaussian noise on images in training mode, their only augmentation; for
    ``recompute`` see :func:`recompute_activations`.
    """

    def __init__(self, classes: int, channels: int, input_noise: float = INPUT_NOISE) -> None:
        super().__init__()
        self.recompute = False
        self.noise = InputNoise(input_noise)
        self.stem = nn.Sequential(
            nn.Conv2d(channels, RESNET22_STEM_WIDTH, 7, stride=2, bias=False), nn.MaxPool2d(3, stride=2)
        )
        blocks: list[nn.Module] = []
        before = RESNET22_STEM_WIDTH
        for stage, width in enumerate(RESNET22_WIDTHS):
            for block in range(BLOCKS):
                blocks.append(PreActivationBlock(before, width, 2 if stage and not block else 1, first=not block))
                before = width
        self.blocks = nn.Sequential(*blocks)
        self.norm = nn.BatchNorm2d(before)
        self.classifier = _classifier(before, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Map images ``(batch, channels, height, width)`` of any size to logits ``(batch, classes)``."""
        maps = self.noise(images)
        for part in (self.stem, *self.blocks):
            maps = self._pass(part, maps)
        features = F.relu(self.norm(maps), inplace=True).mean(dim=(2, 3))
        logits: Tensor = self.classifier(features)
        return logits

    def _pass(self, part: nn.Module, maps: Tensor) -> Tensor:
        if not (self.recompute and torch.is_grad_enabled()):
            return part(maps)  # type: ignore[no-any-return]
        result: Tensor = checkpoint(part, maps, use_reentrant=False, context_fn=_contexts(part))
        return result


def recompute_activations(network: nn.Module, recompute: bool = True) -> None:
    """Recompute each block's activations in the backward pass instead of storing them; set it before a split.

    It costs a third more computation and saves most of the memory; gradients are the same.

    Raises:
        ConfigurationError: if the network is not a ResNet-22, the only one here for large images.
    """
    if not isinstance(network, ResNet22):
        raise ConfigurationError(f"recompute_activations: expected backbone resnet22, got {type(network).__name__}")
    network.recompute = recompute


def _contexts(part: nn.Module) -> Callable[[], tuple[AbstractContextManager[None], AbstractContextManager[None]]]:
    # The second pass is over the same batch, which must not count twice in the running statistics.
    return lambda: (nullcontext(), statistics_untouched(part))


def _classifier(features: int, classes: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for width in HEAD_WIDTHS:
        layers += [nn.Linear(features, width), nn.BatchNorm1d(width), nn.ReLU(inplace=True), nn.Dropout(HEAD_DROPOUT)]
        features = width
    return nn.Sequential(*layers, nn.Linear(features, classes))


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
