"""Where a run's files are, at the server and at a site, in every way of running."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grandrounds.errors import ConfigurationError
from grandrounds.files import write_json

if TYPE_CHECKING:
    from nvflare.apis.fl_context import FLContext

CACHE_VARIABLE = "GRANDROUNDS_CACHE"
"""Names the folder of decoded images."""
STATE_VARIABLE = "GRANDROUNDS_STATE"
WEIGHTS_VARIABLE = "GRANDROUNDS_WEIGHTS"
SITES_VARIABLE = "GRANDROUNDS_SITES"
SOURCES_VARIABLE = "GRANDROUNDS_SOURCES"
"""In a simulation the source of each site as JSON, if several sites are of one; a server in a kit knows none."""
DETAILS_VARIABLE = "GRANDROUNDS_SHARE_ERRORS"
OWNER = "owner.json"
"""In a run's folder: who has submitted it, and the job's name."""
STATES, CACHE = "grandrounds", "cache"
OWN_SCORES = "scores.json"
"""In a site's folder of a run: scores of tested models on its own images."""
"""In a kit or a workspace: states of runs, decoded images, heads of ledgers; and the decoded images in it."""
LOCK = "grandrounds.lock.json"
"""In the folder ``local`` of a kit that has this project's overlay."""
PRIVACY_FOLDER = "privacy"
"""Of ledger and audit trail, in the folder ``local``."""
START_KEY = "start_key.fl"
"""In a kit: the secret of this start of FLARE, by which its processes know each other."""
ALIVE = "alive.fl"
"""In a kit: FLARE's process touches it every few seconds."""


def in_kit(fl_ctx: FLContext) -> bool:
    """Whether this process belongs to a kit with this project's overlay, and not to a simulation."""
    # Asked in every task, so without pathlib, which takes several times as long.
    lock = os.path.join(fl_ctx.get_engine().get_workspace().get_site_config_dir(), LOCK)
    try:
        return stat.S_ISREG(os.stat(lock).st_mode)
    except (FileNotFoundError, NotADirectoryError):  # after any other error a kit must not be taken for a simulation
        return False


def job_part(workspace: Any, job: str, party: str) -> Path:
    """A job's part for a kind of party, ``client`` or ``server``, where FLARE has put it.

    FLARE's own question leaves the folder out in kits of ``nvflare package``, whose start script names none.
    """
    return Path(workspace.get_app_dir(job), "config", f"config_fed_{party}.json")


def require_confined(path: str | None, option: str, fl_ctx: FLContext) -> None:
    """Check that a job names no file of a kit outside its folder ``local``.

    A name without a folder is none of a file.

    Raises:
        ConfigurationError: naming the option.
    """
    local = Path(fl_ctx.get_engine().get_workspace().get_site_config_dir()).resolve()
    if path and os.sep in path and in_kit(fl_ctx) and not Path(path).resolve().is_relative_to(local):
        raise ConfigurationError(f"{option}: a job may name files in {local} only, got {path}")


def _workspace_root(fl_ctx: FLContext) -> Path:
    """The root of this party's FLARE workspace (its startup kit, or its folder in a simulation)."""
    return Path(str(fl_ctx.get_engine().get_workspace().get_root_dir()))


def state_folder(fl_ctx: FLContext, run_name: str, party: str) -> Path:
    """Where this party (a site, or ``server``) keeps what must survive its process, for example checkpoints.

    It is keyed by the run's name, not by FLARE's job id: a run that is resumed is a new job. ``$GRANDROUNDS_STATE``
    overrides the workspace, which a simulator wipes at its start.
    """
    root = os.environ.get(STATE_VARIABLE)
    base = Path(root) if root else _workspace_root(fl_ctx) / STATES
    return base / run_name / party


def cache_folder(fl_ctx: FLContext) -> Path:
    """Where a site keeps decoded images for all its runs; ``$GRANDROUNDS_CACHE`` overrides."""
    if CACHE_VARIABLE in os.environ:
        return Path(os.environ[CACHE_VARIABLE])
    state = os.environ.get(STATE_VARIABLE)
    return (Path(state) if state else _workspace_root(fl_ctx) / STATES) / CACHE


def claimed_folder(fl_ctx: FLContext, run_name: str, party: str) -> Path:
    """The :func:`state_folder` of a run, which belongs to the submitter and the job that first used the run's name.

    Raises:
        ConfigurationError: if another submitter or another job uses the name: their state would be replaced.
    """
    folder = state_folder(fl_ctx, run_name, party)
    meta = Path(fl_ctx.get_engine().get_workspace().get_job_meta_path(fl_ctx.get_job_id()))
    if not meta.is_file():  # a simulation
        return folder
    described = json.loads(meta.read_text(encoding="utf-8"))
    owner = {name: str(described.get(name, "")) for name in ("submitter_name", "name")}
    path = folder.parent / OWNER
    if path.is_file():
        known = json.loads(path.read_text(encoding="utf-8"))
        if known != owner:
            raise ConfigurationError(
                f"run {run_name!r} here is of job {known['name']!r} by {known['submitter_name']!r}; choose another "
                "controller.run_name"
            )
    else:
        write_json(path, owner)
    return folder


def result_folder(fl_ctx: FLContext) -> Path:
    """Where this party writes results: inside FLARE's run folder, so that the job's download has them."""
    return Path(fl_ctx.get_engine().get_workspace().get_run_dir(fl_ctx.get_job_id())) / "results"


def data_folders(fl_ctx: FLContext) -> list[Path]:
    """The folders in which a site's ``grandrounds.json`` is looked for, in this order."""
    folders = [Path(fl_ctx.get_engine().get_workspace().get_site_config_dir())]
    simulated = os.environ.get(SITES_VARIABLE)
    return [*([Path(simulated)] if simulated else []), *folders]


def weights_folder() -> Path:
    """The folder of this machine's weights; it need not exist."""
    return Path(os.environ.get(WEIGHTS_VARIABLE) or Path.home() / ".local" / "share" / "grandrounds" / "weights")
