"""What travels between server and sites, and its encoding as FLARE data exchange objects.

Both ways it is a collection with a header. A task has named parts (models, matrices: dictionaries of tensors). A result has
the releases that the method has declared, each with its kind, by which a hospital's policy decides, and metrics; where a
site registers, also a few short texts. The update of a model is a ``WEIGHT_DIFF``, where FLARE's standard filters look for
it; other releases are ``APP_DEFINED``. The receiver of a message copies it once into plain values and checks the copy. A
site leaves out the tensors of a task, because methods only read them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import torch
from nvflare.apis.dxo import DXO, DataKind
from nvflare.apis.shareable import Shareable
from torch import Tensor

from grandrounds.errors import MessageError
from grandrounds.protocol.names import VALIDATION
from grandrounds.protocol.plain import plain
from grandrounds.protocol.precision import precision_of
from grandrounds.protocol.registration import require_facts
from grandrounds.protocol.tensors import (
    DTYPES,
    FULL,
    UpdatePrecision,
    require_finite_tensors,
    require_tensors,
    widened,
)

State = Mapping[str, Tensor]
JOIN, TRAIN, VALIDATE, TEST, POOL = TASKS = "join", "train", "validate", "test", "pool"
GLOBAL = "global"
SCORED = "scored"
"""The model to score, in a training task that starts from another one."""
FROZEN = "frozen"
"""The value with the digest of the layers that are not trained."""
UPDATE = "update"
CURVES: Mapping[str, str] = {"common": "curves_common", "own": "curves_own", VALIDATION: "curves_validation"}
"""Releases with the curves of a tested model, by the model's name: the only ones of the task ``test``.

Those of ``validation`` are of the common model's predictions for validation images, which fix an operating point.
"""
COUNTS: Mapping[str, str] = {"common": "counts_common", "own": "counts_own", VALIDATION: "counts_validation"}
"""Releases with counts of correct, missed and false predictions by class: of a tested model, and of a scored one."""
POOLED_RELEASES: Mapping[str, str] = {"common": "pooled_common", "own": "pooled_own"}
"""Releases with counts of a tested model that travel in an encrypted sum: a site's contribution, and the decrypted sum."""
CONTRIBUTION, COUNT_SUM = "contribution", "count_sum"
"""The tensor of a contribution to the sums of counts, and of a sum; and the value of a task that asks for them."""
WITHHELD = frozenset({*CURVES.values(), *COUNTS.values(), *POOLED_RELEASES.values()})
"""Releases that a site without a rule for them keeps, while the scores beside them may leave."""
METRICS = "metrics"
FACTS = "facts"
TREATED = "treated"
"""Property of a release with the name of its treatment by a gate."""
REASON_HEADER = "grandrounds.reason"
DXO_KEY = "DXO"
"""Of the content in a message of FLARE's."""
PROTOCOL = 1
MAX_SAMPLES = 10**9
MAX_ROUND = 10**9
MAX_METRICS, MAX_NAME_LENGTH, LARGEST_METRIC = 1024, 128, 1e12
"""Of the numbers in one answer."""
TREATMENT = re.compile(r"[a-z_]{1,32}")
RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


class ReleaseKind(StrEnum):
    """What a release is, in the words of a hospital's policy."""

    MODEL_UPDATE = "model_update"
    CLASS_STATISTICS = "class_statistics"
    EMBEDDINGS = "embeddings"
    DISCRIMINATOR = "discriminator"
    SOFT_LABELS = "soft_labels"
    ENCRYPTED_VALUES = "encrypted_values"
    CURVES = "curves"
    COUNTS = "counts"
    POOLED_COUNTS = "pooled_counts"


@dataclass(frozen=True)
class Release:
    """Tensors that leave a site.

    Attributes:
        kind: what they are.
        tensors: by name.
        treated: the treatment that the site's gate reports; empty without a gate.
        precision: in which they have travelled, if they are a model's update.
    """

    kind: ReleaseKind
    tensors: State
    treated: str = ""
    precision: UpdatePrecision = FULL

    @property
    def travelled_bytes(self) -> int:
        """Bytes of the tensors on their way."""
        saved = torch.float32.itemsize - DTYPES[self.precision].itemsize
        return sum(t.nbytes - (saved * t.numel() if t.is_floating_point() else 0) for t in self.tensors.values())


