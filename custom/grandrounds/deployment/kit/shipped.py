"""The privacy policies that this project ships, by name, and which of them a federation gets."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from grandrounds.checks import did_you_mean
from grandrounds.deployment.code_digest import PACKAGE
from grandrounds.errors import ConfigurationError
from grandrounds.files import read_json_object
from grandrounds.privacy.gate.policy import ReleaseRule, SitePolicy, read_policies
from grandrounds.privacy.gate.treatments import Masked, MinimumSupport

# A checkout has the templates beside the package's folder; a wheel installs them under the environment's prefix.
CHECKOUT = PACKAGE.parents[1] / "provisioning"
PROVISIONING = CHECKOUT if CHECKOUT.is_dir() else Path(sys.prefix) / "share" / "grandrounds" / "provisioning"
OVERLAYS = PROVISIONING / "overlays"
SUMS, OPEN, STRICT = POLICIES = "sums", "open", "strict"
DEFAULT_POLICY = SUMS
"""Of three or more hospitals where none is named; two have ``open``."""
WAYS = {"unmodified": "as it is", "clip_and_noise": "clipped, with noise"}
SHOWN = 8
"""Names of numbers in a line."""
FEWEST = 3
"""Hospitals of which a sum says little of each: of two, either can take its own part away."""


def policy_name(name: str | None, sites: int | None = None) -> str:
    """The policy of a federation.

    Args:
        name: as it was asked for; None for the default.
        sites: number of hospitals; None where it is not known.

    Raises:
        ConfigurationError: if there is no such policy, or it does not fit the number of hospitals.

    Example:
        >>> policy_name(None, 2), policy_name("strict", 2)
        ('open', 'strict')
    """
    few = sites is not None and sites < FEWEST
    if name is not None and name not in POLICIES:
        raise ConfigurationError(
            f"there is no policy {name!r}{did_you_mean(name, POLICIES)} (policies: {', '.join(POLICIES)})"
        )
    if few and name == SUMS:
        raise ConfigurationError(
            f"the policy {SUMS} is for {FEWEST} or more hospitals: of a sum of two each can take its own part away, and has "
            f"the other's; use --policy {OPEN}"
        )
    return name or (OPEN if few else DEFAULT_POLICY)


def shipped_content(name: str) -> dict[str, Any]:
    """The ``privacy.json`` of a policy."""
    return read_json_object(OVERLAYS / f"{policy_name(name)}.json")


def shipped_policy(name: str) -> SitePolicy:
    """A policy as the gate reads it."""
    return read_policies(shipped_content(name), name)[name]


def policy_lines(name: str) -> list[str]:
    """A policy in five lines: what the server sees, what leaves and how, and what stays."""
    policy = shipped_policy(name)
    by_treatment = defaultdict[str, list[str]](list)
    for rule in policy.releases:
        by_treatment[way_of(rule, policy)].append(rule.name)
    releases = "; ".join(f"{how}: {', '.join(names)}" for how, names in by_treatment.items())
    minima = {rule.minimum_support for rule in policy.scalars}
    least = f"of at least {min(minima)} patients: " if minima else ""
    against = "; against a curious server only until partners are pinned (grandrounds kit partners)"
    target = ", ".join(f"at most {value:g} ({data})" for data, value in policy.target_epsilon.items())
    return [
        f"policy {name}: {policy.about}",
        f"  leaves a hospital: {releases}",
        f"  numbers: {least}{_listed([rule.name for rule in policy.scalars]) or 'none'}",
        f"  facts: {', '.join(policy.facts) or 'none'}; epsilon of a data set: {target or 'no limit'}"
        f"{against if policy.masked_kinds and policy.sums.partners is None else ''}",
        f"  all else stays: images, labels, predictions, names; reason of each rule: {OVERLAYS / f'{name}.json'}",
    ]


def way_of(rule: ReleaseRule, policy: SitePolicy) -> str:
    """How a release leaves a hospital, in words."""
    treatment = rule.treatment
    if isinstance(treatment, Masked):
        return f"in sums of at least {policy.sums.rules.minimum_sites} hospitals"
    if isinstance(treatment, MinimumSupport):
        return f"of at least {treatment.minimum} patients"
    return WAYS.get(treatment.name, treatment.name)


def _listed(names: Sequence[str]) -> str:
    more = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {more} more" if more > 0 else "")
