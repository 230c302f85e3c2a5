"""Averaging of models that the server cannot read (``controller.aggregation=encrypted``).

A site treats its update as always (gate, noise, job's filters). What would leave then is added to the model that the site
received, weighted, and encrypted; the server adds up ciphertexts. The next task carries the sum, which a site decrypts
before its filters see the task. So a site works on plain models, and the server on ciphertexts. Integer entries stay as they
were at first: nothing depends on them.

Behind the weighted model are its weight and a one. Their sums are what the sum of the models is divided by, and the number
of sites, which is a whole one unless the sum is damaged or of another key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.shareable import Shareable
from torch import Tensor

from grandrounds.errors import MessageError
from grandrounds.privacy.mechanisms.ciphertexts import add_encrypted, decrypt, encrypt, require_encrypted
from grandrounds.protocol.messages import (
    DXO_KEY,
    GLOBAL,
    TREATED,
    UPDATE,
    Payload,
    ReleaseKind,
    Result,
    State,
    decode_payload,
    encode_payload,
    floating_entries,
    require_like,
)

ENCRYPTION = "encryption"
"""The value of a task of such a run: shapes of the encrypted entries, and how sites weight their models."""
CIPHERTEXTS = "ciphertexts"
"""The entry of a model, or of an update, with all of its floating entries."""
MIN_SITES, MAX_SITES = 2, 10_000
"""In a sum. Under another key the numbers are enormous, and enormous floats are whole."""
COUNT_TOLERANCE = 1e-3


def encryption_of(template: State, weighting: str) -> dict[str, Any]:
    """The value ``encryption`` of a task: what a site must know to read and to send ciphertexts."""
    shapes = {name: list(value.shape) for name, value in floating_entries(template).items()}
    return {"shapes": shapes, "weighting": weighting}


def encrypted_numbers(shapes: Mapping[str, Sequence[int]]) -> int:
    """How many numbers are encrypted for a model: its floating entries, its weight, and a one."""
    return sum(torch.Size(shape).numel() for shape in shapes.values()) + 2


def encrypt_model(state: State, weight: float, key: bytes) -> Tensor:
    """Encrypt the floating entries of a model times its weight, the weight, and a one, with either of the keys."""
    flat = [value.detach().cpu().double().flatten() * weight for value in floating_entries(state).values()]
    return encrypt(torch.cat([*flat, torch.tensor([weight, 1.0], dtype=torch.float64)]), key)


def decrypt_mean(packed: Tensor, key: bytes, shapes: Mapping[str, Sequence[int]]) -> dict[str, Tensor]:
    """The weighted mean of the models in an encrypted sum, in single precision.

    Args:
        packed: the sum, as the server sends it.
        key: the secret key.
        shapes: of the floating entries, in the order of the model.

    Raises:
        MessageError: if the sum is damaged, of another architecture, of fewer than two models, or of another key.
    """
    name = "the sum of the encrypted models"
    total = decrypt(packed, key, [encrypted_numbers(shapes)], name)
    finite = bool(torch.isfinite(total).all())
    weight, count = total[-2:].tolist() if finite else (0.0, 0.0)
    fits = MIN_SITES <= round(count) <= MAX_SITES and abs(count - round(count)) <= COUNT_TOLERANCE
    if not fits or not weight > 0:
        raise MessageError(f"{name} is not that of two or more models; have all sites the same key?")
    parts = torch.split(total[:-2] / weight, [torch.Size(shape).numel() for shape in shapes.values()])
    return {entry: part.reshape(*shape).float() for (entry, shape), part in zip(shapes.items(), parts, strict=True)}


def is_encrypted(message: Shareable) -> bool:
    """Whether a task is of a run whose models are encrypted."""
    content = dict.get(message, DXO_KEY)
    meta = content.get("meta") if isinstance(content, dict) else None
    values = meta.get("values") if isinstance(meta, dict) else None
    return isinstance(values, dict) and ENCRYPTION in values


def decrypt_task(message: Shareable, key: bytes) -> None:
    """Replace the encrypted models of a task by plain ones.

    Args:
        message: the task; it is changed.
        key: the secret key.

    Raises:
        MessageError: if the task is none, or a sum cannot be decrypted.
    """
    payload = decode_payload(message)
    shapes = _encryption(payload)["shapes"]
    parts = {
        name: {
            **{entry: value for entry, value in state.items() if entry != CIPHERTEXTS},
            **decrypt_mean(state[CIPHERTEXTS], key, shapes),
        }
        if CIPHERTEXTS in state
        else state
        for name, state in payload.parts.items()
    }
    message[DXO_KEY] = encode_payload(replace(payload, parts=parts))[DXO_KEY]


def encrypt_update(message: Shareable, payload: Payload, key: bytes) -> None:
    """Replace the update of an answer by the encrypted model that it leads to.

    Args:
        message: a site's answer, as its filters have let it out; it is changed.
        payload: the task, decrypted.
        key: the secret key.

    Raises:
        MessageError: if the answer has no update, or one that does not fit the model.
    """
    collection = from_shareable(message)
    part = collection.data.get(UPDATE)
    if part is None:
        raise MessageError("the result has no update")
    encryption, received = _encryption(payload), floating_entries(payload.parts[GLOBAL])
    require_like(part.data, received, UPDATE)
    start = {name: received[name] for name in encryption["shapes"]}  # one order at all sites
    weight = float(collection.meta["samples"]) if encryption["weighting"] == "samples" else 1.0
    model = {name: value.double() + part.data[name].double() for name, value in start.items()}
    meta = {"release": ReleaseKind.ENCRYPTED_VALUES.value}
    treated = part.get_meta_prop(TREATED)
    content = {CIPHERTEXTS: encrypt_model(model, weight, key)}
    collection.data[UPDATE] = DXO(
        DataKind.APP_DEFINED, data=content, meta={**meta, TREATED: treated} if treated else meta
    )
    collection.update_shareable(message)


class EncryptedSum:
    """Adds up the encrypted models of a round at the server; sums of ciphertexts do not depend on their order.

    Args:
        key: the public key.
        template: the initial model.
    """

    def __init__(self, key: bytes, template: State) -> None:
        self._key = key
        self._shapes = encryption_of(template, "")["shapes"]
        self._integers = {name: value for name, value in template.items() if not value.is_floating_point()}
        self._sum: Tensor | None = None

    def check(self, site: str, result: Result) -> None:
        """Refuse an update that is no ciphertext of a model of this size; what it holds cannot be seen.

        Raises:
            MessageError: naming what is wrong.
        """
        release = result.releases.get(UPDATE)
        if release is None or release.kind is not ReleaseKind.ENCRYPTED_VALUES or set(release.tensors) != {CIPHERTEXTS}:
            raise MessageError(f"{site} must encrypt its update")
        received, name = release.tensors[CIPHERTEXTS], f"the update of {site}"
        require_encrypted(received, self._key, encrypted_numbers(self._shapes), name)
        if self._sum is not None:  # an addition that fails, by another scale, must not fail in the round of all sites
            add_encrypted([self._sum, received], self._key, name)

    def add(self, site: str, update: State, weight: float = 1.0) -> None:
        """Take one site's model, which the site itself has weighted."""
        received = update[CIPHERTEXTS]
        earlier = [] if self._sum is None else [self._sum]
        self._sum = add_encrypted([*earlier, received], self._key, f"the update of {site}")

    def skip(self, site: str) -> None:
        """A site gives no update; nothing waits for it."""

    def close(self) -> dict[str, Tensor] | None:
        """The sum as a model, or None without any."""
        return None if self._sum is None else {**self._integers, CIPHERTEXTS: self._sum}


def _encryption(payload: Payload) -> dict[str, Any]:
    found = payload.values.get(ENCRYPTION)
    shapes = found.get("shapes") if isinstance(found, dict) else None
    if not isinstance(found, dict) or not isinstance(shapes, dict) or not all(map(_is_shape, shapes.values())):
        raise MessageError("the task does not describe its encrypted model: same versions?")
    return found


def _is_shape(value: Any) -> bool:
    return isinstance(value, list) and all(type(size) is int and size >= 0 for size in value)
