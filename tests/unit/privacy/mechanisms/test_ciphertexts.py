"""The encrypted sum is the sum, and who makes it cannot read it."""

from functools import reduce

import pytest
import torch

from grandrounds.errors import ConfigurationError, MessageError
from grandrounds.privacy.mechanisms import ciphertexts as encryption
from grandrounds.privacy.mechanisms.ciphertexts import MAX_ENCODED, add_encrypted, decrypt, encrypt
from grandrounds.seeding import torch_generator

NUMBERS, NAME = 9100, "the numbers"
VALUES = {
    f"site-{n}": torch.randn(NUMBERS, generator=torch_generator(n), dtype=torch.float64).softmax(0) for n in range(1, 5)
}


@pytest.fixture(scope="module")
def keys():
    pytest.importorskip("tenseal")
    return encryption.make_keys()


@pytest.fixture(scope="module")
def flares():
    """Keys of FLARE's startup kits; they are of another kind: one key encrypts and decrypts, the server has neither."""
    pytest.importorskip("tenseal")
    builder = pytest.importorskip("nvflare.lighter.impl.he").HEBuilder()
    builder.initialize(None, None)
    return encryption.Keys(builder.get_serialized_context(is_client=True), builder.get_serialized_context())


@pytest.mark.parametrize("owner", ["keys", "flares"])
@pytest.mark.parametrize("largest", [1.0, 1e3, MAX_ENCODED])
def test_the_decrypted_sum_is_the_plain_sum(owner, largest, request):
    """Off by the noise of four encryptions at scale 2^56, 2^15 / 2^56 = 5e-13 each, and by the rounding of float64 in 13
    steps of a Fourier transform of 4096 numbers, 13 * 2^-53 = 1.4e-15 of the largest: below the 1e-11 and 1e-14 promised."""
    keys = request.getfixturevalue(owner)
    assert (encryption.is_private(keys.public), encryption.is_private(keys.secret)) == (False, True)
    values = [one * largest / one.abs().max() for one in VALUES.values()]
    sent = [encrypt(one, keys.secret) for one in values]
    assert [len(own) for own in sent] == [3] * 4  # 4096 numbers in each
    for own in sent:
        encryption.require_encrypted(own, keys.public, NUMBERS, NAME)
    total = reduce(lambda first, second: add_encrypted(first, second, keys.public, NAME), sent)
    plain = sum(values)
    assert float((decrypt(total, keys.secret) - plain).abs().max()) < 1e-11 + 1e-14 * float(plain.abs().max())
    assert sum(map(len, total)) == pytest.approx(sum(map(len, sent[0])), rel=0.02)


def test_the_largest_values_of_the_most_sites_are_in_the_range(keys):
    """Ten doublings add up 1024 sites; one more could leave the range, and a sum of so many is refused."""
    total = encrypt(torch.tensor([MAX_ENCODED, -MAX_ENCODED], dtype=torch.float64), keys.public)
    for _ in range(10):
        total = add_encrypted(total, total, keys.public, NAME)
    assert decrypt(total, keys.secret).tolist() == pytest.approx([1024 * MAX_ENCODED, -1024 * MAX_ENCODED], rel=1e-12)
    assert encryption.MOST_SITES == 2**10


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 2 * MAX_ENCODED])
def test_what_is_outside_the_range_is_not_encrypted(keys, value):
    with pytest.raises(MessageError, match="must be finite and at most 4294967296"):
        encrypt(torch.tensor([0.0, value]), keys.secret)


def test_the_server_holds_no_secret_key_and_decrypts_nothing(keys):
    own = encrypt(VALUES["site-1"][:3], keys.public)
    assert decrypt(own, keys.secret).tolist() == pytest.approx(VALUES["site-1"][:3].tolist(), abs=1e-11)
    with pytest.raises(ConfigurationError, match="the context holds no secret key; decryption is for the sites"):
        decrypt(own, keys.public)
    with pytest.raises(ConfigurationError, match="the context holds a secret key; the server must have the public one"):
        add_encrypted(own, own, keys.secret, NAME)


def test_ciphertexts_that_do_not_fit_are_refused(keys):
    whole, part, longer = (encrypt(VALUES["site-1"][:size], keys.public) for size in (9100, 7800, 9000))
    for other in (part, longer):
        with pytest.raises(MessageError, match="the numbers: ciphertexts cannot be added"):
            add_encrypted(whole, other, keys.public, NAME)
    with pytest.raises(MessageError, match="a ciphertext is damaged"):
        add_encrypted([b"no ciphertext"], whole[:1], keys.public, NAME)
    with pytest.raises(
        MessageError, match=r"expected ciphertexts of \[4096, 4096, 907\] numbers, got \[4096, 4096, 908\]"
    ):
        encryption.require_encrypted(whole, keys.public, 9099, NAME)
    with pytest.raises(ConfigurationError, match="the encryption context cannot be read"):
        encrypt(VALUES["site-1"], b"no context")


def test_a_context_of_other_parameters_is_refused(keys):
    tenseal = pytest.importorskip("tenseal")
    small = tenseal.context(tenseal.SCHEME_TYPE.CKKS, poly_modulus_degree=8192, coeff_mod_bit_sizes=[30, 30])
    with pytest.raises(ConfigurationError, match="has other parameters than FLARE provisions"):
        encrypt(VALUES["site-1"], small.serialize(save_secret_key=True))


def test_a_missing_tenseal_is_reported_with_the_package_to_install(monkeypatch):
    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr(encryption.importlib, "import_module", missing)
    with pytest.raises(ConfigurationError, match=r'install it with pip install "grandrounds\[he\]'):
        encryption.make_keys()
