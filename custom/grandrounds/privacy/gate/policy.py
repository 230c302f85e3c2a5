"""A site's privacy policy: what may leave, under which treatment, and how much epsilon may be spent.

``privacy.json`` is the hospital's own file, and no job can change it. It defines FLARE's scopes. The policy of a scope is
the entry ``grandrounds`` of its properties:

    {"unit": "site", "delta": 1e-5, "target_epsilon": {"skin": 8.0},
     "releases": [{"kind": "model_update", "name": "update", "treatment": "clip_and_noise",
                   "clip": 1.0, "noise_multiplier": 20.0, "running_statistics": "drop"}],
     "scalars": [{"name": ["validation.*"], "part": "val", "minimum_support": 20, "reason": "selects the model"}],
     "facts": ["backbone", "architecture"], "scored_answers": 1000, "demands": {"update_precision": "bfloat16"}}

A rule may have a list of names, and a reason. What no rule names is denied. A mistake is an error that names the field,
never a default.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from grandrounds.checks import reraised_as
from grandrounds.errors import ConfigurationError
from grandrounds.files import require_object
from grandrounds.options import ABOVE_ZERO, Min, require_value
from grandrounds.privacy.gate.audit import Refused
from grandrounds.privacy.gate.kinds import KINDS, treatment_names
from grandrounds.privacy.gate.treatments import MULTIPLIER_TOLERANCE, Deny, Masked, RecordLevel, Treatment, Unmodified
from grandrounds.privacy.secure_sums.attempt import Rules
from grandrounds.protocol.messages import HEAD, TASKS, UPDATE, ReleaseKind
from grandrounds.protocol.refusal import Reason, Refusal
from grandrounds.protocol.spending import Mechanism, Spending, Unit, require_delta
from grandrounds.protocol.tensors import FULL, UpdatePrecision, require_precision


@dataclass(frozen=True)
class Terms:
    """What a task asks of a site's answer.

    Attributes:
        updates: whether it has a model that the site trains, so that an update answers it.
        precision: in which it leaves.
        models: whether any part of it has weights, by which the site's images may be scored.
        image_size: side of the images that it works on, in pixels.
    """

    updates: bool = False
    precision: object = FULL
    models: bool = False
    image_size: int = 0


@dataclass(frozen=True)
class SiteDemands:
    """What a policy demands; None and an absent entry demand nothing.

    Attributes:
        noise_multiplier: smallest one of any training (DP-SGD), also of one whose model stays at the site.
        update_precision: the only one in which updates leave.
    """

    noise_multiplier: float | None = None
    update_precision: UpdatePrecision | None = None

    def to_json(self) -> dict[str, Any]:
        """What is demanded, as plain values by name."""
        settings = {"noise_multiplier": self.noise_multiplier, "update_precision": self.update_precision}
        return {name: value for name, value in settings.items() if value is not None}

    def require_task(self, terms: Terms) -> None:
        """Check a training task before any work.

        Raises:
            Refused: if it lacks what is demanded; the reason names it.
        """
        if terms.updates and self.update_precision not in (None, terms.precision):
            raise Refused(Reason.PRECISION, f"the task asks for {terms.precision!r}, not {self.update_precision}")

    def require_noise(self, trained: Spending | None) -> None:
        """Check how a training is protected.

        Raises:
            Refused: if it has no noise, or too little.
        """
        if self.noise_multiplier is None:
            return
        private = trained is not None and trained.mechanism is Mechanism.DP_SGD
        multiplier = trained.sigma / trained.sensitivity if trained is not None and private else 0.0
        if multiplier < self.noise_multiplier * (1 - MULTIPLIER_TOLERANCE):
            raise Refused(
                Reason.NOISE, f"the noise multiplier is {multiplier:.4g}, at least {self.noise_multiplier:g} is"
            )


def parse_demands(content: Any, where: str) -> SiteDemands:
    """Read the entry ``demands`` of a policy.

    Raises:
        ConfigurationError: naming the field, what was expected and what came.

    Example:
        >>> parse_demands({"noise_multiplier": 1}, "demands").noise_multiplier
        1.0
    """
    entry = require_object(content, where, [], ["noise_multiplier", "update_precision"])
    noise = entry.get("noise_multiplier")
    if noise is not None:
        require_value(noise, float, ABOVE_ZERO, f"{where}.noise_multiplier")
    with reraised_as(ConfigurationError, ConfigurationError, where=where):
        precision = require_precision(entry["update_precision"]) if "update_precision" in entry else None
    return SiteDemands(None if noise is None else float(noise), precision)


POLICY_FILE = "privacy.json"
"""In a kit's folder ``local``."""
POLICY_KEY = "grandrounds"
GATE = "grandrounds.privacy.gate.filters.SitePrivacyGate"
SAMPLES_UNIT = "samples"
SCORED_ANSWERS = 1000
"""With scores, of one job, where a policy sets no number; a run has one in each round, and two at its end."""
IMAGE_SIZE = 1024
"""Largest side of a task's images where a policy sets none."""
COUNTED_PARTS = ("train", "labelled", "val", "test")


