"""The rules for a participant's own files, applied to plain values.

FLARE reads ``resources.json``, ``authorization.json``, ``log_config.json`` and ``privacy.json`` in a kit's folder ``local``;
no job can change them. Every function returns a changed copy and changes nothing when applied twice.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from grandrounds.deployment.kit.classes import EVERYTHING, with_allowed_classes
from grandrounds.errors import ConfigurationError
from grandrounds.logs.lines import LineFormatter

GUARD = {"id": "channel_guard", "path": "grandrounds.federation.channels.ChannelGuard"}
"""The component of a kit that restricts FLARE's channels."""
FORBIDDEN = {"byoc": "bring code with a job", "shell_commands": "read files by FLARE's shell commands"}
"""Rights that no role has, and what they allow."""
SHELL_COMMANDS = ("cat", "grep", "head", "ls", "pwd", "tail")
"""FLARE's commands that are rights of their own as well."""
JSON_FORMATTER, FLARES_FORMATTER = "jsonFormatter", "nvflare.fuel.utils.log_utils.JsonFormatter"
"""The formatter of ``log.json`` in FLARE's ``log_config.json``, and its class there."""
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


MOST_SITES = "max_num_clients"
"""FLARE's, of a server; it refuses further sites."""


def server_resources(
    resources: dict[str, Any], storage: Path | None, listed: Sequence[str] = (), sites: int | None = None
) -> dict[str, Any]:
    """A server's ``resources.json``: allowed classes, guarded channels, a permanent storage, the most sites.

    ``listed`` are classes of FLARE's that the operator allows beside; with None for ``sites`` their number stays.

    Raises:
        ConfigurationError: if a folder for jobs and results is given and the file has no job manager, or a listed class must
            not be allowed.
    """
    changed = with_guard(with_allowed_classes(resources, at_site=False, listed=listed))
    if storage is not None:
        component(changed, JOB_MANAGER).setdefault("args", {})["uri_root"] = str(storage / "jobs")
        snapshots = changed.get("snapshot_persistor", {}).get("args", {}).get("storage", {}).get("args")
        if snapshots is not None:
            snapshots["root_dir"] = str(storage / "snapshots")
    for server in changed.get("servers", []) if sites is not None else []:
        server[MOST_SITES] = sites
    return changed


def line_log(config: dict[str, Any], party: str) -> dict[str, Any]:
    """A copy of ``log_config.json`` in which ``log.json`` has this project's lines; a formatter of one's own stays.

    Example:
        >>> line_log({"formatters": {"jsonFormatter": {"()": "own.Formatter"}}}, "hospital-a")
        {'formatters': {'jsonFormatter': {'()': 'own.Formatter'}}}
    """
    ours = f"{LineFormatter.__module__}.{LineFormatter.__qualname__}"
    changed = copy.deepcopy(config)
    formatters = changed.get("formatters", {})
    if formatters.get(JSON_FORMATTER, {}).get("()") in (FLARES_FORMATTER, ours):
        formatters[JSON_FORMATTER] = {"()": ours, "party": party}
    return changed


def with_guard(resources: dict[str, Any]) -> dict[str, Any]:
    """A copy with the component that restricts FLARE's channels."""
    components = [entry for entry in resources.get("components") or () if entry.get("id") != GUARD["id"]]
    return {**resources, "components": [*components, dict(GUARD)]}


def is_guarded(resources: dict[str, Any]) -> bool:
    """Whether the component that restricts FLARE's channels is there, once and not disabled."""
    return [entry for entry in resources.get("components") or () if entry.get("path") == GUARD["path"]] == [GUARD]


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


def _by_name(rights: Any) -> dict[str, Any]:
    """A role's rights by name, as FLARE reads them: a bare word or ``*`` is for all, and case does not count."""
    if isinstance(rights, dict):
        named = {" ".join(right.lower().split()): who for right, who in rights.items()}
        return _by_name(named[EVERYTHING]) if EVERYTHING in named else named
    return dict.fromkeys((*RIGHTS, *FORBIDDEN), rights)
