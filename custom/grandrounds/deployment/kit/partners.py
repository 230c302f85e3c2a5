"""Partners of a hospital in secure sums: the keys of their certificates, compared outside the server and pinned.

A server that can have certificates of its own signed can play hospitals. A hospital that has its partners' keys from the
hospitals themselves adds up with these alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from grandrounds.deployment.kit.certificates import read_certificate
from grandrounds.deployment.kit.overlay import apply_overlay
from grandrounds.deployment.kit.read import Kit
from grandrounds.errors import ConfigurationError
from grandrounds.files import read_json_object, write_json
from grandrounds.privacy.gate.policy import POLICY_FILE, POLICY_KEY, read_policies
from grandrounds.privacy.secure_sums.roster import key_digest
from grandrounds.protocol.messages import HEAD


@dataclass(frozen=True)
class Partner:
    """A hospital with the SHA-256 of its key, and how that compares with what this hospital has pinned."""

    name: str
    digest: str
    state: Literal["own", "pinned", "new", "another key is pinned", "not listed"]


def own_key(kit: Kit) -> str:
    """The SHA-256 of the key of a hospital's certificate, in hexadecimal.

    Raises:
        ConfigurationError: if the kit is not a hospital's.
    """
    if kit.kind != "site":
        raise ConfigurationError(f"{kit.folder} is the kit of a {kit.kind}; hospitals are partners")
    return key_digest(read_certificate(kit.certificate))


def read_list(path: Path) -> dict[str, str]:
    """The hospitals of a list: a line for each, its name and the SHA-256 that it has given.

    Raises:
        ConfigurationError: naming the line, if it is something else, or a second one for a hospital.
    """
    listed: dict[str, str] = {}
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{path} cannot be read: {error}") from error
    for number, line in enumerate(lines, 1):
        match line.split():
            case []:
                continue
            case [name, digest] if HEAD.fullmatch(digest) and name not in listed:
                listed[name] = digest
            case _:
                raise ConfigurationError(f"{path}: line {number} must be the name of a hospital, once, and a SHA-256")
    return listed


def compared(kit: Kit, listed: dict[str, str]) -> list[Partner]:
    """This hospital, those of a list and those that its policy pins, each once.

    Raises:
        ConfigurationError: if the list has another key for this hospital, or the policy cannot be read.
    """
    own, pinned = own_key(kit), _pinned(kit)
    if listed.get(kit.name, own) != own:
        raise ConfigurationError(f"the list has another key for {kit.name} than its certificate: {own} is right")
    found = [Partner(kit.name, own, "own")]
    for name in sorted({*listed, *pinned} - {kit.name}):
        digest = listed.get(name, pinned.get(name, ""))
        if name not in listed:
            found.append(Partner(name, digest, "not listed" if listed else "pinned"))
        elif name not in pinned:
            found.append(Partner(name, digest, "new"))
        else:
            found.append(Partner(name, digest, "pinned" if pinned[name] == digest else "another key is pinned"))
    return found


def pin(kit: Kit, partners: list[Partner]) -> None:
    """Write the keys into the hospital's policy, in every scope, and lock it.

    Raises:
        ConfigurationError: if another key is pinned for one of them.
    """
    if changed := [partner.name for partner in partners if partner.state == "another key is pinned"]:
        raise ConfigurationError(
            f"another key is pinned for {', '.join(changed)}: ask by telephone; if the new one is right, take the old one "
            f"out of sums.partners in local/{POLICY_FILE} first"
        )
    content = read_json_object(kit.local / POLICY_FILE)
    for scope in content["scopes"]:
        sums = scope["properties"][POLICY_KEY].setdefault("sums", {})
        sums["partners"] = {partner.name: partner.digest for partner in partners}
    read_policies(content, POLICY_FILE)
    write_json(kit.local / POLICY_FILE, content)
    apply_overlay(kit)


def _pinned(kit: Kit) -> dict[str, str]:
    content = read_json_object(kit.local / POLICY_FILE)
    return dict(read_policies(content, POLICY_FILE)[content["default_scope"]].sums.partners or {})