@dataclass(frozen=True)
class ReleaseRule:
    """What is done to releases of one kind whose name matches.

    Attributes:
        kind: of the release.
        name: a pattern with ``*``.
        treatment: what is done; ``deny`` denies.
        entries: patterns for the names of its tensors; empty for those of the model that the server has sent.
        outside_budget: whether it leaves without being counted in epsilon, on the hospital's own decision.
        reason: why it may leave, in the hospital's words.
    """

    kind: ReleaseKind
    name: str
    treatment: Treatment
    entries: tuple[str, ...] = ()
    outside_budget: bool = False
    reason: str = ""


@dataclass(frozen=True)
class ScalarRule:
    """Numbers that may leave.

    ``name`` is exact, where ``samples`` is the number of training images, or a pattern such as ``validation.*``.
    ``minimum_support`` is the minimum number of patients in ``part``, the part of the data that the number describes. A
    number below ``minimum_count`` does not leave; those named as counts (``images.``, ``size.``) have one of 10 at least.
    """

    name: str
    part: str
    minimum_support: int
    minimum_count: int = 0
    reason: str = ""


@dataclass(frozen=True)
class SumPolicy:
    """What a policy says about secure sums.

    Attributes:
        rules: how many sites a sum has, and how many of them may collude.
        partners: the SHA-256 of the key of each partner's certificate; None where they are not pinned.
        fixed_updates: whether sums of updates, too, are over whole batches of hospitals.
    """

    rules: Rules = field(default_factory=Rules)
    partners: Mapping[str, str] | None = None
    fixed_updates: bool = False


def parse_sums(content: Any, where: str) -> SumPolicy:
    """Read the entry ``sums`` of a policy.

    Raises:
        ConfigurationError: naming the field, what was expected and what came.

    Example:
        >>> parse_sums({"minimum_sites": 4}, "sums").rules
        Rules(minimum_sites=4, colluding=1)
    """
    entry = require_object(content, where, [], ["minimum_sites", "colluding", "partners", "fixed_updates"])
    minimum = _setting(entry, "minimum_sites", Rules().minimum_sites, Min(Rules().minimum_sites), where)
    colluding = _setting(entry, "colluding", Rules().colluding, Min(0), where)
    partners = entry.get("partners")
    if partners is not None and not isinstance(partners, Mapping):
        raise ConfigurationError(f"{where}.partners must be an object of keys by site, got {partners!r}")
    for site, digest in (partners or {}).items():
        if not isinstance(digest, str) or not HEAD.fullmatch(digest):
            raise ConfigurationError(f"{where}.partners.{site} must be a SHA-256 in hexadecimal, got {digest!r}")
    fixed = _setting(entry, "fixed_updates", False, None, where)
    return SumPolicy(Rules(minimum, colluding), None if partners is None else dict(partners), fixed)


