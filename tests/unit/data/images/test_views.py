"""The weak view is torchvision's; a view is the same whenever it is drawn; tensors are scaled by 255 alone."""

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance
from torch.nn import functional

from grandrounds.data.images.augmentation import draw_views, sample_generator
from grandrounds.data.images.tensors import to_tensor
from grandrounds.data.images.views import Affine, Mild, Strong, Turns, Weak, WeakParameters
from grandrounds.errors import ConfigurationError
from grandrounds.models.backbones.libraries import import_torchvision
from grandrounds.seeding import numpy_generator

IMAGES = numpy_generator("images").integers(0, 256, (12, 24, 32, 3), dtype=np.uint8)
ROWS = np.array([7, 2, 11, 2, 5])
BRIGHTNESS = 32 / 255


def torchvision_weak(image: np.ndarray, parameters: WeakParameters) -> np.ndarray:
    functional = import_torchvision().transforms.functional
    view = Image.fromarray(image.squeeze())
    view = functional.hflip(view) if parameters.flip_horizontal else view
    view = functional.vflip(view) if parameters.flip_vertical else view
    view = functional.rotate(view, parameters.degrees)
    jitter = [
        lambda picture: functional.adjust_brightness(picture, parameters.brightness),
        lambda picture: functional.adjust_saturation(picture, parameters.saturation),
    ]
    for change in jitter if parameters.brightness_first else reversed(jitter):
        view = change(view)
    return np.asarray(view).reshape(image.shape)


@pytest.mark.parametrize("channels", [1, 3])
def test_the_weak_view_equals_torchvision_for_the_same_parameters(channels):
    for draw in range(30):
        image = IMAGES[draw % len(IMAGES), :, :, :channels]
        expected = torchvision_weak(image, WeakParameters.drawn(numpy_generator("weak", draw)))
        np.testing.assert_array_equal(Weak().draw(image, numpy_generator("weak", draw)), expected)


def test_both_orders_of_the_jitter_occur_and_matter():
    bright = IMAGES[0] // 2 + 128
    parameters = WeakParameters(False, False, 0.0, 1 + BRIGHTNESS, 1.5, True)
    first, last = parameters.applied(bright), parameters._replace(brightness_first=False).applied(bright)
    assert (first != last).any()
    np.testing.assert_array_equal(first, torchvision_weak(bright, parameters))


def test_the_weak_parameters_have_the_ranges_of_the_paper():
    generator = numpy_generator("ranges")
    draws = np.array([WeakParameters.drawn(generator) for _ in range(4000)], dtype=float)
    share_of_flips, angles, factors = draws[:, [0, 1, 5]].mean(axis=0), draws[:, 2], draws[:, 3:5]
    np.testing.assert_allclose(share_of_flips, 0.5, atol=0.03)
    np.testing.assert_allclose([angles.min(), angles.mean(), angles.max()], [-20, 0, 20], atol=0.6)
    np.testing.assert_allclose(factors.min(axis=0), [1 - BRIGHTNESS, 0.5], atol=0.01)
    np.testing.assert_allclose(factors.max(axis=0), [1 + BRIGHTNESS, 1.5], atol=0.01)
    assert np.abs(angles).max() <= 20
    assert (np.abs(factors - 1) <= [BRIGHTNESS, 0.5]).all()
    # Independent of each other: every pair of columns is uncorrelated.
    assert np.abs(np.corrcoef(draws.T) - np.eye(6)).max() < 0.06


@pytest.mark.parametrize("view", ["weak", "strong"])
def test_a_view_is_the_same_alone_later_and_in_another_order(view):
    whole = draw_views(IMAGES, ROWS, view, key=5, step=3)
    some = draw_views(IMAGES, ROWS, view, key=5, step=3, positions=np.array([4, 1]))
    np.testing.assert_array_equal(some, whole[[4, 1]])
    none = draw_views(IMAGES, ROWS, view, key=5, step=3, positions=np.array([], dtype=int))
    assert none.shape == (0, 24, 32, 3)


