"""The rules for a participant's own files, applied to plain values.

FLARE reads ``resources.json``, ``authorization.json`` and ``privacy.json`` in a kit's folder ``local``; no job can change
them. Every function returns a changed copy and changes nothing when applied twice.
"""

from __future__ import annotations

import copy
from collections.abc import Collection
from pathlib import Path
from typing import Any

from nvflare.app_common.default_component_policy import DEFAULT_CLASS_ALLOW_LIST

from grandrounds.deployment.jobs import PACKAGE, Job, full_name, job_names, load_job, named_classes
from grandrounds.errors import ConfigurationError
from grandrounds.federation.own_methods import OWN_METHODS

EVERYTHING = "*"
"""In FLARE's list of allowed classes: everything that Python can import."""
JOB_FILTERS = ("grandrounds.privacy.gate.filters.GaussianPrivacy",)
"""Filters that a job may add to the site's own."""
BYPASS_GATE = (
    "nvflare.app_common.ccwf.",
    "nvflare.app_common.logging.",
    "nvflare.app_common.widgets.convert_to_fed_event.",
    "nvflare.app_opt.tracking.",
    "nvflare.app_opt.xgboost.",
)
"""FLARE's classes that send data past a site's filters: messages between sites, events, log files."""
BYPASS_ROSTER = (
    "nvflare.app_common.ccwf.",
    "nvflare.app_common.psi.dh_psi.",
    "nvflare.app_common.workflows.",
    "nvflare.app_opt.pt.fedopt_ctl.",
    "nvflare.app_opt.pt.recipes.",
    "nvflare.app_opt.tf.fedopt_ctl.",
    "nvflare.app_opt.xgboost.",
)
"""FLARE's controllers: they ignore a server's list of mandatory sites, and send tasks that no gate accepts."""
GUARD = {"id": "channel_guard", "path": "grandrounds.federation.channels.ChannelGuard"}
"""The component of a kit that restricts FLARE's channels."""
FORBIDDEN = {"byoc": "bring code with a job", "shell_commands": "read files by FLARE's shell commands"}
"""Rights that no role has, and what they allow."""
SHELL_COMMANDS = ("cat", "grep", "head", "ls", "pwd", "tail")
"""FLARE's commands that are rights of their own as well."""
REFUSED = (None, "none", "no")
RIGHTS = ("submit_job", "clone_job", "manage_job", "download_job", "view", "operate")
GPU_MANAGER, JOB_MANAGER = "resource_manager", "job_manager"
DEPLOYER = {"id": "app_deployer", "path": "grandrounds.deployment.kit.admission.CheckedDeployer", "args": {}}
"""Refuses jobs while a file of the site is damaged."""


def site_resources(resources: dict[str, Any], gpus: int | None, gpu_memory: float | None) -> dict[str, Any]:
    """A site's ``resources.json``: allowed classes, our deployer, guarded channels, no log streaming, GPUs.

    Args:
        resources: FLARE's default, or the site's own.
        gpus: number of GPUs that jobs may reserve; None leaves the number.
        gpu_memory: of each, in GiB; None leaves it.

    Raises:
        ConfigurationError: if GPUs are given and the file has no GPU manager.
    """
    changed = with_guard(with_allowed_classes(resources, at_site=True))
    changed["allow_log_streaming"] = False
    others = [entry for entry in changed.get("components") or () if entry.get("id") != DEPLOYER["id"]]
    changed["components"] = [*others, dict(DEPLOYER)]
    if gpus is not None or gpu_memory is not None:
        arguments = component(changed, GPU_MANAGER).setdefault("args", {})
        arguments |= {} if gpus is None else {"num_of_gpus": gpus}
        arguments |= {} if gpu_memory is None else {"mem_per_gpu_in_GiB": gpu_memory}
    return changed


def server_resources(resources: dict[str, Any], storage: Path | None) -> dict[str, Any]:
    """A server's ``resources.json``: allowed classes, none of FLARE's controllers, guarded channels, a permanent storage.

    Raises:
        ConfigurationError: if a folder for jobs and results is given and the file has no job manager.
    """
    changed = with_guard(with_allowed_classes(resources, at_site=False))
    if storage is not None:
        component(changed, JOB_MANAGER).setdefault("args", {})["uri_root"] = str(storage / "jobs")
        snapshots = changed.get("snapshot_persistor", {}).get("args", {}).get("storage", {}).get("args")
        if snapshots is not None:
            snapshots["root_dir"] = str(storage / "snapshots")
    return changed


def with_guard(resources: dict[str, Any]) -> dict[str, Any]:
    """A copy with the component that restricts FLARE's channels."""
    components = [entry for entry in resources.get("components") or () if entry.get("id") != GUARD["id"]]
    return {**resources, "components": [*components, dict(GUARD)]}


def is_guarded(resources: dict[str, Any]) -> bool:
    """Whether the component that restricts FLARE's channels is there, once and not disabled."""
    return [entry for entry in resources.get("components") or () if entry.get("path") == GUARD["path"]] == [GUARD]


def component_classes() -> list[str]:
    """Full names of the classes in this package's jobs and plug-ins' methods, and of the filters that a job may add.

    Not the whole package: FLARE calls whatever a job names with the job's arguments, and a function that runs a program
    would be as good as code of the job's own. Jobs that bypass the gate are for the simulator and excluded.
    """
    jobs = [job for job in map(load_job, job_names()) if not _bypasses_gate(job)]
    named = {path for job in jobs for part in (job.server, job.client) for path in named_classes(part)}
    own = [full_name(part) for method in OWN_METHODS.all().values() for part in (method.controller, method.executor)]
    return sorted({*JOB_FILTERS, *own, *(path for path in named if _ours(path))})


