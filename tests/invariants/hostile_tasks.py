"""Tasks of a server of bad will: models that are made to fail for one picture, and values that no server sends."""

import copy
from collections.abc import Callable

import numpy as np
import torch
from nvflare.apis.shareable import ReservedHeaderKey, Shareable
from torch import Tensor

from grandrounds.protocol.messages import Payload
from grandrounds.protocol.wire import decode_payload, encode_payload

Change = Callable[[dict, dict], tuple[dict, dict]]
"""The values and parts of a task, and what is sent in their place."""
NUMBERS = (0.0, 1e-42, 1e-3, 1.0, 90.0, 9e3, 1e4, 1.1e4, 3e38, float("nan"), float("inf"), float("-inf"))
DTYPES = (torch.float64, torch.float16, torch.bfloat16, torch.int64)
TEXTS = ("image", "patient 4711", "", "a\nb", None, -1, 1e308, [], {"a": 1}, True)
VALUES = ("seed", "validate", "selection_metric", "checkpoints", "round_timeout", "frozen", "public", "executors", "x")


def of_tensors(change: Callable[[Tensor], Tensor]) -> Change:
    """A change of every floating-point tensor of a task."""

    def changed(values, parts):
        found = {
            name: {
                key: change(value) if isinstance(value, Tensor) and value.is_floating_point() else value
                for key, value in part.items()
            }
            for name, part in parts.items()
        }
        return values, found

    return changed


def filled(value: float) -> Change:
    """All weights have this value."""
    return of_tensors(lambda tensor: torch.full_like(tensor, value))


def one_channel(tensor: Tensor) -> Tensor:
    """Dark pictures give small numbers, bright ones overflow in one channel."""
    changed = torch.zeros_like(tensor)
    changed.view(-1)[: max(1, changed.numel() // 4)] = 9e3
    return changed


MODELS: dict[str, Change] = {
    "as sent": of_tensors(lambda tensor: tensor),
    "not a number": filled(float("nan")),
    "infinite": filled(float("inf")),
    "denormal": filled(1e-42),
    "overflowing": filled(9e3),  # for bright pictures, within the bound on weights
    "one channel": of_tensors(one_channel),
    "zero": filled(0.0),
    "another size": of_tensors(lambda tensor: torch.zeros((*tensor.shape, 2), dtype=tensor.dtype)),
    "doubles": of_tensors(lambda tensor: tensor.double()),
}


def hostile(message: Shareable, change: Change, first: Shareable) -> Shareable:
    """The task with another model, or other values.

    What is changed is the model of the first task: that of a later one has the noise of the site's updates in it, so that
    two sites would be asked by different models.
    """
    payload, model = decode_payload(copy.deepcopy(message)), decode_payload(copy.deepcopy(first)).parts
    parts = {name: model.get(name, part) for name, part in payload.parts.items()}
    sent = encode_payload(Payload(payload.round_number, *change(dict(payload.values), parts)))
    for header, value in message[ReservedHeaderKey.HEADERS].items():
        sent.set_header(header, value)
    return sent


def drawn(seed: int) -> Change:
    """A random change of a task: the same for the same seed and task."""

    def changed(values, parts):
        draw = np.random.default_rng(seed)
        for _ in range(draw.choice([1, 1, 2])):
            _, parts = of_tensors(_of_a_tensor(draw))(values, parts)
        if draw.random() < 0.2:
            values[str(draw.choice(VALUES))] = TEXTS[draw.integers(len(TEXTS))]
        if draw.random() < 0.05:
            part = parts[str(draw.choice(sorted(parts)))] if parts else {}
            if part:
                del part[str(draw.choice(sorted(part)))]
        return values, parts

    return changed


def _of_a_tensor(draw: np.random.Generator) -> Callable[[Tensor], Tensor]:
    """A change of each tensor, or of one in five."""
    number, few = float(draw.choice(NUMBERS)), bool(draw.random() < 0.5)
    scale, way = float(10 ** draw.uniform(-4, 4)), draw.choice(9, p=[0.2, 0.2, 0.2, 0.1, 0.1, 0.08, 0.04, 0.04, 0.04])
    dtype = DTYPES[draw.integers(len(DTYPES))]

    def some(tensor):
        return torch.from_numpy(draw.random(tuple(tensor.shape)) < 10 ** draw.uniform(-4, 0))

    changes = (
        lambda tensor: tensor * scale,
        lambda tensor: torch.where(some(tensor), torch.full_like(tensor, number), tensor),
        lambda tensor: torch.where(some(tensor), torch.full_like(tensor, number), torch.zeros_like(tensor)),
        lambda tensor: torch.full_like(tensor, number),
        lambda tensor: torch.from_numpy(draw.normal(0, scale, tuple(tensor.shape))).to(tensor.dtype),
        lambda tensor: tensor.flip(0) if tensor.dim() else -tensor,
        lambda tensor: tensor.to(dtype),
        lambda tensor: torch.zeros((*tensor.shape, 2), dtype=tensor.dtype),
        lambda tensor: tensor.reshape(-1)[:1],
    )
    chosen = changes[way]
    return lambda tensor: tensor if few and draw.random() < 0.8 else chosen(tensor)
