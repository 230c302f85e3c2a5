"""Looking at an answer before it leaves: whatever is not known and not named by the policy ends it.

The checks are made on plain values, so that they hold whatever carries the message.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn

from grandrounds.errors import MessageError
from grandrounds.evaluation.curves import counts_shape
from grandrounds.privacy.gate.audit import Reason, Refused
from grandrounds.privacy.gate.policy import SAMPLES, ReleaseRule, SitePolicy
from grandrounds.privacy.gate.treatment import SUPPORT
from grandrounds.protocol.messages import CURVES, FACTS, MAX_SAMPLES, METRICS, PROTOCOL, ReleaseKind
from grandrounds.protocol.registration import require_facts

HEADER = {"protocol", "round", "run_id", "samples"}
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:/ -]{0,127}")
MAX_NUMBERS = 1024
"""In one answer: an image must not leave as numbers, one for each pixel."""
WEIGHT_DIFF, APP_DEFINED, METRIC_VALUES = "WEIGHT_DIFF", "APP_DEFINED", "METRICS"
DTYPES = frozenset(
    {torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.uint8, torch.int8, torch.int32, torch.int64}
)
Template = Mapping[str, tuple[tuple[int, ...], torch.dtype]]


@dataclass(frozen=True)
class Part:
    """One part of an answer, as it came out of the method."""

    kind: str
    meta: Mapping[str, Any]
    data: Any


@dataclass(frozen=True)
class Answer:
    """An answer: its header and its parts by name."""

    header: Mapping[str, Any]
    parts: Mapping[str, Part]


@dataclass(frozen=True)
class Expected:
    """What an answer must fit.

    Attributes:
        round_number: of the task.
        run_id: of the task.
        classes: number of classes of the problem.
        template: shape and dtype of each entry of the model that the server has sent.
        patients: number of patients in each part of the site's data.
    """

    round_number: int
    run_id: str
    classes: int
    template: Template
    patients: Mapping[str, int]


@dataclass(frozen=True)
class Inspected:
    """An answer of which everything is known.

    Attributes:
        releases: rule and tensors by name.
        scalars: numbers that may leave.
        facts: short texts that may leave.
        withheld: names of numbers, texts and curves that may not.
        samples: the number of training samples, or 1 when the policy does not let it out.
    """

    releases: Mapping[str, tuple[ReleaseRule, Mapping[str, Tensor]]]
    scalars: Mapping[str, float]
    facts: Mapping[str, str]
    withheld: tuple[str, ...]
    samples: int


def inspect(answer: Answer, policy: SitePolicy, expected: Expected) -> Inspected:
    """Check a whole answer.

    Raises:
        Refused: at the first thing that is unknown, denied, misshapen or not finite; its detail names it.
    """
    _require_header(answer.header, expected)
    releases, numbers, texts = {}, {}, {}
    kept = set()
    for name, part in answer.parts.items():
        _require_name(name, "a part")
        if name == METRICS:
            numbers = _numbers(part)
        elif name == FACTS:
            texts = _texts(part)
        elif _stays(name, part, policy):
            kept.add(name)
        else:
            rule = _rule(name, part, policy)
            releases[name] = (rule, _tensors(name, part.data, rule, expected))
    allowed = {name: value for name, value in numbers.items() if may_leave(name, policy, expected)}
    facts = {name: text for name, text in texts.items() if policy.lets_out_fact(name)}
    withheld = sorted((numbers.keys() - allowed.keys()) | (texts.keys() - facts.keys()) | kept)
    samples = answer.header["samples"]
    shown = samples if may_leave(SAMPLES, policy, expected) else min(samples, 1)
    return Inspected(releases, allowed, facts, tuple(withheld), shown)


def _require_header(header: Mapping[str, Any], expected: Expected) -> None:
    if not isinstance(header, Mapping) or header.keys() != HEADER:
        keys = sorted(map(str, header)) if isinstance(header, Mapping) else type(header).__name__
        raise Refused(Reason.FORM, f"the header must have {', '.join(sorted(HEADER))}, got {keys}")
    identity = [header["protocol"], header["round"], header["run_id"]]
    plain = [type(value) for value in identity] == [int, int, str]
    if not plain or identity != [PROTOCOL, expected.round_number, expected.run_id]:
        raise Refused(Reason.FORM, f"the header is of another task: {identity}")
    samples = header["samples"]
    if type(samples) is not int or not 0 <= samples <= MAX_SAMPLES:
        raise Refused(Reason.VALUES, f"samples is {samples!r}")


def _require_name(name: Any, what: str) -> None:
    if type(name) is not str or not NAME.fullmatch(name):
        raise Refused(Reason.FORM, f"{what} has the name {name!r}")


def _numbers(part: Part) -> dict[str, float]:
    if part.kind != METRIC_VALUES or part.meta or not isinstance(part.data, Mapping):
        raise Refused(Reason.FORM, f"metrics of kind {part.kind} with properties {sorted(part.meta)}")
    if len(part.data) > MAX_NUMBERS:
        raise Refused(Reason.VALUES, f"there are {len(part.data)} metrics, at most {MAX_NUMBERS} may leave at once")
    for name, value in part.data.items():
        _require_name(name, "a metric")
        if type(value) not in (int, float) or not abs(value) <= sys.float_info.max:
            raise Refused(Reason.VALUES, f"metric {name!r} is no finite number, but a {type(value).__name__}")
    return {name: float(value) for name, value in part.data.items()}


def _texts(part: Part) -> dict[str, str]:
    if part.kind != APP_DEFINED or part.meta:
        raise Refused(Reason.FORM, f"facts of kind {part.kind} with properties {sorted(part.meta)}")
    try:
        require_facts(part.data)
    except MessageError as error:
        raise Refused(Reason.VALUES, str(error)) from None
    return dict(part.data)


def may_leave(name: str, policy: SitePolicy, expected: Expected) -> bool:
    """Whether a number of this name may leave: a rule names it, and its part of the data has enough patients."""
    rule = policy.scalar_rule_for(name)
    return rule is not None and expected.patients.get(rule.part, 0) >= rule.minimum_support


def _stays(name: str, part: Part, policy: SitePolicy) -> bool:
    """Whether a part is curves that no rule lets out: they stay, and the scores that they come with need not."""
    curves = name in CURVES.values() and part.meta == {"release": ReleaseKind.CURVES.value}
    return curves and policy.rule_for(ReleaseKind.CURVES, name) is None


def _rule(name: str, part: Part, policy: SitePolicy) -> ReleaseRule:
    if set(part.meta) != {"release"}:
        raise Refused(Reason.FORM, f"part {name!r} has the properties {sorted(map(str, part.meta))}")
    try:
        kind = ReleaseKind(part.meta["release"])
    except ValueError:
        raise Refused(Reason.FORM, f"part {name!r} is a release of kind {part.meta['release']!r}") from None
    if part.kind != (WEIGHT_DIFF if kind is ReleaseKind.MODEL_UPDATE else APP_DEFINED):
        raise Refused(Reason.FORM, f"part {name!r} of kind {kind} comes as {part.kind}")
    rule = policy.rule_for(kind, name)
    if rule is None:
        raise Refused(Reason.DENIED, f"no rule lets {kind} {name!r} out")
    return rule


def _tensors(name: str, data: Any, rule: ReleaseRule, expected: Expected) -> Mapping[str, Tensor]:
    if not isinstance(data, Mapping) or not data:
        raise Refused(Reason.FORM, f"{name} must be a dictionary of tensors, got {type(data).__name__}")
    tensors = dict(data)  # what is looked at here is what is treated
    for key, value in tensors.items():
        _require_name(key, f"an entry of {name}")
        _require_plain(value, f"{name}[{key!r}]")
        _require_known(key, value, name, rule, expected)
    return tensors


def _require_plain(value: Any, where: str) -> None:
    if type(value) not in (Tensor, nn.Parameter):
        raise Refused(Reason.FORM, f"{where} is no tensor, but a {type(value).__name__}")
    if value.dtype not in DTYPES or value.layout != torch.strided or value.is_meta or value.is_nested:
        raise Refused(Reason.FORM, f"{where} is of {value.dtype}, {value.layout}")
    if value.is_floating_point() and not bool(torch.isfinite(value).all()):
        raise Refused(Reason.VALUES, f"{where} has a value that is NaN or infinite")


def _require_known(key: str, value: Tensor, name: str, rule: ReleaseRule, expected: Expected) -> None:
    where, shape = f"{name}[{key!r}]", tuple(value.shape)
    update = rule.kind is ReleaseKind.MODEL_UPDATE
    named = any(fnmatchcase(key, pattern) for pattern in rule.entries)
    if not named and (rule.entries or not update):
        raise Refused(Reason.DENIED, f"no rule lets {where} out")
    in_model = expected.template.get(key)
    if update and in_model != (shape, value.dtype):
        raise Refused(
            Reason.VALUES, f"{where} is {value.dtype} of shape {shape}, in the model from the server {in_model}"
        )
    if not _has_form(value, rule.kind, expected.classes):
        raise Refused(
            Reason.VALUES, f"{where} is {value.dtype} of shape {shape}: no {rule.kind} of {expected.classes} classes"
        )
    if rule.kind is ReleaseKind.CLASS_STATISTICS and key == SUPPORT:
        _require_patients(int(value.max()), where, expected)
    if rule.kind is ReleaseKind.ENCRYPTED_ROWS and (value.dtype != torch.uint8 or value.dim() != 1):
        raise Refused(Reason.VALUES, f"{where} is {value.dtype} of shape {shape}, but ciphertexts are a row of bytes")
    if rule.kind is ReleaseKind.CURVES:
        _require_curves(value, where, expected)


def _has_form(value: Tensor, kind: ReleaseKind, classes: int) -> bool:
    """Whether a tensor has the type and the shape of its kind."""
    shape, floating = tuple(value.shape), value.is_floating_point()
    forms = {
        ReleaseKind.CLASS_STATISTICS: shape in ((classes,), (classes, classes)),
        ReleaseKind.SOFT_LABELS: len(shape) == 2 and shape[1] == classes and (floating or value.dtype == torch.uint8),
        ReleaseKind.EMBEDDINGS: len(shape) == 2 and floating,
        ReleaseKind.DISCRIMINATOR: floating,
    }
    return forms.get(kind, True)


def _require_patients(count: int, where: str, expected: Expected) -> None:
    """A method may be wrong about its patients; there are never more behind a class than in all training images."""
    patients = expected.patients.get("train", 0)
    if count > patients:
        raise Refused(Reason.VALUES, f"{where} counts {count}, the training images are of {patients} patients")


def _require_curves(value: Tensor, where: str, expected: Expected) -> None:
    shape = counts_shape(expected.classes)
    if tuple(value.shape) != shape or value.dtype != torch.int64:
        raise Refused(
            Reason.VALUES, f"{where} is {value.dtype} of shape {tuple(value.shape)}, expected int64 of {shape}"
        )
    patients = expected.patients.get("test", 0)
    most = int(value.clamp(0, patients + 1).sum(dim=2).max())  # the sum of enormous counts would begin again below zero
    if most > patients:
        raise Refused(Reason.VALUES, f"{where} counts {most} cases, the test images are of {patients} patients")
