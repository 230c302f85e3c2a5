"""A site accepts a job only while its own files can be used.

Each job's process reads the site's files as they are at that moment. An error there makes FLARE end the job at all sites, so
the files are checked when a job arrives: then this site refuses the job, with the reason, and the others go on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from nvflare.apis.fl_context import FLContext
from nvflare.apis.workspace import Workspace
from nvflare.private.fed.app.fl_conf import create_privacy_manager
from nvflare.private.fed.utils.app_deployer import AppDeployer

from grandrounds.data.site import CONFIG_NAME, read_site_config
from grandrounds.deployment.kit.signers import SIGNERS, certificates_of, read_signers, signers_of
from grandrounds.deployment.manifest import Manifest, approved, take_number
from grandrounds.errors import ConfigurationError
from grandrounds.federation.channels import is_job_id
from grandrounds.federation.job_files import MANIFEST, read_files, require_app
from grandrounds.files import read_json_object
from grandrounds.privacy.gate.audit import write_audit
from grandrounds.privacy.gate.policy import POLICY_FILE, read_policies
from grandrounds.protocol.messages import MESSAGE_NAME, ReleaseKind
from grandrounds.protocol.paths import PRIVACY_FOLDER
from grandrounds.protocol.refusal import Reason, Refusal

READ_BY_FLARE = ("resources.json", "authorization.json")
AUTHORITY = "rootCA.pem"
RELEASES = "releases"
"""Among the properties of a submitted job: what it may release in a round, by name with the kind."""


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
        try:
            refused = job_refusal(workspace, job_id, job_meta, app_data)
        except (ConfigurationError, OSError, ValueError, KeyError) as error:
            return f"the job or what the site knows of jobs cannot be read: {error}"
        return refused or str(super().deploy(workspace, job_id, job_meta, app_name, app_data, fl_ctx) or "")


def job_refusal(workspace: Workspace, job_id: str, job_meta: Mapping[str, Any], app: bytes) -> str:
    """Why a site does not run a job; empty if it does, and then the job's number is taken.

    Raises:
        ConfigurationError: if the job is more than data, or a file of it or of the site is damaged.
        OSError: if the number cannot be noted.
    """
    require_app(files := read_files(app))
    local = Path(workspace.get_site_config_dir())
    allowed = read_signers(read_json_object(local / SIGNERS), SIGNERS)
    signers = signers_of(app, Path(workspace.get_file_path_in_startup(AUTHORITY)))
    manifest = Manifest.read(files[MANIFEST])
    if refused := allowed.refusal(signers, certificates_of(files) if signers else ()):
        return refused
    if refused := manifest.refusal(files, job_meta, workspace.site_name, datetime.now(UTC)):
        return refused
    if refusal := policy_refusal(job_meta, read_json_object(local / POLICY_FILE)):
        line = {"job": job_id, "run": job_meta.get("name"), "task": "deployment", "reason": Reason.DENIED.value}
        write_audit(local / PRIVACY_FOLDER, "refused", {**line, "detail": refusal.cause})
        return str(refusal)
    if allowed.approval and manifest.content not in approved(local):
        return f"the site has not approved what the job runs ({manifest.content[:12]}): grandrounds approve"
    return take_number(local / PRIVACY_FOLDER, manifest, job_id)


def policy_refusal(job_meta: Mapping[str, Any], content: Mapping[str, Any]) -> Refusal | None:
    """Why the policy of a job's scope refuses what the job states that it releases; None if it does not.

    A job states it in its unsigned ``meta.json``: this check saves a start, and the gate of the job's process decides.

    Args:
        job_meta: of the job.
        content: of the site's ``privacy.json``, which is valid.
    """
    stated = (job_meta.get("custom_props") or {}).get(RELEASES)
    kinds = {kind.value: kind for kind in ReleaseKind}
    if not isinstance(stated, Mapping) or not all(kind in kinds for kind in stated.values()):
        return None
    policy = read_policies(content, POLICY_FILE).get(job_meta.get("scope") or content["default_scope"])
    releases = {str(name): kinds[kind] for name, kind in stated.items() if MESSAGE_NAME.fullmatch(str(name))}
    return None if policy is None else policy.refusal_of(releases)


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
            if (local / name).is_file() or name in (POLICY_FILE, SIGNERS):
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
