"""Protections from the server that a policy demands: a task without is refused by name, and nothing leaves."""

import pytest

from grandrounds.errors import ConfigurationError
from grandrounds.privacy.gate.audit import Reason, Refused
from grandrounds.privacy.gate.demands import SiteDemands, Terms, parse_demands
from grandrounds.privacy.gate.policy import parse_policy
from grandrounds.protocol.messages import ReleaseKind
from grandrounds.protocol.spending import Mechanism, Spending
from grandrounds.protocol.unit import Unit

ALL = SiteDemands(3, 1.5, "float32")
GOOD = Terms(updates=True, encrypted=True, sums=(3, 4))


def refused(call, *arguments):
    with pytest.raises(Refused) as caught:
        call(*arguments)
    return caught.value.reason


def test_a_task_that_lacks_what_is_demanded_is_refused_by_name():
    ALL.require_task(GOOD)
    ALL.require_sums(GOOD)
    assert refused(ALL.require_task, Terms(updates=True)) == Reason.ENCRYPTION
    assert refused(ALL.require_task, Terms(True, True, "bfloat16")) == Reason.PRECISION
    assert refused(ALL.require_sums, Terms(sums=(3, 2))) == Reason.FEW
    assert refused(ALL.require_sums, Terms(sums=None)) == Reason.SUM
    assert refused(SiteDemands().require_sums, Terms(sums=None)) == Reason.SUM
    ALL.require_task(Terms(updates=False))  # no model to train, so no update


def test_a_training_needs_the_demanded_noise():
    ALL.require_noise(Spending(Mechanism.DP_SGD, Unit.RECORD, 1.0, 1.5))
    for trained in (None, Spending(Mechanism.DP_SGD, Unit.RECORD, 1.0, 1.4)):
        assert refused(ALL.require_noise, trained) == Reason.NOISE
    SiteDemands().require_noise(None)


def test_a_release_without_an_encrypted_form_does_not_leave():
    encrypted = {ReleaseKind.MODEL_UPDATE, ReleaseKind.ENCRYPTED_VALUES, ReleaseKind.POOLED_COUNTS}
    for kind in ReleaseKind:
        if kind in encrypted:
            ALL.require_releases({"one": kind}, GOOD)
        else:
            assert refused(ALL.require_releases, {"one": kind}, GOOD) == Reason.ENCRYPTION
    assert refused(ALL.require_releases, {"update": ReleaseKind.MODEL_UPDATE}, Terms()) == Reason.ENCRYPTION


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ({"encryption": {"min_models": 2}}, r"demands\.encryption\.min_models"),
        ({"encryption": {}}, "min_models"),
        ({"encryption": True}, r"demands\.encryption"),
        ({"noise_multiplier": 0}, r"demands\.noise_multiplier"),
        ({"update_precision": "int8"}, "update_precision must be"),
        ({"update_precision": "float16", "encryption": {"min_models": 3}}, "have no precision"),
        ({"encrypted": True}, "encrypted"),
    ],
)
def test_a_mistake_in_the_demands_names_the_field(content, reason):
    with pytest.raises(ConfigurationError, match=reason):
        parse_demands(content, "demands")


def test_a_rule_for_what_would_leave_unencrypted_contradicts_the_demand():
    rule = {"kind": "class_statistics", "name": "relation", "treatment": "minimum_support"}
    policy = {"unit": "site", "delta": 1e-5, "demands": {"encryption": {"min_models": 4}}, "releases": [rule]}
    with pytest.raises(ConfigurationError, match=r"releases\[0\]: class_statistics has no encrypted form"):
        parse_policy(policy, "scope strict")
    denied = parse_policy({**policy, "releases": [{**rule, "treatment": "deny"}]}, "scope strict")
    assert denied.demands.min_models == 4
