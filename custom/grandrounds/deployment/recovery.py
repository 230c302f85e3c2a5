"""The recovery of a site's ledger that has lost lines: the worst case of the site's own policy and of the server's records.

A server's records know what the site needs to account for the lines that are missing.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from cryptography.hazmat.primitives.serialization import load_pem_private_key
from cryptography.x509.oid import NameOID

from grandrounds.data.location import locate
from grandrounds.data.manifest import read_manifest
from grandrounds.data.site import private_datasets
from grandrounds.deployment.kit.certificates import certificate_fault, days_left, read_certificate, subject_text
from grandrounds.deployment.kit.overlay import LEDGER_FOLDER
from grandrounds.deployment.kit.read import Kit, require_owner
from grandrounds.errors import ConfigurationError, GrandRoundsError
from grandrounds.federation.server.record import SUMMARY
from grandrounds.federation.server.sites import HEADS
from grandrounds.files import read_json_object, require_object, write_json
from grandrounds.privacy.accounting import spent_epsilon
from grandrounds.privacy.gate.policy import POLICY_FILE, SitePolicy, read_policies
from grandrounds.privacy.inventory import dataset_identity
from grandrounds.privacy.ledger.chain import ChainedFile, noted_head
from grandrounds.privacy.ledger.ledger import LEDGER_NAME, LedgerContent
from grandrounds.privacy.ledger.lines import OF_LOSS, Booking, DatasetIdentity, Key, Loss
from grandrounds.protocol.messages import UPDATE
from grandrounds.protocol.paths import CACHE, STATES
from grandrounds.protocol.spending import Mechanism, Spending, no_guarantee

GONE = "lost"
"""The fingerprint of a data set whose name alone is left."""
LEAST = 1e-3
"""The epsilon that is booked where the policy's target is 0, under which nothing can have left."""


class KnownSpending(NamedTuple):
    """Of a data set: updates that the server has got, and the largest epsilon that the site has reported."""

    updates: int = 0
    epsilon: float = 0.0


class ServerKnowledge(NamedTuple):
    """What a server knows of a site.

    Attributes:
        site: the site's name.
        head: of its ledger, as the server has last got it; empty if it never got one.
        spent: by data set.
        unread: runs whose record is damaged, so that what they know is missing.
    """

    site: str
    head: str
    spent: dict[str, KnownSpending]
    unread: list[str]

    def write(self, path: Path) -> None:
        """Write it to a file for the site."""
        spent = {name: known._asdict() for name, known in self.spent.items()}
        write_json(path, {"site": self.site, "head": self.head, "datasets": spent, "unread": self.unread})


def server_knowledge(kit: Kit, site: str) -> ServerKnowledge:
    """What the runs in a server's kit, and the heads that it keeps, know of a site.

    Raises:
        ConfigurationError: if the kit is not a server's, or nothing is known of the site.
    """
    if kit.kind != "server":
        raise ConfigurationError(f"{kit.folder} is the kit of a {kit.kind}; what is known is with the server")
    states = kit.folder / STATES
    path = states / HEADS / f"{quote(site, safe='')}.json"
    head = str(read_json_object(path)["head"]) if path.is_file() else ""
    spent: dict[str, KnownSpending] = {}
    unread = []
    for folder in sorted(states.glob("*/server")):
        if not (folder / SUMMARY).is_file():
            continue
        try:
            summary = read_json_object(folder / SUMMARY)
            name = str(summary["configuration"]["problem"]["dataset"])
            updates = int(summary["contributions"].get(site, 0))
            epsilon = float(summary["privacy"].get(site, {}).get("epsilon", 0.0))
        except (ConfigurationError, KeyError, TypeError, ValueError, AttributeError):
            unread.append(folder.parent.name)
            continue
        if site in summary["contributions"] or site in summary["privacy"]:
            before = spent.get(name, KnownSpending())
            spent[name] = KnownSpending(before.updates + updates, max(before.epsilon, epsilon))
    if not head and not spent:
        raise ConfigurationError(f"{kit.folder}: no record and no head of a ledger of {site!r} is known here")
    return ServerKnowledge(site, head, spent, unread)


def read_knowledge(path: Path) -> ServerKnowledge:
    """Read the file that :meth:`ServerKnowledge.write` has written.

    Raises:
        ConfigurationError: if it has another form; the field is named.
    """
    content = require_object(read_json_object(path), str(path), ["site", "head", "datasets", "unread"])
    spent = {name: _spending(entry, f"{path}: datasets.{name}") for name, entry in dict(content["datasets"]).items()}
    return ServerKnowledge(str(content["site"]), str(content["head"]), spent, list(map(str, content["unread"])))


