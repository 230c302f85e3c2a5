"""A site accepts a job only while its own files can be used.

Each job's process reads the site's files as they are at that moment. An error there makes FLARE end the job at all sites, so
the files are checked when a job arrives: then this site refuses the job, with the reason, and the others go on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from nvflare.apis.fl_context import FLContext
from nvflare.apis.workspace import Workspace
from nvflare.private.fed.app.fl_conf import create_privacy_manager
from nvflare.private.fed.utils.app_deployer import AppDeployer

from grandrounds.data.site import CONFIG_NAME, read_site_config
from grandrounds.deployment.kit.signers import SIGNERS, read_signers, signers_of
from grandrounds.federation.channels import is_job_id
from grandrounds.json_files import read_json_object
from grandrounds.privacy.gate.policy import POLICY_FILE, read_policies

READ_BY_FLARE = ("resources.json", "authorization.json")
AUTHORITY = "rootCA.pem"


class CheckedDeployer(AppDeployer):
    """FLARE's deployer, which refuses a job when a file of the site is damaged, or the signer is not on the site's list.

    It is for a site's ``resources.json``. FLARE empties the folder with a job's id, so it also refuses an id that could name
    a folder of the kit.
    """

    def deploy(
        self,
        workspace: Workspace,
        job_id: str,
        job_meta: dict[str, Any],
        app_name: str,
        app_data: bytes,
        fl_ctx: FLContext,
    ) -> str:
        """FLARE's hook: the reason of a refusal, or an empty string."""
        if not is_job_id(job_id):
            return "the job's id is none that FLARE gives"
        if faults := list(site_faults(workspace)):
            return (
                f"the site's own files are not valid: {'; '.join(faults)}; its administrator: grandrounds doctor --kit"
            )
        local = Path(workspace.get_site_config_dir())
        allowed = read_signers(read_json_object(local / SIGNERS), SIGNERS)
        if refused := allowed.refusal(signers_of(app_data, Path(workspace.get_file_path_in_startup(AUTHORITY)))):
            return refused
        return str(super().deploy(workspace, job_id, job_meta, app_name, app_data, fl_ctx) or "")


def site_faults(workspace: Workspace) -> Iterator[str]:
    """What would end a job's process at this site, one line for each file; without the site's folders."""
    local = Path(workspace.get_site_config_dir())
    checks: list[tuple[str, Callable[[Path], object]]] = [
        *((name, read_json_object) for name in READ_BY_FLARE),
        (POLICY_FILE, lambda path: _read_privacy(path, workspace)),
        (SIGNERS, lambda path: read_signers(read_json_object(path), SIGNERS)),
        (CONFIG_NAME, read_site_config),
    ]
    for name, read in checks:
        try:
            if (local / name).is_file() or name == SIGNERS:
                read(local / name)
        except Exception as error:  # a file that was edited by hand may have any form
            yield f"{name}: {type(error).__name__}: {' '.join(str(error).replace(str(local), 'local').split())}"


def privacy_fault(folder: Path) -> str:
    """Why FLARE cannot build what a kit's ``privacy.json`` names; empty if it can."""
    try:
        create_privacy_manager(Workspace(root_dir=str(folder)), names_only=False)
    except Exception as error:  # whatever a class that the file names raises
        return f"{POLICY_FILE}: {' '.join(str(error).split())}"
    return ""


def _read_privacy(path: Path, workspace: Workspace) -> None:
    read_policies(read_json_object(path), POLICY_FILE)
    create_privacy_manager(workspace, names_only=False)
