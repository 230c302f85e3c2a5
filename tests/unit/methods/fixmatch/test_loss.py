"""Corrections of pseudo-labels, and their options."""

import pytest
import torch

from grandrounds.errors import ConfigurationError
from grandrounds.methods.fixmatch.training import SemiSupervisedOptions, aligned, class_thresholds


@pytest.mark.parametrize(
    ("confident", "expected"),
    [([40, 10, 0], [0.9, 0.9 / 7, 0.0]), ([0, 0, 0], [0.9] * 3), ([5, 5, 5], [0.9] * 3)],  # 1/4 / (2 - 1/4) = 1/7
)
def test_thresholds_of_classes_follow_flexmatch(confident, expected):
    torch.testing.assert_close(class_thresholds(torch.tensor(confident), 0.9), torch.tensor(expected))


def test_aligned_predictions_have_the_expected_mean_where_they_are_certain():
    # Three of four images are surely of class 0, where half are expected: 1/2 / 3/4 = 2/3 against 1/2 / 1/4 = 2.
    certain = torch.eye(2)[[0, 0, 0, 1]]
    torch.testing.assert_close(aligned(certain, certain.mean(dim=0), torch.tensor([0.5, 0.5])), certain)
    unsure = torch.tensor([[0.75, 0.25]])
    torch.testing.assert_close(aligned(unsure, unsure[0], torch.tensor([0.5, 0.5])), torch.tensor([[0.5, 0.5]]))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"strong_levels": (5, 2)}, r"strong_levels must be .*, got \[5, 2\]"),
    ],
)
def test_an_option_of_the_pseudo_labels_that_does_not_fit_is_named(given, message):
    with pytest.raises(ConfigurationError, match=message):
        SemiSupervisedOptions(**given)