def _spending(content: Any, where: str) -> KnownSpending:
    entry = require_object(content, where, KnownSpending._fields)
    try:
        spending = KnownSpending(int(entry["updates"]), float(entry["epsilon"]))
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"{where}: {error}") from error
    if not (spending.updates >= 0 and spending.epsilon >= 0):
        raise ConfigurationError(
            f"{where}: updates and epsilon must be 0 or more, got {spending.updates}, {spending.epsilon}"
        )
    return spending


def declare_kit_loss(kit: Kit, knowledge: ServerKnowledge, heads: Collection[str], reason: str, person: Kit) -> Loss:
    """Book the worst case of what a site's ledger has lost, for all private data sets that it or the site knows.

    Args:
        kit: of the site.
        knowledge: of the server, about this site.
        heads: further heads that were noted elsewhere, for example in the system's log.
        reason: what has happened, a sentence.
        person: the kit of the site's administrator, who signs; the site's own where its administrator has none.

    Raises:
        ConfigurationError: if kit, person or knowledge are not of one site, nothing is lost, or the policy cannot be used.
        DataError: if not even the first line of the ledger is undamaged.
    """
    if kit.kind != "site":
        raise ConfigurationError(f"{kit.folder} is the kit of a {kit.kind}; only sites have a ledger")
    if knowledge.site != kit.name:
        raise ConfigurationError(f"what the server knows is of {knowledge.site!r}, not of {kit.name!r}")
    require_owner(kit.local)
    signer = _signer(kit, person)
    content = read_json_object(kit.local / POLICY_FILE)
    policies = read_policies(content, POLICY_FILE)
    default = policies[content["default_scope"]]

    def worst(left: LedgerContent) -> Sequence[Booking]:
        datasets = _datasets(kit, left, knowledge.spent)
        known = {name: knowledge.spent.get(name, KnownSpending()) for name in datasets}
        return [
            Booking(
                "", OF_LOSS, identity, worst_case(policies.values(), default, name, known[name]), default.delta, 0.0
            )
            for name, identity in datasets.items()
        ]

    noted = {*heads, knowledge.head, noted_head(kit.folder / STATES)} - {""}
    return declare_loss(kit.local / LEDGER_FOLDER, kit.name, noted, worst, reason, signer)


def worst_case(policies: Collection[SitePolicy], default: SitePolicy, name: str, known: KnownSpending) -> Spending:
    """What a data set can have spent: the larger of the policy's target and of all that the server's records know.

    Args:
        policies: of all scopes; the highest target counts.
        default: of the default scope, whose unit and delta are used.
        name: of the data set.
        known: updates at the cost that the policy has for them now, or the largest epsilon that was reported.

    Returns:
        One release with noise that costs as much; one without a guarantee where no finite epsilon describes it.
    """
    rules = [rule for policy in policies if (rule := policy.named_rule(UPDATE)) and not rule.outside_budget]
    costs = []
    for rule in rules:
        try:
            costs.append(rule.treatment.spending(None))
        except ValueError:  # of a training that hides single records, whose cost only the site's lost lines had
            continue
    of_updates = [spent_epsilon([cost] * known.updates, default.delta, default.unit) for cost in costs if known.updates]
    epsilon = max([known.epsilon, *of_updates, *(policy.target(name) for policy in policies)])
    if math.isinf(epsilon):
        return no_guarantee()
    return Spending(Mechanism.GAUSSIAN, default.unit, 1.0, _multiplier(max(epsilon, LEAST), default.delta))


def _datasets(kit: Kit, left: LedgerContent, further: Collection[str]) -> dict[str, DatasetIdentity]:
    """All private data sets of the site as they are now, and those that its ledger or the server knows."""
    names = dict.fromkeys([*private_datasets(kit.name, [kit.local]), *left.datasets, *further])
    if not names:
        raise ConfigurationError(f"{kit.folder}: neither site, ledger nor server know a private data set")
    return {name: DatasetIdentity(name, _fingerprint(kit, left, name)) for name in names}


def _fingerprint(kit: Kit, left: LedgerContent, name: str) -> str:
    """Of a data set as the site has it now, else as its ledger knows it; one that is gone needs an amendment later."""
    try:
        location = locate(name, kit.name, [kit.local], kit.folder / STATES / CACHE)
        return dataset_identity(name, read_manifest(location.manifest, choices=location.keys)).fingerprint
    except GrandRoundsError:
        return left.datasets.get(name, GONE)


