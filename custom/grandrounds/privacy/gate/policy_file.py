"""Reading a site's ``privacy.json``: FLARE's scopes, with a policy in the properties of each.

The file is the hospital's own, and no job can change it. A scope's policy is the entry ``grandrounds`` of its properties:

    {"unit": "site", "delta": 1e-5, "target_epsilon": {"skin": 8.0},
     "releases": [{"kind": "model_update", "name": "update", "treatment": "clip_and_noise",
                   "clip": 1.0, "noise_multiplier": 20.0, "running_statistics": "drop"}],
     "scalars": [{"name": "validation.*", "part": "val", "minimum_support": 20}],
     "facts": ["backbone", "architecture"]}

A mistake is an error that names the field, never a default.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, get_args

from grandrounds.errors import ConfigurationError
from grandrounds.files import require_object
from grandrounds.privacy.accounting.conversions import require_delta
from grandrounds.privacy.gate.policy import TASKS, ReleaseRule, ScalarRule, SitePolicy
from grandrounds.privacy.gate.treatment import (
    MIN_SUPPORT,
    ClipAndNoise,
    ClipAndNoiseSamples,
    CurveSupport,
    Deny,
    MinimumSupport,
    Quantise,
    RecordLevel,
    RunningStatistics,
    Treatment,
    Unmodified,
)
from grandrounds.protocol.messages import ReleaseKind
from grandrounds.protocol.spending import Unit, update_sensitivity

POLICY_KEY = "grandrounds"
GATE = "grandrounds.privacy.gate.filters.SitePrivacyGate"
PARTS = ("train", "labelled", "val", "test")
DEFAULT_ENTRIES: Mapping[ReleaseKind, tuple[str, ...]] = {
    ReleaseKind.CLASS_STATISTICS: ("matrix", "support"),
    ReleaseKind.CURVES: ("counts",),
}
NOISE_FIELDS = {"clip", "sigma", "noise_multiplier"}
FIELDS = {
    "clip_and_noise": NOISE_FIELDS,
    "minimum_support": {"least"},
    "quantise": {"levels"},
    "as_it_is": set[str](),
    "record_level": {"min_noise_multiplier"},
    "deny": set[str](),
}
NEEDED = {"quantise": ["levels"], "record_level": ["min_noise_multiplier"]}


def parse_policy(content: Any, where: str) -> SitePolicy:
    """Read and check a scope's policy.

    Args:
        content: the value of ``properties.grandrounds``.
        where: how errors call the place.

    Raises:
        ConfigurationError: naming the field, what was expected and what came.

    Example:
        >>> parse_policy({"unit": "site", "delta": 1e-5}, "scope strict").rule_for(ReleaseKind.MODEL_UPDATE, "update")
    """
    optional = ["releases", "scalars", "facts", "target_epsilon", "tasks"]
    entry = require_object(content, where, ["unit", "delta"], optional)
    unit = _word(entry["unit"], [unit.value for unit in Unit], f"{where}.unit")
    delta = _number(entry["delta"], f"{where}.delta")
    try:
        require_delta(delta)
    except ValueError as error:
        raise ConfigurationError(f"{where}: {error}") from None
    policy = SitePolicy(
        Unit(unit),
        delta,
        tuple(_release(rule, Unit(unit), f"{where}.releases[{n}]") for n, rule in _items(entry, "releases", where)),
        tuple(_scalar(rule, f"{where}.scalars[{n}]") for n, rule in _items(entry, "scalars", where)),
        tuple(_text(name, f"{where}.facts[{n}]") for n, name in _items(entry, "facts", where)),
        _targets(entry.get("target_epsilon", {}), f"{where}.target_epsilon"),
        tuple(_word(task, TASKS, f"{where}.tasks[{n}]") for n, task in _items(entry, "tasks", where, TASKS)),
    )
    if policy.target_epsilon:
        _require_countable(policy, where)
    return policy


def read_policies(content: Any, where: str) -> dict[str, SitePolicy]:
    """The policies of all scopes of a ``privacy.json``.

    Raises:
        ConfigurationError: if it is no such file, a scope has no policy or a wrong one, the gate is not among both kinds of
            a scope's filters, or no scope is the default.
    """
    scopes = require_object(content, where, ["scopes", "default_scope"], ["components"])["scopes"]
    if not isinstance(scopes, list) or not all(isinstance(scope, dict) and scope.get("name") for scope in scopes):
        raise ConfigurationError(f"{where}: scopes must be a list of objects with a name")
    policies = {}
    for scope in scopes:
        place = f"{where}: scope {scope['name']!r}"
        for chain, direction in (("task_data_filters", "in"), ("task_result_filters", "out")):
            if not _has_gate(scope.get(chain), direction):
                raise ConfigurationError(f"{place}: {chain} must have a filter with path {GATE}")
        policies[scope["name"]] = policy_of_scope(scope.get("properties"), place)
    if content["default_scope"] not in policies:
        raise ConfigurationError(
            f"{where}: default_scope {content['default_scope']!r} is not defined (scopes: {', '.join(policies)})"
        )
    return policies


def _has_gate(chain: Any, direction: str) -> bool:
    """Whether the gate is among a chain's filters, and looks into this direction."""
    entries = [entry for entry in chain if isinstance(entry, dict)] if isinstance(chain, list) else []
    gates = [entry for entry in entries if entry.get("path") == GATE and not entry.get("disabled")]
    return any(entry.get("direction", direction) in (direction, "inout") for entry in gates)


