"""The trained model that a run starts from: of a finished run at this server, or of the server's weights folder."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor, nn

from grandrounds.errors import ConfigurationError
from grandrounds.federation.server.options import Start
from grandrounds.federation.server.record import SUMMARY
from grandrounds.files import file_digest, read_json_object
from grandrounds.models.pretrained import CLASS_LIST, named_file, read_content, read_weights
from grandrounds.models.split import head_name
from grandrounds.protocol.names import SERVER
from grandrounds.protocol.paths import OWNER, state_folder
from grandrounds.protocol.problem import Problem

if TYPE_CHECKING:
    from nvflare.apis.fl_context import FLContext

RIDGE = "ridge"
"""The head in closed form of the run's own sites: a simulation computes it, elsewhere the run of this name has it."""
START_VARIABLE = "GRANDROUNDS_START"
"""Names the file of the ridge head that a simulation has computed."""
SELECTED = "selected.pt"
_OF_FEATURES = ("image_size", "weights", "intensities", "preprocessing", "channels")
"""Options of the problem that decide which features a head reads, where its file has not all layers."""
_NAMED_ENTRIES = 3


class _Found(NamedTuple):
    """The file of a start, and the configuration of the run that has written it; empty where that is not known."""

    path: Path
    configuration: Mapping[str, Any]


def load_start(network: nn.Module, text: str, problem: Problem, seed: int, fl_ctx: FLContext | None) -> str:
    """Load a run's trained entries into a network, in place; layers that the run had frozen stay as they are.

    Args:
        network: of the new run, with the same backbone and head, whose frozen layers have the same weights.
        text: as of :meth:`Start.parse`. A simulation's own ridge head comes first, then a finished run of the job's
            submitter in the server's folder, then the weights folder.
        problem: of the new run.
        seed: of the new run, which its random layers come from.
        fl_ctx: FLARE's; None looks into the weights folder alone.

    Returns:
        The file's SHA-256.

    Raises:
        ConfigurationError: if there is no such file, it is damaged or has another digest, or it is of another network or
            other classes.
    """
    start = Start.parse(text)
    path, configuration = _find(start.name, fl_ctx)
    digest = file_digest(path)
    if start.digest not in ("", digest):
        raise ConfigurationError(
            f"controller.start_from: {start.name!r} has the SHA-256 {digest} at this server, and the job states "
            f"{start.digest}: the run was repeated, or it is another server's; name the run as it is here now"
        )
    state, _ = read_weights(path)
    known = configuration.get("problem", {})
    classes = known.get("classes", read_content(path).get(CLASS_LIST))
    if isinstance(classes, list) and classes != list(problem.classes):
        raise ConfigurationError(
            f"controller.start_from: the weights {start.name!r} are of classes {classes}, and the problem's are "
            f"{list(problem.classes)}: an output would mean another class; start from a run with the same classes in the "
            "same order, or leave it out"
        )
    own, prefix = network.state_dict(), f"{head_name(network)}."
    other = [entry for entry, value in state.items() if entry not in own or not _fits(value, own[entry])]
    other += [entry for entry in own if entry.startswith(prefix) and entry not in state]
    if other:
        raise ConfigurationError(
            f"controller.start_from: the weights {start.name!r} are of another network than the problem's "
            f"({', '.join(sorted(other)[:_NAMED_ENTRIES])}): give problem.backbone, head and classes of the run that they "
            "come from, or leave start_from out"
        )
    if known and (own.keys() - state.keys() or problem.model_spec(pretrained=True).has_frozen):
        _require_same_layers(start.name, configuration, problem, seed)
    network.load_state_dict(state, strict=False)
    return digest


def _find(name: str, fl_ctx: FLContext | None) -> _Found:
    given = os.environ.get(START_VARIABLE) if name == RIDGE else None
    if given:
        return _Found(Path(given), {})
    folder = state_folder(fl_ctx, name, SERVER) if fl_ctx else Path(os.devnull)
    if (folder / SUMMARY).is_file():
        summary = read_json_object(folder / SUMMARY)
        if fault := _fault(folder, summary, fl_ctx):
            raise ConfigurationError(f"controller.start_from: run {name!r} of this server {fault}")
        return _Found(folder / SELECTED, summary["configuration"])
    try:
        return _Found(named_file(name).path, {})
    except ConfigurationError as error:
        head = "; its head is that of the job ridge on the same data, network and classes" if name == RIDGE else ""
        raise ConfigurationError(
            f"controller.start_from: this server has no finished run {name!r}, and {error}{head}; submit that job to this "
            "server first, or take --preset scratch, which starts from none"
        ) from error


def _fault(folder: Path, summary: Mapping[str, Any], fl_ctx: FLContext | None) -> str:
    """Why nothing can start from a run; empty if something can."""
    if summary.get("status") != "finished" or not (folder / SELECTED).is_file():
        return f"is {summary.get('status')} and has no result to start from: finish it first, or name another"
    owner, meta = folder.parent / OWNER, Path()
    if fl_ctx is not None:
        meta = Path(fl_ctx.get_engine().get_workspace().get_job_meta_path(fl_ctx.get_job_id()))
    if not (owner.is_file() and meta.is_file()):  # a simulation
        return ""
    theirs, mine = (json.loads(path.read_text(encoding="utf-8")).get("submitter_name") for path in (owner, meta))
    return "" if theirs == mine else f"was submitted by {theirs}, and this job by {mine}: name a run of your own"


def _require_same_layers(name: str, configuration: Mapping[str, Any], problem: Problem, seed: int) -> None:
    """Refuse a head whose features the new network does not compute."""
    before = {**configuration["problem"], "seed": configuration.get("seed")}
    now = {**problem.to_dict(), "seed": seed}
    compared = [*_OF_FEATURES, *([] if problem.weights else ["seed"])]
    for option in compared:
        if option in before and before[option] != now[option]:
            key = "controller.seed" if option == "seed" else f"problem.{option}"
            raise ConfigurationError(
                f"controller.start_from: the head of run {name!r} reads features of a network with {key}={before[option]}, "
                f"and this job has {now[option]}: set {key} as there, or leave start_from out"
            )


def _fits(given: Tensor, own: Tensor) -> bool:
    """Whether an entry can replace one of the network: a cast between whole numbers and others would change its values."""
    return given.shape == own.shape and given.is_floating_point() == own.is_floating_point()
