"""Rare classes have higher weights, and a batch of weight zero has no loss."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grandrounds.methods.supervised.loss import median_class_weights


def test_class_weights_match_the_hand_computed_counts():
    weights = median_class_weights(torch.tensor([40, 10, 20, 0, 0]))
    assert weights.tolist() == [0.5, 2.0, 1.0, 100.0, 100.0]
    assert weights.dtype == torch.float32


def test_an_even_number_of_present_classes_takes_the_mean_of_the_middle_two():
    # median of 10, 20, 30, 60 is 25; the lower of the middle two would give 2, 1, ...
    assert median_class_weights(torch.tensor([10, 20, 30, 60])).tolist() == pytest.approx([2.5, 1.25, 25 / 30, 25 / 60])


@given(counts=st.lists(st.integers(0, 10_000), min_size=1, max_size=12).filter(any))
def test_class_weights_agree_with_numpys_median(counts):
    median = np.median([count for count in counts if count])
    expected = [median / count if count else 100.0 for count in counts]
    assert median_class_weights(torch.tensor(counts)).tolist() == pytest.approx(expected, rel=1e-6)
