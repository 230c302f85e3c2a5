"""The encrypted sum is the sum, and who makes it cannot read it."""

import pytest
import torch

from grandrounds.errors import ConfigurationError, MessageError
from grandrounds.methods.baselines.encryption import ciphertexts as encrypted_rows
from grandrounds.methods.mutual.contributions import RowSum, leave_one_out_mean
from grandrounds.seeding import torch_generator

IMAGES, CLASSES = 700, 13
ROWS = {f"site-{n}": torch.randn(IMAGES, CLASSES, generator=torch_generator(n), dtype=torch.float64).softmax(1)
        for n in range(1, 5)}  # fmt: skip


@pytest.fixture(scope="module")
def keys():
    pytest.importorskip("tenseal")
    return encrypted_rows.make_keys()


@pytest.fixture(scope="module")
def ciphertexts(keys):
    return {site: encrypted_rows.encrypt_rows(rows, keys.secret) for site, rows in ROWS.items()}


def test_the_decrypted_sum_is_the_plain_sum(keys, ciphertexts):
    total = encrypted_rows.add_encrypted(list(ciphertexts.values()), keys.public)
    assert len(total) == 3  # 9100 numbers, 4096 in each
    found = encrypted_rows.decrypt_sum(total, keys.secret, IMAGES, CLASSES)
    plain = sum(ROWS.values())
    assert float((found - plain).abs().max()) < 1e-6
    assert float((found - plain).abs().max()) > 0
    target = leave_one_out_mean(RowSum(found, dict.fromkeys(ROWS, 1), dict.fromkeys(ROWS, 1.0)), "site-1",
                                {1: ROWS["site-1"]})  # fmt: skip
    others = (plain - ROWS["site-1"]) / 3
    assert float((target - others).abs().max()) < 1e-6


def test_the_keys_of_flares_startup_kits_do_the_same():
    """They are of another kind: one key encrypts and decrypts, and the server has neither."""
    builder = pytest.importorskip("nvflare.lighter.impl.he").HEBuilder()
    builder.initialize(None, None)
    server, site = builder.get_serialized_context(), builder.get_serialized_context(is_client=True)
    assert (encrypted_rows.is_private(server), encrypted_rows.is_private(site)) == (False, True)
    sent = [encrypted_rows.encrypt_rows(rows, site) for rows in ROWS.values()]
    for own in sent:
        encrypted_rows.require_encrypted(own, server, IMAGES * CLASSES, "rows")
    found = encrypted_rows.decrypt_sum(encrypted_rows.add_encrypted(sent, server), site, IMAGES, CLASSES)
    assert float((found - sum(ROWS.values())).abs().max()) < 1e-6
    with pytest.raises(ConfigurationError, match="decryption is for the sites"):
        encrypted_rows.decrypt_sum(sent[0], server, IMAGES, CLASSES)


def test_rows_may_be_encrypted_with_the_public_key(keys):
    ciphertext = encrypted_rows.encrypt_rows(ROWS["site-1"][:3], keys.public)
    found = encrypted_rows.decrypt_sum(ciphertext, keys.secret, 3, CLASSES)
    assert float((found - ROWS["site-1"][:3]).abs().max()) < 1e-6


def test_the_server_holds_no_secret_key_and_decrypts_nothing(keys, ciphertexts):
    tenseal = pytest.importorskip("tenseal")
    assert not tenseal.context_from(keys.public).is_private()
    with pytest.raises(ConfigurationError, match="the context holds no secret key; decryption is for the sites"):
        encrypted_rows.decrypt_sum(ciphertexts["site-1"], keys.public, IMAGES, CLASSES)
    with pytest.raises(ConfigurationError, match="the context holds a secret key; the server must have the public one"):
        encrypted_rows.add_encrypted(list(ciphertexts.values()), keys.secret)


def test_the_sum_is_as_large_as_one_sites_rows(keys, ciphertexts):
    one = sum(map(len, ciphertexts["site-1"]))
    total = sum(map(len, encrypted_rows.add_encrypted(list(ciphertexts.values()), keys.public)))
    assert total == pytest.approx(one, rel=0.02)
    assert 200_000 < one / 3 < 350_000


def test_ciphertexts_that_do_not_fit_are_refused(keys, ciphertexts):
    whole, part = ciphertexts["site-1"], encrypted_rows.encrypt_rows(ROWS["site-2"][:600], keys.public)
    with pytest.raises(MessageError, match=r"encrypted rows must have equal numbers of ciphertexts, got \[3, 2\]"):
        encrypted_rows.add_encrypted([whole, part], keys.public)
    longer = encrypted_rows.encrypt_rows(ROWS["site-2"][:690], keys.public)
    with pytest.raises(MessageError, match="encrypted rows must have equal lengths, got 778 and 908"):
        encrypted_rows.add_encrypted([whole, longer], keys.public)
    with pytest.raises(MessageError, match=r"equal numbers of ciphertexts, got \[\]"):
        encrypted_rows.add_encrypted([], keys.public)
    with pytest.raises(MessageError, match="a ciphertext of the rows is damaged"):
        encrypted_rows.add_encrypted([[b"no ciphertext"]], keys.public)
    with pytest.raises(MessageError, match="the encrypted sum holds 9100 numbers, expected 699 x 13"):
        encrypted_rows.decrypt_sum(whole, keys.secret, 699, CLASSES)
    with pytest.raises(ConfigurationError, match="the encryption context cannot be read"):
        encrypted_rows.encrypt_rows(ROWS["site-1"], b"no context")


def test_without_tenseal_it_says_what_to_install(monkeypatch):
    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr(encrypted_rows.importlib, "import_module", missing)
    with pytest.raises(
        ConfigurationError, match=r'encryption needs TenSEAL; install it with pip install "grandrounds\[he\]'
    ):
        encrypted_rows.make_keys()