def with_allowed_classes(resources: dict[str, Any], at_site: bool) -> dict[str, Any]:
    """A copy in which this package's components are allowed, beside the classes that were allowed before.

    Earlier entries of this package are replaced. An entry for everything is removed, and so are FLARE's own classes (at a
    site) and those that bypass the list of mandatory sites (at a server).
    """
    changed, components = copy.deepcopy(resources), component_classes()
    kept = [
        entry for entry in _allowed(changed) if entry not in components and not _forbidden(entry, components, at_site)
    ]
    changed["class_allow_list"] = [*kept, *components]
    changed["class_list_enforcement_mode"] = "enforce"
    return changed


def classes_fault(resources: dict[str, Any], at_site: bool) -> str:
    """The fault of a list of allowed classes; empty if it is enforced and allows nothing forbidden.

    Example:
        >>> classes_fault({"class_allow_list": ["grandrounds.", *component_classes()]}, at_site=True)
        'grandrounds. must not be allowed'
    """
    allowed, components = _allowed(resources), component_classes()
    if missing := [name for name in components if name not in allowed]:
        return f"{missing[0]} is not allowed"
    if more := [entry for entry in allowed if _forbidden(entry, components, at_site)]:
        return f"{more[0]} must not be allowed"
    in_force = resources.get("class_list_enforcement_mode", "enforce") == "enforce"
    return "" if in_force else "the list of allowed classes is not enforced"


def added_classes(resources: dict[str, Any]) -> list[str]:
    """Classes that the participant has allowed beside FLARE's own list and this package's components."""
    known = {*DEFAULT_CLASS_ALLOW_LIST, *component_classes()}
    return [entry for entry in _allowed(resources) if entry not in known]


def restricted(authorization: dict[str, Any]) -> dict[str, Any]:
    """A copy of ``authorization.json`` in which no role has a right that is forbidden.

    A role that FLARE gives every right by one word gets them by name, so that these can be missing.

    Raises:
        ConfigurationError: if there are no permissions.

    Example:
        >>> restricted({"permissions": {"lead": {"view": "any", "byoc": "any"}}})
        {'permissions': {'lead': {'view': 'any', 'byoc': 'none', 'shell_commands': 'none'}}}
    """
    changed = copy.deepcopy(authorization)
    permissions = changed.get("permissions")
    if not isinstance(permissions, dict) or not permissions:
        raise ConfigurationError(
            "authorization.json has no permissions; take FLARE's default or this project's overlay"
        )
    for role, rights in permissions.items():
        # FLARE gives a command the right of its own name first, before that of its category.
        named = {right: who for right, who in _by_name(rights).items() if right not in SHELL_COMMANDS}
        permissions[role] = {**named, **dict.fromkeys(FORBIDDEN, "none")}
    return changed


def forbidden_rights(authorization: dict[str, Any]) -> list[tuple[str, str]]:
    """Roles and the forbidden rights that they have.

    Example:
        >>> forbidden_rights({"permissions": {"lead": {"byoc": "any"}, "admin": "any", "member": {"view": "any"}}})
        [('admin', 'byoc'), ('admin', 'shell_commands'), ('lead', 'byoc')]
    """
    permissions = authorization.get("permissions", {})
    wanted = (*FORBIDDEN, *SHELL_COMMANDS)
    return sorted(
        (role, right)
        for role, rights in permissions.items()
        for right in wanted
        if _by_name(rights).get(right) not in REFUSED
    )


def component(resources: dict[str, Any], identifier: str) -> dict[str, Any]:
    """The component of ``resources.json`` with this id; changing it changes the resources.

    Raises:
        ConfigurationError: if there is none.
    """
    for entry in resources.get("components") or ():
        if isinstance(entry, dict) and entry.get("id") == identifier:
            return entry
    raise ConfigurationError(f"resources.json has no component {identifier!r}; start again from resources.json.default")


def _allowed(resources: dict[str, Any]) -> list[str]:
    allowed = resources.get("class_allow_list", [])
    if not isinstance(allowed, list) or not all(isinstance(entry, str) for entry in allowed):
        raise ConfigurationError(
            f"resources.json: class_allow_list must be a list of names of classes, got {allowed!r}"
        )
    return allowed


def _by_name(rights: Any) -> dict[str, Any]:
    """A role's rights by name, as FLARE reads them: a bare word or ``*`` is for all, and case does not count."""
    if isinstance(rights, dict):
        named = {" ".join(right.lower().split()): who for right, who in rights.items()}
        return _by_name(named[EVERYTHING]) if EVERYTHING in named else named
    return dict.fromkeys((*RIGHTS, *FORBIDDEN), rights)


def _ours(entry: str) -> bool:
    return entry.partition(".")[0] == PACKAGE.name


def _forbidden(entry: str, components: Collection[str], at_site: bool) -> bool:
    closed = BYPASS_GATE if at_site else BYPASS_ROSTER
    around = any(entry.startswith(part) or part.startswith(entry) for part in closed)
    # At a site FLARE builds the executors and filters of this project's jobs; those need none of FLARE's own classes.
    flares = at_site and entry in DEFAULT_CLASS_ALLOW_LIST
    return entry == EVERYTHING or around or flares or (_ours(entry) and entry not in components)


def _bypasses_gate(job: Job) -> bool:
    return any(path.startswith(BYPASS_GATE) for path in named_classes(job.client))
