"""What a run has trained: as a whole network, and models of sites where they are received.

The server receives them as releases, and a person as files.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from grandrounds.checks import reraised_as
from grandrounds.errors import ConfigurationError, DataError, MessageError
from grandrounds.files import file_digest, read_json_object, replacing, write_json
from grandrounds.models.adaptation import site_statistics
from grandrounds.models.norm_layers import use_statistics, whole_state
from grandrounds.models.partial import frozen_digest
from grandrounds.models.registry import build_model, is_backbone
from grandrounds.models.site_model import OWN
from grandrounds.protocol.descriptions import COMPARED, MODEL_DESCRIPTION, read_description, require_description
from grandrounds.protocol.problem import MIN_STATISTICS_IMAGES, SITE_NORM, TRAIN_ALL, WEIGHTS_NAME, ModelSpec, Problem

Images = tuple[NDArray[np.uint8], NDArray[np.integer]]
"""Images ``(images, height, width, channels)``, and which of them count for :func:`~.adaptation.site_statistics`."""


class SavedNetwork(NamedTuple):
    """A trained network on disk: how it is built, the file of its entries, and the seed of the run."""

    spec: ModelSpec
    path: Path
    seed: int | None


def load_trained(spec: ModelSpec, path: Path, seed: int | None, images: Images | None = None) -> nn.Module:
    """Build a network and load what a run has trained; every entry must be there and fit.

    Frozen layers come from the weights that the run started from, or from its seed. They are layers like the others here,
    see :meth:`ModelSpec.as_whole`.

    Args:
        spec: of the run's network.
        path: of the trained entries.
        seed: of the run.
        images: of the site or device that the model is for; only ``problem.norm=site`` needs them.

    Raises:
        ConfigurationError: if the file cannot be read or is of another network, or images are needed and there are none.
        DataError: if the images are too few.
    """
    seed = seed or 0
    model = build_model(spec, seed)
    if spec.norm == SITE_NORM:
        use_statistics(model, site_statistics(spec, seed, *_enough(path, images)))
    try:
        model.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    except (OSError, RuntimeError, EOFError, LookupError, ValueError, TypeError, pickle.UnpicklingError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ConfigurationError(
            f"{path} is no {spec.backbone} with {spec.classes} classes as the JSON file beside it says ({reason}); "
            "name a model that this run has written, with its own description"
        ) from error
    if spec.has_frozen:
        trained, model = whole_state(model), build_model(spec.as_whole(), seed)
        model.load_state_dict(trained, strict=False)
    return model.eval()


def trained_models(spec: ModelSpec, path: Path, seed: int | None) -> Callable[[Images], nn.Module]:
    """What gives the trained model for a site from its images: one for all sites unless ``problem.norm=site``.

    Raises:
        ConfigurationError: as of :func:`load_trained`.
    """
    if spec.norm == SITE_NORM:
        return lambda images: load_trained(spec, path, seed, images)
    model = load_trained(spec, path, seed)
    return lambda images: model


def _enough(path: Path, images: Images | None) -> Images:
    if images is None:
        raise ConfigurationError(
            f"{path} has no statistics of batch norm: with problem.norm=site they belong to a site, which has its own model "
            "in its folder of the run (common.pt); export it for a site with --site and --sites-dir"
        )
    if len(images[1]) < MIN_STATISTICS_IMAGES:
        raise DataError(
            f"{path} was trained with problem.norm=site and takes the statistics of the images: it needs at least "
            f"{MIN_STATISTICS_IMAGES} of one device, got {len(images[1])}"
        )
    return images


class _Described(NamedTuple):
    spec: ModelSpec
    seed: int
    site: str
    frozen: str


def write_released(folder: Path, tensors: Mapping[str, Tensor], problem: Problem, run_id: str) -> None:
    """Write what :func:`with_description` has made as the two files, into the folder of the site's name.

    Raises:
        MessageError: if there is no description, it is not of the run, problem and site, or the entries are larger than
            those of the network that it describes.
    """
    state = dict(tensors)
    content = read_description(state.pop(MODEL_DESCRIPTION, None))
    with reraised_as(MessageError, ConfigurationError):
        description = _described(content, f"the {MODEL_DESCRIPTION} of the model", problem, run_id)
        if description.site != folder.name:
            raise ConfigurationError(f"the {MODEL_DESCRIPTION} of the model: site is {description.site!r}")
        most = _largest(description.spec) if is_backbone(description.spec.backbone) else None
    if most is not None and _size(state) > most:
        raise MessageError(f"the model has {_size(state)} bytes, and {description.spec.backbone} at most {most}")
    with replacing(folder / f"{OWN}.pt") as stream:
        torch.save(state, stream)
    write_json(folder / f"{OWN}.json", content)


def read_site_models(paths: Sequence[Path], problem: Problem, run_id: str) -> tuple[SavedNetwork, ...]:
    """The networks of files that sites of a run have handed over, for their average; a run without a ``run_id`` is old.

    Raises:
        ConfigurationError: if there is no such file, it has no description beside it, it is of another run or problem, two
            are of one site, or the frozen layers here are not those that a site had.
    """
    networks, known = [], dict[str, Path]()
    for path in paths:
        if not path.is_file():
            raise ConfigurationError(f"there is no model {path}; name the file {OWN}.pt that a site has handed over")
        content, where = read_json_object(path.with_suffix(".json")), str(path.with_suffix(".json"))
        if not run_id or "run_id" not in content:
            raise ConfigurationError(
                f"{where}: an earlier release made this model or the run's summary; run the job again"
            )
        description = _described(content, where, problem, run_id)
        for mark in (f"site {description.site}", file_digest(path)):
            if mark in known:
                raise ConfigurationError(f"{path} and {known[mark]} are the same site's model; name one of them")
            known[mark] = path
        _require_frozen(description, path)
        networks.append(SavedNetwork(description.spec, path, description.seed))
    return tuple(networks)


def _described(content: Any, where: str, problem: Problem, run_id: str) -> _Described:
    """What a description says of a model of the run."""
    require_description(content, where)
    try:
        spec = ModelSpec(**content["model"])
    except TypeError as error:
        raise ConfigurationError(f"{where}: model does not say how it is built ({error})") from error
    except ConfigurationError as error:
        raise ConfigurationError(f"{where}: {error}") from error
    wanted = {
        **problem.to_dict(),
        "run_id": run_id,
        "model.classes": len(problem.classes),
        "model.channels": problem.channels,
    }
    stated = {**content, "model.classes": spec.classes, "model.channels": spec.channels}
    for name in (*COMPARED, "run_id", "model.classes", "model.channels"):
        if stated[name] != wanted[name]:
            raise ConfigurationError(
                f"{where}: {name} of this model is {stated[name]}, and of the run {wanted[name]}: only models of one run "
                "are averaged; leave it out, or name the folder of its run"
            )
    if spec.weights and not WEIGHTS_NAME.fullmatch(spec.weights):
        raise ConfigurationError(
            f"{where}: weights must be a name, got the path {spec.weights!r}; ask the site for this file, add it with "
            "`grandrounds weights add FILE --name NAME` and state the name"
        )
    return _Described(spec, content["seed"], content["site"], content["frozen"])


def _require_frozen(built: _Described, path: Path) -> None:
    if built.spec.has_frozen and (frozen_digest(build_model(built.spec, built.seed)) or "") != built.frozen:
        raise ConfigurationError(
            f"{path}: the frozen layers are not those that {built.site} had: the weights {built.spec.weights!r} are another "
            "file here; remove it, ask the site for its own and add that under this name (`grandrounds weights add`)"
        )


def _largest(spec: ModelSpec) -> int:
    """Bytes of all entries of a network, frozen ones included."""
    whole = replace(spec, weights=None, load_weights=False, trainable=TRAIN_ALL, norm="batch")
    return _size(build_model(whole, 0).state_dict())


def _size(state: Mapping[str, Tensor]) -> int:
    return sum(value.nbytes for value in state.values())
