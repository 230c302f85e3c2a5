"""Encrypted soft labels are added up, fit or are refused, and leave a site only by a rule of their own."""

import pytest
import torch

from grandrounds.errors import MessageError
from grandrounds.methods.mutual.options import ExchangeOptions
from grandrounds.privacy.gate.audit import Refused
from grandrounds.privacy.gate.inspection import Answer, Part, inspect
from grandrounds.privacy.gate.kinds import Expected
from grandrounds.privacy.gate.policy import parse_policy
from grandrounds.protocol.messages import PROTOCOL
from grandrounds.seeding import torch_generator

pytest.importorskip("tenseal")


from grandrounds.methods.mutual.encrypted.controller import EncryptedExchange
from grandrounds.methods.mutual.encrypted.executor import decrypted_sum
from grandrounds.privacy.mechanisms.ciphertexts import make_keys
from grandrounds.privacy.mechanisms.encrypted_sums import SumOf, encrypt_tensors
from grandrounds.privacy.mechanisms.packing import pack

IMAGES, CLASSES = 5, 3
USE = SumOf("run-1", "soft_labels", 1)
ROWS = {
    site: torch.randn(IMAGES, CLASSES, generator=torch_generator(site), dtype=torch.float64).softmax(1)
    for site in ("site-1", "site-2", "site-10")
}


@pytest.fixture(scope="module")
def keys():
    return make_keys()


def encrypted(site, rows, keys):
    return encrypt_tensors({"soft_labels": rows}, site, keys.secret, USE)


@pytest.fixture
def exchange(keys):
    return EncryptedExchange(CLASSES, ExchangeOptions(), keys.public)


def test_the_sum_of_three_sites_is_read_with_the_secret_key(exchange, keys):
    for site, rows in ROWS.items():
        exchange.accept(site, encrypted(site, rows, keys), 1, IMAGES)
    total = exchange.total(1)
    assert list(total.rounds) == ["site-1", "site-2", "site-10"]
    found = decrypted_sum(total.values, keys.secret, total.rounds, total.weights, (IMAGES, CLASSES), USE)
    assert float((found.values - sum(ROWS.values())).abs().max()) < 1e-11


def test_a_restarted_server_makes_the_same_sum(exchange, keys):
    exchange.accept("site-1", encrypted("site-1", ROWS["site-1"], keys), 1, IMAGES)
    again = EncryptedExchange(CLASSES, ExchangeOptions(), keys.public)
    again.load_state_dict(exchange.state_dict())
    assert torch.equal(again.total(1).values, exchange.total(1).values)
    assert again.total(2) is None


def test_soft_labels_of_an_absent_site_stay_in_the_sum_until_they_are_too_old(keys):
    patient = EncryptedExchange(CLASSES, ExchangeOptions(max_age=1), keys.public)
    patient.accept("site-1", encrypted("site-1", ROWS["site-1"], keys), 1, IMAGES)
    for number, expected in ((2, {"site-1": 1, "site-2": 2}), (3, {"site-2": 3})):
        patient.accept("site-2", encrypted("site-2", ROWS["site-2"], keys), number, IMAGES)
        assert patient.total(number).rounds == expected


def test_ciphertexts_of_another_number_of_values_are_refused_and_leave_no_trace(exchange, keys):
    with pytest.raises(
        MessageError, match=r"soft labels of site-1: expected ciphertexts of \[19\] numbers, got \[16\]"
    ):
        exchange.accept("site-1", encrypted("site-1", ROWS["site-1"][:4], keys), 1, IMAGES)
    assert exchange.total(1) is None


def test_a_damaged_ciphertext_is_refused(exchange):
    with pytest.raises(MessageError, match="damaged"):
        exchange.accept("site-1", pack([b"no ciphertext"]), 1, IMAGES)


@pytest.mark.parametrize("rows", [ROWS["site-1"] * 1.5, ROWS["site-1"] - 0.5])
def test_a_sum_that_is_not_of_distributions_is_refused_at_the_site(rows, exchange, keys):
    for site in ROWS:  # the server cannot see it
        exchange.accept(site, encrypted(site, rows, keys), 1, IMAGES)
    total = exchange.total(1)
    with pytest.raises(MessageError, match="the sum of the encrypted soft labels: row 0"):
        decrypted_sum(total.values, keys.secret, total.rounds, total.weights, (IMAGES, CLASSES), USE)


def test_a_sum_of_others_than_the_server_says_is_refused_at_the_site(exchange, keys):
    for site, rows in ROWS.items():
        exchange.accept(site, encrypted(site, rows, keys), 1, IMAGES)
    others = dict.fromkeys(["site-1", "site-2", "site-3"], 1)
    with pytest.raises(MessageError, match=r"is of .*'site-10': 1.*, expected .*'site-3': 1"):
        decrypted_sum(exchange.total(1).values, keys.secret, others, others, (IMAGES, CLASSES), USE)


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
