"""A model's weights as one row of numbers to encrypt, and the mean of several sites' models from the encrypted sum.

Behind the weights stands a one: the sum of the ones is the number of sites, unless the sum is damaged or of another key.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from grandrounds.errors import MessageError
from grandrounds.methods.baselines.encryption.ciphertexts import decrypt_sum, encrypt_rows
from grandrounds.methods.baselines.encryption.exchange import pack, unpack
from grandrounds.protocol.messages import State, floating_entries

COUNT_TOLERANCE = 1e-3


def numbers_of(state: State) -> int:
    """How many numbers are encrypted for a model: its floating-point entries, and the one behind them."""
    return sum(value.numel() for value in floating_entries(state).values()) + 1


def encrypt_weights(state: State, key: bytes) -> Tensor:
    """Encrypt a model.

    Args:
        state: of the model; integer entries are left out.
        key: either of the keys.

    Returns:
        The ciphertexts, packed as a vector of bytes.
    """
    flat = [value.detach().cpu().double().flatten() for value in floating_entries(state).values()]
    return pack(encrypt_rows(torch.cat([*flat, torch.ones(1, dtype=torch.float64)])[None], key))


def decrypt_mean(packed: Tensor, key: bytes, sites: int, template: State) -> dict[str, Tensor]:
    """The mean of the models in an encrypted sum.

    Args:
        packed: the sum, as the server sends it.
        key: the secret key.
        sites: how many models are in it.
        template: state of a model of that architecture; its integer entries are taken over.

    Returns:
        A state with the shapes and dtypes of the template.

    Raises:
        MessageError: if the sum is damaged, of another architecture, another number of models or another key.
    """
    name = "the sum of the encrypted weights"
    total = decrypt_sum(unpack(packed, name), key, 1, numbers_of(template))[0]
    if not bool(torch.isfinite(total).all()) or abs(float(total[-1]) - sites) > COUNT_TOLERANCE:
        raise MessageError(f"{name} is not that of {sites} models; have all sites the same key?")
    return {**dict(template), **_entries(total[:-1] / sites, floating_entries(template))}


def _entries(numbers: Tensor, template: Mapping[str, Tensor]) -> dict[str, Tensor]:
    parts = torch.split(numbers, [value.numel() for value in template.values()])
    return {
        name: part.reshape(value.shape).to(value.dtype)
        for (name, value), part in zip(template.items(), parts, strict=True)
    }
