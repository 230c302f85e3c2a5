"""Checks of what others can do at a participant, and of what they get from it."""

from __future__ import annotations

import os
from collections.abc import Iterator

from grandrounds.data.fitness import Finding
from grandrounds.deployment.kit.admission import privacy_fault
from grandrounds.deployment.kit.classes import added_classes, classes_fault, component_classes
from grandrounds.deployment.kit.distributions import locked_networks, locked_plugins
from grandrounds.deployment.kit.findings import APPLY, in_force, verdict
from grandrounds.deployment.kit.overlay import (
    AUTHORIZATION,
    LEDGER_FOLDER,
    RESOURCES,
    listed_classes,
)
from grandrounds.deployment.kit.policy import FORBIDDEN, forbidden_rights, is_guarded
from grandrounds.deployment.kit.read import Kit
from grandrounds.deployment.kit.signers import SIGNERS, read_signers
from grandrounds.errors import ConfigurationError
from grandrounds.json_files import read_json_object
from grandrounds.plugins import PLUGINS_VARIABLE, installed_plugins, load_plugins
from grandrounds.privacy.gate.policy import POLICY_FILE, read_policies
from grandrounds.privacy.ledger.ledger import Ledger


def plug_ins(kit: Kit) -> Iterator[Finding]:
    """No plug-in is installed that is not listed, and the libraries of listed networks are those that were reviewed."""
    names = {plugin.name for plugin in locked_plugins(kit)}
    for plugin in installed_plugins():
        if plugin.distribution not in names:
            message = (
                f"{plugin.distribution} {plugin.version} ({plugin.module}) is installed and not listed; uninstall it, or "
                f"review it and {APPLY} {kit.folder} --plugin {plugin.distribution}"
            )
            yield Finding("failure", "plug-ins", message)
    if os.environ.get(PLUGINS_VARIABLE):
        yield Finding("failure", "plug-ins", f"{PLUGINS_VARIABLE} is set, which no kit reads; remove it")
    try:
        shown = [f"{plugin.distribution} {plugin.version} ({plugin.module})" for plugin in load_plugins()]
        for name, library in locked_networks(kit).items():
            library.require_installed()
            shown.append(f"{name} ({library.name} {library.version})")
    except ConfigurationError as error:
        yield Finding("failure", "plug-ins", str(error))
    else:
        yield Finding("ok", "plug-ins", ", ".join(shown) or "none")


def allowed_classes(kit: Kit) -> Iterator[Finding]:
    """FLARE may build this package's components, and neither its other functions nor classes that bypass the gate."""
    resources = in_force(kit, RESOURCES)
    listed = listed_classes(kit)
    fault = classes_fault(resources, kit.kind == "site", listed)
    others = f"{1 + len(listed)} of FLARE's" if kit.kind == "server" else "none of FLARE's"
    good = f"{others} and {len(component_classes())} of this package"
    yield verdict("allowed classes", f"{RESOURCES}: {fault}; {APPLY} {kit.folder}" if fault else "", good)
    if added := ", ".join([*added_classes(resources), *listed]):
        message = f"jobs may also call {added}, with any arguments; remove from {RESOURCES} what is not needed"
        yield Finding("warning", "allowed classes", message)


def authorisation(kit: Kit) -> Iterator[Finding]:
    """No role may send code with a job, or read files of this participant."""
    faults = [
        f"{role} may {FORBIDDEN.get(right, FORBIDDEN['shell_commands'])} ({right})"
        for role, right in forbidden_rights(in_force(kit, AUTHORIZATION))
    ]
    fault = f"{AUTHORIZATION}: {', '.join(faults)}; {APPLY} {kit.folder}, and restart" if faults else ""
    yield verdict("authorisation", fault, "no job may bring code of its own, and no role may read files")


def channels(kit: Kit) -> Iterator[Finding]:
    """FLARE's admin channel is restricted."""
    fault = (
        f"{RESOURCES} lacks the component that restricts FLARE's admin channel, so others can read this machine's files"
    )
    guarded = is_guarded(in_force(kit, RESOURCES))
    good = (
        "no files for others, and requests from the server only" if kit.kind == "site" else "sites cannot reach sites"
    )
    yield verdict("channels", "" if guarded else f"{fault}; {APPLY} {kit.folder}, and restart", good)


def logs(kit: Kit) -> Iterator[Finding]:
    """The site's logs stay at the site."""
    streamed = in_force(kit, RESOURCES).get("allow_log_streaming", True) is not False
    fault = f"the site's error log is sent to the server and may contain file names; {APPLY} {kit.folder}"
    yield verdict("logs", fault if streamed else "", "stay at the site")


def signers(kit: Kit) -> Iterator[Finding]:
    """The site says who may sign a job."""
    path = kit.local / SIGNERS
    if not path.is_file():
        yield Finding("failure", "signers", f"there is no {SIGNERS}: no job is accepted; {APPLY} {kit.folder}")
        return
    allowed = read_signers(read_json_object(path), SIGNERS)
    yield Finding("ok", "signers", f"jobs of {allowed.described()}")


def privacy(kit: Kit) -> Iterator[Finding]:
    """The site has a valid privacy policy."""
    path = kit.local / POLICY_FILE
    if not path.is_file():
        yield Finding("failure", "privacy", f"there is no {POLICY_FILE}: every job decides what leaves; {APPLY}")
        return
    content = read_json_object(path)
    policies = read_policies(content, POLICY_FILE)
    if fault := privacy_fault(kit.folder):
        yield Finding("failure", "privacy", f"{fault}; no job is accepted until it is corrected")
        return
    default = content["default_scope"]
    rules = ", ".join(f"{rule.kind.value}: {rule.treatment.name}" for rule in policies[default].releases) or "nothing"
    yield Finding("ok", "privacy", f"scope {default!r} allows {rules}")
    if len(policies) > 1:
        others = ", ".join(sorted(policies.keys() - {default}))
        yield Finding(
            "warning", "privacy", f"a job may choose another scope ({others}); keep only scopes that you accept"
        )


def privacy_ledger(kit: Kit) -> Iterator[Finding]:
    """The site's privacy ledger exists and is complete."""
    bookings = len(Ledger(kit.local / LEDGER_FOLDER, kit.name).content().bookings)
    yield Finding("ok", "privacy ledger", f"complete, {bookings} bookings")
