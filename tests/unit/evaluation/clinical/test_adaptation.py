"""Offsets from labels and from shares, and the order of images to label, against hand-computed numbers and an optimiser."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from grandrounds.errors import DataError, UsageError
from grandrounds.evaluation.bootstrap import cases_of
from grandrounds.evaluation.clinical.adaptation import (
    AtPlace,
    LabelHead,
    ShareOffsets,
    fit_offsets,
    read_recalibration,
    share_offsets,
    shares_of,
    with_offsets,
)
from grandrounds.evaluation.label_quotas import label_order
from grandrounds.models.closed_form.around import solve_added
from grandrounds.models.closed_form.sums import sums_of, with_bias


def drawn(seed, images, shares):
    """Labels with these shares, and probabilities that are right where all classes are equally frequent."""
    generator = np.random.default_rng(seed)
    labels = generator.choice(len(shares), images, p=shares)
    logits = generator.normal(size=(images, len(shares))) + 2 * np.eye(len(shares))[labels]
    odds = np.exp(2 * logits)  # log likelihood ratio of a normal with mean 2 against one with mean 0
    return labels, odds / odds.sum(axis=1, keepdims=True)


def not_read():
    pytest.fail("this is not needed")


def test_offsets_of_four_images_of_one_class_are_half_of_log_3():
    # 4 (1 - p) = penalty * b with p = 3/4 where b = log(3) / 2 and the penalty is 2 / log(3).
    found = fit_offsets(np.full((4, 2), 0.5), np.zeros(4, np.int64), 2 / math.log(3))
    assert found == pytest.approx([math.log(3) / 2, -math.log(3) / 2], abs=1e-6)
    assert with_offsets(np.full((1, 2), 0.5), found)[0] == pytest.approx([0.75, 0.25])


def test_offsets_are_those_of_a_general_optimiser_and_add_up_to_zero():
    labels, probabilities = drawn(1, 25, [0.6, 0.3, 0.1, 0.0])

    def loss(offsets):
        chosen = with_offsets(probabilities, offsets)[np.arange(25), labels]
        return -np.log(chosen).sum() + (offsets**2).sum() / 2

    found = fit_offsets(probabilities, labels)
    assert found == pytest.approx(minimize(loss, np.zeros(4), method="BFGS").x, abs=1e-4)
    assert found.sum() == pytest.approx(0, abs=1e-8)


def test_sure_and_wrong_predictions_have_finite_offsets():
    assert np.isfinite(fit_offsets(np.array([[1.0, 0.0]] * 10), np.ones(10, np.int64))).all()


def test_shares_of_three_images_are_seven_ninths_and_two_ninths():
    # The likelihood (0.2 + 0.6 p)^2 (0.8 - 0.6 p) is largest at p = 7/9.
    predicted = np.array([[0.8, 0.2], [0.8, 0.2], [0.2, 0.8]])
    assert shares_of(predicted, np.array([0.5, 0.5])) == pytest.approx([7 / 9, 2 / 9], abs=1e-6)


def test_shares_are_found_and_taking_them_over_is_bayes_rule():
    shares = np.array([0.7, 0.2, 0.1])
    labels, probabilities = drawn(2, 20_000, shares)
    even = np.full(3, 1 / 3)
    assert shares_of(probabilities, even) == pytest.approx(shares, abs=0.01)
    after = with_offsets(probabilities, share_offsets(even, shares))
    products = probabilities * shares
    assert after == pytest.approx(products / products.sum(axis=1, keepdims=True), abs=1e-6)
    assert after.mean(axis=0) == pytest.approx(np.bincount(labels) / 20_000, abs=0.01)


@pytest.mark.parametrize(("stated", "known"), [({"b": 0.25, "a": 0.75}, 1e-3), ({}, 0.03)])
def test_a_model_that_is_wrong_at_home_is_calibrated_there_first(stated, known):
    right = np.array([0.75, 0.25])
    labels, probabilities = drawn(3, 5000, [0.5, 0.5])
    wrong = np.array([1.0, -1.0])
    home = cases_of(labels, with_offsets(probabilities, wrong))
    _, at_place = drawn(4, 5000, right)
    seen = AtPlace(("a", "b"), with_offsets(at_place, wrong), np.zeros(0), np.zeros(0), lambda: home, not_read)
    found = ShareOffsets(stated).adapted(seen)
    assert found.by_class["share"] == pytest.approx(right, abs=known)
    assert found.probabilities == pytest.approx(with_offsets(at_place, np.log(right)), abs=0.05)


def test_a_last_layer_is_fitted_on_its_labels_alone():
    generator = torch.Generator().manual_seed(1)
    labels = np.arange(40) % 2
    features = torch.randn(40, 3, generator=generator) + torch.tensor(labels)[:, None]
    wrong = torch.tensor([[1.0, -1.0]] * 3)  # takes the classes for each other
    rows = np.arange(20)
    seen = AtPlace(("a", "b"), np.full((40, 2), 0.5), labels[rows], rows, not_read, lambda: (features, wrong))
    found = LabelHead(20).adapted(seen).probabilities
    assert found.sum(axis=1) == pytest.approx(1)
    assert (
        (found.argmax(axis=1) == labels)[20:].mean() > 0.7 > ((features @ wrong).argmax(dim=1).numpy() == labels).mean()
    )


def test_labels_are_added_to_sums_at_the_weights_of_their_classes():
    generator = torch.Generator().manual_seed(1)
    features = torch.randn(60, 3, generator=generator).double()
    truth = torch.arange(60) % 2
    targets, rows = torch.eye(2).double()[truth], np.arange(20)
    sums = sums_of([(features[30:], targets[30:], torch.ones(30))], 3, 2)
    seen = AtPlace(("a", "b"), np.full((60, 2), 0.5), truth[rows].numpy(), rows, not_read, not_read)
    found = LabelHead(20).adapted(replace(seen, sums=lambda: (sums, 0.3, (0.2, 5.0), features))).probabilities
    wanted = solve_added(sums, 0.3, features[:20], targets[:20], torch.tensor([0.2, 5.0]).double()[truth[:20]])
    scores = (with_bias(features) @ wanted.weights).numpy()
    temperatures = np.log(found[:, 1] / found[:, 0]) / (scores[:, 1] - scores[:, 0])
    assert temperatures == pytest.approx(temperatures[0])


def test_an_unknown_class_of_stated_shares_is_named():
    seen = AtPlace(("a", "b"), np.full((1, 2), 0.5), np.zeros(0), np.zeros(0), not_read, not_read)
    with pytest.raises(DataError, match="--recalibrate shares: 'c' is not one of the classes a, b"):
        ShareOffsets({"c": 1.0}).adapted(seen)


def test_images_to_label_are_of_all_predicted_classes_in_turn():
    rows = [[0.5, 0.3, 0.2], [0.4, 0.3, 0.3], [0.1, 0.8, 0.1], [0.4, 0.3, 0.3], [0.2, 0.5, 0.3]]
    assert label_order(np.array(rows)).tolist() == [1, 4, 3, 2, 0]


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ("0.95", "between 0 and 0.9"),
        ("nan", "between 0 and 0.9"),
        ("often", "could not convert"),
        ("labels:9", "N must be at least 10"),
        ("labels:", "invalid literal"),
        ("shares:a=0.3", "add up to 0.3"),
        ("shares:a=2,b=-1", "between 0 and 1"),
    ],
)
def test_wrong_recalibrations_are_named_with_the_forms(given, reason):
    with pytest.raises(UsageError, match=rf"labels:N or head:N with N of at least 10.*got '{given}' \(.*{reason}"):
        read_recalibration(given)