@dataclass(frozen=True)
class SitePolicy:
    """The policy of one scope.

    Attributes:
        unit: whom the guarantee is for.
        delta: of the guarantee.
        releases: the first rule that matches decides.
        scalars: the first rule that matches decides.
        facts: patterns for the names of short texts that may leave when the site joins a run.
        target_epsilon: maximum epsilon of each data set, or with a unit of the site of all together before a release of it;
            ``*`` is for those that are not named.
        tasks: what the server may ask for.
        scored_answers: answers of one job that may have numbers on validation or test images; later ones have none.
        demands: protections from the server without which a task is refused.
        image_size: largest side of a task's images, in pixels; the site's disk and memory grow with its square.
        answer_interval: seconds; an answer leaves at a multiple of these after its task came. None: at once.
        sums: who may be in a secure sum.
        about: what the server sees, in a sentence.
    """

    unit: Unit
    delta: float
    releases: tuple[ReleaseRule, ...] = ()
    scalars: tuple[ScalarRule, ...] = ()
    facts: tuple[str, ...] = ()
    target_epsilon: Mapping[str, float] = field(default_factory=dict)
    tasks: tuple[str, ...] = TASKS
    scored_answers: int = SCORED_ANSWERS
    demands: SiteDemands = field(default_factory=SiteDemands)
    answer_interval: float | None = None
    image_size: int = IMAGE_SIZE
    about: str = ""
    sums: SumPolicy = field(default_factory=SumPolicy)

    @property
    def masked_kinds(self) -> list[str]:
        """The kinds of releases that leave in secure sums only."""
        return sorted({rule.kind.value for rule in self.releases if isinstance(rule.treatment, Masked)})

    def rule_for(self, kind: ReleaseKind, name: str) -> ReleaseRule | None:
        """The rule for a release; None when it is denied, by a rule or by the lack of one."""
        return self._allowed(rule for rule in self.releases if rule.kind is kind and fnmatchcase(name, rule.name))

    def named_rule(self, name: str) -> ReleaseRule | None:
        """The rule for a release of unknown kind, to ask before the release is made; None when it is denied."""
        return self._allowed(
            rule
            for rule in self.releases
            if fnmatchcase(name, rule.name) and (name != UPDATE or rule.kind is ReleaseKind.MODEL_UPDATE)
        )

    def refusal_of(self, releases: Mapping[str, ReleaseKind]) -> Refusal | None:
        """Why this policy refuses a job that declares these releases, by name; None if a rule lets each of them out."""
        kinds = {name: kind for name, kind in releases.items() if self.rule_for(kind, name) is None}
        denied = {kind: [name for name in kinds if kinds[name] is kind] for kind in kinds.values()}
        if not denied:
            return None
        names = "; ".join(f"{', '.join(names)} ({kind.value})" for kind, names in denied.items())
        rules = ", ".join(json.dumps(self._allowing(kind, names)) for kind, names in denied.items())
        return Refusal(f"the site's privacy policy has no rule that lets {names} out", "releases", rules)

    def _allowing(self, kind: ReleaseKind, names: list[str]) -> dict[str, Any]:
        """The least rule by which releases leave, as a hospital writes it; it promises nothing."""
        known = KINDS[kind]
        treatment = Unmodified if Unmodified in known.treatments else known.treatments[0]
        rule: dict[str, Any] = {"kind": kind.value, "name": names, "treatment": treatment.name}
        if not known.entries and kind is not ReleaseKind.MODEL_UPDATE:
            rule["entries"] = ["*"]
        return {**rule, "outside_budget": True} if self.target_epsilon else rule

    def scalar_rule_for(self, name: str) -> ScalarRule | None:
        """The rule for a number; None when it is denied."""
        return next((rule for rule in self.scalars if fnmatchcase(name, rule.name)), None)

    def allows_fact(self, name: str) -> bool:
        """Whether a short text of this name may leave."""
        return any(fnmatchcase(name, pattern) for pattern in self.facts)

    def target(self, dataset: str) -> float:
        """The maximum epsilon of a data set; infinite when the policy sets none."""
        return self.target_epsilon.get(dataset, self.target_epsilon.get("*", math.inf))

    def _allowed(self, matching: Iterable[ReleaseRule]) -> ReleaseRule | None:
        first = next(iter(matching), None)
        return None if first is None or isinstance(first.treatment, Deny) else first


def read_policies(content: Any, where: str) -> dict[str, SitePolicy]:
    """The policies of all scopes of a ``privacy.json``.

    Raises:
        ConfigurationError: if the file has another form, a scope has no policy or a wrong one, the gate is not among both
            kinds of a scope's filters, or no scope is the default.
    """
    scopes = require_object(content, where, ["scopes", "default_scope"], ["components"])["scopes"]
    if not isinstance(scopes, list) or not all(isinstance(scope, dict) and scope.get("name") for scope in scopes):
        raise ConfigurationError(f"{where}: scopes must be a list of objects with a name")
    policies = {}
    for scope in scopes:
        of_scope = f"{where}: scope {scope['name']!r}"
        if scope["name"] in policies:
            raise ConfigurationError(f"{of_scope} is there twice; delete one")
        for chain, direction in (("task_data_filters", "in"), ("task_result_filters", "out")):
            if not _has_gate(scope.get(chain), direction):
                raise ConfigurationError(f"{of_scope}: {chain} must have a filter with path {GATE}")
        policies[scope["name"]] = policy_of_scope(scope.get("properties"), of_scope)
    if content["default_scope"] not in policies:
        raise ConfigurationError(
            f"{where}: default_scope {content['default_scope']!r} is not defined (scopes: {', '.join(policies)})"
        )
    return policies