@pytest.mark.parametrize(("view", "function"), [("weak", Weak().draw), ("strong", Strong().draw)])
def test_each_sample_has_the_generator_of_its_position(view, function):
    batch = draw_views(IMAGES, ROWS, view, key=5, step=3)
    for position, row in enumerate(ROWS):
        np.testing.assert_array_equal(batch[position], function(IMAGES[row], sample_generator(view, 5, 3, position)))
    assert (batch[1] != batch[3]).any(), "the same image twice in a batch gets two views"


def test_streams_of_other_keys_steps_positions_and_views_differ():
    streams = [
        sample_generator(*which).random(50)
        for which in [("weak", 1, 0, 0), ("strong", 1, 0, 0), ("weak", 2, 0, 0), ("weak", 1, 1, 0), ("weak", 1, 0, 1)]
    ]
    assert len(np.unique(np.concatenate(streams))) == 250


def test_the_equalize_option_reaches_the_strong_view():
    whole = [draw_views(IMAGES // 3, np.arange(12), "strong", 1, 0, equalize_noop=noop) for noop in (False, True)]
    assert (whole[0] != whole[1]).any()


def test_the_view_none_is_a_copy_of_the_image():
    batch = draw_views(IMAGES, ROWS, "none", key=5, step=3, positions=np.array([4, 0]))
    np.testing.assert_array_equal(batch, IMAGES[[5, 7]])
    batch[:] = 0
    assert IMAGES[5].any()


@pytest.mark.parametrize("channels", [1, 3])
def test_the_mild_view_equals_torchvisions_affine_and_flip_for_the_same_draws(channels):
    functional = import_torchvision().transforms.functional
    for draw in range(30):
        image = np.tile(IMAGES[draw % len(IMAGES), :, :, :channels], (4, 4, 1))  # 96 x 128: shifts of one or two pixels
        angle, right, down, flip = numpy_generator("mild", draw).random(4)
        shift = [round(0.02 * 128 * (2 * right - 1)), round(0.02 * 96 * (2 * down - 1))]
        # torchvision turns clockwise here, and PIL the other way.
        view = functional.affine(Image.fromarray(image.squeeze()), -10 * (2 * angle - 1), shift, 1.0, [0.0, 0.0])
        expected = np.asarray(functional.hflip(view) if flip < 0.5 else view).reshape(image.shape)
        found = Mild().draw(image, numpy_generator("mild", draw))
        # Nearest pixels: a rounding in the last bit of a coordinate may choose the neighbour.
        assert (found != expected).any(axis=2).mean() < 0.01


def test_two_streams_make_two_mild_views():
    first, second = (draw_views(IMAGES, ROWS, "mild", key=key, step=0) for key in (1, 2))
    assert (first != second).any(axis=(1, 2, 3)).all()
    expected = Mild().draw(IMAGES[2], sample_generator("mild", 1, 0, 1))
    np.testing.assert_array_equal(first[1], expected)


def test_turns_are_the_eight_ways_to_lay_an_image_down_and_all_occur():
    image = np.arange(4, dtype=np.uint8).reshape(2, 2, 1)
    corners = {(0, 1, 3, 2), (1, 3, 2, 0), (3, 2, 0, 1), (2, 0, 1, 3)}  # around the image, from each corner
    expected = corners | {way[::-1] for way in corners}
    found = {
        tuple(Turns().draw(image, numpy_generator("turns", n)).flatten()[[0, 1, 3, 2]].tolist()) for n in range(100)
    }
    assert found == expected
    with pytest.raises(ValueError, match=r"quarter turns need square images, got \(24, 32, 3\)"):
        draw_views(IMAGES, ROWS, "turns", key=1, step=0)


@pytest.mark.parametrize("channels", [1, 3])
def test_the_affine_view_equals_torchs_sampling_of_the_reflected_image_before_its_colours(channels):
    places = np.stack(np.meshgrid(np.linspace(0, 3, 48), np.linspace(0, 2, 40)))
    waves = (120 + 90 * np.sin(places[0] * 2 + places[1]))[..., None] + np.arange(channels) * 5
    image = waves.astype(np.uint8)
    for draw in range(12):
        angle, size, right, down, mirror, *colours = numpy_generator("affine", draw).random(8)
        scale, turn, side = 0.8 + 0.3 * size, 2 * np.pi * angle, -1 if mirror < 0.5 else 1
        in_pixels = scale * np.array([[side * np.cos(turn), -np.sin(turn)], [side * np.sin(turn), np.cos(turn)]])
        # torch's coordinates are shares of half the width and half the height.
        matrix = np.diag([1 / 48, 1 / 40]) @ in_pixels @ np.diag([48, 40])
        moved = np.column_stack([matrix, [0.05 * (2 * right - 1), 0.05 * (2 * down - 1)]])
        grid = functional.affine_grid(torch.tensor(moved[None]), [1, channels, 40, 48], align_corners=False)
        pixels = torch.from_numpy(image).permute(2, 0, 1)[None].double()
        sampled = functional.grid_sample(pixels, grid, padding_mode="reflection", align_corners=False)
        view = Image.fromarray(sampled[0].permute(1, 2, 0).round().numpy().astype(np.uint8).squeeze())
        changes = zip(("Brightness", "Color", "Contrast"), (0.05, 0.1, 0.1), colours, strict=True)
        for kind, change, drawn in changes:
            view = getattr(ImageEnhance, kind)(view).enhance(1 + change * (2 * drawn - 1))
        found = Affine().draw(image, numpy_generator("affine", draw))
        difference = np.abs(found.astype(float) - np.asarray(view).reshape(image.shape))
        assert difference.mean() < 1
        assert difference.max() < 6


def test_the_strong_levels_reach_the_strong_view():
    weakest = draw_views(IMAGES, ROWS, "strong", key=5, step=3, strong_levels=(1, 1))
    expected = [
        Strong(strong_levels=(1, 1)).draw(IMAGES[row], sample_generator("strong", 5, 3, n))
        for n, row in enumerate(ROWS)
    ]
    np.testing.assert_array_equal(weakest, expected)
    assert (weakest != draw_views(IMAGES, ROWS, "strong", key=5, step=3)).any()


def test_reads_memory_mapped_images_and_leaves_them_alone(tmp_path):
    np.save(tmp_path / "images.npy", IMAGES)
    mapped = np.load(tmp_path / "images.npy", mmap_mode="r")
    batch = draw_views(mapped, ROWS, "weak", key=5, step=3)
    assert type(batch) is np.ndarray
    assert batch.flags.writeable
    np.testing.assert_array_equal(batch, draw_views(IMAGES, ROWS, "weak", key=5, step=3))


def test_the_tensor_equals_torchvisions_to_tensor():
    to_tensor_of_one = import_torchvision().transforms.functional.to_tensor
    tensor = to_tensor(IMAGES)
    assert torch.equal(tensor, torch.stack([to_tensor_of_one(image) for image in IMAGES]))
    assert tensor.dtype == torch.float32


@pytest.mark.parametrize("channels", [1, 3])
def test_the_tensor_is_channels_last_and_shares_no_memory(channels):
    batch = IMAGES[..., :channels].copy()
    tensor = to_tensor(batch, "cpu")
    assert tensor.shape == (12, channels, 24, 32)
    assert tensor.is_contiguous(memory_format=torch.channels_last)
    tensor.zero_()
    np.testing.assert_array_equal(batch, IMAGES[..., :channels])


@pytest.mark.filterwarnings("error")
def test_the_tensor_of_a_read_only_batch_comes_without_a_warning():
    batch = IMAGES[:2].copy()
    batch.flags.writeable = False
    assert torch.equal(to_tensor(batch), to_tensor(IMAGES[:2]))


def test_refuses_other_views_and_other_arrays():
    with pytest.raises(ConfigurationError, match=r"view .*got 'medium'"):
        draw_views(IMAGES, ROWS, "medium", key=1, step=0)
    with pytest.raises(ValueError, match=r"images .*got float64"):
        draw_views(IMAGES / 255, ROWS, "weak", key=1, step=0)
    with pytest.raises(ValueError, match=r"images .*got uint8 \(24, 32, 3\)"):
        draw_views(IMAGES[0], ROWS, "weak", key=1, step=0)
    with pytest.raises(ValueError, match=r"a batch must be uint8 .* got float64"):
        to_tensor(IMAGES / 255)
