"""Checks an answer before it leaves: anything unknown, or not named by the policy, refuses the whole answer.

The checks work on plain values, independent of the transport.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor

from grandrounds.errors import MessageError
from grandrounds.evaluation.metrics import FROM_CONFUSION, SELECTABLE, selectable_metrics
from grandrounds.privacy.gate.audit import Refused, refusing
from grandrounds.privacy.gate.kinds import APP_DEFINED, KINDS, Expected, no_distributions
from grandrounds.privacy.gate.policy import COUNTED_PARTS, SAMPLES_UNIT, ReleaseRule, SitePolicy
from grandrounds.privacy.gate.treatments import Logits
from grandrounds.protocol.messages import (
    FACTS,
    MAX_SAMPLES,
    MESSAGE_NAME,
    METRICS,
    PROTOCOL,
    WITHHELD,
    ReleaseKind,
    require_facts,
)
from grandrounds.protocol.refusal import Reason

HEADER = {"protocol", "round", "run_id", "samples"}
MAX_NUMBERS = 1024
"""In one answer, so that an image cannot leave as one number per pixel."""
MAX_RELEASES = 8
"""In one answer; a method has four at most."""
LARGEST = 1e12
"""Absolute value of a number that leaves."""
WORDS = frozenset({
    *SELECTABLE, *FROM_CONFUSION, *COUNTED_PARTS, "n", "unit", "round", "f1", "log_loss", "log_likelihood", "auc_macro",
    "unlabelled", "images",
})  # fmt: skip
"""What a number's name may have after its first part, beside whole numbers, where a rule leaves it open."""
SHA256 = re.compile(r"[0-9a-f]{64}")
"""The form of every other fact."""
MIN_COUNT = 10
"""Images in a count, whatever a policy or a job asks for."""
COUNT_PREFIXES = ("images.", "size.")
"""How the names of counts begin."""
MAX_DIGITS = 6
METRIC_VALUES = "METRICS"
"""FLARE's data kind of numbers."""
TENSOR_TYPES = frozenset(
    {torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.uint8, torch.int8, torch.int32, torch.int64}
)


@dataclass(frozen=True)
class Part:
    """One part of an answer, as the method made it."""

    kind: str
    meta: Mapping[str, Any]
    data: Any


@dataclass(frozen=True)
class Answer:
    """An answer: its header and its parts by name."""

    header: Mapping[str, Any]
    parts: Mapping[str, Part]


@dataclass(frozen=True)
class Inspected:
    """A checked answer.

    ``releases`` are rule and tensors by name; ``withheld`` are the names of numbers, texts and releases of tests that may
    not leave; ``samples`` is 1 when the policy does not allow their number to leave.
    """

    releases: Mapping[str, tuple[ReleaseRule, Mapping[str, Tensor]]]
    scalars: Mapping[str, float]
    facts: Mapping[str, str]
    withheld: tuple[str, ...]
    samples: int

    def without(self, names: Collection[str]) -> Inspected:
        """The answer without the releases and numbers of these names, which stay at the site."""
        return replace(
            self,
            releases={name: release for name, release in self.releases.items() if name not in names},
            scalars={name: value for name, value in self.scalars.items() if name not in names},
            withheld=tuple(sorted({*self.withheld, *names})),
        )


def inspect(answer: Answer, policy: SitePolicy, expected: Expected) -> Inspected:
    """Check a whole answer.

    Raises:
        Refused: at the first part that is unknown, denied, misshapen or not finite; the detail names it.
    """
    _require_header(answer.header, expected)
    releases, numbers, texts = {}, {}, {}
    kept = set()
    if len(answer.parts) > MAX_RELEASES + 2:
        raise Refused(
            Reason.FORM, f"there are {len(answer.parts)} parts; at most {MAX_RELEASES} releases may leave at once"
        )
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
    allowed = {
        name: value
        for name, value in numbers.items()
        if may_leave(name, policy, expected) and _large_enough(name, value, policy)
    }
    facts = {name: text for name, text in texts.items() if policy.allows_fact(name) and _is_fact(name, text, expected)}
    withheld = sorted((numbers.keys() - allowed.keys()) | (texts.keys() - facts.keys()) | kept)
    samples = answer.header["samples"]
    shown = samples if may_leave(SAMPLES_UNIT, policy, expected) else min(samples, 1)
    return Inspected(releases, allowed, facts, tuple(withheld), shown)


def _require_header(header: Mapping[str, Any], expected: Expected) -> None:
    if not isinstance(header, Mapping) or header.keys() != HEADER:
        keys = sorted(map(str, header)) if isinstance(header, Mapping) else type(header).__name__
        raise Refused(Reason.FORM, f"the header must have {', '.join(sorted(HEADER))}, got {keys}")
    identity = [header["protocol"], header["round"], header["run_id"]]
    plain = [type(value) for value in identity] == [str, int, str]
    if not plain or identity != [PROTOCOL, expected.round_number, expected.run_id]:
        raise Refused(Reason.FORM, f"the header belongs to another task: {identity}")
    samples = header["samples"]
    if type(samples) is not int or not 0 <= samples <= MAX_SAMPLES:
        raise Refused(Reason.VALUES, f"samples is {samples!r}")


def _require_name(name: Any, what: str) -> None:
    if type(name) is not str or not MESSAGE_NAME.fullmatch(name):
        raise Refused(Reason.FORM, f"{what} has the name {name!r}")


