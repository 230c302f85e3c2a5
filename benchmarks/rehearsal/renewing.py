"""A renewed certificate for a site of a rehearsal, signed with the key of the consortium's authority where that is here."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key

from grandrounds.deployment.kit.certificates import read_certificate
from grandrounds.deployment.kit.read import Kit, processes_of, read_kit
from grandrounds.deployment.kit.renewal import renew
from grandrounds.deployment.local_federation import Federation, start_participant
from grandrounds.deployment.processes import await_end, signal_processes
from grandrounds.files import read_json_object

AUTHORITY_STATE = Path("state") / "cert.json"
"""Beside the generations of kits that a provisioning has made."""
AUTHORITY_KEY = "root_pri_key"
LONGER = timedelta(days=30)
STOPPED_SECONDS = 20.0


def authority_key(kits: Sequence[Kit]) -> RSAPrivateKey | None:
    """The private key of the kits' authority; None if it is not beside them."""
    path = kits[0].folder.parent.parent / AUTHORITY_STATE
    if not path.is_file():
        return None
    found = load_pem_private_key(str(read_json_object(path)[AUTHORITY_KEY]).encode(), password=None)
    return found if isinstance(found, RSAPrivateKey) else None


def renew_and_restart(federation: Federation, site: str, authority: RSAPrivateKey) -> None:
    """Stop a site, give its kit a certificate that is valid for longer, as ``grandrounds kit renew`` does, and start it.

    Raises:
        ConfigurationError: if the site does not stop.
        GrandRoundsError: if something else than keys and certificates would change.
    """
    kit = federation.kit(site)

    def is_running() -> bool:
        found = processes_of(kit.folder)
        signal_processes(found, signal.SIGKILL)  # the start script would start it again
        return bool(found)

    await_end(is_running, STOPPED_SECONDS, 0.1)
    new = federation.folder / "kits" / f".{site}.new"
    shutil.rmtree(new, ignore_errors=True)
    shutil.copytree(kit.startup, new / "startup")
    fresh = read_kit(new)
    fresh.certificate.write_bytes(prolonged(read_certificate(kit.certificate), authority).public_bytes(Encoding.PEM))
    renew(kit, fresh)
    shutil.rmtree(new)
    start_participant(federation, site)


def prolonged(certificate: x509.Certificate, authority: RSAPrivateKey) -> x509.Certificate:
    """The same certificate, with a number of its own and valid for longer."""
    builder = x509.CertificateBuilder(
        issuer_name=certificate.issuer,
        subject_name=certificate.subject,
        public_key=certificate.public_key(),
        serial_number=x509.random_serial_number(),
        not_valid_before=certificate.not_valid_before_utc,
        not_valid_after=certificate.not_valid_after_utc + LONGER,
    )
    for extension in certificate.extensions:
        builder = builder.add_extension(extension.value, extension.critical)
    return builder.sign(authority, hashes.SHA256())