def policy_of_scope(properties: Any, where: str) -> SitePolicy:
    """The policy in a scope's properties.

    Raises:
        ConfigurationError: if there is none, or a wrong one.
    """
    if not isinstance(properties, Mapping) or POLICY_KEY not in properties:
        raise ConfigurationError(f"{where}: properties.{POLICY_KEY} is missing: without a policy nothing may leave")
    return parse_policy(properties[POLICY_KEY], f"{where}: {POLICY_KEY}")


def parse_policy(content: Any, where: str) -> SitePolicy:
    """Read and check a scope's policy, the value of ``properties.grandrounds``.

    Raises:
        ConfigurationError: naming the field, what was expected and what came.

    Example:
        >>> parse_policy({"unit": "site", "delta": 1e-5}, "scope strict").rule_for(ReleaseKind.MODEL_UPDATE, "update")
    """
    lists, limits = ("releases", "scalars", "facts", "target_epsilon", "tasks"), ("scored_answers", "image_size")
    optional = [*lists, *limits, "demands", "answer_interval", "sums", "about"]
    entry = require_object(content, where, ["unit", "delta"], optional)
    unit = Unit(_word(entry["unit"], [unit.value for unit in Unit], f"{where}.unit"))
    require_value(entry["delta"], float, None, f"{where}.delta")
    with reraised_as(ConfigurationError, ValueError, where=where):
        require_delta(entry["delta"])
    interval = entry.get("answer_interval")
    if interval is not None:
        require_value(interval, float, ABOVE_ZERO, f"{where}.answer_interval")
    policy = SitePolicy(
        unit,
        float(entry["delta"]),
        tuple(_release(rule, unit, f"{where}.releases[{n}]") for n, rule in _rules(entry, "releases", where)),
        tuple(_scalar(rule, f"{where}.scalars[{n}]") for n, rule in _rules(entry, "scalars", where)),
        tuple(_text(name, f"{where}.facts[{n}]") for n, name in _items(entry, "facts", where)),
        _targets(entry.get("target_epsilon", {}), f"{where}.target_epsilon"),
        tuple(_word(task, TASKS, f"{where}.tasks[{n}]") for n, task in _items(entry, "tasks", where, TASKS)),
        _setting(entry, "scored_answers", SCORED_ANSWERS, Min(0), where),
        parse_demands(entry.get("demands", {}), f"{where}.demands"),
        None if interval is None else float(interval),
        _setting(entry, "image_size", IMAGE_SIZE, Min(1), where),
        _words(entry, "about", where),
        parse_sums(entry.get("sums", {}), f"{where}.sums"),
    )
    if len({(rule.kind, rule.name) for rule in policy.releases}) < len(policy.releases):
        raise ConfigurationError(
            f"{where}.releases: two rules have one kind and name; delete one, as the first would decide"
        )
    if policy.target_epsilon:
        _require_countable(policy, where)
    return policy


def _has_gate(chain: Any, direction: str) -> bool:
    """Whether the gate is among a chain's filters, and filters this direction."""
    entries = [entry for entry in chain if isinstance(entry, dict)] if isinstance(chain, list) else []
    gates = [entry for entry in entries if entry.get("path") == GATE and not entry.get("disabled")]
    return any(entry.get("direction", direction) in (direction, "inout") for entry in gates)