def policy_of_scope(properties: Any, where: str) -> SitePolicy:
    """The policy in a scope's properties.

    Raises:
        ConfigurationError: if there is none, or a wrong one.
    """
    if not isinstance(properties, Mapping) or POLICY_KEY not in properties:
        raise ConfigurationError(f"{where}: properties.{POLICY_KEY} is missing: without a policy nothing may leave")
    return parse_policy(properties[POLICY_KEY], f"{where}: {POLICY_KEY}")


def _release(content: Any, unit: Unit, where: str) -> ReleaseRule:
    required, optional = ["kind", "name", "treatment"], {"entries", "outside_budget", "running_statistics"}
    entry = require_object(content, where, required, optional.union(*FIELDS.values()))
    treatment = _word(entry["treatment"], FIELDS, f"{where}.treatment")
    require_object(entry, where, [*required, *NEEDED.get(treatment, [])], optional | FIELDS[treatment])
    kind = ReleaseKind(_word(entry["kind"], [kind.value for kind in ReleaseKind], f"{where}.kind"))
    outside = entry.get("outside_budget", False)
    if not isinstance(outside, bool):
        raise ConfigurationError(f"{where}.outside_budget must be true or false, got {outside!r}")
    made = _treatment(entry, kind, unit, where)
    entries = tuple(_text(name, f"{where}.entries[{n}]") for n, name in _items(entry, "entries", where))
    if not entries and kind not in (ReleaseKind.MODEL_UPDATE, *DEFAULT_ENTRIES) and not isinstance(made, Deny):
        raise ConfigurationError(f"{where}: entries is missing: name the tensors that a release of {kind} may have")
    return ReleaseRule(
        kind, _text(entry["name"], f"{where}.name"), made, entries or DEFAULT_ENTRIES.get(kind, ()), outside
    )


def _treatment(entry: Mapping[str, Any], kind: ReleaseKind, unit: Unit, where: str) -> Treatment:
    name = entry["treatment"]
    if "running_statistics" in entry and (name != "clip_and_noise" or kind is ReleaseKind.EMBEDDINGS):
        raise ConfigurationError(f"{where}: running_statistics is for clip_and_noise of an update only")
    try:
        made = _made(name, entry, kind, unit, where)
    except ConfigurationError as error:
        raise ConfigurationError(f"{where}: {error}" if where not in str(error) else str(error)) from None
    if kind not in made.kinds:
        raise ConfigurationError(f"{where}: {name} is not for {kind}, only for {', '.join(sorted(made.kinds))}")
    return made


