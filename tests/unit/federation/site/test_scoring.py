"""A model is scored whatever it predicts."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from grandrounds.federation.site import scoring
from grandrounds.protocol.tasks import SINGLE


@pytest.mark.parametrize("spoilt", [float("nan"), float("inf")])
def test_a_prediction_that_is_not_finite_counts_as_certain_of_a_wrong_answer(monkeypatch, spoilt):
    predicted = torch.tensor([[0.9, 0.1], [spoilt, 0.0]])
    monkeypatch.setattr(scoring, "predict", lambda *arguments: predicted)
    monkeypatch.setattr(scoring, "site_record", lambda data, rows, probabilities: "record")
    problem = SimpleNamespace(kind=SINGLE, test_view="none", classes=("a", "b"))
    data = SimpleNamespace(labels=np.array([0, 0]))
    context = SimpleNamespace(forward=None, problem=problem, unchanged=None, data=data)
    record, found = scoring.score(None, np.array([0, 1]), context)
    assert record == "record"
    torch.testing.assert_close(found.float(), torch.tensor([[0.9, 0.1], [0.0, 1.0]]))
