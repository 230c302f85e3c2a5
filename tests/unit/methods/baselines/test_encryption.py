"""The encrypted sum is the sum, and who makes it cannot read it."""

import pytest
import torch

from grandrounds.errors import ConfigurationError, MessageError
from grandrounds.methods.mutual.soft_labels import SoftLabels
from grandrounds.privacy.mechanisms import ciphertexts as encryption
from grandrounds.seeding import torch_generator

IMAGES, CLASSES = SHAPE = 700, 13
NAME = "the soft labels"
ROWS = {f"site-{n}": torch.randn(IMAGES, CLASSES, generator=torch_generator(n), dtype=torch.float64).softmax(1)
        for n in range(1, 5)}  # fmt: skip


@pytest.fixture(scope="module")
def keys():
    pytest.importorskip("tenseal")
    return encryption.make_keys()


@pytest.fixture(scope="module")
def ciphertexts(keys):
    return {site: encryption.encrypt(rows, keys.secret) for site, rows in ROWS.items()}


def test_the_decrypted_sum_is_the_plain_sum(keys, ciphertexts):
    total = encryption.add_encrypted(list(ciphertexts.values()), keys.public, NAME)
    assert len(encryption.unpack(total, NAME)) == 3  # 9100 numbers, 4096 in each
    found = encryption.decrypt(total, keys.secret, SHAPE, NAME)
    plain = sum(ROWS.values())
    assert float((found - plain).abs().max()) < 1e-6
    assert float((found - plain).abs().max()) > 0
    target = SoftLabels(found, dict.fromkeys(ROWS, 1), dict.fromkeys(ROWS, 1.0)).mean_of_others(
        "site-1", {1: ROWS["site-1"]}
    )
    others = (plain - ROWS["site-1"]) / 3
    assert float((target - others).abs().max()) < 1e-6


def test_the_keys_of_flares_startup_kits_do_the_same():
    """They are of another kind: one key encrypts and decrypts, and the server has neither."""
    builder = pytest.importorskip("nvflare.lighter.impl.he").HEBuilder()
    builder.initialize(None, None)
    server, site = builder.get_serialized_context(), builder.get_serialized_context(is_client=True)
    assert (encryption.is_private(server), encryption.is_private(site)) == (False, True)
    sent = [encryption.encrypt(rows, site) for rows in ROWS.values()]
    for own in sent:
        encryption.require_encrypted(own, server, IMAGES * CLASSES, "rows")
    found = encryption.decrypt(encryption.add_encrypted(sent, server, NAME), site, SHAPE, NAME)
    assert float((found - sum(ROWS.values())).abs().max()) < 1e-6
    with pytest.raises(ConfigurationError, match="decryption is for the sites"):
        encryption.decrypt(sent[0], server, SHAPE, NAME)


def test_values_may_be_encrypted_with_the_public_key(keys):
    ciphertext = encryption.encrypt(ROWS["site-1"][:3], keys.public)
    found = encryption.decrypt(ciphertext, keys.secret, (3, CLASSES), NAME)
    assert float((found - ROWS["site-1"][:3]).abs().max()) < 1e-6


def test_the_server_holds_no_secret_key_and_decrypts_nothing(keys, ciphertexts):
    tenseal = pytest.importorskip("tenseal")
    assert not tenseal.context_from(keys.public).is_private()
    with pytest.raises(ConfigurationError, match="the context holds no secret key; decryption is for the sites"):
        encryption.decrypt(ciphertexts["site-1"], keys.public, SHAPE, NAME)
    with pytest.raises(ConfigurationError, match="the context holds a secret key; the server must have the public one"):
        encryption.add_encrypted(list(ciphertexts.values()), keys.secret, NAME)


def test_the_sum_is_as_large_as_one_sites_values(keys, ciphertexts):
    one = len(ciphertexts["site-1"])
    total = len(encryption.add_encrypted(list(ciphertexts.values()), keys.public, NAME))
    assert total == pytest.approx(one, rel=0.02)
    assert 200_000 < one / 3 < 350_000


def test_ciphertexts_that_do_not_fit_are_refused(keys, ciphertexts):
    whole, part = ciphertexts["site-1"], encryption.encrypt(ROWS["site-2"][:600], keys.public)
    with pytest.raises(MessageError, match=r"the soft labels must have equal numbers of ciphertexts, got \[3, 2\]"):
        encryption.add_encrypted([whole, part], keys.public, NAME)
    longer = encryption.encrypt(ROWS["site-2"][:690], keys.public)
    with pytest.raises(MessageError, match="ciphertexts must have equal lengths, got 778 and 908"):
        encryption.add_encrypted([whole, longer], keys.public, NAME)
    with pytest.raises(MessageError, match=r"equal numbers of ciphertexts, got \[\]"):
        encryption.add_encrypted([], keys.public, NAME)
    with pytest.raises(MessageError, match="a ciphertext is damaged"):
        encryption.add_encrypted([encryption.pack([b"no ciphertext"])], keys.public, NAME)
    with pytest.raises(MessageError, match="the soft labels holds 9100 numbers, expected 699 x 13"):
        encryption.decrypt(whole, keys.secret, (699, CLASSES), NAME)
    with pytest.raises(ConfigurationError, match="the encryption context cannot be read"):
        encryption.encrypt(ROWS["site-1"], b"no context")


def test_a_missing_tenseal_is_reported_with_the_package_to_install(monkeypatch):
    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr(encryption.importlib, "import_module", missing)
    with pytest.raises(
        ConfigurationError, match=r'encryption needs TenSEAL; install it with pip install "grandrounds\[he\]'
    ):
        encryption.make_keys()
