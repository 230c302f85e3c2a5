"""Every kind of release has its form and its treatments in one table."""

from dataclasses import replace

import pytest
import torch

from grandrounds.deployment.kit.shipped import OVERLAYS
from grandrounds.files import read_json_object
from grandrounds.privacy.gate.kinds import KINDS, Expected, treatment_names
from grandrounds.privacy.gate.policy import read_policies
from grandrounds.privacy.gate.treatments import Deny
from grandrounds.protocol.messages import ReleaseKind
from grandrounds.protocol.tasks import FINDINGS, SINGLE


@pytest.mark.parametrize("kind", ReleaseKind)
def test_a_kind_is_known_can_be_denied_and_has_one_treatment_of_a_name(kind):
    known = KINDS[kind]
    assert known.treatment("deny") is Deny
    names = [treatment.name for treatment in known.treatments]
    assert len(set(names)) == len(names)
    assert set(names) <= set(treatment_names())
    assert [known.treatment(name) for name in names] == list(known.treatments)
    assert known.treatment("no such treatment") is None


def test_only_the_model_update_is_a_weight_difference_to_flare():
    assert [kind for kind, known in KINDS.items() if known.data_kind == "WEIGHT_DIFF"] == [ReleaseKind.MODEL_UPDATE]


def test_findings_have_forms_of_their_own():
    forms = {SINGLE: [(1, 3, 3), (3, 3), (3,)], FINDINGS: [(3, 2, 3), (6, 2), (6,)]}
    kinds = (ReleaseKind.COUNTS, ReleaseKind.CLASS_STATISTICS, ReleaseKind.CLASS_STATISTICS)
    for (task, shapes), others in zip(forms.items(), reversed(forms.values()), strict=True):
        expected = Expected(1, "run", 3, {}, {"train": 9, "val": 9, "test": 9}, task=task)
        for kind, shape, other in zip(kinds, shapes, others, strict=True):
            assert not KINDS[kind].mismatch("x", torch.zeros(shape, dtype=torch.int64), expected)
            assert KINDS[kind].mismatch("x", torch.zeros(other, dtype=torch.int64), expected).startswith("expected")


def test_moments_of_images_are_of_grey_or_colour_images_and_of_no_more_patients_than_there_are():
    expected = Expected(1, "run", 3, {}, {"train": 9})
    wrong = KINDS[ReleaseKind.IMAGE_MOMENTS].mismatch
    for figures in (7, 11):
        assert wrong("moments", torch.zeros(2, figures, dtype=torch.float64), expected) == ""
    assert wrong("moments", torch.zeros(2, 7), expected) == "expected float64"
    assert wrong("moments", torch.zeros(2, 7).bfloat16(), expected) == "expected float64"
    for values in (torch.zeros(2, 9), torch.ones(2, 7) * 2, torch.full((2, 7), 1e3)):
        assert wrong("moments", values.double(), expected).startswith("expected mean and mean square")
    assert wrong("support", torch.tensor([9]), expected) == ""
    assert "of 9 patients" in wrong("support", torch.tensor([10]), expected)
    assert wrong("support", torch.zeros(2), expected) == "expected int64 of shape (1,)"


def test_a_sites_model_leaves_the_test_of_a_job_that_asks_for_it_and_with_a_description_that_can_be_read():
    wrong = KINDS[ReleaseKind.SITE_MODEL].mismatch
    expected = Expected(1, "run", 3, {}, {})
    assert "executor.release_model=true" in wrong("w", torch.zeros(2), expected)
    asked = replace(expected, asks_for_model=True)
    assert wrong("w", torch.zeros(2), asked) == ""
    assert wrong("w", torch.zeros([1] * 6), asked) == "expected at most 5 dimensions"
    for content in (torch.zeros(3).bfloat16(), torch.tensor([*b"[]"], dtype=torch.uint8)):
        assert "description" in wrong("description", content, asked)


@pytest.mark.parametrize(("file", "lets_out"), [("open.json", True), ("strict.json", False)])
def test_moments_of_images_leave_by_the_policy_open_and_not_by_strict(file, lets_out):
    (policy,) = read_policies(read_json_object(OVERLAYS / file), file).values()
    assert (policy.rule_for(ReleaseKind.IMAGE_MOMENTS, "image_moments") is not None) is lets_out
