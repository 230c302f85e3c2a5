"""The mean of encrypted models is the mean, and a sum that is not one of models is refused."""

import pytest
import torch

from grandrounds.errors import MessageError
from grandrounds.federation.encrypted import EncryptedSum, decrypt_mean, encrypt_model, encrypted_numbers, encryption_of
from grandrounds.protocol.messages import Release, ReleaseKind, Result

tenseal = pytest.importorskip("tenseal")

from grandrounds.privacy.mechanisms.ciphertexts import add_encrypted, make_keys, pack  # noqa: E402

MODELS = [
    {"w": torch.tensor([[1.5, -2.0], [0.0, 300.0]]), "count": torch.tensor(7), "b": torch.tensor([0.25])},
    {"w": torch.tensor([[0.5, 4.0], [1e-3, 100.0]]), "count": torch.tensor(9), "b": torch.tensor([-0.75])},
    {"w": torch.tensor([[1.0, 1.0], [2e-3, 200.0]]), "count": torch.tensor(9), "b": torch.tensor([2.0])},
]


@pytest.fixture(scope="module")
def keys():
    return make_keys()


SHAPES = encryption_of(MODELS[0], "uniform")["shapes"]


def sum_of(models, weights, keys):
    return add_encrypted(
        [encrypt_model(model, weight, keys.secret) for model, weight in zip(models, weights, strict=True)],
        keys.public,
        "weights",
    )


@pytest.fixture(scope="module")
def total(keys):
    return sum_of(MODELS, [1.0] * 3, keys)


def test_the_mean_of_three_encrypted_models(keys, total):
    assert encrypted_numbers(SHAPES) == 7  # four weights, a bias, the weight of the model, and a one
    found = decrypt_mean(total, keys.secret, SHAPES)
    torch.testing.assert_close(found["w"], torch.tensor([[1.0, 1.0], [1e-3, 200.0]]), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(found["b"], torch.tensor([0.5]), rtol=0, atol=1e-6)
    assert set(found) == {"w", "b"}
    assert found["w"].dtype == torch.float32


def test_the_weighted_mean_of_two_encrypted_models(keys):
    """Samples 100 and 300: (100 * 1.5 + 300 * .5) / 400 = .75, and so on."""
    found = decrypt_mean(sum_of(MODELS[:2], [100.0, 300.0], keys), keys.secret, SHAPES)
    torch.testing.assert_close(found["w"], torch.tensor([[0.75, 2.5], [0.00075, 150.0]]), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(found["b"], torch.tensor([-0.5]), rtol=0, atol=1e-6)


def test_a_single_model_is_refused(keys):
    with pytest.raises(MessageError, match="is not that of two or more models"):
        decrypt_mean(sum_of(MODELS[:1], [1.0], keys), keys.secret, SHAPES)


def test_a_sum_under_another_key_is_refused(total):
    for _ in range(4):  # by chance a number may be positive
        with pytest.raises(MessageError, match="have all sites the same key"):
            decrypt_mean(total, make_keys().secret, SHAPES)


def test_a_sum_of_another_architecture_is_refused(keys, total):
    with pytest.raises(MessageError, match="holds 7 numbers, expected 6"):
        decrypt_mean(total, keys.secret, {"w": SHAPES["w"]})


def test_a_ciphertext_of_another_scale_is_refused_before_it_is_added(keys):
    """The addition would fail, and with it the round of all sites."""
    vector = tenseal.ckks_vector(tenseal.context_from(keys.public), [1.0] * encrypted_numbers(SHAPES), scale=2.0**30)
    contents = (encrypt_model(MODELS[0], 1.0, keys.secret), pack([vector.serialize()]))
    good, other = (Result({"update": Release(ReleaseKind.ENCRYPTED_VALUES, {"ciphertexts": c})}) for c in contents)
    total = EncryptedSum(keys.public, MODELS[0])
    total.check("site-1", good)
    total.add("site-1", good.update)
    with pytest.raises(MessageError, match="cannot be added: scale mismatch"):
        total.check("site-2", other)
    total.check("site-2", good)
