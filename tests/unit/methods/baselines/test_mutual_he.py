"""Ciphertexts travel as bytes, fit or are refused, and leave a site only by a rule of their own."""

import pytest
import torch

from grandrounds.errors import ConfigurationError, MessageError
from grandrounds.methods.mutual.options import ExchangeOptions
from grandrounds.privacy.gate.audit import Refused
from grandrounds.privacy.gate.inspection import Answer, Part, inspect
from grandrounds.privacy.gate.kinds import Expected
from grandrounds.privacy.gate.policy import parse_policy
from grandrounds.protocol.messages import PROTOCOL
from grandrounds.seeding import torch_generator

pytest.importorskip("tenseal")


from grandrounds.federation.keys import SERVER_KEY, SITE_KEY, find_key, write_keys
from grandrounds.methods.baselines.encryption.controller import EncryptedExchange
from grandrounds.methods.baselines.encryption.executor import decrypted_sum
from grandrounds.privacy.mechanisms.ciphertexts import encrypt, make_keys, pack, unpack

IMAGES, CLASSES = 5, 3
ROWS = {
    site: torch.randn(IMAGES, CLASSES, generator=torch_generator(site), dtype=torch.float64).softmax(1)
    for site in ("site-1", "site-2", "site-10")
}


@pytest.fixture(scope="module")
def keys():
    return make_keys()


@pytest.fixture
def exchange(keys):
    return EncryptedExchange(CLASSES, ExchangeOptions(), keys.public)


def test_ciphertexts_come_back_as_they_were():
    assert unpack(pack([b"abc", b"d" * 300]), "rows") == [b"abc", b"d" * 300]


@pytest.mark.parametrize(
    "packed",
    [
        torch.zeros(3, dtype=torch.uint8),
        pack([b"abc", b"defg"])[:-1],
        torch.cat([pack([b"abc"]), torch.zeros(1, dtype=torch.uint8)]),
        pack([]),
        pack([b"", b"abc"]),
        torch.full((16,), 255, dtype=torch.uint8),
        torch.zeros(2, 8, dtype=torch.uint8),
        torch.zeros(16),
    ],
)
def test_bytes_that_are_no_packed_ciphertexts_are_refused(packed):
    with pytest.raises(MessageError, match=r"soft labels of site-2: .*(damaged|expected a vector)"):
        unpack(packed, "soft labels of site-2")


def test_the_sum_of_three_sites_is_read_with_the_secret_key(exchange, keys):
    for site, rows in ROWS.items():
        exchange.accept(site, encrypt(rows, keys.secret), 1, IMAGES)
    encrypted = exchange.total(1)
    assert list(encrypted.rounds) == ["site-1", "site-2", "site-10"]
    found = decrypted_sum(encrypted.values, keys.secret, encrypted.rounds, encrypted.weights, (IMAGES, CLASSES))
    assert float((found.values - sum(ROWS.values())).abs().max()) < 1e-6


def test_a_restarted_server_makes_the_same_sum(exchange, keys):
    exchange.accept("site-1", encrypt(ROWS["site-1"], keys.secret), 1, IMAGES)
    again = EncryptedExchange(CLASSES, ExchangeOptions(), keys.public)
    again.load_state_dict(exchange.state_dict())
    assert torch.equal(again.total(1).values, exchange.total(1).values)
    assert again.total(2) is None


def test_soft_labels_of_an_absent_site_stay_in_the_sum_until_they_are_too_old(keys):
    patient = EncryptedExchange(CLASSES, ExchangeOptions(max_age=1), keys.public)
    patient.accept("site-1", encrypt(ROWS["site-1"], keys.secret), 1, IMAGES)
    for number, expected in ((2, {"site-1": 1, "site-2": 2}), (3, {"site-2": 3})):
        patient.accept("site-2", encrypt(ROWS["site-2"], keys.secret), number, IMAGES)
        assert patient.total(number).rounds == expected


