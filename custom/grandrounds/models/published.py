"""Published weights of networks, which are downloaded once into the weights folder.

The libraries say where they are, their licence and how images were normalised. Their digests are not known before they were
read here, so the file's is computed and its name ends in it; kits and jobs refer to that file.
"""

from __future__ import annotations

import re
import shutil
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from grandrounds.errors import ConfigurationError
from grandrounds.files import file_digest
from grandrounds.models.backbones.libraries import NETWORK_LIBRARIES, library_of
from grandrounds.models.intensities import IMAGENET_DEVIATION, IMAGENET_MEAN
from grandrounds.models.pretrained import (
    BACKBONE_OPTION,
    IMAGENET_WEIGHTS,
    INTENSITIES,
    LICENCE,
    STATE,
    WeightsFile,
    imagenet_file,
    read_weights,
    write_named,
)
from grandrounds.protocol.paths import weights_folder
from grandrounds.protocol.problem import WEIGHTS_NAME, FixedIntensities

SECONDS_WITHOUT_BYTES = 60.0
STATED_DIGEST = re.compile(r"-([0-9a-f]{8,64})\.\w+$")
NORMALISATIONS: Mapping[object, FixedIntensities] = MappingProxyType(
    {(IMAGENET_MEAN, IMAGENET_DEVIATION): "imagenet", ((0.0,) * 3, (1.0,) * 3): "scaled"}
)
"""By what was taken off the channels of images in [0, 1], and what they were divided by."""


def get_file(network: str, name: str) -> WeightsFile:
    """Download the weights of a network into the weights folder; an interrupted download goes on.

    Args:
        network: one of :data:`IMAGENET_WEIGHTS`, or ``LIBRARY:NAME``, with or without the tag of the weights.
        name: of letters, digits, ``_`` and ``-``, by which jobs will refer to them; ImageNet weights keep their own.

    Raises:
        ConfigurationError: if the network is unknown or its library names no weights, its images were normalised in a way
            that is not known here, or the download ends early, fails, or gives another file than its name says.
    """
    if network in IMAGENET_WEIGHTS:
        return imagenet_file(network)
    library_of(network)
    prefix, _, bare = network.partition(":")
    published = NETWORK_LIBRARIES[prefix].published(bare)
    if published is None:
        raise ConfigurationError(f"{prefix} names no weights of {bare}; add a file: grandrounds weights add FILE")
    if not WEIGHTS_NAME.fullmatch(name):
        raise ConfigurationError(f"--name must be of letters, digits, '_' and '-', got {name!r}")
    normalised = published.mean, published.deviation
    if normalised not in NORMALISATIONS:
        raise ConfigurationError(
            f"images of {network} were normalised by mean {published.mean} and deviation {published.deviation}, which "
            "problem.intensities does not have; choose another network or tag"
        )
    file = weights_folder() / f"{name}.downloaded.{published.url.rpartition('.')[2]}"
    try:
        _fetch(published.url, file)
    except OSError as error:
        raise ConfigurationError(
            f"{published.url} cannot be downloaded ({error}); the same command goes on where this one ended"
        ) from error
    stated, digest = STATED_DIGEST.search(published.url), file_digest(file)
    try:
        if stated and not digest.startswith(stated[1]):
            raise ConfigurationError(
                f"{published.url} gave another file: its SHA-256 is {digest}, expected {stated[1]}..."
            )
        declared = {INTENSITIES: NORMALISATIONS[normalised], LICENCE: published.licence}
        known = {BACKBONE_OPTION: f"{prefix}:{bare.partition('.')[0]}"}
        return write_named(name, {STATE: read_weights(file)[0], **declared, **known})
    finally:
        file.unlink()


def _fetch(url: str, target: Path) -> None:
    """Download a file; what an interrupted download has got is kept, as long as the server has the same file."""
    part, tag = (target.with_name(f"{target.name}.{end}") for end in ("part", "etag"))
    target.parent.mkdir(parents=True, exist_ok=True)
    request = urllib.request.Request(url)
    if part.is_file() and tag.is_file() and part.stat().st_size and tag.read_text():
        request.add_header("Range", f"bytes={part.stat().st_size - 1}-")
        request.add_header("If-Range", tag.read_text())
    with (
        urllib.request.urlopen(request, timeout=SECONDS_WITHOUT_BYTES) as answer,
        part.open("r+b" if answer.status == 206 else "wb") as stream,
    ):
        stream.seek(-1 if answer.status == 206 else 0, 2)
        tag.write_text(answer.headers.get("ETag", ""))
        begun, length = stream.tell(), answer.length
        shutil.copyfileobj(answer, stream)
        if length is not None and stream.tell() != begun + length:
            raise OSError(f"it ended after {stream.tell():,} of {begun + length:,} bytes")
    part.replace(target)
    tag.unlink()
