from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding
from sum_federation import JOB, NAMES, RUN, Federation, certificate, joined, partners, root, rsa_key

from grandrounds.errors import MessageError
from grandrounds.privacy.secure_sums.roster import (
    SIGNATURE_PADDING,
    STATEMENT_PREFIX,
    Join,
    Roster,
    RunKeys,
    key_digest,
)

KEYS = RunKeys()


def test_a_hospital_with_its_certificate_is_accepted():
    join = joined("site-1", KEYS)
    assert partners().require(join, RUN, JOB) == key_digest(certificate("site-1"))
    assert (join.channel, join.masks, join.signing) == KEYS.public


@pytest.mark.parametrize(
    "cert",
    [certificate("site-1"), certificate("site-1", role="client"), certificate("site-1", hosts=())],
    ids=["host is its name", "role client", "no host"],
)
def test_certificates_of_sites_as_flare_makes_them_are_accepted(cert):
    partners().require(joined("site-1", KEYS, cert=cert), RUN, JOB)


@pytest.mark.parametrize(
    ("cert", "key"),
    [
        (lambda: certificate("site-2", key="site-1"), "site-1"),
        (lambda: certificate("site-1", role="project_admin"), "site-1"),
        (lambda: certificate("site-1", role="lead"), "site-1"),
        (lambda: certificate("site-1", role="server"), "site-1"),
        (lambda: certificate("site-1", hosts=("server.example",)), "site-1"),
        (lambda: certificate("site-1", ca=True), "site-1"),
        (lambda: certificate("site-1", authority="other"), "site-1"),
        (lambda: certificate("site-1", days=(-2, -1)), "site-1"),
        (lambda: certificate("site-1", days=(1, 2)), "site-1"),
        (lambda: certificate("site-1", key="minted"), "minted"),
        (lambda: certificate("site-1"), "site-2"),
    ],
    ids=[
        "another site",
        "person",
        "lead",
        "server by role",
        "server by host",
        "authority",
        "root",
        "expired",
        "not yet",
        "not pinned",
        "not its key",
    ],
)
def test_who_is_no_hospital_of_the_project_is_refused(cert, key):
    with pytest.raises(MessageError, match="site-1"):
        partners().require(joined("site-1", KEYS, cert=cert(), key=key), RUN, JOB)


def test_a_name_of_the_project_that_is_no_site_is_refused():
    with pytest.raises(MessageError, match="server"):
        partners(None).require(joined("server", KEYS), RUN, JOB)


def test_without_pins_a_minted_certificate_is_accepted():
    """What the terminal calls "against a curious server only"."""
    partners(None).require(joined("site-1", KEYS, cert=certificate("site-1", key="minted"), key="minted"), RUN, JOB)


@pytest.mark.parametrize("changed", [{"run": "run-0"}, {"job": "cd" * 32}], ids=["old run", "other job"])
def test_a_statement_of_another_run_or_job_is_refused(changed):
    with pytest.raises(MessageError, match="another run or job"):
        partners().require(joined("site-1", KEYS, **changed), RUN, JOB)


@pytest.mark.parametrize("field", ["run", "job", "site", "channel", "masks", "signing", "signature"])
def test_a_changed_statement_is_refused(field):
    join = joined("site-1", KEYS)
    value = getattr(join, field)
    last = bytes([value[-1] ^ 1]) if isinstance(value, bytes) else "x"
    changed = replace(join, **{field: value[:-1] + last})
    with pytest.raises(MessageError):
        partners().require(changed, changed.run, changed.job)


def test_what_flare_signs_for_a_server_is_no_statement():
    """FLARE's client signs texts; a statement begins with a zero byte, which stands in no such text."""
    join = joined("site-1", KEYS)
    assert join.statement.startswith(STATEMENT_PREFIX)
    assert STATEMENT_PREFIX.startswith(b"\0")
    without = join.statement.removeprefix(STATEMENT_PREFIX)
    signature = rsa_key("site-1").sign(without, SIGNATURE_PADDING, SHA256())
    with pytest.raises(MessageError, match="not signed"):
        partners().require(replace(join, signature=signature), RUN, JOB)


def test_a_certificate_out_of_date_at_another_time_is_refused():
    join = joined("site-1", KEYS)
    with pytest.raises(MessageError, match="date"):
        partners().require(join, RUN, JOB, datetime.now(UTC) + timedelta(days=30))


@pytest.mark.parametrize("names", [NAMES[:2], ()])
def test_a_roster_of_fewer_than_three_is_refused(federation, names):
    with pytest.raises(MessageError, match="3 to 100"):
        Roster("x", {name: federation.joins[name] for name in names}, {name: bytes(32) for name in names})


def test_a_roster_of_more_than_a_hundred_is_refused(federation):
    join = federation.joins["site-1"]
    many = {f"s{k}": replace(join, site=f"s{k}") for k in range(101)}
    with pytest.raises(MessageError, match="3 to 100"):
        Roster("x", many, dict.fromkeys(many, bytes(32)))


@pytest.mark.parametrize("field", ["channel", "masks", "signing"])
def test_one_key_of_two_sites_is_refused(federation, field):
    twin = replace(federation.keys["site-2"], **{field: getattr(federation.keys["site-1"], field)})
    joins = federation.joins | {"site-2": joined("site-2", twin)}
    with pytest.raises(MessageError, match="site-1 and site-2"):
        Roster("x", joins, federation.roster.nonces).require(partners(), RUN, JOB)


def test_one_certificate_key_of_two_sites_is_refused(federation):
    shared = certificate("site-2", key="site-1", hosts=())
    joins = federation.joins | {"site-2": joined("site-2", federation.keys["site-2"], cert=shared, key="site-1")}
    with pytest.raises(MessageError, match="site-1 and site-2"):
        Roster("x", joins, federation.roster.nonces).require(partners(None), RUN, JOB)


@pytest.mark.parametrize(
    "changed",
    [{"nonces": {name: bytes(31) for name in NAMES}}, {"nonces": {"site-1": bytes(32)}}, {"joins": "swapped"}],
    ids=["short nonce", "missing nonces", "names"],
)
def test_a_malformed_roster_is_refused(federation, changed):
    joins = dict(federation.joins)
    if changed.pop("joins", None):
        joins["site-1"], joins["site-2"] = joins["site-2"], joins["site-1"]
    with pytest.raises(MessageError):
        Roster("x", joins, changed.get("nonces", federation.roster.nonces))


def test_the_digest_covers_everything(federation):
    roster, other = federation.roster, Federation()
    rosters = [
        roster,
        replace(roster, quantity="update 2"),
        replace(roster, nonces=roster.nonces | {"site-1": bytes(32)}),
        replace(roster, joins=roster.joins | {"site-1": other.joins["site-1"]}),
        Roster(roster.quantity, *({name: part[name] for name in NAMES[:4]} for part in (roster.joins, roster.nonces))),
    ]
    assert len({r.digest for r in rosters}) == len(rosters)
    assert Roster(roster.quantity, dict(reversed(roster.joins.items())), roster.nonces).digest == roster.digest


def test_certificates_are_of_the_project_in_pem_form():
    join = joined("site-1", KEYS)
    assert isinstance(join, Join)
    with pytest.raises(MessageError, match="site-1"):
        partners().require(replace(join, certificate=b"none"), RUN, JOB)
    assert root().public_bytes(Encoding.PEM).startswith(b"-----BEGIN")
