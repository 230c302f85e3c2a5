"""Client weights are those of the two papers, with the mistakes that are known and those that are mended."""

import pytest
import torch

from grandrounds.methods.mutual.weights import ccr_weights, eccr_weights, equal_weights, parameter_change


def test_equal_weights_of_the_others_sum_to_one():
    assert equal_weights(4) == [pytest.approx(1 / 3)] * 4


def test_confidence_matches_hand_computed_weights():
    # q = (1, .25, 0): shares .8, .2, 0 of the gain; softmax of (.9, .6, .5).
    weights = ccr_weights([1, 1, 1], [0.5, 0.8, 1])
    assert weights == pytest.approx([0.41474187, 0.30724834, 0.27800979], abs=1e-8)


def test_when_losses_rise_confidence_rewards_the_worst_and_the_enhanced_one_does_not():
    now = [1.25, 1.0, 1.05]
    weights = ccr_weights([1, 1, 1], now)
    assert weights == pytest.approx([0.4161658, 0.2778934, 0.3059408], abs=1e-7)
    assert max(weights) == weights[0]
    enhanced = eccr_weights([1, 1, 1], now, [0, 0, 0])
    assert min(enhanced) == enhanced[0]
    assert max(enhanced) == enhanced[1]


def test_enhanced_confidence_matches_hand_computed_weights():
    # q = (1/2, .25/1, 0/1): shares 2/3, 1/3, 0; (.5 + .8, .5 + .4, .5) of 2.7.
    weights = eccr_weights([1, 1, 1], [0.5, 0.8, 1], [1, 0, 0])
    assert weights == pytest.approx([1.3 / 2.7, 0.9 / 2.7, 0.5 / 2.7])


def test_moving_far_for_the_same_gain_costs_confidence():
    near, far, _ = eccr_weights([1, 1, 1], [0.5, 0.5, 1], [0, 3, 0])
    assert near > far


def test_a_negative_weight_becomes_zero():
    # q = (-.5, 0, 0, 0): the first has the share -1 and 1/3 - 1.2 < 0, the others 1/3.
    weights = eccr_weights([1, 1, 1, 1], [2, 1, 1, 1], [0, 0, 0, 0])
    assert weights == pytest.approx([0, 1 / 3, 1 / 3, 1 / 3])
    assert eccr_weights([1] * 2, [2, 2], [0, 0], strength=4) == [0.5, 0.5]


@pytest.mark.parametrize("losses", [[1, 1, 1, 1], [0.5, 2, 3, 0.1]])
def test_where_nothing_changed_all_weigh_the_same(losses):
    assert ccr_weights(losses, losses) == [0.25] * 4
    assert eccr_weights(losses, losses, [1, 2, 3, 4]) == [0.25] * 4


def test_the_same_gain_everywhere_weighs_the_same():
    assert ccr_weights([2] * 4, [1] * 4) == pytest.approx([0.25] * 4)
    assert eccr_weights([2] * 4, [1] * 4, [1] * 4) == pytest.approx([0.25] * 4)


def test_the_change_of_parameters_is_the_mean_of_the_norms():
    after = [torch.tensor([[3.0, 0.0], [0.0, 4.0]]), torch.ones(4)]
    assert parameter_change(after, [torch.zeros(2, 2), torch.zeros(4)]) == pytest.approx((5 + 2) / 2)
    with pytest.raises(ValueError, match="at least one parameter tensor, got none"):
        parameter_change([], [])
    with pytest.raises(ValueError, match="argument 2 is shorter"):
        parameter_change(after, after[:1])


@pytest.mark.parametrize("weigh", [ccr_weights, lambda before, now: eccr_weights(before, now, [0.0] * len(now))])
def test_losses_that_make_no_sense_are_refused(weigh):
    with pytest.raises(ValueError, match="at least 2 clients to learn from each other, got 1"):
        weigh([1], [1])
    with pytest.raises(ValueError, match="expected two losses of each client, got 3 and 2"):
        weigh([1, 1, 1], [1, 1])
    for bad in (0, -1, float("nan"), float("inf")):
        with pytest.raises(ValueError, match=f"losses must be positive and finite, got {bad}"):
            weigh([1, 1], [1, bad])


def test_changes_that_make_no_sense_are_refused():
    for changes in ([0], [0, -1], [0, float("nan")]):
        with pytest.raises(ValueError, match=r"expected 2 changes, not negative and finite, got \[0"):
            eccr_weights([1, 1], [1, 1], changes)