def _made(name: str, entry: Mapping[str, Any], kind: ReleaseKind, unit: Unit, where: str) -> Treatment:
    if name == "clip_and_noise":
        return _clip_and_noise(entry, kind, unit, where)
    if name == "minimum_support":
        support = CurveSupport if kind is ReleaseKind.CURVES else MinimumSupport
        return support(_whole(entry.get("least", MIN_SUPPORT), f"{where}.least"))
    if name == "quantise":
        return Quantise(_whole(entry["levels"], f"{where}.levels"))
    if name == "record_level":
        if unit is not Unit.RECORD:
            raise ConfigurationError(f"{where}: such training protects a record, so unit must be record, got {unit}")
        field_name = "min_noise_multiplier"
        return RecordLevel(_number(entry[field_name], f"{where}.{field_name}"))
    return Unmodified() if name == "as_it_is" else Deny()


def _clip_and_noise(entry: Mapping[str, Any], kind: ReleaseKind, unit: Unit, where: str) -> Treatment:
    if "clip" not in entry:
        raise ConfigurationError(f"{where}: clip is missing: noise without clipping has no epsilon")
    if ("sigma" in entry) == ("noise_multiplier" in entry):
        raise ConfigurationError(f"{where}: exactly one of sigma and noise_multiplier is needed")
    clip = _number(entry["clip"], f"{where}.clip")
    samples = kind is ReleaseKind.EMBEDDINGS
    if samples and unit is not Unit.RECORD:
        raise ConfigurationError(f"{where}: noise on embeddings protects a record, so unit must be record, got {unit}")
    sensitivity = update_sensitivity(clip, unit)
    field_name, scale = ("sigma", 1.0) if "sigma" in entry else ("noise_multiplier", sensitivity)
    sigma = _number(entry[field_name], f"{where}.{field_name}") * scale
    if samples:
        return ClipAndNoiseSamples(clip, sigma)
    statistics = entry.get("running_statistics", "refuse")
    _word(statistics, get_args(RunningStatistics), f"{where}.running_statistics")
    return ClipAndNoise(clip, sigma, unit, statistics)


def _require_countable(policy: SitePolicy, where: str) -> None:
    """A target that the first release of a kind would make infinite is no target."""
    for number, rule in enumerate(policy.releases):
        uncounted = isinstance(rule.treatment, Unmodified | MinimumSupport | Quantise) or (
            isinstance(rule.treatment, ClipAndNoise) and rule.treatment.running_statistics == "keep"
        )
        if uncounted and not rule.outside_budget:
            raise ConfigurationError(
                f"{where}.releases[{number}]: {rule.kind} by {rule.treatment.name} has no "
                "finite epsilon, so target_epsilon would be spent by one; deny it, or set outside_budget to true if it "
                "may leave without being counted"
            )


def _scalar(content: Any, where: str) -> ScalarRule:
    entry = require_object(content, where, ["name", "part", "minimum_support"])
    least = _whole(entry["minimum_support"], f"{where}.minimum_support")
    if least < 1:
        raise ConfigurationError(f"{where}.minimum_support must be at least 1, got {least}")
    return ScalarRule(_text(entry["name"], f"{where}.name"), _word(entry["part"], PARTS, f"{where}.part"), least)


def _targets(content: Any, where: str) -> dict[str, float]:
    if not isinstance(content, Mapping):
        raise ConfigurationError(f"{where} must be an object of numbers by data set, got {content!r}")
    targets = {name: _number(value, f"{where}.{name}") for name, value in content.items()}
    for name, value in targets.items():
        if not value > 0:
            raise ConfigurationError(f"{where}.{name} must be positive, got {value}")
    return targets


def _items(entry: Mapping[str, Any], key: str, where: str, default: Iterable[str] = ()) -> list[tuple[int, Any]]:
    value = entry.get(key, list(default))
    if not isinstance(value, list):
        raise ConfigurationError(f"{where}.{key} must be a list, got {value!r}")
    return list(enumerate(value))


def _number(value: Any, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ConfigurationError(f"{where} must be a finite number, got {value!r}")
    return float(value)


def _whole(value: Any, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigurationError(f"{where} must be a whole number, got {value!r}")
    return value


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str) or not value:
        raise ConfigurationError(f"{where} must be a name or a pattern, got {value!r}")
    return value


def _word(value: Any, choices: Iterable[str], where: str) -> str:
    words = list(choices)
    if value not in words:
        raise ConfigurationError(f"{where} must be one of {', '.join(words)}, got {value!r}")
    return str(value)
