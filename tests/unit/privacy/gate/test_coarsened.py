"""What rounding of numbers beside tables gives: how little of one image, or of their number, they still say."""

import itertools

import numpy as np
import pytest

from grandrounds.data.datasets.phantom import PHANTOM_CLASSES, draw_phantom
from grandrounds.methods.statistics.executor import HISTOGRAM_BINS, intensity_shares
from grandrounds.privacy.accounting import spent_epsilon
from grandrounds.privacy.gate.gate import EPSILON_DIGITS, INTENSITY_DIGITS, coarsened, shown_epsilon
from grandrounds.privacy.gate.inspection import Inspected
from grandrounds.protocol.spending import Mechanism, Spending, Unit

DECADE = range(235, 245)
"""Numbers of images that all leave as 240."""
COUNTS = (1, 4, 10)
SIDE = 32


def rounds(images, count, noise):
    """The costs of rounds of a record-level training in batches of 16 of these images."""
    return [Spending(Mechanism.DP_SGD, Unit.RECORD, 1.0, noise, 16 / images, 12)] * count


@pytest.mark.parametrize("noise", [1.5, 3.0])
def test_many_epsilons_of_two_digits_leave_as_many_numbers_of_images_as_one(noise):
    """Two digits of the exact ones would leave one number after ten rounds."""
    told = {
        images: tuple(shown_epsilon(rounds(images, count, noise), 1e-5, Unit.RECORD) for count in COUNTS)
        for images in DECADE
    }
    assert len(set(told.values())) == 1
    digits = set()
    for images in (DECADE[0], DECADE[-1]):
        exact = [spent_epsilon(rounds(images, count, noise), 1e-5, Unit.RECORD) for count in COUNTS]
        assert all(1 <= shown / true <= 1.2 for shown, true in zip(told[images], exact, strict=True))
        digits.add(tuple(float(EPSILON_DIGITS.create_decimal(value)) for value in exact))
    assert len(digits) == 2


def test_the_shown_epsilon_is_of_a_dozen_numbers_of_images_or_more_wherever_they_lie():
    shown = [shown_epsilon(rounds(images, 2, 1.5), 1e-5, Unit.RECORD) for images in range(200, 280)]
    runs = [len([*group]) for _, group in itertools.groupby(shown)][1:-1]
    assert min(runs) >= 12


@pytest.mark.parametrize(("images", "most"), [(50, 12), (400, 3)])
def test_two_releases_of_intensities_that_differ_by_one_image_tell_few_bins_of_it(images, most):
    """Without rounding they tell nearly all 48 exactly."""
    generator = np.random.default_rng(0)
    drawn = [draw_phantom(PHANTOM_CLASSES[n % 4], "device-1", SIDE, generator) for n in range(images)]
    everything, patients = np.stack(drawn), [str(n) for n in range(images)]
    true = np.stack([np.bincount(drawn[-1][..., c].ravel() // 16, minlength=HISTOGRAM_BINS) for c in range(3)])

    def recovered(digits):
        shares = [
            intensity_shares(everything, np.arange(n), patients, HISTOGRAM_BINS, 10) for n in (images, images - 1)
        ]
        known = [
            np.nan_to_num(share).round(digits) * n * SIDE**2
            for share, n in zip(shares, (images, images - 1), strict=True)
        ]
        return int(((known[0] - known[1]).round() == true)[true > 0].sum())

    assert recovered(INTENSITY_DIGITS) <= most < recovered(12)


def test_totals_leave_in_tens_shares_in_thousandths_and_scores_in_steps_of_an_image():
    """A score of 44 images leaves in steps of .05: one image is .023 of it."""
    numbers = {"samples": 44.0, "size.256": 236.0, "intensity.0.3": 0.12345, "validation.accuracy": 0.87654}
    shown = coarsened(Inspected({}, numbers, {}, (), 44)).scalars
    assert shown == {"samples": 40.0, "size.256": 240.0, "intensity.0.3": 0.123, "validation.accuracy": 0.9}
