"""Which classes FLARE may build from a job's configuration: at a site and at a server."""

from __future__ import annotations

import copy
from collections.abc import Collection, Sequence
from typing import Any

from nvflare.app_common.default_component_policy import DEFAULT_CLASS_ALLOW_LIST

from grandrounds.deployment.code_digest import PACKAGE
from grandrounds.deployment.jobs import full_name, job_names, load_job, named_classes
from grandrounds.errors import ConfigurationError
from grandrounds.federation.own_methods import OWN_METHODS

EVERYTHING = "*"
"""In FLARE's list of allowed classes: everything that Python can import."""


JOB_FILTERS = ("grandrounds.federation.job_noise.GaussianPrivacy",)
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


SERVER_CLASSES = ("nvflare.app_opt.tracking.tb.tb_receiver.TBAnalyticsReceiver",)
"""Of FLARE's own list at a server: it writes files. Others call an address that a job names (MLflow, Weights & Biases) or
write what sites send (log files); an operator may list them one by one."""


def component_classes() -> list[str]:
    """Full names of the classes in this package's jobs and plug-ins' methods, and of the filters that a job may add.

    Not the whole package: FLARE calls whatever a job names with the job's arguments, and a function that runs a program
    would be as good as code of the job's own.
    """
    named = {
        path for job in map(load_job, job_names()) for part in (job.server, job.client) for path in named_classes(part)
    }
    own = [full_name(part) for method in OWN_METHODS.all().values() for part in (method.controller, method.executor)]
    return sorted({*JOB_FILTERS, *own, *(path for path in named if _ours(path))})


def with_allowed_classes(resources: dict[str, Any], at_site: bool, listed: Sequence[str] = ()) -> dict[str, Any]:
    """A copy in which this package's components are allowed, beside the classes that were allowed before.

    Earlier entries of this package are replaced. An entry for everything is removed, and so are FLARE's own classes; a
    server keeps ``SERVER_CLASSES`` and those that its operator has ``listed``.

    Raises:
        ConfigurationError: if a listed class is none of FLARE, or bypasses the list of mandatory sites or the sites' gates.
    """
    changed, components = copy.deepcopy(resources), component_classes()
    if foreign := [entry for entry in listed if entry.partition(".")[0] not in ("nvflare", PACKAGE.name)]:
        raise ConfigurationError(
            f"--allow-class {foreign[0]}: no class of FLARE, and jobs could run it; leave it out (a plug-in: --plugin NAME)"
        )
    if refused := [entry for entry in listed if _forbidden(entry, components, at_site, listed)]:
        raise ConfigurationError(f"{refused[0]} must not be allowed: it goes past the roster or the gates of sites")
    kept = [
        entry
        for entry in dict.fromkeys((*_allowed(changed), *listed))
        if entry not in components and not _forbidden(entry, components, at_site, listed)
    ]
    changed["class_allow_list"] = [*kept, *components]
    changed["class_list_enforcement_mode"] = "enforce"
    return changed


def classes_fault(resources: dict[str, Any], at_site: bool, listed: Sequence[str] = ()) -> str:
    """The fault of a list of allowed classes; empty if it is enforced and allows nothing forbidden.

    ``listed`` are classes of FLARE's that the operator of a server allows.

    Example:
        >>> classes_fault({"class_allow_list": ["grandrounds.", *component_classes()]}, at_site=True)
        'grandrounds. must not be allowed'
    """
    allowed, components = _allowed(resources), component_classes()
    if missing := [name for name in components if name not in allowed]:
        return f"{missing[0]} is not allowed"
    if more := [entry for entry in allowed if _forbidden(entry, components, at_site, listed)]:
        return f"{more[0]} must not be allowed"
    in_force = resources.get("class_list_enforcement_mode", "enforce") == "enforce"
    return "" if in_force else "the list of allowed classes is not enforced"


def added_classes(resources: dict[str, Any]) -> list[str]:
    """Classes that the participant has allowed beside FLARE's own list and this package's components."""
    known = {*DEFAULT_CLASS_ALLOW_LIST, *component_classes()}
    return [entry for entry in _allowed(resources) if entry not in known]


def _allowed(resources: dict[str, Any]) -> list[str]:
    allowed = resources.get("class_allow_list", [])
    if not isinstance(allowed, list) or not all(isinstance(entry, str) for entry in allowed):
        raise ConfigurationError(
            f"resources.json: class_allow_list must be a list of names of classes, got {allowed!r}"
        )
    return allowed


def _ours(entry: str) -> bool:
    return entry.partition(".")[0] == PACKAGE.name


def _forbidden(entry: str, components: Collection[str], at_site: bool, listed: Collection[str]) -> bool:
    closed = BYPASS_GATE if at_site else BYPASS_ROSTER
    around = any(entry.startswith(part) or part.startswith(entry) for part in closed)
    # FLARE builds the components of this project's jobs; those need hardly any of FLARE's own classes.
    flares = entry in DEFAULT_CLASS_ALLOW_LIST and (at_site or entry not in (*SERVER_CLASSES, *listed))
    return entry == EVERYTHING or around or flares or (_ours(entry) and entry not in components)
