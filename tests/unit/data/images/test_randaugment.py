"""Every operation is PIL's or torchvision's; six of thirteen are drawn; the table of magnitudes is FedPerl's."""

import numpy as np
import pytest
from PIL import Image, ImageOps
from scipy.stats import chisquare

from grandrounds.data.images.views import (
    OPERATION_NAMES,
    Operation,
    Strong,
    apply_operation,
    draw_operations,
    from_pil,
    magnitude,
    to_pil,
)
from grandrounds.models.backbones.libraries import import_torchvision
from grandrounds.seeding import numpy_generator


def image_of(kind: str, channels: int = 3) -> np.ndarray:
    rows, columns = np.mgrid[0:40, 0:40]
    pictures = {
        "noise": numpy_generator("image").integers(0, 256, (40, 40, channels)),
        "dim": numpy_generator("dim").integers(60, 130, (40, 40, channels)),
        "ramp": np.stack([rows * 3 + columns * 2 + 10 * band for band in range(channels)], axis=2),
        "constant": np.full((40, 40, channels), 77),
        "two levels": np.broadcast_to(np.where(columns > 30, 200, 40)[:, :, None], (40, 40, channels)),
        "dark with a dot": np.broadcast_to(np.where(columns * rows > 1400, 9, 0)[:, :, None], (40, 40, channels)),
    }
    return pictures[kind].astype(np.uint8)


KINDS = ["noise", "dim", "ramp", "constant", "two levels", "dark with a dot"]


def test_the_table_of_magnitudes_is_that_of_the_paper():
    last = {name: magnitude(Operation(name, 9)) for name in OPERATION_NAMES}
    assert last == pytest.approx(
        {
            "shearX": 0.3,
            "shearY": 0.3,
            "translateX": 0.2,
            "translateY": 0.2,
            "rotate": 360,
            "color": 0.9,
            "posterize": 4,
            "solarize": 231,
            "contrast": 0.5,
            "sharpness": 0.9,
            "brightness": 0.3,
            "autocontrast": 0,
            "equalize": 0,
        }
    )
    assert len(OPERATION_NAMES) == 13


def test_ten_levels_are_equally_spaced():
    assert [magnitude(Operation("rotate", level)) for level in range(10)] == pytest.approx(list(range(0, 361, 40)))
    assert [magnitude(Operation("posterize", level)) for level in range(10)] == [8, 8, 7, 7, 6, 6, 5, 5, 4, 4]
    assert magnitude(Operation("solarize", 0)) == 256


def test_only_operations_with_a_direction_take_the_sign():
    signed = {name for name in OPERATION_NAMES if magnitude(Operation(name, 9, -1)) < 0}
    assert signed == {
        "shearX", "shearY", "translateX", "translateY", "color", "contrast", "sharpness", "brightness"
    }  # fmt: skip


def test_operations_levels_and_signs_are_drawn_uniformly_with_replacement():
    generator = numpy_generator("draws")
    draws = [draw_operations(generator) for _ in range(2000)]
    assert {len(operations) for operations in draws} == {6}
    assert any(len({operation.name for operation in operations}) < 6 for operations in draws)
    flat = [operation for operations in draws for operation in operations]
    assert chisquare([sum(o.name == name for o in flat) for name in OPERATION_NAMES]).pvalue > 0.001
    assert chisquare([sum(o.level == level for o in flat) for level in range(10)]).pvalue > 0.001
    assert chisquare([sum(o.sign == sign for o in flat) for sign in (-1, 1)]).pvalue > 0.001
    assert {operation.sign for operation in flat} == {-1, 1}


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("level", [0, 4, 9])
def test_pointwise_operations_equal_pil(kind, level, channels):
    image = to_pil(image_of(kind, channels))
    bits = [8, None, None, None, 6, None, None, None, None, 4][level]
    threshold = 256 - 25 * level / 9
    expected = {
        "posterize": ImageOps.posterize(image, bits),
        "solarize": ImageOps.solarize(image, threshold),
        "autocontrast": ImageOps.autocontrast(image),
        "equalize": ImageOps.equalize(image),
    }
    for name, picture in expected.items():
        found = apply_operation(image, Operation(name, level))
        np.testing.assert_array_equal(np.asarray(found), np.asarray(picture), err_msg=name)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(("level", "sign"), [(0, 1), (4, -1), (9, 1), (9, -1)])
def test_enhancements_and_rotation_equal_torchvision(level, sign, channels):
    functional = import_torchvision().transforms.functional
    image = to_pil(image_of("noise", channels))
    share = sign * level / 9
    expected = {
        "color": functional.adjust_saturation(image, 1 + 0.9 * share),
        "contrast": functional.adjust_contrast(image, 1 + 0.5 * share),
        "sharpness": functional.adjust_sharpness(image, 1 + 0.9 * share),
        "brightness": functional.adjust_brightness(image, 1 + 0.3 * share),
        "rotate": functional.rotate(image, 360 * level / 9, fill=[128] * channels),
    }
    for name, picture in expected.items():
        found = apply_operation(image, Operation(name, level, sign))
        np.testing.assert_array_equal(np.asarray(found), np.asarray(picture), err_msg=name)


