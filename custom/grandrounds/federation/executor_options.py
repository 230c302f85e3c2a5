"""A job's executors as a party has them: before a site works for a run it compares its own options with the server's.

The server reads the client's part of the job where FLARE has put it; a site takes what its executor was built with, whatever
a file says. Options of a machine, such as its device, may differ.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from nvflare.apis.fl_context import FLContext

from grandrounds.errors import MessageError
from grandrounds.option_keys import option_defaults, option_types
from grandrounds.options import groups_of
from grandrounds.protocol.paths import in_kit
from grandrounds.protocol.wire import executor_arguments, stated_arguments

EXECUTORS = "executors"
"""The value of a task with the arguments of the job's executors by path; None where the server does not have them."""
OPTIONS_FACT = "options"
"""The fact of a registration with the digest of a site's options."""


def compared_options(component: type, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """What must be equal at all parties: arguments and defaults, without the options of a machine."""
    machine = {name for group in groups_of(component).values() if group.of_machine for name in option_types(group)}
    stated = {**option_defaults(component), **arguments}
    return {name: value for name, value in plain_values(stated).items() if name not in machine}


def agreed_options(component: type, built_with: Mapping[str, Any], site: str, asked: Any, fl_ctx: FLContext) -> str:
    """The digest of a site's options, which are the server's as far as the server has stated them.

    Args:
        component: the site's executor.
        built_with: its arguments, as FLARE has built it.
        site: its name.
        asked: the value ``EXECUTORS`` of the task; None if the server does not have them.
        fl_ctx: FLARE's context of the site.

    Returns:
        The SHA-256 of :func:`compared_options`; empty where no party has them in a file, as in one process.

    Raises:
        MessageError: naming the site, the option and both values, if one differs.
    """
    if asked is None and executor_arguments(fl_ctx) is None:
        return ""
    own = compared_options(component, built_with)
    if asked is not None:
        theirs = asked.get(_path(component)) if isinstance(asked, Mapping) else None
        if not isinstance(theirs, Mapping):
            raise MessageError(f"{site}: the executor {_path(component)} is not in the server's job")
        _require_same(site, own, compared_options(component, theirs))
    return hashlib.sha256(json.dumps(own, sort_keys=True).encode()).hexdigest()


def _require_same(site: str, own: Mapping[str, Any], theirs: Mapping[str, Any]) -> None:
    for name in sorted(own.keys() | theirs.keys()):
        if own.get(name) != theirs.get(name):
            raise MessageError(
                f"{site}: executor.{name} is {own.get(name)!r} here and {theirs.get(name)!r} in the server's job; "
                "take back what was changed at the site, or submit the job again"
            )


def _path(component: type) -> str:
    return f"{component.__module__}.{component.__qualname__}"


def plain_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """As JSON has them, in which lists and tuples are the same."""
    return json.loads(json.dumps(dict(values), default=str))


def require_stated(fl_ctx: FLContext, values: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
    """Check that a task has the options of the signed job: sums of other factors or bounds could show single sites.

    Args:
        fl_ctx: of this party, which may lack the server's part of the job in a simulation only.
        values: of the task.
        defaults: of the options that are compared, by name.

    Raises:
        MessageError: naming the option that differs.
    """
    stated = stated_arguments(fl_ctx)
    for name, default in defaults.items() if stated is not None or in_kit(fl_ctx) else ():
        asked, signed = values.get(name, default), (stated or {}).get(name, default)
        if asked != signed:
            raise MessageError(f"the task has {name}={asked}, the job which was signed {signed}; submit the job again")
