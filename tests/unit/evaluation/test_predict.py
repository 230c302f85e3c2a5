"""Predictions are the model's own, in the order of the rows, whatever the batches."""

import numpy as np
from torch import nn

from grandrounds.evaluation.prediction import predict, tensors_of
from grandrounds.seeding import numpy_generator, torch_generator

IMAGES = numpy_generator("predict").integers(0, 256, (9, 4, 4, 3), dtype=np.uint8)


def small_model():
    layer = nn.Linear(48, 3)
    nn.init.normal_(layer.weight, generator=torch_generator("predict"))
    return nn.Sequential(nn.Flatten(), nn.Dropout(0.5), layer).train()


def test_probabilities_are_in_the_order_of_the_rows_whatever_the_batches(monkeypatch):
    model, rows = small_model(), np.array([7, 0, 3, 3, 8, 1, 2])
    monkeypatch.setattr("grandrounds.models.inference.forward.BATCH", 3)
    found = predict(model, tensors_of(IMAGES), rows).risks.numpy()
    pixels = IMAGES[rows].transpose(0, 3, 1, 2).reshape(7, -1) / 255
    logits = pixels @ model[2].weight.detach().numpy().T + model[2].bias.detach().numpy()
    expected = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert model.training


def test_no_rows_give_no_probabilities():
    assert predict(small_model(), tensors_of(IMAGES), np.array([], dtype=np.int64)).risks.shape == (0, 0)
