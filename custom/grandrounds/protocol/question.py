"""What a task asks, as a digest: two tasks with one digest must have the same answer."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from torch import Tensor, uint8

from grandrounds.protocol.messages import LEDGER_HEAD, SUM, Payload

CHECKPOINTS = "checkpoints"
"""In a task's values: the rounds after which the server may go on."""
PASSING = frozenset({LEDGER_HEAD, CHECKPOINTS, "round_timeout", SUM})
"""Values of a task that another start of the server may change, and on which no answer depends."""


def question_id(task: str, payload: Payload, terms: object) -> str:
    """What a task asks, as a digest: the same for two tasks that must have the same answer.

    Args:
        task: its name.
        payload: all that it says.
        terms: what the answer depends on at the site: the data set and the policy.
    """
    values = {name: value for name, value in payload.values.items() if name not in PASSING}
    digest = hashlib.sha256(json.dumps([task, payload.round_number, values], sort_keys=True, default=repr).encode())
    digest.update(repr(terms).encode())
    for part in sorted(payload.parts):
        for name in sorted(payload.parts[part]):
            _digest_tensor(digest, f"{part}/{name}", payload.parts[part][name])
    return digest.hexdigest()


def _digest_tensor(digest: Any, name: str, value: Tensor) -> None:
    digest.update(repr((name, value.dtype, tuple(value.shape))).encode())
    digest.update(value.detach().cpu().contiguous().reshape(-1).view(uint8).numpy())
