"""What a participant's own files must say, whatever they said before; each rule is applied to plain values.

FLARE reads ``resources.json``, ``authorization.json`` and ``privacy.json`` in a kit's folder ``local``; no job can change
them. Every function returns a changed copy and changes nothing when applied twice.
"""

from __future__ import annotations

import copy
from collections.abc import Collection
from pathlib import Path
from typing import Any

from nvflare.app_common.default_component_policy import DEFAULT_CLASS_ALLOW_LIST

from grandrounds.deployment.jobs import PACKAGE, Job, job_names, load_job, named_classes
from grandrounds.errors import ConfigurationError

EVERYTHING = "*"
"""In FLARE's list of allowed classes: whatever Python can import."""
JOB_FILTERS = ("grandrounds.privacy.gate.filters.GaussianPrivacy",)
"""Filters that a job may add, beside the site's own."""
AROUND_THE_GATE = (
    "nvflare.app_common.ccwf.",
    "nvflare.app_common.logging.",
    "nvflare.app_common.widgets.convert_to_fed_event.",
    "nvflare.app_opt.tracking.",
    "nvflare.app_opt.xgboost.",
)
"""FLARE's classes that send what passes none of a site's filters: messages between sites, events, log files."""
AROUND_THE_ROSTER = (
    "nvflare.app_common.ccwf.",
    "nvflare.app_common.psi.dh_psi.",
    "nvflare.app_common.workflows.",
    "nvflare.app_opt.pt.fedopt_ctl.",
    "nvflare.app_opt.pt.recipes.",
    "nvflare.app_opt.tf.fedopt_ctl.",
    "nvflare.app_opt.xgboost.",
)
"""FLARE's controllers: they do not ask for the sites that a server's roster names, and send what no gate takes."""
OWN_CODE = "byoc"
RIGHTS = ("submit_job", "clone_job", "manage_job", "download_job", "view", "operate", "shell_commands")
GPU_MANAGER, JOB_MANAGER = "resource_manager", "job_manager"


def site_resources(resources: dict[str, Any], gpus: int | None, gpu_memory: float | None) -> dict[str, Any]:
    """A site's ``resources.json``: our classes allowed, none that goes around the gate, logs kept at home, GPUs counted.

    Args:
        resources: FLARE's default, or what the site has made of it.
        gpus: number of GPUs that jobs may ask for; None leaves what is said.
        gpu_memory: of each, in GiB; None leaves what is said.

    Raises:
        ConfigurationError: if GPUs are given and the file has no GPU manager.

    Example:
        >>> changed = site_resources({"class_allow_list": ["nvflare.x"]}, None, None)
        >>> changed["class_allow_list"] == ["nvflare.x", *component_classes()], changed["allow_log_streaming"]
        (True, False)
    """
    changed = with_allowed_classes(resources, at_site=True)
    changed["allow_log_streaming"] = False
    if gpus is not None or gpu_memory is not None:
        arguments = component(changed, GPU_MANAGER).setdefault("args", {})
        arguments |= {} if gpus is None else {"num_of_gpus": gpus}
        arguments |= {} if gpu_memory is None else {"mem_per_gpu_in_GiB": gpu_memory}
    return changed


def server_resources(resources: dict[str, Any], storage: Path | None) -> dict[str, Any]:
    """A server's ``resources.json``: our classes allowed, no controller of FLARE's, jobs and results where nobody tidies up.

    Args:
        resources: FLARE's default, or what the operator has made of it.
        storage: folder of the server for jobs and results; None leaves what is said.

    Raises:
        ConfigurationError: if a storage is given and the file has no place for it.
    """
    changed = with_allowed_classes(resources, at_site=False)
    if storage is not None:
        component(changed, JOB_MANAGER).setdefault("args", {})["uri_root"] = str(storage / "jobs")
        snapshots = changed.get("snapshot_persistor", {}).get("args", {}).get("storage", {}).get("args")
        if snapshots is not None:
            snapshots["root_dir"] = str(storage / "snapshots")
    return changed


