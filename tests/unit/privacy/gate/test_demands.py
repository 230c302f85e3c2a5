"""Protections from the server that a policy demands: a task without is refused by name, and nothing leaves."""

import pytest

from grandrounds.errors import ConfigurationError
from grandrounds.privacy.gate.audit import Reason, Refused
from grandrounds.privacy.gate.policy import SiteDemands, Terms, parse_demands
from grandrounds.protocol.spending import Mechanism, Spending, Unit

ALL = SiteDemands(1.5, "float32")


def refused(call, *arguments):
    with pytest.raises(Refused) as caught:
        call(*arguments)
    return caught.value.reason


def test_a_task_that_lacks_what_is_demanded_is_refused_by_name():
    ALL.require_task(Terms(updates=True))
    assert refused(ALL.require_task, Terms(True, "bfloat16")) == Reason.PRECISION
    ALL.require_task(Terms(False, "bfloat16"))  # no model to train, so no update


def test_a_training_needs_the_demanded_noise():
    ALL.require_noise(Spending(Mechanism.DP_SGD, Unit.RECORD, 1.0, 1.5))
    for trained in (None, Spending(Mechanism.DP_SGD, Unit.RECORD, 1.0, 1.4)):
        assert refused(ALL.require_noise, trained) == Reason.NOISE
    SiteDemands().require_noise(None)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ({"noise_multiplier": 0}, r"demands\.noise_multiplier"),
        ({"update_precision": "int8"}, "update_precision must be"),
        ({"noise": 1.0}, "noise"),
    ],
)
def test_a_mistake_in_the_demands_names_the_field(content, reason):
    with pytest.raises(ConfigurationError, match=reason):
        parse_demands(content, "demands")
