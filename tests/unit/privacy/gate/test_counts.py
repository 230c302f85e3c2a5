"""Counts leave a site when its policy names them, with the policy's minimum; else they stay, and the scores do not."""

import pytest
import torch

from grandrounds.privacy.gate.inspection import Part
from grandrounds.privacy.gate.policy import ReleaseRule
from grandrounds.privacy.gate.treatment import CountSupport
from grandrounds.protocol.messages import ReleaseKind


def tensors(rows):
    counts = torch.tensor(rows, dtype=torch.int64)
    return {"images": counts, "patients": counts.clone()}


def test_counts_below_the_policys_minimum_are_hidden_with_those_that_would_give_them_away():
    sent = tensors([[90, 15, 24], [30, 20, 15], [12, 4, 0]])
    shown = CountSupport(10).apply(sent)
    assert shown["images"].tolist() == [[90, 15, 24], [-1, -1, 15], [-1, -1, 0]]
    assert torch.equal(shown["patients"] == -1, shown["images"] == -1)
    assert CountSupport(2).apply(sent)["images"].tolist() == sent["images"].tolist()


def test_other_tensors_are_refused():
    with pytest.raises(ValueError, match="counts must be images and patients"):
        CountSupport(5).apply({"images": torch.zeros((2, 3), dtype=torch.int64)})


def test_the_rule_fits_counts_alone():
    rule = ReleaseRule(ReleaseKind.COUNTS, "counts_*", CountSupport(10), ("images", "patients"))
    assert rule.treatment.name == "minimum_support"
    assert Part("APP_DEFINED", {"release": "counts"}, {}).meta["release"] == rule.kind
