"""Every view keeps the public contract, and the contract finds what a view does wrong."""

import numpy as np
import pytest
import torch

import grandrounds as gr
from grandrounds.data.images.augmentation import OWN_VIEWS, draw_views, sample_generator, view_named
from grandrounds.data.images.views import VIEWS, Turns
from grandrounds.errors import ConfigurationError


@pytest.fixture(autouse=True)
def own_views(monkeypatch):
    """Each test has a registry of its own."""
    monkeypatch.setattr(OWN_VIEWS, "entries", {})


@pytest.mark.parametrize("name", VIEWS)
def test_every_view_of_the_package_keeps_the_contract(name):
    gr.testing.check_view(VIEWS[name].make)


def test_the_strong_view_keeps_it_with_options():
    gr.testing.check_view(VIEWS["strong"].make, equalize_noop=True, strong_levels=(2, 5))


def test_no_two_views_share_a_stream_and_the_numbers_of_plug_ins_come_after():
    streams = [view.stream for view in VIEWS.values()]
    assert len(streams) == len(set(streams))
    assert max(streams) < 100


class Global:
    def draw(self, image, generator):
        return np.roll(image, np.random.randint(1, 5), axis=0)  # noqa: NPY002


class Restless:
    def __init__(self):
        self.drawn = 0

    def draw(self, image, generator):
        self.drawn += 1
        return np.roll(image, self.drawn, axis=0)


class Destructive:
    def draw(self, image, generator):
        image[:] = 0
        return image


class Shrinking:
    def draw(self, image, generator):
        return image[::2]


class Floating:
    def draw(self, image, generator):
        return image / 255


@pytest.mark.parametrize(
    ("view", "fault"),
    [
        (Global, "two results"),
        (Restless, "two results for one state"),
        (Destructive, "changes the image"),
        (Shrinking, r"became uint8 \(12, 24, 1\)"),
        (Floating, "became float64"),
    ],
)
def test_a_view_that_breaks_the_contract_is_named_with_its_fault(view, fault):
    with pytest.raises(AssertionError, match=f"view {view.__name__}.*({fault})"):
        gr.testing.check_view(view)


@pytest.fixture
def transforms():
    """MONAI's transforms; to import them takes seconds, which the collection of tests need not spend."""
    from monai import transforms

    return transforms


def counting(transforms):
    """A transform that turns the image further with each call, whatever its random state is."""

    class Counting(transforms.RandomizableTransform):
        calls = 0

        def __call__(self, image):
            self.calls += 1
            return np.roll(image, self.calls, axis=1)

    return Counting(1.0)


def monai_view(transform):
    return type("Own", (gr.MonaiView,), {"transform": transform})


@pytest.mark.parametrize(
    "transform",
    [
        lambda of: of.RandAffine(prob=1, rotate_range=0.3, shear_range=0.1, padding_mode="zeros"),
        lambda of: of.RandGaussianNoise(prob=0.5),
        lambda of: of.OneOf([of.RandFlip(1.0), of.RandAdjustContrast(1.0)]),
        lambda of: of.Compose([of.Flip(0), of.Compose([of.RandZoom(0.5)])]),
    ],
    ids=["RandAffine", "RandGaussianNoise", "OneOf", "Compose"],
)
def test_a_transform_of_monai_keeps_the_contract(transform, transforms):
    gr.testing.check_view(monai_view(transform(transforms)))


def test_a_transform_of_monai_is_seeded_from_the_stream_and_gets_channels_first_in_zero_to_one(transforms):
    image = np.random.default_rng(0).integers(0, 256, (6, 9, 3), dtype=np.uint8)
    found = monai_view(transforms.RandGaussianNoise(prob=1, std=0.2))().draw(image, np.random.default_rng(5))
    noise = transforms.RandGaussianNoise(prob=1, std=0.2)
    noise.set_random_state(seed=int(np.random.default_rng(5).integers(2**32)))
    expected = np.asarray(noise(torch.from_numpy(image).permute(2, 0, 1) / 255)).transpose(1, 2, 0)
    np.testing.assert_array_equal(found, np.rint(expected.clip(0, 1) * 255))
    assert (expected > 1).any()


@pytest.mark.parametrize(
    ("transform", "fault"),
    [
        (lambda of: None, "must be a random array transform of MONAI or a Compose, got NoneType"),
        (lambda of: of.Flip(0), "must be a random array transform of MONAI or a Compose, got Flip"),
        (lambda of: of.RandAffined("image"), r"MONAI's RandAffined fails for .*\(RandAffine, not RandAffined\)"),
        (lambda of: of.RandSpatialCrop((9, 9), random_size=False), r"makes float32 \(3, 9, 9\) of .*; keep shape"),
        (lambda of: of.Compose([lambda image: image * np.nan]), "MONAI's Compose makes values that are not finite"),
        (lambda of: of.Compose([lambda image: image * np.random.rand()]), "two results for one random state"),  # noqa: NPY002
        (lambda of: of.Compose([lambda image: image * float(torch.rand(1))]), "two results for one random state"),
        (counting, "MONAI's Counting gives two results for one random state"),
    ],
)
def test_a_transform_of_monai_that_a_seed_does_not_determine_is_refused(transform, fault, transforms):
    with pytest.raises(ConfigurationError, match=f"view Own: .*{fault}"):
        monai_view(transform(transforms))


def test_a_registered_view_is_drawn_from_the_stream_of_its_number():
    gr.register_view("crossed", stream=117)(Turns)
    images = np.random.default_rng(0).integers(0, 256, (4, 6, 6, 3), dtype=np.uint8)
    drawn = draw_views(images, np.arange(4), "crossed", key=5, step=3)
    for position in range(4):
        stream = np.random.Generator(np.random.Philox(key=5, counter=[0, position, 3, 117]))
        np.testing.assert_array_equal(drawn[position], Turns().draw(images[position], stream))
    assert sample_generator("crossed", 5, 3, 0).random() != sample_generator("turns", 5, 3, 0).random()


def test_a_view_is_refused_with_what_is_wrong():
    gr.register_view("mine", stream=100)(Turns)
    with pytest.raises(ConfigurationError, match="view other: stream 100 is that of view mine"):
        gr.register_view("other", stream=100)
    with pytest.raises(ConfigurationError, match="stream must be at least 100"):
        gr.register_view("other", stream=3)
    with pytest.raises(ConfigurationError, match=r"must be a class with a method draw"):
        gr.register_view("other", stream=101)(object)
    with pytest.raises(ConfigurationError, match=r"weak_view .*got 'medium'"):
        view_named("medium", "weak_view")
    gr.register_view("weak", stream=102)(Turns)
    with pytest.raises(ConfigurationError, match="view 'weak' is one of the package's own"):
        view_named("medium")
