"""A hospital's privacy policy: what may leave, under which treatment, and how much may be spent.

What no rule names is denied.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from grandrounds.privacy.gate.treatment import Deny, Treatment
from grandrounds.protocol.messages import JOIN, TEST, TRAIN, UPDATE, VALIDATE, ReleaseKind
from grandrounds.protocol.spending import Unit

TASKS = (JOIN, TRAIN, VALIDATE, TEST)
SAMPLES = "samples"


@dataclass(frozen=True)
class ReleaseRule:
    """What is done to releases of one kind whose name fits.

    Attributes:
        kind: of the release.
        name: a pattern with ``*``.
        treatment: what is done; ``deny`` denies.
        entries: patterns for the names of its tensors; empty means those of the model that the server has sent.
        outside_budget: whether it leaves without being counted in epsilon, on the hospital's own decision.
    """

    kind: ReleaseKind
    name: str
    treatment: Treatment
    entries: tuple[str, ...] = ()
    outside_budget: bool = False


@dataclass(frozen=True)
class ScalarRule:
    """Numbers that may leave.

    Attributes:
        name: a pattern with ``*``; ``samples`` is the number of training images.
        part: the part of the data that it is a statistic of.
        minimum_support: patients that this part must have.
    """

    name: str
    part: str
    minimum_support: int


@dataclass(frozen=True)
class SitePolicy:
    """The policy of one scope.

    Attributes:
        unit: whom the guarantee is for.
        delta: of the guarantee.
        releases: the first rule that fits decides.
        scalars: the first rule that fits decides.
        facts: patterns for the names of short texts that may leave when the site joins a run.
        target_epsilon: the most that each data set may spend; ``*`` is for those that are not named.
        tasks: what the server may ask.
    """

    unit: Unit
    delta: float
    releases: tuple[ReleaseRule, ...] = ()
    scalars: tuple[ScalarRule, ...] = ()
    facts: tuple[str, ...] = ()
    target_epsilon: Mapping[str, float] = field(default_factory=dict)
    tasks: tuple[str, ...] = TASKS

    def rule_for(self, kind: ReleaseKind, name: str) -> ReleaseRule | None:
        """The rule for a release; None when it is denied, by a rule or by the lack of one."""
        for rule in self.releases:
            if rule.kind is kind and fnmatchcase(name, rule.name):
                return None if isinstance(rule.treatment, Deny) else rule
        return None

    def named_rule(self, name: str) -> ReleaseRule | None:
        """The rule for a release of whatever kind; for asking before anything is made."""
        for rule in self.releases:
            if fnmatchcase(name, rule.name) and (name != UPDATE or rule.kind is ReleaseKind.MODEL_UPDATE):
                return None if isinstance(rule.treatment, Deny) else rule
        return None

    def scalar_rule_for(self, name: str) -> ScalarRule | None:
        """The rule for a number; None when it is denied."""
        return next((rule for rule in self.scalars if fnmatchcase(name, rule.name)), None)

    def lets_out_fact(self, name: str) -> bool:
        """Whether a short text of this name may leave."""
        return any(fnmatchcase(name, pattern) for pattern in self.facts)

    def target(self, dataset: str) -> float:
        """The most that a data set may spend; infinite when the policy sets no limit."""
        return self.target_epsilon.get(dataset, self.target_epsilon.get("*", math.inf))