def _signer(kit: Kit, person: Kit) -> tuple[str, str, Key]:
    """Name, certificate and key of the site, or of a person of its project and organisation.

    Raises:
        ConfigurationError: if the kit is of nobody who can answer for the site.
    """
    if person.kind != "person" and person != kit:
        raise ConfigurationError(
            f"{person.folder} is the kit of a {person.kind}; a person of the site, or the site, signs"
        )
    if fault := certificate_fault(person):
        raise ConfigurationError(f"{person.folder}: {fault}")
    own, site = read_certificate(person.certificate), read_certificate(kit.certificate)
    if days_left(own) < 0:
        raise ConfigurationError(f"{person.folder}: the certificate of {person.name} has expired")
    if person.authority.read_bytes() != kit.authority.read_bytes():
        raise ConfigurationError(f"{person.folder} is of another authority than {kit.folder}")
    theirs, ours = (subject_text(certificate, NameOID.ORGANIZATION_NAME) for certificate in (own, site))
    if theirs != ours:
        raise ConfigurationError(
            f"{person.name} is of {theirs or 'no organisation'}, {kit.name} of {ours or 'none'}: the site's own "
            "administrator signs"
        )
    key = load_pem_private_key(person.key.read_bytes(), password=None)
    if not isinstance(key, Key):
        raise ConfigurationError(f"{person.key} is no RSA or elliptic-curve key")
    return person.name, person.certificate.read_text(encoding="ascii"), key


def _multiplier(epsilon: float, delta: float) -> float:
    """The noise multiplier of one release of this epsilon, or of a hair more."""
    import dp_accounting  # type: ignore[import-untyped]

    return float(dp_accounting.get_sigma_gaussian(epsilon, delta)) * (1 - 1e-9)


Worst = Callable[[LedgerContent], Sequence[Booking]]
"""The worst case of each data set, from what is left."""


def declare_loss(
    folder: Path, site: str, heads: Collection[str], worst: Worst, reason: str, signer: tuple[str, str, Key]
) -> Loss:
    """Go on with the undamaged lines of a ledger, after a line that books the worst case of those that are missing.

    File and head are copied before, into a folder ``lost-...`` beside them.

    Args:
        folder: of the ledger.
        site: whose it is.
        heads: that the server or the site knew.
        worst: the worst case of each data set; their time and ``epsilon`` are filled in here.
        reason: what has happened, a sentence.
        signer: the name, certificate in PEM form and private key of the person who answers for it.

    Raises:
        ConfigurationError: if nothing is missing, the reason is, or the ledger is another site's.
        DataError: if no line is left, or the file cannot be written.
    """
    if not reason.strip():
        raise ConfigurationError("the reason of the loss is missing")
    file = ChainedFile(folder / LEDGER_NAME)
    if not file.path.is_file():
        raise ConfigurationError(
            f"{file.path} is gone: move {folder} away, run grandrounds ledger create {folder} --site {site}, and declare "
            "the loss then"
        )
    name, certificate, key = signer
    with file.recovering() as extension:
        content = LedgerContent(extension.chain)
        if content.opening.site != site:
            raise ConfigurationError(f"{file.path} is the ledger of {content.opening.site!r}, not of {site!r}")
        lost = sorted({*heads, *file.last_head()} - extension.chain.known_heads)
        if not lost:
            raise ConfigurationError(f"{file.path} has all lines that are known; nothing is lost")
        now = datetime.now(UTC)
        time = now.isoformat(timespec="seconds")
        totals = [replace(_with_total(content, booking), time=time) for booking in worst(content)]
        loss = Loss(time, site, tuple(lost), tuple(totals), reason, name, certificate)
        _keep(file, folder / f"lost-{now:%Y%m%dT%H%M%SZ}")
        extension.append(loss.signed(key).to_json())
    return loss


def _with_total(content: LedgerContent, booking: Booking) -> Booking:
    """The booking with the epsilon of all that has been spent of its budget with it."""
    spendings = [*content.spendings(booking.dataset.name, booking.spending.unit), booking.spending]
    return replace(booking, epsilon=spent_epsilon(spendings, booking.delta, booking.spending.unit))


def _keep(file: ChainedFile, aside: Path) -> None:
    aside.mkdir()
    for path in (file.path, file.head_path):
        if path.is_file():
            shutil.copy2(path, aside / path.name)