def _release(content: Any, unit: Unit, where: str) -> ReleaseRule:
    required, optional = ["kind", "name", "treatment"], ["entries", "outside_budget", "reason"]
    entry = require_object(content, where, required, content if isinstance(content, Mapping) else optional)
    kind = ReleaseKind(_word(entry["kind"], [kind.value for kind in ReleaseKind], f"{where}.kind"))
    named = _word(entry["treatment"], treatment_names(), f"{where}.treatment")
    treatment = KINDS[kind].treatment(named)
    if treatment is None:
        fitting = ", ".join(sorted(kind for kind, known in KINDS.items() if known.treatment(named)))
        raise ConfigurationError(f"{where}: {named} is not for {kind}, only for {fitting}")
    require_object(entry, where, [*required, *treatment.required], [*optional, *treatment.optional])
    outside = _setting(entry, "outside_budget", False, None, where)
    entries = tuple(_text(name, f"{where}.entries[{n}]") for n, name in _items(entry, "entries", where))
    entries = entries or KINDS[kind].entries
    if not entries and kind is not ReleaseKind.MODEL_UPDATE and treatment is not Deny:
        raise ConfigurationError(f"{where}: entries is missing: name the tensors that a release of {kind} may have")
    settings = {key: value for key, value in entry.items() if key not in (*required, *optional)}
    with reraised_as(ConfigurationError, ConfigurationError, where=where):
        made = treatment.from_policy(settings, unit)
    name = _text(entry["name"], f"{where}.name")
    return ReleaseRule(kind, name, made, entries, outside, _words(entry, "reason", where))


def _require_countable(policy: SitePolicy, where: str) -> None:
    """Refuse a target epsilon beside a rule whose first release would make the spent epsilon infinite."""
    for number, rule in enumerate(policy.releases):
        counted = rule.outside_budget or isinstance(rule.treatment, Deny | RecordLevel)
        if not counted and rule.treatment.spending(None).mechanism is Mechanism.NO_GUARANTEE:
            raise ConfigurationError(
                f"{where}.releases[{number}]: {rule.kind} by {rule.treatment.name} has no finite epsilon, so one release "
                "would exceed target_epsilon; deny it, or set outside_budget to true if it may leave without being counted"
            )


def _scalar(content: Any, where: str) -> ScalarRule:
    entry = require_object(content, where, ["name", "part", "minimum_support"], ["minimum_count", "reason"])
    require_value(entry["minimum_support"], int, Min(1), f"{where}.minimum_support")
    count = _setting(entry, "minimum_count", 0, Min(0), where)
    part = _word(entry["part"], COUNTED_PARTS, f"{where}.part")
    name = _text(entry["name"], f"{where}.name")
    if "." not in name and any(sign in name for sign in "*?["):
        raise ConfigurationError(
            f"{where}.name: no number leaves by a pattern without a dot; list the numbers by name, or write a pattern such "
            f"as validation.*, got {name!r}"
        )
    return ScalarRule(name, part, entry["minimum_support"], count, _words(entry, "reason", where))


def _targets(content: Any, where: str) -> dict[str, float]:
    if not isinstance(content, Mapping):
        raise ConfigurationError(f"{where} must be an object of numbers by data set, got {content!r}")
    for name, value in content.items():
        require_value(value, float, ABOVE_ZERO, f"{where}.{name}")
    return {name: float(value) for name, value in content.items()}


def _items(entry: Mapping[str, Any], key: str, where: str, default: Iterable[str] = ()) -> list[tuple[int, Any]]:
    value = entry.get(key, list(default))
    if not isinstance(value, list):
        raise ConfigurationError(f"{where}.{key} must be a list, got {value!r}")
    return list(enumerate(value))


def _rules(entry: Mapping[str, Any], key: str, where: str) -> Iterator[tuple[int, Any]]:
    """The rules of a policy, each for one name: a rule may have a list of them."""
    for number, rule in _items(entry, key, where):
        names = rule.get("name") if isinstance(rule, Mapping) else None
        for name in names if isinstance(names, list) and names else [names]:
            yield number, {**rule, "name": name} if isinstance(names, list) else rule


def _setting(entry: Mapping[str, Any], key: str, default: Any, bound: Any, where: str) -> Any:
    """A value of the type of its default, within a bound."""
    require_value(entry.get(key, default), type(default), bound, f"{where}.{key}")
    return entry.get(key, default)


def _words(entry: Mapping[str, Any], key: str, where: str) -> str:
    return _text(entry[key], f"{where}.{key}") if key in entry else ""


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str) or not value:
        raise ConfigurationError(f"{where} must be a name or a pattern, got {value!r}")
    return value


def _word(value: Any, choices: Iterable[str], where: str) -> str:
    words = list(choices)
    if value not in words:
        raise ConfigurationError(f"{where} must be one of {', '.join(words)}, got {value!r}")
    return str(value)