@dataclass(frozen=True)
class Payload:
    """What the server sends to one site.

    Attributes:
        round_number: counts from 1.
        values: plain JSON values: the problem, the run and its seed, and what the method adds.
        parts: named dictionaries of tensors, for example ``global`` (a model) and ``peer-1``. They are read when FLARE sends
            them: never change them in place afterwards. Nor at a site, where they may be the memory of FLARE's message.
    """

    round_number: int
    values: Mapping[str, Any]
    parts: Mapping[str, State] = field(default_factory=dict)


@dataclass(frozen=True)
class Result:
    """What a site answers.

    Attributes:
        releases: what leaves the site, by name; ``update`` is the difference to the model that it received.
        metrics: finite scalars.
        samples: number of training samples behind the releases; at least 1 with an update.
        facts: short texts of a site that registers; no other answer has any.
    """

    releases: Mapping[str, Release] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    samples: int = 0
    facts: Mapping[str, str] = field(default_factory=dict)

    @property
    def update(self) -> State | None:
        """The model update, if there is one."""
        return self.releases[UPDATE].tensors if UPDATE in self.releases else None


def model_update(difference: State) -> dict[str, Release]:
    """The releases of a method that sends a model update and nothing else."""
    return {UPDATE: Release(ReleaseKind.MODEL_UPDATE, difference)}


def encode_payload(payload: Payload) -> Shareable:
    """Turn a payload into a FLARE message."""
    parts = {name: DXO(DataKind.WEIGHTS, data=_contiguous(state)) for name, state in payload.parts.items()}
    header = {"protocol": PROTOCOL, "round": payload.round_number, "values": dict(payload.values)}
    return DXO(DataKind.COLLECTION, data=parts, meta=header).to_shareable()


def decode_payload(message: Shareable) -> Payload:
    """Read a payload at a site.

    Raises:
        MessageError: if the message is not a payload, the run's name is not plain, the round or the seed is none, or an
            entry is not a finite tensor.
    """
    parts, header = _collection(message, share=True)
    values = header.get("values")
    if not isinstance(values, dict):
        raise MessageError("the task has no values in its header")
    require_run_name(values.get("run_name"))
    require_run_name(values.get("run_id"), "run_id")
    if not 0 <= header["round"] <= MAX_ROUND:
        raise MessageError(f"the round of a task must be a number from 0 to {MAX_ROUND}, got {header['round']}")
    if type(values.get("seed", 0)) is not int:
        raise MessageError(f"the seed of a task must be a whole number, got {type(values['seed']).__name__}")
    for name, part in parts.items():
        require_finite_tensors(part.data, name)
    return Payload(header["round"], values, {name: part.data for name, part in parts.items()})


def encode_result(
    result: Result, declared: Mapping[str, ReleaseKind], asked: Payload, facts: Collection[str] = ()
) -> Shareable:
    """Turn a result into a FLARE message.

    Args:
        result: what the method made.
        declared: names and kinds of the releases that the method has declared; nothing else leaves the site.
        asked: the task that is answered.
        facts: names of the short texts that the method has declared for this task.

    Raises:
        MessageError: if a release or fact is not declared, an entry no finite tensor, a metric no finite number,
            or a fact no short text.
    """
    metrics, told = plain(dict(result.metrics), "metrics"), plain(dict(result.facts), "facts")
    _require_metrics(metrics)
    require_facts(told)
    for name in told:
        if name not in facts:
            raise MessageError(f"fact {name!r} is not declared by the method (declared: {sorted(facts)})")
    parts = {METRICS: DXO(DataKind.METRICS, data={name: float(value) for name, value in metrics.items()})}
    if told:
        parts[FACTS] = DXO(DataKind.APP_DEFINED, data=told)
    for name, release in result.releases.items():
        if declared.get(name) != release.kind:
            raise MessageError(
                f"release {name!r} of kind {release.kind.value} is not declared by the method (declared: {sorted(declared)})"
            )
        require_tensors(release.tensors, name)
        tensors = plain(dict(release.tensors), name, share=True)
        require_finite_tensors(tensors, name)
        kind = DataKind.WEIGHT_DIFF if release.kind is ReleaseKind.MODEL_UPDATE else DataKind.APP_DEFINED
        parts[name] = DXO(kind, data=tensors, meta={"release": release.kind.value})
    task = {"protocol": PROTOCOL, "round": asked.round_number, "run_id": asked.values["run_id"]}
    return DXO(DataKind.COLLECTION, data=parts, meta={**task, "samples": int(result.samples)}).to_shareable()


