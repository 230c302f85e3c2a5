"""What a participant's own files must say, whatever they said before; each rule is applied to plain values.

FLARE reads ``resources.json``, ``authorization.json`` and ``privacy.json`` in a kit's folder ``local``; no job can change
them. Every function returns a changed copy and changes nothing when applied twice.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

from grandrounds.errors import ConfigurationError

ALLOWED_PREFIX = "grandrounds."
"""Classes of this package; the trailing dot makes it a package, so that ``grandrounds_other`` is not meant."""
OWN_CODE = "byoc"
RIGHTS = ("submit_job", "clone_job", "manage_job", "download_job", "view", "operate", "shell_commands")
GPU_MANAGER, JOB_MANAGER = "resource_manager", "job_manager"


def site_resources(resources: dict[str, Any], gpus: int | None, gpu_memory: float | None) -> dict[str, Any]:
    """A site's ``resources.json``: our classes allowed, logs kept at home, GPUs counted.

    Args:
        resources: FLARE's default, or what the site has made of it.
        gpus: number of GPUs that jobs may ask for; None leaves what is said.
        gpu_memory: of each, in GiB; None leaves what is said.

    Raises:
        ConfigurationError: if GPUs are given and the file has no GPU manager.

    Example:
        >>> changed = site_resources({"class_allow_list": ["nvflare.x"]}, None, None)
        >>> changed["class_allow_list"], changed["allow_log_streaming"]
        (['nvflare.x', 'grandrounds.'], False)
    """
    changed = with_allowed_classes(resources)
    changed["allow_log_streaming"] = False
    if gpus is not None or gpu_memory is not None:
        arguments = component(changed, GPU_MANAGER).setdefault("args", {})
        arguments |= {} if gpus is None else {"num_of_gpus": gpus}
        arguments |= {} if gpu_memory is None else {"mem_per_gpu_in_GiB": gpu_memory}
    return changed


def server_resources(resources: dict[str, Any], storage: Path | None) -> dict[str, Any]:
    """A server's ``resources.json``: our classes allowed, jobs and results where nobody tidies up.

    Args:
        resources: FLARE's default, or what the operator has made of it.
        storage: folder of the server for jobs and results; None leaves what is said.

    Raises:
        ConfigurationError: if a storage is given and the file has no place for it.
    """
    changed = with_allowed_classes(resources)
    if storage is not None:
        component(changed, JOB_MANAGER).setdefault("args", {})["uri_root"] = str(storage / "jobs")
        snapshots = changed.get("snapshot_persistor", {}).get("args", {}).get("storage", {}).get("args")
        if snapshots is not None:
            snapshots["root_dir"] = str(storage / "snapshots")
    return changed


def with_allowed_classes(resources: dict[str, Any]) -> dict[str, Any]:
    """A copy in which FLARE builds this package's classes, beside those it builds anyway."""
    changed = copy.deepcopy(resources)
    allowed = list(changed.get("class_allow_list", []))
    changed["class_allow_list"] = allowed if ALLOWED_PREFIX in allowed else [*allowed, ALLOWED_PREFIX]
    changed["class_list_enforcement_mode"] = "enforce"
    return changed


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
        named = rights if isinstance(rights, dict) else dict.fromkeys(RIGHTS, rights)
        permissions[role] = {**named, OWN_CODE: "none"}
    return changed


def roles_with_own_code(authorization: dict[str, Any]) -> list[str]:
    """Roles that may send code with a job.

    Example:
        >>> roles_with_own_code({"permissions": {"lead": {"byoc": "any"}, "admin": "any", "member": {"view": "any"}}})
        ['admin', 'lead']
    """
    found = []
    for role, rights in authorization.get("permissions", {}).items():
        right = rights.get(OWN_CODE, "none") if isinstance(rights, dict) else rights
        if right not in ("none", "no"):
            found.append(role)
    return sorted(found)


def component(resources: dict[str, Any], identifier: str) -> dict[str, Any]:
    """The component of ``resources.json`` with this id; changing it changes the resources.

    Raises:
        ConfigurationError: if there is none.
    """
    for entry in resources.get("components", []):
        if entry.get("id") == identifier:
            found: dict[str, Any] = entry
            return found
    raise ConfigurationError(f"resources.json has no component {identifier!r}; start again from resources.json.default")
