"""Hospitals with certificates of one project, and a server that carries out an attempt at a sum."""

from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache

import numpy as np
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, generate_private_key
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from grandrounds.errors import MessageError
from grandrounds.privacy.secure_sums.attempt import Rules, SiteAttempt
from grandrounds.privacy.secure_sums.numbers import FixedPointEncoding
from grandrounds.privacy.secure_sums.opening import open_sum
from grandrounds.privacy.secure_sums.roster import Join, Partners, Roster, RunKeys, key_digest

RUN, JOB, QUANTITY = "run-1", "ab" * 32, "update 1"
NAMES = ("köln", "site-1", "site-2", "site-3", "site-4")


class MemoryNotes(dict):
    """Notes that last as long as the test."""

    def once(self, what: str, value: str) -> None:
        if what in self:
            raise MessageError(f"{what} is noted already")
        self[what] = value

    def same(self, what: str, value: str) -> None:
        if self.setdefault(what, value) != value:
            raise MessageError(f"{what}: {self[what]} is noted, not {value}")

    def known(self, what: str) -> str:
        return self.get(what, "")


@cache
def rsa_key(name: str) -> RSAPrivateKey:
    return generate_private_key(65537, 2048)


def certificate(
    name: str,
    *,
    key: str = "",
    authority: str = "authority",
    role: str | None = None,
    hosts: Collection[str] | None = None,
    ca: bool = False,
    days: tuple[float, float] = (-1, 1),
) -> x509.Certificate:
    """A certificate as FLARE makes it: a name, for some a role, and hosts (its own name where it has none)."""
    subject = [x509.NameAttribute(NameOID.COMMON_NAME, name)]
    if role:
        subject.append(x509.NameAttribute(NameOID.UNSTRUCTURED_NAME, role))
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name(subject))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, authority)]))
        .public_key(rsa_key(key or name).public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + timedelta(days=days[0]))
        .not_valid_after(now + timedelta(days=days[1]))
        .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
    )
    for host in (name.encode("idna").decode(),) if hosts is None else hosts:
        builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
    return builder.sign(rsa_key(authority), SHA256())


@cache
def root(authority: str = "authority") -> x509.Certificate:
    return certificate(authority, authority=authority, hosts=(), ca=True)


def joined(
    name: str, keys: RunKeys, *, run: str = RUN, job: str = JOB, cert: x509.Certificate | None = None, key: str = ""
) -> Join:
    """A site's signed statement; by default with the certificate that it has."""
    cert = cert or certificate(name, hosts=())
    return Join.signed(run, job, name, keys, cert.public_bytes(Encoding.PEM), rsa_key(key or name))


def partners(pinned: Collection[str] | None = NAMES) -> Partners:
    pins = None if pinned is None else {name: key_digest(certificate(name, hosts=())) for name in pinned}
    return Partners(root(), pins, not_sites=("server",))


@dataclass
class Federation:
    """All sites of a run, and what the server holds of the current attempt.

    Attributes:
        names: of the sites.
        rules: of all hospitals.
        numbers: the encoding.
        values: each site's tensors.
    """

    names: tuple[str, ...] = NAMES
    rules: Rules = field(default_factory=Rules)
    pinned: bool = True

    def __post_init__(self):
        self.rejoin(RUN)
        self.notes = {name: MemoryNotes() for name in self.names}
        self.numbers = FixedPointEncoding(64, 4.0, len(self.names))
        generator = np.random.default_rng(0)
        self.values = {
            name: {"weight": generator.uniform(-4, 4, (2, 3)), "bias": generator.uniform(-4, 4, ())}
            for name in self.names
        }
        self.begin()

    def rejoin(self, run: str):
        """All sites begin a run, with new keys."""
        self.run = run
        self.keys = {name: RunKeys() for name in self.names}
        self.joins = {name: joined(name, self.keys[name], run=run) for name in self.names}

    def among(self, names):
        return self.names if names is None else names

    def words(self, name):
        return {key: self.numbers.encode(value)[0] for key, value in self.values[name].items()}

    def begin(self, quantity: str = QUANTITY):
        """A new attempt, as far as the nonces."""
        accepted = partners(self.names if self.pinned else None)
        self.sites = {
            name: SiteAttempt(name, self.run, JOB, self.keys[name], accepted, self.rules, self.notes[name])
            for name in self.names
        }
        self.roster = Roster(quantity, self.joins, {name: site.nonce for name, site in self.sites.items()})

    def share(self, names: Collection[str] | None = None, roster: Roster | None = None):
        """Phase A: who sealed what for whom."""
        self.boxes = {name: self.sites[name].shares(roster or self.roster) for name in self.among(names)}

    def boxes_of(self, name: str) -> dict[str, bytes]:
        return {sender: boxes[name] for sender, boxes in self.boxes.items() if name in boxes}

    def masked(self, names: Collection[str] | None = None):
        """Phase B."""
        self.inputs = {
            name: self.sites[name].masked(self.words(name), self.boxes_of(name)) for name in self.among(names)
        }
        return self.inputs

    def settled(self, names: Collection[str] | None = None, signers: Collection[str] | None = None):
        """Phases C and D: each contributor's answer."""
        chosen = list(names or self.inputs)
        self.signatures = {name: self.sites[name].consent(chosen) for name in signers or chosen}
        self.answers = {name: self.sites[name].unmasking(self.signatures) for name in self.signatures}
        return self.answers

    def opened(self) -> dict[str, np.ndarray]:
        needed = self.rules.needed(len(self.roster.sites))
        total = open_sum(self.roster, needed, self.inputs, self.answers)
        return {name: self.numbers.decode(words, len(self.inputs)) for name, words in total.items()}

    def expected(self, names: Collection[str]) -> dict[str, np.ndarray]:
        """The sum of the rounded numbers, which is exact."""
        exact: dict[str, np.ndarray] = {}
        for name in names:
            for key, value in self.values[name].items():
                rounded = np.rint(np.ldexp(value, self.numbers.scale))
                exact[key] = exact.get(key, 0) + rounded.astype(object)
        return {key: np.ldexp(np.asarray(value, np.float64), -self.numbers.scale) for key, value in exact.items()}
