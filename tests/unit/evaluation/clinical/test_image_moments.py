"""Figures of images are those computed by hand, add up over sites, and say in what a place's images differ."""

import numpy as np
import pytest
import torch

from grandrounds.evaluation.clinical.image_moments import (
    MOST_LOOKED_AT,
    channels_of,
    evenly_spaced,
    least_deviations,
    moments_of,
    rounded_moments,
    spread,
    training_moments,
)
from grandrounds.privacy.gate.treatments import MomentSupport
from grandrounds.reporting.external.result import appearance_of
from grandrounds.seeding import numpy_generator

SIDE = 32
SHAPES = [(96, 96, 3)] * 40


def drawn(count, seed=1, channels=3):
    levels = numpy_generator("moments", seed).normal(120, 30, (count, SIDE, SIDE, channels))
    return levels.clip(0, 255).astype(np.uint8)


def figures_of(image, height, width):
    """By hand, with loops."""
    values = image.astype(float)
    grey = values.mean(axis=2)
    steps = [abs(grey[y, x] - grey[y, x - 1]) for y in range(SIDE) for x in range(1, SIDE)]
    steps += [abs(grey[y, x] - grey[y - 1, x]) for y in range(1, SIDE) for x in range(SIDE)]
    small = np.array([[grey[y : y + 2, x : x + 2].mean() for x in range(0, SIDE, 2)] for y in range(0, SIDE, 2)])
    coarse = [abs(np.diff(small, axis=axis)).mean() for axis in (0, 1)]
    return [
        np.log2(np.sqrt(height * width)),
        np.log2(width / height),
        grey[8:24, 8:24].mean() - grey.mean(),
        np.log2((np.mean(steps) + 1) / (grey.std() + 1)),
        np.log2((np.mean(coarse) + 1) / (small.std() + 1)),
        *(values[..., channel].mean() for channel in range(values.shape[2])),
        *(values[..., channel].std() for channel in range(values.shape[2])),
    ]


def test_moments_of_images_of_one_pixel_are_those_of_an_image_without_detail():
    found = moments_of(drawn(3)[:, :1, :1], (), np.arange(3))
    assert channels_of(found) == 3
    assert not found[:, [3, 4]].any()


@pytest.mark.parametrize("channels", [1, 3])
def test_figures_are_those_computed_by_hand(channels):
    images, shapes = drawn(3, channels=channels), [(96, 96, 3), (200, 100, 3), (64, 128, 3)]
    wanted = np.array([figures_of(image, *shape[:2]) for image, shape in zip(images, shapes, strict=True)])
    found = moments_of(images, shapes, np.array([0, 2]))
    means = [(wanted[[0, 2]] ** power).mean(axis=0) for power in (1, 2)]
    assert found == pytest.approx(np.stack(means), rel=1e-5, abs=1e-4)
    assert found.shape[1] == len(least_deviations(channels))
    assert channels_of(found) == channels


def test_sizes_that_are_not_known_are_those_of_the_squares():
    assert 2 ** moments_of(drawn(2), (), np.arange(2))[0, 0] == pytest.approx(SIDE)


def test_of_many_images_some_are_looked_at_from_the_first_to_the_last():
    chosen = evenly_spaced(np.arange(10 * MOST_LOOKED_AT))
    assert (len(chosen), chosen[0], chosen[-1]) == (MOST_LOOKED_AT, 0, 10 * MOST_LOOKED_AT - 1)
    assert evenly_spaced(np.array([3, 5])).tolist() == [3, 5]


def test_moments_add_up_over_sites():
    images = drawn(40)
    parts = {"a": np.arange(10), "b": np.arange(10, 40)}
    sites = {name: moments_of(images, SHAPES, rows) for name, rows in parts.items()}
    whole = moments_of(images, SHAPES, np.arange(40))
    told = training_moments(sites, {"a": 10, "b": 30})
    assert told["sites"] == ["a", "b"]
    found = np.array(list(told["figures"].values())).T
    assert found == pytest.approx(np.stack(spread(whole)), abs=1e-3)
    alike = training_moments(sites, {"a": 10})
    assert alike["figures"]["red"][0] == pytest.approx(np.mean([one[0, 5] for one in sites.values()]), abs=1e-3)
    assert training_moments({}, {}).keys() == {"unavailable"}


@pytest.mark.parametrize(("patients", "leaves"), [(9, False), (10, True), (11, True)])
def test_the_gate_rounds_moments_and_keeps_those_of_few_patients(patients, leaves):
    moments = torch.from_numpy(moments_of(drawn(40), SHAPES, np.arange(40)))
    left = MomentSupport().apply({"moments": moments, "support": torch.tensor([patients])})
    assert left["support"].tolist() == [10 * leaves]
    assert bool(left["moments"].any()) is leaves
    if leaves:
        steps = np.array(list(least_deviations(3).values())) / 20
        before, after = (np.stack(spread(one.numpy())) for one in (moments, left["moments"]))
        assert (abs(after - before) <= steps / 2 + 1e-6).all()
        assert after / steps == pytest.approx((after / steps).round(), abs=1e-4)
        assert not np.allclose(before, after, atol=1e-6)
        assert rounded_moments(left["moments"].numpy()) == pytest.approx(left["moments"].numpy())
    with pytest.raises(ValueError, match="must be moments and support"):
        MomentSupport().apply({"moments": moments})


def at_place(images, shape):
    return images, (shape,) * len(images)


@pytest.fixture(scope="module")
def training():
    return training_moments({"a": moments_of(drawn(40), SHAPES, np.arange(40))}, {"a": 40})


def test_images_like_those_of_training_are_called_so(training):
    found = appearance_of(training, [at_place(drawn(30, seed=2), (96, 96, 3))])
    assert found.unlike == ""
    assert found.finding.startswith("The images are like the training images; the largest difference is ")
    assert max(abs(one.deviations) for one in found.figures) < 1
    assert found.far == pytest.approx(2 * (1 + 30**-0.5), abs=0.01)
    assert appearance_of(training, [at_place(drawn(1), (96, 96, 3))]).far == 4


def test_recoloured_and_larger_images_are_named_with_the_farthest_first(training):
    images = drawn(30, seed=2)
    images[..., 0] = images[..., 0] // 2
    found = appearance_of(training, [at_place(images[:20], (300, 300, 3)), at_place(images[20:], (300, 300, 3))])
    shifts = {one.name: one for one in found.figures}
    red = images[..., 0].mean() - training["figures"]["red"][0]
    assert shifts["red"].deviations == pytest.approx(
        red / 4, abs=0.1
    )  # the images of training differ by less than 4 levels
    assert shifts["size"].deviations == pytest.approx(np.log2(300 / 96) / 0.25, abs=0.01)
    assert abs(shifts["green"].deviations) < 1
    assert found.unlike == found.finding
    assert found.unlike.startswith("The images are unlike the training images: red ")
    assert "size 300 against 96 (+6.6 deviations)" in found.unlike
    assert "green" not in found.unlike


def test_without_moments_of_the_training_images_the_reason_is_said():
    for told, reason in (({}, "the run's record has no moments"), (training_moments({}, {}), "no site has released")):
        found = appearance_of(told, [at_place(drawn(2), (96, 96, 3))])
        assert found.figures == ()
        assert found.finding.startswith(f"Whether the images are like the training images is unavailable: {reason}")
