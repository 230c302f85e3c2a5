"""What travels between server and sites, and its encoding as FLARE data exchange objects.

A result is a collection: the model *update* as ``WEIGHT_DIFF``, so that FLARE's and a hospital's standard filters find it,
each further release as ``APP_DEFINED`` tensors under its own name, and metrics apart. Whoever receives a message checks it:
what is missing, unknown, misshapen, of another type or not finite is named in the error.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.shareable import Shareable
from torch import Tensor

from grandrounds.errors import MessageError

State = Mapping[str, Tensor]
TRAIN, VALIDATE, TEST = "train", "validate", "test"
GLOBAL = "global"
UPDATE = "update"
VALIDATION_PREFIX = "validation."
METRICS = "metrics"
VALUES = "values"
MODEL = "model:"
RELEASE = "release:"
REASON_HEADER = "grandrounds.reason"


@dataclass(frozen=True)
class Payload:
    """What the server sends to one site.

    Attributes:
        round_number: counts from 1.
        values: plain JSON values: the problem, the run's seed, and what the method adds.
        models: named models, each a state dictionary, for example ``global`` and ``peer-1``. Their tensors are read when
            FLARE sends them: never change them in place afterwards.
    """

    round_number: int
    values: Mapping[str, Any]
    models: Mapping[str, State] = field(default_factory=dict)


@dataclass(frozen=True)
class Result:
    """What a site answers.

    Attributes:
        update: trained minus received, entry by entry; None when no model leaves the site.
        releases: the method's other releases by name, each a dictionary of tensors.
        metrics: scalars.
        samples: number of training samples the update was made from, at least 1 with an update.
    """

    update: State | None = None
    releases: Mapping[str, State] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    samples: int = 0


def encode_payload(payload: Payload) -> Shareable:
    """Turn a payload into a FLARE message."""
    parts = {MODEL + name: DXO(DataKind.WEIGHTS, data=_contiguous(state)) for name, state in payload.models.items()}
    parts[VALUES] = DXO(DataKind.APP_DEFINED, data={**payload.values, "round": payload.round_number})
    return DXO(DataKind.COLLECTION, data=parts).to_shareable()


def decode_payload(message: Shareable) -> Payload:
    """Read a payload at a site.

    Raises:
        MessageError: if the message is no payload, or a model has an entry that is no finite tensor.
    """
    parts = _collection(message)
    if VALUES not in parts or not isinstance(parts[VALUES].data.get("round"), int):
        raise MessageError("the task has no values with a round number: is the server of the same version?")
    values = dict(parts[VALUES].data)
    models = {}
    for name, part in parts.items():
        if name.startswith(MODEL):
            models[name.removeprefix(MODEL)] = part.data
            _require_finite_tensors(part.data, name)
        elif name != VALUES:
            raise MessageError(f"the task has an unknown part {name!r}")
    return Payload(round_number=values.pop("round"), values=values, models=models)


def encode_result(result: Result, declared: Collection[str]) -> Shareable:
    """Turn a result into a FLARE message.

    Args:
        result: what the method made.
        declared: names of the releases that the method has declared (``update`` among them); nothing else leaves the site.

    Raises:
        MessageError: if a release is not declared, or an entry is no finite tensor (the entry is named).
    """
    leaving = [*result.releases, *([UPDATE] if result.update is not None else [])]
    undeclared = [name for name in leaving if name not in declared]
    if undeclared:
        raise MessageError(f"release {undeclared[0]!r} is not declared by the method (declared: {sorted(declared)})")
    parts = {METRICS: DXO(DataKind.METRICS, data={**result.metrics, "samples": result.samples})}
    if result.update is not None:
        _require_finite_tensors(result.update, UPDATE)
        parts[UPDATE] = DXO(DataKind.WEIGHT_DIFF, data=_contiguous(result.update))
    for name, release in result.releases.items():
        _require_finite_tensors(release, name)
        parts[RELEASE + name] = DXO(DataKind.APP_DEFINED, data=_contiguous(release))
    return DXO(DataKind.COLLECTION, data=parts).to_shareable()


def decode_result(message: Shareable) -> Result:
    """Read a result at the server.

    Raises:
        MessageError: if the message is no result, an entry is no finite tensor, or a metric is no finite number.
    """
    parts = _collection(message)
    if METRICS not in parts:
        raise MessageError("the result has no metrics")
    metrics = dict(parts[METRICS].data)
    for name, value in metrics.items():
        if not isinstance(value, int | float) or not math.isfinite(value):
            came = value if isinstance(value, int | float) else type(value).__name__
            raise MessageError(f"metric {name!r} must be a finite number, got {came}")
    samples = int(metrics.pop("samples", 0))
    update: State | None = None
    releases: dict[str, State] = {}
    for name, part in parts.items():
        if name == UPDATE:
            update = part.data
            _require_finite_tensors(part.data, name)
            if samples < 1:
                raise MessageError(f"an update must come with its number of samples, got {samples}")
        elif name.startswith(RELEASE):
            releases[name.removeprefix(RELEASE)] = part.data
            _require_finite_tensors(part.data, name)
        elif name != METRICS:
            raise MessageError(f"the result has an unknown part {name!r}")
    return Result(update=update, releases=releases, metrics=metrics, samples=samples)


def require_like(state: State, template: State, name: str) -> None:
    """Check that two states have the same entries, shapes and dtypes.

    Raises:
        MessageError: naming the first entry that differs, what was expected and what came.
    """
    missing = sorted(template.keys() - state.keys())
    unknown = sorted(state.keys() - template.keys())
    if missing or unknown:
        what = f"lacks {missing[0]!r}" if missing else f"has the unknown entry {unknown[0]!r}"
        raise MessageError(f"{name} {what} ({len(missing)} missing, {len(unknown)} unknown): another architecture?")
    for key, expected in template.items():
        came = state[key]
        if came.shape != expected.shape or came.dtype != expected.dtype:
            raise MessageError(
                f"{name}[{key!r}] must be {expected.dtype} of shape {tuple(expected.shape)}, "
                f"got {came.dtype} of shape {tuple(came.shape)}"
            )


def tensor_bytes(states: Mapping[str, State]) -> dict[str, int]:
    """Bytes of the tensors in each named state."""
    return {name: sum(t.numel() * t.element_size() for t in state.values()) for name, state in states.items()}


def _collection(message: Shareable) -> dict[str, DXO]:
    try:
        dxo = from_shareable(message)
    except ValueError as error:
        raise MessageError(f"the message holds no data exchange object: {error}") from error
    if dxo.data_kind != DataKind.COLLECTION or not all(isinstance(part, DXO) for part in dxo.data.values()):
        raise MessageError(f"the message must be a collection of data exchange objects, got {dxo.data_kind}")
    return dict(dxo.data)


def _contiguous(state: State) -> dict[str, Tensor]:
    # FLARE's streaming refuses other layouts, such as channels-last kernels.
    return {name: value.contiguous() for name, value in state.items()}


def _require_finite_tensors(state: Mapping[str, Any], name: str) -> None:
    for key, value in state.items():
        if not isinstance(value, Tensor):
            raise MessageError(f"{name}[{key!r}] must be a tensor, got {type(value).__name__}")
    floating = [value for value in state.values() if value.is_floating_point()]
    # One sum decides the usual case; infinities of opposite sign cannot hide, because they add up to NaN.
    if floating and not bool(torch.isfinite(torch.stack([v.sum(dtype=torch.float64) for v in floating])).all()):
        for key, value in state.items():
            if value.is_floating_point() and not bool(torch.isfinite(value).all()):
                raise MessageError(f"{name}[{key!r}] has a value that is NaN or infinite")