def decode_result(message: Shareable, asked: Payload) -> Result:
    """Read a result at the server.

    Args:
        message: what came.
        asked: the task that should be answered.

    Raises:
        MessageError: if the message is not a result or answers another task, an entry is not a finite tensor or of another
            precision than the task asks for, a metric no finite number, a fact no short text, or the number of samples
            makes no sense.
    """
    parts, header = _collection(message, share=False)
    if (header["round"], header.get("run_id")) != (asked.round_number, asked.values["run_id"]):
        raise MessageError(
            f"the answer is to another task (round {header['round']}, asked in round {asked.round_number})"
        )
    metrics = dict(parts.pop(METRICS).data) if METRICS in parts else {}
    _require_metrics(metrics)
    facts = parts.pop(FACTS).data if FACTS in parts else {}
    require_facts(facts)
    releases = {}
    for name, part in parts.items():
        try:
            kind = ReleaseKind(part.get_meta_prop("release"))
        except ValueError as error:
            raise MessageError(f"the result has an unknown part {name!r}") from error
        require_tensors(part.data, name)
        precision = precision_of(part, name, asked.values)
        tensors = widened(part.data, precision, name)
        require_finite_tensors(tensors, name)
        treated = part.get_meta_prop(TREATED)
        known = isinstance(treated, str) and TREATMENT.fullmatch(treated) is not None
        releases[name] = Release(kind, tensors, treated if known else "", precision)
    samples = header.get("samples")
    if not isinstance(samples, int) or not (UPDATE in releases) <= samples <= MAX_SAMPLES:
        raise MessageError(f"an update must come with its number of samples, at most {MAX_SAMPLES}, got {samples!r}")
    return Result(releases=releases, metrics=metrics, samples=samples, facts=dict(facts))


def require_run_name(name: object, what: str = "run_name") -> str:
    """Check that a run's name, or its identity, can be a folder's name and nothing else.

    Raises:
        MessageError: if it cannot: other parties name folders by it.
    """
    if not isinstance(name, str) or not RUN_NAME.fullmatch(name):
        raise MessageError(f"{what} must be 1 to 64 letters, digits, '_', '-' or '.', got {name!r}")
    return name


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


def _collection(message: Shareable, share: bool) -> tuple[dict[str, DXO], dict[str, Any]]:
    encoded = dict.get(message, DXO_KEY)
    if not isinstance(encoded, dict):
        raise MessageError("the message holds no data exchange object")
    # FLARE's own headers, which are not read here, may hold anything.
    content = plain(encoded, "the message", share)
    try:
        dxo = DXO(content.get("kind"), content.get("data"), content.get("meta"))
    except ValueError as error:
        raise MessageError(f"the message holds no data exchange object: {error}") from error
    if (
        dxo.data_kind != DataKind.COLLECTION
        or not isinstance(dxo.data, dict)
        or not all(isinstance(part, DXO) for part in dxo.data.values())
    ):
        raise MessageError(f"the message must be a collection of data exchange objects, got {dxo.data_kind}")
    header = dict(dxo.meta or {})
    if header.get("protocol") != PROTOCOL or not isinstance(header.get("round"), int):
        raise MessageError(
            f"the message is of protocol {header.get('protocol')!r}, expected {PROTOCOL}: same versions?"
        )
    return dict(dxo.data), header


def _require_metrics(metrics: Mapping[str, Any]) -> None:
    if len(metrics) > MAX_METRICS:
        raise MessageError(f"there are {len(metrics)} metrics, at most {MAX_METRICS} are accepted")
    for name, value in metrics.items():
        if not isinstance(name, str) or len(name) > MAX_NAME_LENGTH:
            raise MessageError(f"a metric's name must be a text of at most {MAX_NAME_LENGTH}, got {str(name)[:40]!r}")
        if not isinstance(value, int | float) or not abs(value) <= LARGEST_METRIC:
            came = value if isinstance(value, float) else type(value).__name__  # a huge integer cannot be written out
            raise MessageError(f"metric {name!r} must be a finite number, got {came}")


def floating_entries(state: State) -> dict[str, Tensor]:
    """The entries that are trained or averaged: not the integer counters of batch norm, which nothing depends on."""
    return {name: value for name, value in state.items() if value.is_floating_point()}


def _contiguous(state: State) -> dict[str, Tensor]:
    # FLARE's streaming refuses other layouts, such as channels-last kernels.
    return {name: value.contiguous() for name, value in state.items()}
