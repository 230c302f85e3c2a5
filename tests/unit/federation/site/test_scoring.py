"""A model is scored whatever it predicts."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from grandrounds.evaluation.prediction import Predicted
from grandrounds.federation.site import scoring
from grandrounds.protocol.tasks import SINGLE


@pytest.mark.parametrize("spoilt", [float("nan"), float("inf")])
def test_a_prediction_that_is_not_finite_counts_as_certain_of_a_wrong_answer(monkeypatch, spoilt):
    whole, spoilt_row = torch.tensor([[0.9, 0.1], [0.5, 0.5]]), torch.tensor([[0.9, 0.1], [spoilt, 0.0]])
    monkeypatch.setattr(scoring, "predict", lambda *arguments: Predicted(spoilt_row, whole))
    monkeypatch.setattr(scoring, "site_record", lambda data, rows, predicted: "record")
    problem = SimpleNamespace(kind=SINGLE, test_view="none", classes=("a", "b"))
    data = SimpleNamespace(labels=np.array([0, 0]))
    context = SimpleNamespace(forward=None, problem=problem, unchanged=None, data=data)
    record, found = scoring.score(None, np.array([0, 1]), context)
    assert record == "record"
    torch.testing.assert_close(found.risks.float(), torch.tensor([[0.9, 0.1], [0.0, 1.0]]))
    assert torch.equal(found.decisions, whole)


def test_scores_of_probabilities_are_of_risks_and_counts_are_of_decisions():
    """A rare class that is never the most probable one is found in both of its images."""
    risks = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.6, 0.4], [0.7, 0.3]])
    decisions = torch.tensor([[0.7, 0.3], [0.6, 0.4], [0.1, 0.9], [0.4, 0.6]])
    data = SimpleNamespace(
        task=SINGLE, classes=("nevus", "melanoma"), labels=np.array([0, 0, 1, 1]), known=np.ones(4, bool),
        names=list("wxyz"), groups=list("wxyz"), patients=[""] * 4,
    )  # fmt: skip
    record = scoring.site_record(data, np.arange(4), Predicted(risks, decisions))
    assert record.counts[0].images[0].tolist() == [[2, 0, 0], [2, 0, 0]]
    assert record.exact["accuracy"] == 1
    assert record.exact["log_loss"] == pytest.approx(-np.log([0.9, 0.8, 0.4, 0.3]).mean())
    _, rows = scoring.prediction_rows(data, np.arange(4), Predicted(risks, decisions))
    assert rows[2] == ["y", "melanoma", "melanoma", "0.600000024", "0.400000006", "2"]
