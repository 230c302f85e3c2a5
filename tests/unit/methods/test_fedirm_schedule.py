"""The unlabelled sites' weight rises and stays; they, and the labelled sites' step size, change in the same round."""

import math

import pytest

from grandrounds.methods.fedirm.schedule import labelled_learning_rate, ramp_up, unlabelled_sites_train


@pytest.mark.parametrize(
    ("elapsed", "weight"),
    [
        (0, 0.0067379),
        (10, 0.1083680),
        (15, 0.2865048),
        (20, 0.5737534),
        (21, 0.6376282),
        (25, 0.8703),
        (30, 1),
        (60, 1),
    ],
)
def test_the_squared_ramp_has_the_hand_computed_values(elapsed, weight):
    assert ramp_up(elapsed, 30) == pytest.approx(weight, abs=5e-5 if elapsed == 25 else 1e-6)


@pytest.mark.parametrize(
    ("elapsed", "weight"),
    [(0, 0.0067), (10, 0.0357), (15, 0.0821), (20, 0.1889), (21, 0.2231), (25, 0.4346), (30, 1), (60, 1)],
)
def test_the_printed_ramp_has_no_square_but_is_clipped(elapsed, weight):
    assert ramp_up(elapsed, 30, "printed") == pytest.approx(weight, abs=5e-5)


@pytest.mark.parametrize("kind", ["squared", "printed"])
def test_without_length_the_weight_is_full_from_the_start(kind):
    assert ramp_up(0, 0, kind) == 1.0


def test_unlabelled_sites_are_absent_in_round_20_and_present_in_21():
    assert [unlabelled_sites_train(elapsed) for elapsed in (0, 20, 21, 199)] == [False, False, True, True]
    assert unlabelled_sites_train(0, start=0)


def test_the_learning_rate_rises_in_round_21_and_need_not():
    assert [labelled_learning_rate(elapsed) for elapsed in (0, 20, 21, 199)] == [2e-4, 2e-4, 3e-4, 3e-4]
    assert labelled_learning_rate(5, first=0.1, later=0.2, change=5) == 0.2


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ramp_up(-1), "elapsed must be at least 0, got -1"),
        (lambda: ramp_up(math.nan), "elapsed must be at least 0, got nan"),
        (lambda: ramp_up(1, -1), "length must be at least 0, got -1"),
        (lambda: ramp_up(1, 30, "linear"), "kind must be squared or printed, got 'linear'"),
        (lambda: unlabelled_sites_train(-1), "elapsed must be at least 0, got -1"),
        (lambda: unlabelled_sites_train(1, -1), "start must be at least 0, got -1"),
        (lambda: labelled_learning_rate(-1), "elapsed must be at least 0, got -1"),
        (lambda: labelled_learning_rate(1, change=-1), "change must be at least 0, got -1"),
        (lambda: labelled_learning_rate(1, first=0.0), r"first must be positive, got 0\.0"),
        (lambda: labelled_learning_rate(1, later=-1.0), r"later must be positive, got -1\.0"),
    ],
)
def test_refuses_what_is_out_of_range(call, message):
    with pytest.raises(ValueError, match=message):
        call()
