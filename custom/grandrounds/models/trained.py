"""What a run has trained: as a whole network, as the start of another run, and models of sites where they are received.

The server receives them as releases, and a person as files.
"""

from __future__ import annotations

import os
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
from grandrounds.models.pretrained import CLASS_LIST, named_file, read_content, read_weights
from grandrounds.models.registry import build_model, is_backbone
from grandrounds.models.site_model import OWN
from grandrounds.models.split import head_name
from grandrounds.protocol.descriptions import COMPARED, MODEL_DESCRIPTION, read_description, require_description
from grandrounds.protocol.problem import MIN_STATISTICS_IMAGES, SITE_NORM, TRAIN_ALL, WEIGHTS_NAME, ModelSpec, Problem

Images = tuple[NDArray[np.uint8], NDArray[np.integer]]
"""Images ``(images, height, width, channels)``, and which of them count for :func:`~.adaptation.site_statistics`."""
RIDGE = "ridge"
"""The head in closed form of the run's own sites: a simulation computes it, elsewhere a file of this name has it."""
START_VARIABLE = "GRANDROUNDS_START"
"""Names the file of the ridge head that a simulation has computed."""
_NAMED_ENTRIES = 3


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


def load_start(network: nn.Module, name: str, classes: Sequence[str]) -> str:
    """Load a run's trained entries into a network, in place; layers that the run had frozen stay as they are.

    Args:
        network: of the new run, with the same backbone and head, whose frozen layers have the same weights.
        name: of the weights folder, or ``ridge``.
        classes: of the new run; where the file says its own, they must be these, in this order.

    Returns:
        The file's SHA-256.

    Raises:
        ConfigurationError: if there is no such file, it is damaged, or it is of another network or other classes.
    """
    path = _start_file(name)
    state, _ = read_weights(path)
    known = read_content(path).get(CLASS_LIST)
    if isinstance(known, list) and known != list(classes):
        raise ConfigurationError(
            f"controller.start_from: the weights {name!r} are of classes {known}, and the problem's are {list(classes)}: an "
            "output would mean another class; start from a run with the same classes in the same order, or leave it out"
        )
    own, prefix = network.state_dict(), f"{head_name(network)}."
    other = [entry for entry, value in state.items() if entry not in own or not _fits(value, own[entry])]
    other += [entry for entry in own if entry.startswith(prefix) and entry not in state]
    if other:
        raise ConfigurationError(
            f"controller.start_from: the weights {name!r} are of another network than the problem's "
            f"({', '.join(sorted(other)[:_NAMED_ENTRIES])}): give problem.backbone, head and classes of the run that they "
            "come from, or leave start_from out"
        )
    network.load_state_dict(state, strict=False)
    return file_digest(path)


def _start_file(name: str) -> Path:
    if name != RIDGE:
        return named_file(name).path
    if given := os.environ.get(START_VARIABLE):
        return Path(given)
    try:
        return named_file(name).path
    except ConfigurationError as error:
        raise ConfigurationError(
            f"controller.start_from=ridge: {error}; it is the selected.pt of the job ridge on the same network and classes, "
            "and --preset scratch needs none"
        ) from error


def _fits(given: Tensor, own: Tensor) -> bool:
    """Whether an entry can replace one of the network: a cast between whole numbers and others would change its values."""
    return given.shape == own.shape and given.is_floating_point() == own.is_floating_point()


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