@pytest.mark.parametrize("channels", [1, 3])
def test_translation_moves_a_fifth_of_the_side_and_fills_with_grey(channels):
    image = image_of("noise", channels)
    left, down = np.full_like(image, 128), np.full_like(image, 128)
    left[:, :-8] = image[:, 8:]
    down[8:] = image[:-8]
    to_the_left = apply_operation(to_pil(image), Operation("translateX", 9, 1))
    downwards = apply_operation(to_pil(image), Operation("translateY", 9, -1))
    np.testing.assert_array_equal(from_pil(to_the_left), left)
    np.testing.assert_array_equal(from_pil(downwards), down)


@pytest.mark.parametrize(("name", "axis"), [("shearX", 1), ("shearY", 0)])
def test_shear_moves_each_line_in_proportion_to_its_distance(name, axis):
    ramp = 4 * np.arange(40)
    image = np.broadcast_to(ramp[None, :] if axis == 1 else ramp[:, None], (40, 40)).astype(np.uint8)
    sheared = np.asarray(apply_operation(Image.fromarray(image), Operation(name, 9, 1))).astype(float)
    along, across = np.mgrid[0:40, 0:40][axis], np.mgrid[0:40, 0:40][1 - axis]
    position = along + 0.3 * (across + 0.5)
    inside, outside = position < 38.5, position > 39.6
    np.testing.assert_allclose(sheared[inside], 4 * position[inside], atol=1)  # interpolated, not rounded to a pixel
    assert (sheared[outside] == 128).all()


def test_equalize_can_be_left_out_as_the_published_code_does():
    image = to_pil(image_of("dim"))
    operation = Operation("equalize", 5)
    np.testing.assert_array_equal(apply_operation(image, operation, equalize_noop=True), np.asarray(image))
    assert (np.asarray(apply_operation(image, operation)) != np.asarray(image)).any()


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("equalize_noop", [False, True])
def test_the_strong_view_is_the_drawn_operations_one_after_the_other(channels, equalize_noop):
    image = image_of("dim", channels)
    for draw in range(20):
        expected = to_pil(image)
        for operation in draw_operations(numpy_generator("strong", draw)):
            expected = apply_operation(expected, operation, equalize_noop)
        found = Strong(equalize_noop).draw(image, numpy_generator("strong", draw))
        assert found.shape == image.shape
        assert found.dtype == np.uint8
        np.testing.assert_array_equal(found, np.asarray(expected).reshape(image.shape))


def test_the_strong_view_leaves_the_raw_image_as_it_was():
    image = image_of("noise")
    Strong().draw(image, numpy_generator("strong"))[:] = 0
    np.testing.assert_array_equal(image, image_of("noise"))


def test_refuses_what_is_no_image():
    with pytest.raises(ValueError, match=r"expected a uint8 image .* got float64 \(4, 4, 3\)"):
        Strong().draw(np.zeros((4, 4, 3)), numpy_generator("refused"))
    with pytest.raises(ValueError, match=r"got uint8 \(4, 4, 2\)"):
        Strong().draw(np.zeros((4, 4, 2), dtype=np.uint8), numpy_generator("refused"))


def test_with_strengths_every_image_has_its_own_and_levels_below_it():
    """FedMatch: M is 2, 3, 4 or 5 with equal chance, then six levels below M: P(level) = sum over M > level of 1 / 4M."""
    generator = numpy_generator("strengths")
    draws = np.array([[op.level for op in draw_operations(generator, (2, 5))] for _ in range(4000)])
    counts = np.bincount(draws.ravel(), minlength=5)
    chances = np.array([sum(1 / (4 * m) for m in range(2, 6) if m > level) for level in range(5)])
    assert len(counts) == 5
    # Levels of one image share their strength, so counts scatter more than 24,000 free draws would.
    np.testing.assert_allclose(counts / counts.sum(), chances, atol=0.015)
    # Six levels all below 2: by sharing a strength, (1/4)(1 + (2/3)^6 + (2/4)^6 + (2/5)^6); drawn singly 0.641^6 = 0.07.
    together = (1 + (2 / 3) ** 6 + (2 / 4) ** 6 + (2 / 5) ** 6) / 4
    assert (draws.max(axis=1) < 2).mean() == pytest.approx(together, abs=0.02)


def test_both_ends_of_the_strengths_are_drawn():
    levels = [{op.level for op in draw_operations(numpy_generator("end", n), (10, 10))} for n in range(60)]
    assert set.union(*levels) == set(range(10))
    assert {op.level for n in range(20) for op in draw_operations(numpy_generator("end", n), (1, 1))} == {0}


def test_without_strengths_the_draws_are_names_levels_and_signs_in_this_order():
    generator = numpy_generator("order")
    names, levels, signs = generator.integers(13, size=6), generator.integers(10, size=6), generator.integers(2, size=6)
    drawn = draw_operations(numpy_generator("order"))
    assert [op.name for op in drawn] == [OPERATION_NAMES[name] for name in names]
    assert [op.level for op in drawn] == levels.tolist()
    assert [op.sign for op in drawn] == (2 * signs - 1).tolist()


@pytest.mark.parametrize("strengths", [(0, 5), (3, 2), (2, 11)])
def test_refuses_strengths_that_do_not_exist(strengths):
    with pytest.raises(ValueError, match=r"strengths must be the least and the greatest, from 1 to 10, got"):
        draw_operations(numpy_generator("wrong"), strengths)
