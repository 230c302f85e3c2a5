"""Who may sign a job that a site runs: roles and names, in the site's own file ``signers.json``.

FLARE accepts the signature of anyone with a certificate of the project's authority, and the server says who has submitted a
job. The list is of the people whose jobs the hospital has agreed to run, by what their certificates say.
"""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.x509.oid import NameOID
from nvflare.fuel.utils.zip_utils import unzip_all_from_bytes
from nvflare.lighter.tool_consts import NVFLARE_SUBMITTER_CRT_FILE
from nvflare.lighter.utils import verify_folder_signature_and_get_signers

from grandrounds.deployment.kit.certificates import read_certificate, subject_text
from grandrounds.deployment.kit.read import Kit, read_kit
from grandrounds.errors import ConfigurationError
from grandrounds.files import require_object
from grandrounds.options import require_value

SIGNERS = "signers.json"
"""In a site's folder ``local``."""
SUBMITTERS = ("project_admin", "lead")
"""Roles of people whose jobs servers and sites accept, in the files of startup kits."""


@dataclass(frozen=True)
class Signers:
    """Who may sign a job: people with one of the roles, or one of the names, in their certificate.

    Attributes:
        roles: allowed.
        names: of people.
        withdrawn: names, and SHA-256 fingerprints of certificates, whose signatures do not count any more.
        approval: whether the site also runs only what it has approved itself.
    """

    roles: tuple[str, ...]
    names: tuple[str, ...]
    withdrawn: tuple[str, ...] = ()
    approval: bool = False

    @property
    def _withdrawn(self) -> set[str]:
        return {entry.replace(":", "").lower() for entry in self.withdrawn}

    def described(self) -> str:
        """In words."""
        return " or ".join(filter(None, [", ".join(f"role {role}" for role in self.roles), ", ".join(self.names)]))

    def refusal(self, signers: Sequence[tuple[str, str, str]], certificates: Collection[str] = ()) -> str:
        """Why a job must not run; empty if all its signers are allowed.

        Args:
            signers: name, organisation and role of each.
            certificates: their fingerprints.

        Example:
            >>> Signers(("lead",), ()).refusal([("ann@study.example", "study", "member")])
            'the job is signed by ann@study.example (member), whose jobs this site does not run'
        """
        if not signers:
            return "the job has no valid signature of a person"
        for name, _, role in signers:
            if name.lower() in self._withdrawn or not self._withdrawn.isdisjoint(certificates):
                return f"the signature of {name} has been withdrawn at this site"
            if role not in self.roles and name not in self.names:
                return f"the job is signed by {name} ({role or 'no role'}), whose jobs this site does not run"
        return ""


def read_signers(content: Any, where: str) -> Signers:
    """The list in a ``signers.json``.

    Raises:
        ConfigurationError: if it has another form, or allows nobody.

    Example:
        >>> read_signers({"roles": ["lead"], "names": []}, "signers.json").roles
        ('lead',)
    """
    entry = require_object(content, where, ["roles", "names"], ["withdrawn", "approval"])
    approval = entry.get("approval", False)
    require_value(approval, bool, None, f"{where}.approval")
    roles, names = (_texts(entry, key, where) for key in ("roles", "names"))
    signers = Signers(roles, names, _texts({"withdrawn": [], **entry}, "withdrawn", where), approval)
    if not signers.roles and not signers.names:
        raise ConfigurationError(f"{where} allows nobody, so no job could run; name roles or people")
    return signers


def certificates_of(files: Mapping[str, bytes]) -> set[str]:
    """SHA-256 of the certificates that came with a job's signatures, as ``openssl x509 -fingerprint -sha256`` has them."""
    chains = [content for name, content in files.items() if name.rpartition("/")[2] == NVFLARE_SUBMITTER_CRT_FILE]
    certificates = [each for chain in chains for each in x509.load_pem_x509_certificates(chain)]
    return {each.fingerprint(hashes.SHA256()).hex() for each in certificates}


def signers_of(app: bytes, authority: Path) -> list[tuple[str, str, str]]:
    """Who has signed the files of a job as they came, as (name, organisation, role); empty if a signature is missing.

    Args:
        app: the job's files, a zip archive.
        authority: the certificate of the project's authority.
    """
    with tempfile.TemporaryDirectory() as folder:
        unzip_all_from_bytes(app, folder)
        verified, signers = verify_folder_signature_and_get_signers(folder, str(authority))
    return [(str(name), str(org), str(role)) for name, org, role in signers] if verified else []


def submitter_fault(kit: Kit) -> str:
    """Why jobs are not submitted with this kit, with the kits beside it that are for that; empty if it is one of these."""
    if kit.kind == "person" and (role := role_of(kit)) in (*SUBMITTERS, ""):
        return ""
    whose = f"person with the role {role}" if kit.kind == "person" else kit.kind
    others = []
    for folder in sorted(kit.folder.parent.iterdir()):
        with suppress(ConfigurationError, OSError):
            if (other := read_kit(folder)).kind == "person" and role_of(other) in SUBMITTERS:
                others.append(str(folder))
    right = f", such as {' or '.join(others)}" if others else ""
    roles = " or ".join(SUBMITTERS)
    return (
        f"{kit.folder} is the kit of a {whose}; jobs are submitted with that of a person with the role {roles}{right}"
    )


def role_of(kit: Kit) -> str:
    """A person's role, as FLARE keeps it in the certificate; empty if there is none."""
    return subject_text(read_certificate(kit.certificate), NameOID.UNSTRUCTURED_NAME)


def _texts(entry: Mapping[str, Any], key: str, where: str) -> tuple[str, ...]:
    value = entry[key]
    if not isinstance(value, list) or not all(isinstance(text, str) and text for text in value):
        raise ConfigurationError(f"{where}: {key} must be a list of names, got {value!r}")
    return tuple(value)
