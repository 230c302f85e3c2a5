"""Published weights of networks, which are downloaded once into the weights folder.

The libraries say where they are, their licence and how images were normalised. What is kept is a file of this package's own
form, whose name ends in its SHA-256; jobs name it, and it is checked whenever it is read.
"""

from __future__ import annotations

import re
import shutil
import urllib.request
from collections.abc import Mapping
from http.client import HTTPException
from pathlib import Path
from types import MappingProxyType

from grandrounds.errors import ConfigurationError
from grandrounds.files import exclusive, file_digest
from grandrounds.models.backbones.libraries import NETWORK_LIBRARIES, library_of
from grandrounds.models.intensities import IMAGENET_DEVIATION, IMAGENET_MEAN
from grandrounds.models.pretrained import (
    BACKBONE_OPTION,
    INTENSITIES,
    LICENCE,
    STATE,
    WeightsFile,
    folder_files,
    read_weights,
    write_named,
)
from grandrounds.models.registry import build_model
from grandrounds.protocol.paths import weights_folder
from grandrounds.protocol.problem import IMAGENET, WEIGHTS_NAME, FixedIntensities, ModelSpec

SECONDS_WITHOUT_BYTES = 60.0
STATED_DIGEST = re.compile(r"-([0-9a-f]{8,64})\.\w+$")
INTENSITIES_OF: Mapping[object, FixedIntensities] = MappingProxyType(
    {(IMAGENET_MEAN, IMAGENET_DEVIATION): "imagenet", ((0.0,) * 3, (1.0,) * 3): "scaled"}
)
"""By what was taken off the channels of images in [0, 1], and what they were divided by."""


def get_file(network: str, name: str) -> WeightsFile:
    """Download the weights of a network into the weights folder; an interrupted download goes on.

    Args:
        network: ``LIBRARY:NAME``, with or without the tag of the weights.
        name: of letters, digits, ``_`` and ``-``, by which jobs will refer to them.

    Raises:
        ConfigurationError: if the network is unknown or its library names no weights, its images were normalised in a way
            that is not known here, the name is taken, or the download ends early, fails, or gives what its address or the
            network contradicts.
        InUseError: if another command downloads weights of this name.
    """
    library_of(network)
    prefix, _, bare = network.partition(":")
    backbone, published = f"{prefix}:{bare.partition('.')[0]}", NETWORK_LIBRARIES[prefix].published(bare)
    if published is None:
        raise ConfigurationError(f"{prefix} names no weights of {bare}; add a file: grandrounds weights add FILE")
    if name == IMAGENET or not WEIGHTS_NAME.fullmatch(name):
        raise ConfigurationError(f"--name must be of letters, digits, '_' and '-', and not {IMAGENET}; got {name!r}")
    if taken := [file.path for file in folder_files() if file.name == name]:
        raise ConfigurationError(f"there are weights named {name}: {taken[0]}; delete them, or give another --name")
    normalised = published.mean, published.deviation
    if normalised not in INTENSITIES_OF:
        raise ConfigurationError(
            f"images of {network} were normalised by mean {published.mean} and deviation {published.deviation}, which "
            "problem.intensities does not have; choose another network or tag"
        )
    place = weights_folder() / f"{name}.download"
    with exclusive(place, "another command downloads weights of this name; wait for it"):
        try:
            file = _fetch(published.url, place)
        except (OSError, HTTPException, ValueError) as error:
            raise ConfigurationError(
                f"{published.url} cannot be downloaded ({error}); the same command goes on where this one ended"
            ) from error
        try:
            _require_stated(published.url, file)
            declared = {INTENSITIES: INTENSITIES_OF[normalised], LICENCE: published.licence}
            kept = write_named(name, {STATE: read_weights(file)[0], **declared, BACKBONE_OPTION: backbone})
            _require_fit(backbone, kept)
        except ConfigurationError:
            shutil.rmtree(place)
            raise
    shutil.rmtree(place)
    return kept


def _require_stated(url: str, file: Path) -> None:
    """Make sure that a file is what the end of its address says, where that is a digest."""
    stated, digest = STATED_DIGEST.search(url), file_digest(file)
    if stated and not digest.startswith(stated[1]):
        raise ConfigurationError(f"{url} gave another file: its SHA-256 is {digest}, expected {stated[1]}...")


def _require_fit(backbone: str, file: WeightsFile) -> None:
    """Delete a file that its network does not take."""
    try:
        build_model(ModelSpec(backbone, classes=2, weights=file.name), seed=0)
    except ConfigurationError:
        file.path.unlink()
        raise


def _fetch(url: str, place: Path) -> Path:
    """The downloaded file in a folder; what an interrupted download has got is kept while the server has the same file."""
    whole, part, version = (place / name for name in (f"weights.{url.rpartition('.')[2]}", "part", "version"))
    source, _, tag = version.read_text().partition("\n") if version.is_file() else ("", "", "")
    if whole.is_file() and source == url:
        return whole
    request = urllib.request.Request(url)
    # One byte again, so that there is something to ask for.
    begun = max(0, part.stat().st_size - 1) if part.is_file() and source == url and tag else 0
    if begun:
        request.add_header("Range", f"bytes={begun}-")
        request.add_header("If-Range", tag)
    with urllib.request.urlopen(request, timeout=SECONDS_WITHOUT_BYTES) as answer:
        headers, goes_on = answer.headers, answer.status == 206
        if goes_on and (
            headers.get("ETag") != tag or not headers.get("Content-Range", "").startswith(f"bytes {begun}-")
        ):
            part.unlink()
            raise OSError("the server has another file by now")
        with part.open("r+b" if goes_on else "wb") as stream:
            stream.seek(begun if goes_on else 0)
            version.write_text(f"{url}\n{headers.get('ETag', '')}")
            end = None if answer.length is None else stream.tell() + answer.length
            shutil.copyfileobj(answer, stream)
            if end is not None and stream.tell() != end:
                raise OSError(f"it ended after {stream.tell():,} of {end:,} bytes")
    part.replace(whole)
    return whole
