"""Every kind of release has its form and its treatments in one table."""

import pytest

from grandrounds.privacy.gate.kinds import KINDS, treatment_names
from grandrounds.privacy.gate.treatment import Deny
from grandrounds.protocol.messages import ReleaseKind


def test_every_kind_is_known_and_can_be_denied():
    assert KINDS.keys() == set(ReleaseKind)
    assert all(kind.treatment("deny") is Deny for kind in KINDS.values())


@pytest.mark.parametrize("kind", ReleaseKind)
def test_a_policys_name_means_one_treatment_of_a_kind(kind):
    names = [treatment.name for treatment in KINDS[kind].treatments]
    assert len(set(names)) == len(names)
    assert set(names) <= set(treatment_names())


def test_only_the_model_update_is_a_weight_difference_to_flare():
    assert [kind for kind, known in KINDS.items() if known.data_kind == "WEIGHT_DIFF"] == [ReleaseKind.MODEL_UPDATE]
