"""The trained model that a run starts from: of a finished run at this server, or of the server's weights folder."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor, nn

from grandrounds.errors import ConfigurationError
from grandrounds.federation.server.options import Start
from grandrounds.federation.server.record import SUMMARY
from grandrounds.files import copy_file, file_digest, read_json_object
from grandrounds.models.pretrained import CLASS_LIST, named_file, read_content, read_weights
from grandrounds.models.split import head_name
from grandrounds.option_keys import current_configuration
from grandrounds.protocol.names import SERVER
from grandrounds.protocol.paths import OWNER, in_kit, state_folder
from grandrounds.protocol.problem import Problem

if TYPE_CHECKING:
    from nvflare.apis.fl_context import FLContext

RIDGE = "ridge"
"""The head in closed form of the run's own sites: a simulation computes it, elsewhere the run of this name has it."""
START_VARIABLE = "GRANDROUNDS_START"
"""Names the file of the ridge head that a simulation has computed."""
SELECTED, START_FILE = "selected.pt", "start.pt"
"""At the server: the result of a run, and the file that a run has started from."""
_OF_FEATURES = ("image_size", "weights", "intensities", "preprocessing", "channels")
"""Options of the problem that decide which features a head reads, where its file has not all layers."""
NORMS = {"frozen": "batch", "site": "batch"}
"""Kinds of ``problem.norm`` with the layers of another."""
_NAMED_ENTRIES = 3


class _Found(NamedTuple):
    """The file of a start, and the configuration of the run that has written it; empty where that is not known."""

    path: Path
    configuration: Mapping[str, Any]


def load_start(
    network: nn.Module, text: str, problem: Problem, seed: int, fl_ctx: FLContext | None, kept: Path | None = None
) -> str:
    """Load a run's trained entries into a network, in place; layers that the run had frozen stay as they are.

    Args:
        network: of the new run, with the same backbone and head, whose frozen layers have the same weights.
        text: as of :meth:`Start.parse`. A simulation's own ridge head comes first, then a finished run of the job's
            submitter in the server's folder, then the weights folder; of the last two one with the SHA-256 that is stated.
        problem: of the new run.
        seed: of the new run, which its random layers come from.
        fl_ctx: FLARE's; None looks into the weights folder alone.
        kept: where the run keeps the file, so that it can go on when the other run has gone; what is there is taken.

    Returns:
        The file's SHA-256.

    Raises:
        ConfigurationError: if there is no such file, it is damaged or has another digest, or it is of another network or
            other classes.
    """
    start = Start.parse(text)
    found = _Found(kept, {}) if kept and kept.is_file() else _find(start, fl_ctx)
    digest, configuration = file_digest(found.path), found.configuration
    if start.digest not in ("", digest):
        raise ConfigurationError(
            f"controller.start_from: {start.name!r} has the SHA-256 {digest} at this server, and the job states "
            f"{start.digest}: the run was repeated, or it is another server's; name the run as it is here now"
        )
    state, _ = read_weights(found.path)
    known = configuration.get("problem", {})
    classes = known.get("classes", read_content(found.path).get(CLASS_LIST))
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
    if known:
        whole = not own.keys() - state.keys() and not problem.model_spec(pretrained=True).has_frozen
        _require_same(start.name, configuration, {**problem.to_dict(), "seed": seed}, whole)
    network.load_state_dict(state, strict=False)
    if kept and not kept.is_file():
        copy_file(found.path, kept)
    return digest


def _find(start: Start, fl_ctx: FLContext | None) -> _Found:
    name, reason = start.name, f"this server has no finished run {start.name!r}"
    given = os.environ.get(START_VARIABLE) if name == RIDGE else None
    if given:
        return _Found(Path(given), {})
    if fl_ctx and (state_folder(fl_ctx, name, SERVER) / SUMMARY).is_file():
        folder = state_folder(fl_ctx, name, SERVER)
        summary = read_json_object(folder / SUMMARY)
        configuration = current_configuration(summary.get("configuration") or {})
        fault = _fault(folder, summary, configuration, fl_ctx)
        here = "" if fault else file_digest(folder / SELECTED)
        if here and start.digest in ("", here):
            return _Found(folder / SELECTED, configuration)
        other = f"has the SHA-256 {here} and the job states {start.digest}: it was repeated, or is another server's"
        reason = f"run {name!r} of this server {fault or other}"
    try:
        return _Found(named_file(name).path, {})
    except ConfigurationError as error:
        head = "; its head is that of the job ridge on the same data, network and classes" if name == RIDGE else ""
        raise ConfigurationError(
            f"controller.start_from: {reason}, and {error}{head}; submit that job to this server first, or take --preset "
            "scratch, which starts from none"
        ) from error


def _fault(folder: Path, summary: Mapping[str, Any], configuration: Mapping[str, Any], fl_ctx: FLContext) -> str:
    """Why nothing can start from a run; empty if something can."""
    if in_kit(fl_ctx):
        meta = Path(fl_ctx.get_engine().get_workspace().get_job_meta_path(fl_ctx.get_job_id()))
        owner, submitter = (
            read_json_object(path).get("submitter_name") if path.is_file() else None
            for path in (folder.parent / OWNER, meta)
        )
        if owner is None or owner != submitter:
            return "is not known to be of this job's submitter: name a run of your own"
    if summary.get("status") != "finished" or not (folder / SELECTED).is_file():
        return f"is {summary.get('status')} and has no result to start from: finish it first, or name another"
    if not isinstance(configuration.get("problem"), Mapping):
        return "has a record that does not say what it is of: run it again, or name another"
    return ""


def _require_same(name: str, configuration: Mapping[str, Any], now: Mapping[str, Any], whole: bool) -> None:
    """Refuse what computes other features, or answers another question, than the network that it was trained in.

    Args:
        name: of the run.
        configuration: of the run.
        now: options of the new problem, and its seed.
        whole: whether the file has all layers of the new network, none of which is frozen.
    """
    before = {**configuration["problem"], "seed": configuration.get("seed")}
    compared = ["task", "norm", *([] if whole else _OF_FEATURES), *([] if whole or now["weights"] else ["seed"])]
    for option in compared:
        had, has = (NORMS.get(str(value), value) for value in (before.get(option), now[option]))
        recorded = had is not None if option == "seed" else option in before
        if recorded and had != has:
            key = "controller.seed" if option == "seed" else f"problem.{option}"
            raise ConfigurationError(
                f"controller.start_from: the model of run {name!r} is of a network with {key}={before[option]}, and this "
                f"job has {now[option]}: set {key} as there, or leave start_from out"
            )


def _fits(given: Tensor, own: Tensor) -> bool:
    """Whether an entry can replace one of the network: a cast between whole numbers and others would change its values."""
    return given.shape == own.shape and given.is_floating_point() == own.is_floating_point()