def test_ciphertexts_of_another_number_of_values_are_refused_and_leave_no_trace(exchange, keys):
    with pytest.raises(MessageError, match=r"soft labels of site-1: expected ciphertexts"):
        exchange.accept("site-1", encrypt(ROWS["site-1"][:4], keys.secret), 1, IMAGES)
    assert exchange.total(1) is None


def test_a_damaged_ciphertext_is_refused(exchange):
    with pytest.raises(MessageError, match="damaged"):
        exchange.accept("site-1", pack([b"no ciphertext"]), 1, IMAGES)


@pytest.mark.parametrize("rows", [ROWS["site-1"] * 1.5, ROWS["site-1"] - 0.5])
def test_a_sum_that_is_not_of_distributions_is_refused_at_the_site(rows, exchange, keys):
    exchange.accept("site-1", encrypt(rows, keys.secret), 1, IMAGES)  # the server cannot see it
    encrypted = exchange.total(1)
    with pytest.raises(MessageError, match="the sum of the encrypted soft labels: row 0"):
        decrypted_sum(encrypted.values, keys.secret, encrypted.rounds, encrypted.weights, (IMAGES, CLASSES))


def test_keys_are_for_their_owners_alone(tmp_path):
    write_keys(tmp_path, ["site-1"])
    assert (tmp_path / "site-1" / SITE_KEY).stat().st_mode & 0o077 == 0
    assert not list((tmp_path / "server").glob(SITE_KEY))
    find_key([tmp_path], "site-1")
    find_key([tmp_path / "server"], "server")
    with pytest.raises(ConfigurationError, match="site-2: encryption needs a key; there is none at"):
        find_key([tmp_path], "site-2")


@pytest.mark.parametrize(("party", "name", "wrong"), [("server", SERVER_KEY, "secret"), ("site-1", SITE_KEY, "public")])
def test_the_key_of_the_other_side_is_refused(party, name, wrong, keys, tmp_path):
    (tmp_path / name).write_bytes(getattr(keys, wrong))
    with pytest.raises(ConfigurationError, match="secret key"):
        find_key([tmp_path], party)


@pytest.mark.parametrize(
    ("kind", "leaves"), [("encrypted_values", True), ("soft_labels", False), ("model_update", False)]
)
def test_encrypted_values_leave_only_by_a_rule_of_their_kind(kind, leaves):
    rule = {"kind": kind, "name": "rows", "treatment": "unmodified", "entries": ["rows"], "outside_budget": True}
    policy = parse_policy({"unit": "site", "delta": 1e-5, "releases": [rule]}, "scope test")
    part = Part("APP_DEFINED", {"release": "encrypted_values"}, {"rows": pack([b"abc"])})
    answer = Answer({"protocol": PROTOCOL, "round": 1, "run_id": "r", "samples": 1}, {"rows": part})
    expected = Expected(1, "r", CLASSES, {}, {})
    if leaves:
        assert set(inspect(answer, policy, expected).releases) == {"rows"}
        return
    with pytest.raises(Refused, match="no rule allows encrypted_values 'rows'"):
        inspect(answer, policy, expected)


@pytest.mark.parametrize("rows", [torch.rand(4, CLASSES), torch.zeros(2, 3, dtype=torch.uint8)])
def test_values_that_are_not_ciphertexts_do_not_leave_as_encrypted(rows):
    rule = {
        "kind": "encrypted_values",
        "name": "rows",
        "treatment": "unmodified",
        "entries": ["rows"],
        "outside_budget": True,
    }
    policy = parse_policy({"unit": "site", "delta": 1e-5, "releases": [rule]}, "scope test")
    answer = Answer(
        {"protocol": PROTOCOL, "round": 1, "run_id": "r", "samples": 1},
        {"rows": Part("APP_DEFINED", {"release": "encrypted_values"}, {"rows": rows})},
    )
    with pytest.raises(Refused, match="expected a ciphertext"):
        inspect(answer, policy, Expected(1, "r", CLASSES, {}, {}))
