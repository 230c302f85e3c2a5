"""What a site checks of questions about images to label, and of cuts that come back."""

import pytest
import torch

from grandrounds.errors import MessageError
from grandrounds.evaluation.counts import MARGIN_BINS
from grandrounds.methods.ridge.executor import read_cuts, require_label_question
from grandrounds.protocol.messages import Payload

COUNTS = torch.tensor([5, 0, 3])
CUTS = {"bins": torch.tensor([0, 7, MARGIN_BINS]), "shares": torch.tensor([0.0, 0.5, 1.0], dtype=torch.float64)}


def question(counts, **values):
    return Payload(4, values, {"labels": {"labels": counts}})


def test_a_question_is_of_a_job_with_a_budget_and_by_counts():
    require_label_question(question(COUNTS, label_budget=4), 3)
    for asked in (
        question(COUNTS),
        question(COUNTS, label_budget=0),
        question(COUNTS.double(), label_budget=4),
        question(COUNTS[:2], label_budget=4),
        question(COUNTS - 1, label_budget=4),
    ):
        with pytest.raises(MessageError):
            require_label_question(asked, 3)


@pytest.mark.parametrize(
    "changed",
    [
        {"bins": torch.tensor([0, 7, MARGIN_BINS + 1])},
        {"bins": torch.tensor([-1, 7, 8])},
        {"bins": torch.tensor([7, 8])},
        {"shares": torch.tensor([0.0, 0.5, torch.inf], dtype=torch.float64)},
        {"shares": torch.tensor([0.0, 0.5, torch.nan], dtype=torch.float64)},
        {"shares": torch.tensor([-0.1, 0.5, 1.0], dtype=torch.float64)},
        {"more": torch.zeros(3)},
    ],
)
def test_cuts_are_bins_and_shares_of_each_class(changed):
    assert [values.tolist() for values in read_cuts(CUTS, 3)] == [values.tolist() for values in CUTS.values()]
    with pytest.raises((MessageError, TypeError)):
        read_cuts({**CUTS, **changed}, 3)
