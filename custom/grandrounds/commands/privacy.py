"""What a site's policy lets leave, and for how many rounds: ``grandrounds doctor --policy``."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grandrounds.console.output import results, say, say_json, table_of
from grandrounds.files import read_json_object

if TYPE_CHECKING:
    from grandrounds.privacy.gate.policy import ReleaseRule, SitePolicy

MAX_ROUNDS = 100_000


def show_policies(file: Path, json: bool) -> None:
    """Check a ``privacy.json`` and show what may leave the site, and for how many rounds."""
    from grandrounds.privacy.gate.policy import read_policies

    content = read_json_object(file)
    policies = read_policies(content, str(file))
    if json:
        say_json({name: summary(policy) for name, policy in policies.items()})
        return
    for name, policy in policies.items():
        _show_policy(name, policy, default=name == content["default_scope"])


def summary(policy: SitePolicy) -> dict[str, Any]:
    """A policy as plain values; without a target nothing is protected, because nothing limits epsilon."""
    return {
        "protects": policy.unit.described() if policy.target_epsilon else None,
        "delta": policy.delta,
        "target_epsilon": dict(policy.target_epsilon),
        "tasks": list(policy.tasks),
        "releases": [_release(rule, policy) for rule in policy.releases],
        "scalars": [
            {"name": rule.name, "part": rule.part, "minimum_support": rule.minimum_support} for rule in policy.scalars
        ],
        "demands": policy.demands.to_json(),
        "limits": {
            "scored_answers": policy.scored_answers,
            "image_size": policy.image_size,
            "answer_interval": policy.answer_interval,
        },
    }


def rounds_within(rule: ReleaseRule, policy: SitePolicy) -> int | None:
    """How many releases of a rule stay within the lowest target; None without a target or without an epsilon."""
    from grandrounds.privacy.accounting import exceeds, gaussian_epsilon
    from grandrounds.privacy.gate.treatments import ClipAndNoise, ClipAndNoiseSamples

    target = min(policy.target_epsilon.values(), default=math.inf)
    if not isinstance(rule.treatment, ClipAndNoise | ClipAndNoiseSamples) or target == math.inf:
        return None
    step = rule.treatment.spending(None).towards(policy.unit)
    if step is None or rule.outside_budget:
        return None
    low, high = 0, MAX_ROUNDS
    while low < high:
        middle = (low + high + 1) // 2
        too_many = exceeds(gaussian_epsilon(step.noise_multiplier, policy.delta, middle), target)
        low, high = (low, middle - 1) if too_many else (middle, high)
    return low


def _release(rule: ReleaseRule, policy: SitePolicy) -> dict[str, Any]:
    return {
        "kind": rule.kind.value,
        "name": rule.name,
        "treatment": rule.treatment.name,
        "outside_budget": rule.outside_budget,
        "rounds": rounds_within(rule, policy),
    }


def _show_policy(name: str, policy: SitePolicy, default: bool) -> None:
    console = results()
    unit = policy.unit.described()
    targets = ", ".join(f"{dataset}: {value:g}" for dataset, value in policy.target_epsilon.items())
    protects = f"protects {unit}" if targets else "no limit of epsilon, so none is promised"
    say(console, f"scope {name}{' (default)' if default else ''}: {protects}")
    limit = f"at delta {policy.delta:g}: {targets}" if targets else f"not set; with it {unit}, would be protected"
    say(console, f"target epsilon (target_epsilon) {limit}")
    rows = []
    for rule in policy.releases:
        entry = _release(rule, policy)
        rounds = "" if entry["rounds"] is None else str(entry["rounds"])
        rows.append([entry["kind"], rule.name, entry["treatment"], "no" if rule.outside_budget else "yes", rounds])
    for scalar in policy.scalars:
        rows.append(["scalar", scalar.name, f"{scalar.minimum_support} patients in {scalar.part}", "no", ""])
    console.print(table_of(("release", "name", "treatment", "counted", "rounds"), rows, title="may leave"))
    say(console, "everything else is denied")
    demands = ", ".join(f"{name} {value}" for name, value in policy.demands.to_json().items())
    say(console, f"a task must have: {demands or 'nothing (demands)'}")
    leaves = "at once" if policy.answer_interval is None else f"at multiples of {policy.answer_interval:g} s"
    limits = (
        f"at most {policy.scored_answers} answers of a job with scores; images of at most {policy.image_size} pixels"
    )
    say(console, f"{limits} a side; answers leave {leaves}")