def _numbers(part: Part) -> dict[str, float]:
    if part.kind != METRIC_VALUES or part.meta or not isinstance(part.data, Mapping):
        raise Refused(Reason.FORM, f"metrics of kind {part.kind} with properties {sorted(part.meta)}")
    if len(part.data) > MAX_NUMBERS:
        raise Refused(Reason.VALUES, f"there are {len(part.data)} metrics, at most {MAX_NUMBERS} may leave at once")
    for name, value in part.data.items():
        _require_name(name, "a metric")
        number = type(value) is int or type(value) is float
        if not number or not abs(value) <= LARGEST:
            fault = "is not" if number else f"is a {type(value).__name__}, not"
            raise Refused(
                Reason.VALUES, f"metric {name!r} {fault} a finite number of at most {LARGEST:g}", by_training=number
            )
    return {name: struct.unpack("f", struct.pack("f", value))[0] for name, value in part.data.items()}


def _texts(part: Part) -> dict[str, str]:
    if part.kind != APP_DEFINED or part.meta:
        raise Refused(Reason.FORM, f"facts of kind {part.kind} with properties {sorted(part.meta)}")
    with refusing(Reason.VALUES, MessageError):
        require_facts(part.data)
    return dict(part.data)


def may_leave(name: str, policy: SitePolicy, expected: Expected) -> bool:
    """Whether a number of this name may leave: a rule names it, and its part of the data has enough patients.

    Where the rule's name is a pattern, the rest of the name must be of known words and whole numbers.
    """
    rule = policy.scalar_rule_for(name)
    if rule is None or expected.patients.get(rule.part, 0) < rule.minimum_support:
        return False
    words = name.split(".")[1:] if "." in rule.name else []
    return rule.name == name or (bool(words) and all(_is_known(word) for word in words))


def _is_known(word: str) -> bool:
    index = word.isascii() and word.isdigit() and len(word) <= MAX_DIGITS
    return word in WORDS or index or word in selectable_metrics()


def _large_enough(name: str, value: float, policy: SitePolicy) -> bool:
    """Whether a count is of no image or of enough; a number that is no count is."""
    rule = policy.scalar_rule_for(name)
    minimum = rule.minimum_count if rule else 0
    return not (name.startswith(COUNT_PREFIXES) or minimum) or value == 0 or value >= max(minimum, MIN_COUNT)


def _is_fact(name: str, text: str, expected: Expected) -> bool:
    return text in expected.backbones if name == "backbone" else SHA256.fullmatch(text) is not None


def _stays(name: str, part: Part, policy: SitePolicy) -> bool:
    """Whether a part comes with scores and has no rule. Only such parts are withheld; the scores beside them may leave."""
    kinds = (ReleaseKind.CURVES, ReleaseKind.COUNTS, ReleaseKind.SITE_MODEL, ReleaseKind.IMAGE_MOMENTS)
    kind = next((kind for kind in kinds if part.meta == {"release": kind.value}), None)
    return kind is not None and name in WITHHELD and policy.rule_for(kind, name) is None


def _rule(name: str, part: Part, policy: SitePolicy) -> ReleaseRule:
    if set(part.meta) != {"release"}:
        raise Refused(Reason.FORM, f"part {name!r} has the properties {sorted(map(str, part.meta))}")
    try:
        kind = ReleaseKind(part.meta["release"])
    except ValueError:
        raise Refused(Reason.FORM, f"part {name!r} is a release of kind {part.meta['release']!r}") from None
    if part.kind != KINDS[kind].data_kind:
        raise Refused(Reason.FORM, f"part {name!r} of kind {kind} comes as {part.kind}")
    rule = policy.rule_for(kind, name)
    if rule is None:
        raise Refused(Reason.DENIED, f"no rule allows {kind} {name!r}")
    return rule


def _tensors(name: str, data: Any, rule: ReleaseRule, expected: Expected) -> Mapping[str, Tensor]:
    if not isinstance(data, Mapping) or not data:
        raise Refused(Reason.FORM, f"{name} must be a dictionary of tensors, got {type(data).__name__}")
    tensors = dict(data)  # a copy: what is checked here is what is treated
    for key, value in tensors.items():
        _require_name(key, f"an entry of {name}")
        _require_plain(value, f"{name}[{key!r}]")
        _require_known(key, value, name, rule, expected)
    return tensors


def _require_plain(value: Any, where: str) -> None:
    if type(value) is not Tensor:
        raise Refused(Reason.FORM, f"{where} is not a tensor, but a {type(value).__name__}")
    if value.dtype not in TENSOR_TYPES or value.layout != torch.strided or value.is_meta or value.is_nested:
        raise Refused(Reason.FORM, f"{where} is of {value.dtype}, {value.layout}")
    if value.is_floating_point() and not bool(torch.isfinite(value).all()):
        raise Refused(Reason.VALUES, f"{where} has a value that is NaN or infinite", by_training=True)


def _require_known(key: str, value: Tensor, name: str, rule: ReleaseRule, expected: Expected) -> None:
    named = any(fnmatchcase(key, pattern) for pattern in rule.entries)
    if not named and (rule.entries or rule.kind is not ReleaseKind.MODEL_UPDATE):
        raise Refused(Reason.DENIED, f"no rule allows {name}[{key!r}]")
    mismatch = KINDS[rule.kind].mismatch(key, value, expected)
    if not mismatch and rule.kind is ReleaseKind.SOFT_LABELS and not isinstance(rule.treatment, Logits):
        mismatch = "a row is not a distribution" if no_distributions(value) else ""
    if mismatch:
        shape = tuple(value.shape)
        raise Refused(
            Reason.VALUES, f"{name}[{key!r}] of kind {rule.kind} is {value.dtype} of shape {shape}: {mismatch}"
        )
