"""The mean of encrypted models is the mean, and a sum that is none of so many models is refused."""

import pytest
import torch

from grandrounds.errors import MessageError

pytest.importorskip("tenseal")

from grandrounds.methods.baselines.encryption.ciphertexts import add_encrypted, make_keys
from grandrounds.methods.baselines.encryption.executor import decrypt_mean, encrypt_weights, encrypted_numbers

MODELS = [
    {"w": torch.tensor([[1.5, -2.0], [0.0, 300.0]]), "count": torch.tensor(7), "b": torch.tensor([0.25])},
    {"w": torch.tensor([[0.5, 4.0], [1e-3, 100.0]]), "count": torch.tensor(9), "b": torch.tensor([-0.75])},
    {"w": torch.tensor([[1.0, 1.0], [2e-3, 200.0]]), "count": torch.tensor(9), "b": torch.tensor([2.0])},
]


@pytest.fixture(scope="module")
def keys():
    return make_keys()


@pytest.fixture(scope="module")
def total(keys):
    return add_encrypted([encrypt_weights(model, keys.secret) for model in MODELS], keys.public, "weights")


def test_the_mean_of_three_encrypted_models(keys, total):
    assert encrypted_numbers(MODELS[0]) == 6  # four weights, a bias, and the one that is appended
    found = decrypt_mean(total, keys.secret, 3, MODELS[0])
    torch.testing.assert_close(found["w"], torch.tensor([[1.0, 1.0], [1e-3, 200.0]]), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(found["b"], torch.tensor([0.5]), rtol=0, atol=1e-6)
    assert (found["w"].dtype, int(found["count"])) == (torch.float32, 7)


@pytest.mark.parametrize("sites", [2, 4])
def test_a_sum_of_another_number_of_models_is_refused(sites, keys, total):
    with pytest.raises(MessageError, match=f"is not that of {sites} models"):
        decrypt_mean(total, keys.secret, sites, MODELS[0])


def test_a_sum_under_another_key_is_refused(total):
    with pytest.raises(MessageError, match="have all sites the same key"):
        decrypt_mean(total, make_keys().secret, 3, MODELS[0])


def test_a_sum_of_another_architecture_is_refused(keys, total):
    with pytest.raises(MessageError, match="holds 6 numbers, expected 5"):
        decrypt_mean(total, keys.secret, 3, {"w": MODELS[0]["w"]})
