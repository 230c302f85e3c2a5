"""Averaging of models that the server cannot read (``controller.aggregation=encrypted``): a use of the encrypted sum.

A site treats its update as always (gate, noise, job's filters). What would leave then is added to the model that the site
received, weighted, and encrypted with its weight; the server adds up ciphertexts. The next task carries the sum, which a
site decrypts before its filters see the task. So a site works on plain models, and the server on ciphertexts. Integers stay
as they were at first: nothing depends on them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.shareable import Shareable
from torch import Tensor

from grandrounds.errors import MessageError
from grandrounds.privacy.mechanisms.encrypted_sums import MIN_SITES, Shapes, SumOf, decrypt_sum, encrypt_tensors
from grandrounds.protocol.entries import floating_entries, require_like
from grandrounds.protocol.messages import (
    DXO_KEY,
    ENCRYPTION,
    GLOBAL,
    TEST,
    TREATED,
    UPDATE,
    Payload,
    ReleaseKind,
    State,
)
from grandrounds.protocol.wire import decode_payload, encode_payload

CIPHERTEXTS = "ciphertexts"
"""The entry of a model, or of an update, with all of its floating entries."""
WEIGHT = "the site's weight"
MODEL = "model"
"""What sums of models are of."""


def encryption_of(template: State, weighting: str) -> dict[str, Any]:
    """The value ``encryption`` of a task: what a site must know to read and to send ciphertexts."""
    shapes = {name: list(value.shape) for name, value in floating_entries(template).items()}
    return {"shapes": shapes, "weighting": weighting}


def with_weight(shapes: Shapes) -> Shapes:
    """The shapes of a contribution: those of the model, and of its weight."""
    return {**shapes, WEIGHT: ()}


def sum_of_models(run: str, round_number: int, oldest: int | None = None) -> SumOf:
    """The sum of the models of a run that sites make in a round; ``oldest`` as :class:`SumOf` has it."""
    return SumOf(run, MODEL, round_number, oldest)


def encrypt_model(model: Mapping[str, Tensor], weight: float, site: str, key: bytes, use: SumOf) -> Tensor:
    """A site's contribution: the floating entries of a model times its weight, and the weight."""
    weighted = {name: value.double() * weight for name, value in floating_entries(model).items()}
    return encrypt_tensors({**weighted, WEIGHT: torch.tensor(weight, dtype=torch.float64)}, site, key, use)


def decrypt_mean(
    packed: Tensor, key: bytes, shapes: Shapes, use: SumOf, at_least: int = MIN_SITES
) -> tuple[dict[str, Tensor], int]:
    """The weighted mean of the models in an encrypted sum, in single precision as networks have it.

    Args:
        packed: the sum, as the server sends it.
        key: the secret key.
        shapes: of the floating entries.
        use: of which run and round the models must be.
        at_least: how many models it must be of.

    Returns:
        The mean, and how many models it is of.

    Raises:
        MessageError: if the sum is not that of the fresh models of its sites, see
            :func:`~grandrounds.privacy.mechanisms.encrypted_sums.decrypt_sum`, or its weight is not positive.
    """
    total, roster = decrypt_sum(packed, key, with_weight(shapes), use, at_least)
    weight = float(total[WEIGHT])
    if not weight > 0:
        raise MessageError(f"the sum of the encrypted models has the weight {weight:g}")
    return {entry: (total[entry] / weight).float() for entry in shapes}, len(roster)


def is_encrypted(message: Shareable) -> bool:
    """Whether a task is of a run whose models are encrypted."""
    content = dict.get(message, DXO_KEY)
    meta = content.get("meta") if isinstance(content, dict) else None
    values = meta.get("values") if isinstance(meta, dict) else None
    return isinstance(values, dict) and ENCRYPTION in values


def decrypt_task(message: Shareable, key: bytes, task: str, at_least: int = MIN_SITES) -> tuple[int, ...]:
    """Replace the encrypted models of a task by plain ones, if they are sums of fresh models.

    These are of the round before, or in a test, which is of the selected model, of any earlier one.

    Args:
        message: the task; it is changed.
        key: the secret key.
        task: its name.
        at_least: how many models a sum must be of.

    Returns:
        How many models each sum is of.

    Raises:
        MessageError: if the task is none, or a sum cannot be decrypted or verified.
    """
    payload = decode_payload(message)
    shapes = _encryption(payload)["shapes"]
    last = payload.round_number - 1
    use = sum_of_models(payload.values["run_id"], last, 1 if task == TEST else None)
    parts, sizes = {}, []
    for name, state in payload.parts.items():
        parts[name] = dict(state)
        if CIPHERTEXTS in state:
            model, models = decrypt_mean(parts[name].pop(CIPHERTEXTS), key, shapes, use, at_least)
            parts[name] |= model
            sizes.append(models)
    message[DXO_KEY] = encode_payload(replace(payload, parts=parts))[DXO_KEY]
    return tuple(sizes)


def encrypt_update(message: Shareable, payload: Payload, site: str, key: bytes) -> None:
    """Replace the update of an answer by the encrypted model that it leads to.

    Args:
        message: a site's answer, as its filters have let it out; it is changed.
        payload: the task, decrypted.
        site: its name.
        key: the secret key.

    Raises:
        MessageError: if the answer has no update, or one that does not fit the model.
    """
    collection = from_shareable(message)
    part = collection.data.get(UPDATE)
    if part is None:
        raise MessageError("the result has no update")
    received = floating_entries(payload.parts[GLOBAL])
    require_like(part.data, received, UPDATE)
    weight = float(collection.meta["samples"]) if _encryption(payload)["weighting"] == "samples" else 1.0
    model = {name: value.double() + part.data[name].double() for name, value in received.items()}
    use = sum_of_models(payload.values["run_id"], payload.round_number)
    meta = {"release": ReleaseKind.ENCRYPTED_VALUES.value}
    treated = part.get_meta_prop(TREATED)
    collection.data[UPDATE] = DXO(
        DataKind.APP_DEFINED,
        data={CIPHERTEXTS: encrypt_model(model, weight, site, key, use)},
        meta={**meta, TREATED: treated} if treated else meta,
    )
    collection.update_shareable(message)


def _encryption(payload: Payload) -> dict[str, Any]:
    found = payload.values.get(ENCRYPTION)
    shapes = found.get("shapes") if isinstance(found, dict) else None
    if not isinstance(found, dict) or not isinstance(shapes, dict) or not all(map(_is_shape, shapes.values())):
        raise MessageError("the task does not describe its encrypted model: same versions?")
    return found


def _is_shape(value: Any) -> bool:
    return isinstance(value, list) and all(type(size) is int and size >= 0 for size in value)