def component_classes() -> list[str]:
    """Full names of this package's classes that its jobs are made of, and of the filters that a job may add.

    Not the whole package: FLARE calls whatever a job names, with the job's arguments, and a function that runs a program
    is as good as code of the job's own. Not jobs that need what goes around the gate: those are for the simulator.

    Example:
        >>> "grandrounds.methods.fedperl.executor.FedPerlExecutor" in component_classes()
        True
    """
    jobs = [job for job in map(load_job, job_names()) if not _goes_around(job)]
    named = {path for job in jobs for part in (job.server, job.client) for path in named_classes(part)}
    return sorted({*JOB_FILTERS, *(path for path in named if _ours(path))})


def with_allowed_classes(resources: dict[str, Any], at_site: bool) -> dict[str, Any]:
    """A copy in which FLARE builds this package's components, beside the classes that it builds anyway.

    What was allowed of this package before is replaced, a permission for everything is taken back, and that of FLARE's
    classes that go around the gate (at a site) or around the roster (at a server).
    """
    changed, components = copy.deepcopy(resources), component_classes()
    kept = [
        entry for entry in _allowed(changed) if entry not in components and not _too_much(entry, components, at_site)
    ]
    changed["class_allow_list"] = [*kept, *components]
    changed["class_list_enforcement_mode"] = "enforce"
    return changed


def classes_fault(resources: dict[str, Any], at_site: bool) -> str:
    """What is wrong with a list of allowed classes; nothing if it is in force and allows no more than it should.

    Example:
        >>> classes_fault({"class_allow_list": ["grandrounds.", *component_classes()]}, at_site=True)
        'grandrounds. is allowed, which is too much'
    """
    allowed, components = _allowed(resources), component_classes()
    if missing := [name for name in components if name not in allowed]:
        return f"{missing[0]} is not allowed"
    if more := [entry for entry in allowed if _too_much(entry, components, at_site)]:
        return f"{more[0]} is allowed, which is too much"
    in_force = resources.get("class_list_enforcement_mode", "enforce") == "enforce"
    return "" if in_force else "the list of allowed classes is not enforced"


def added_classes(resources: dict[str, Any]) -> list[str]:
    """What is allowed beside FLARE's own list and this package's components: a decision of the participant.

    Example:
        >>> added_classes({"class_allow_list": [*component_classes(), "subprocess.Popen"]})
        ['subprocess.Popen']
    """
    known = {*DEFAULT_CLASS_ALLOW_LIST, *component_classes()}
    return [entry for entry in _allowed(resources) if entry not in known]


def without_own_code(authorization: dict[str, Any]) -> dict[str, Any]:
    """A copy of ``authorization.json`` in which nobody may send code with a job.

    A role that FLARE gives every right by one word gets them by name, so that this one can be missing.

    Raises:
        ConfigurationError: if there are no permissions.

    Example:
        >>> without_own_code({"permissions": {"lead": {"view": "any", "byoc": "any"}}})
        {'permissions': {'lead': {'view': 'any', 'byoc': 'none'}}}
    """
    changed = copy.deepcopy(authorization)
    permissions = changed.get("permissions")
    if not isinstance(permissions, dict) or not permissions:
        raise ConfigurationError(
            "authorization.json has no permissions; take FLARE's default or this project's overlay"
        )
    for role, rights in permissions.items():
        permissions[role] = {**_by_name(rights), OWN_CODE: "none"}
    return changed


def roles_with_own_code(authorization: dict[str, Any]) -> list[str]:
    """Roles that may send code with a job.

    Example:
        >>> roles_with_own_code({"permissions": {"lead": {"byoc": "any"}, "admin": "any", "member": {"view": "any"}}})
        ['admin', 'lead']
    """
    found = []
    for role, rights in authorization.get("permissions", {}).items():
        if _by_name(rights).get(OWN_CODE, "none") not in ("none", "no"):
            found.append(role)
    return sorted(found)


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
    return dict.fromkeys((*RIGHTS, OWN_CODE), rights)


def _ours(entry: str) -> bool:
    return entry.partition(".")[0] == PACKAGE.name


def _too_much(entry: str, components: Collection[str], at_site: bool) -> bool:
    closed = AROUND_THE_GATE if at_site else AROUND_THE_ROSTER
    around = any(entry.startswith(part) or part.startswith(entry) for part in closed)
    return entry == EVERYTHING or around or (_ours(entry) and entry not in components)


def _goes_around(job: Job) -> bool:
    return any(path.startswith(AROUND_THE_GATE) for path in named_classes(job.client))
