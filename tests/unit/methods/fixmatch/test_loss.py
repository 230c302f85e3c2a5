"""Only confident pseudo-labels are learned, and the loss of the strong views has the configured divisor."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grandrounds.errors import ConfigurationError
from grandrounds.methods.fixmatch.loss import aligned, class_thresholds
from grandrounds.methods.fixmatch.training import SemiSupervisedOptions
from grandrounds.protocol.tasks import SINGLE

# Two logits (a, 0) of class 0 cost ln(1 + exp(-a)); these two cost 0.2 and 0.6.
COSTS_02_06 = torch.tensor([[-math.log(math.expm1(0.2)), 0.0], [-math.log(math.expm1(0.6)), 0.0]], dtype=torch.float64)
LABELS = torch.tensor([0, 0])


@pytest.mark.parametrize(
    ("prediction", "accepted"),
    [
        ((0.65, 0.20, 0.15), True),
        ((0.5, 0.3, 0.2), False),
        ((0.375, 0.375, 0.25), False),
        ((0.4667, 0.4, 0.1333), False),
    ],
)
def test_a_label_is_accepted_from_the_threshold_on(prediction, accepted):
    pseudo = SINGLE.pseudo_labels(torch.tensor([prediction]), threshold=0.6)
    assert pseudo.labels.tolist() == [0]
    assert pseudo.accepted.tolist() == [accepted]
    assert pseudo.confidence.tolist() == pytest.approx([prediction[0]])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_confidence_of_exactly_the_threshold_is_accepted(dtype):
    assert SINGLE.pseudo_labels(torch.tensor([[0.6, 0.4]], dtype=dtype), threshold=0.6).accepted.tolist() == [True]


def test_labels_are_the_most_probable_classes_and_the_lower_of_two_equal():
    pseudo = SINGLE.pseudo_labels(torch.tensor([[0.1, 0.2, 0.7], [0.2, 0.4, 0.4]]), threshold=0.6)
    assert pseudo.labels.tolist() == [2, 1]
    assert pseudo.accepted.tolist() == [True, False]


@given(low=st.floats(0, 1), high=st.floats(0, 1), mass=st.floats(0, 1))
def test_a_higher_threshold_never_accepts_more(low, high, mass):
    low, high = sorted((low, high))
    probabilities = torch.tensor([[mass, 1 - mass]], dtype=torch.float64)
    assert SINGLE.pseudo_labels(probabilities, low).accepted >= SINGLE.pseudo_labels(probabilities, high).accepted


@pytest.mark.parametrize("threshold", [-0.1, 60.0, math.nan])
def test_refuses_a_threshold_outside_0_to_1(threshold):
    with pytest.raises(ValueError, match="threshold must be between 0 and 1, got"):
        SINGLE.pseudo_labels(torch.tensor([[0.5, 0.5]]), threshold)


def test_each_class_can_have_a_threshold_of_its_own():
    pseudo = SINGLE.pseudo_labels(torch.tensor([[0.7, 0.3], [0.3, 0.7], [0.1, 0.9]]), torch.tensor([0.6, 0.8]))
    assert pseudo.accepted.tolist() == [True, False, True]


@pytest.mark.parametrize(
    ("confident", "expected"),
    [([40, 10, 0], [0.9, 0.9 / 7, 0.0]), ([0, 0, 0], [0.9] * 3), ([5, 5, 5], [0.9] * 3)],  # 1/4 / (2 - 1/4) = 1/7
)
def test_thresholds_of_classes_follow_flexmatch(confident, expected):
    torch.testing.assert_close(class_thresholds(torch.tensor(confident), 0.9), torch.tensor(expected))


def test_counts_of_confident_images_are_counts():
    with pytest.raises(ValueError, match=r"confident must be counts by class, shape \(classes,\), got \[1, -1\]"):
        class_thresholds(torch.tensor([1, -1]), 0.9)


def test_aligned_predictions_have_the_expected_mean_where_they_are_certain():
    # Three of four images are surely of class 0, where half are expected: 1/2 / 3/4 = 2/3 against 1/2 / 1/4 = 2.
    certain = torch.eye(2)[[0, 0, 0, 1]]
    torch.testing.assert_close(aligned(certain, certain.mean(dim=0), torch.tensor([0.5, 0.5])), certain)
    unsure = torch.tensor([[0.75, 0.25]])
    torch.testing.assert_close(aligned(unsure, unsure[0], torch.tensor([0.5, 0.5])), torch.tensor([[0.5, 0.5]]))


def test_refuses_a_sum_of_predictions():
    with pytest.raises(ValueError, match=r"row 0 of probabilities sums to 2, expected 1"):
        SINGLE.pseudo_labels(torch.tensor([[0.75, 0.75, 0.5]]), 0.6)


@pytest.mark.parametrize(("reduction", "expected"), [("accepted_mean", 0.20), ("batch_mean", 0.10)])
def test_reductions_match_the_hand_computed_batch(reduction, expected):
    # Four unlabelled, accepted cross-entropies 0.2 and 0.6, beta = 0.5.
    loss = 0.5 * SINGLE.pseudo_label_loss(COSTS_02_06, LABELS, LABELS == 0, 4, reduction)
    assert loss.item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("reduction", ["accepted_mean", "batch_mean"])
@pytest.mark.parametrize("batch_size", [0, 16])
def test_nothing_accepted_gives_zero_and_a_graph(reduction, batch_size):
    model = torch.nn.Linear(5, 3)
    logits = model(torch.zeros(0, 5))
    loss = SINGLE.pseudo_label_loss(logits, torch.zeros(0).long(), torch.ones(0).bool(), batch_size, reduction)
    loss.backward()
    assert loss.item() == 0.0
    assert torch.equal(model.weight.grad, torch.zeros(3, 5))


@pytest.mark.parametrize(
    ("labels", "batch_size", "reduction", "message"),
    [
        (LABELS[:1], 4, "batch_mean", r"got \(2, 2\) and \(1,\)"),
        (LABELS, 1, "batch_mean", "batch_size must be at least 2, got 1"),
    ],
)
def test_refuses_what_does_not_fit(labels, batch_size, reduction, message):
    with pytest.raises(ValueError, match=message):
        SINGLE.pseudo_label_loss(COSTS_02_06, labels, labels == 0, batch_size, reduction)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"threshold": 1.5}, "threshold must be between 0 and 1, got 1.5"),
        ({"unsupervised_weight": math.nan}, "unsupervised_weight must be finite, got nan"),
        ({"supervised_weight": -1.0}, "supervised_weight must be at least 0, got -1.0"),
        ({"unlabelled_batch_size": 1}, r"unlabelled_batch_size must be at least 2, got 1"),
        ({"strong_levels": (0, 3)}, r"strong_levels must be between 1 and 10, got \(0, 3\)"),
        ({"strong_levels": (5, 2)}, r"strong_levels must be .*, got \[5, 2\]"),
        ({"strong_levels": (2, 99)}, r"strong_levels must be between 1 and 10, got \(2, 99\)"),
        ({"weak_pass": "both"}, "weak_pass must be train or eval, got 'both'"),
    ],
)
def test_an_option_of_the_pseudo_labels_that_does_not_fit_is_named(given, message):
    with pytest.raises(ConfigurationError, match=message):
        SemiSupervisedOptions(**given)
