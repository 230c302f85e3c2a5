"""Mammograms are read with all their bits; the breast is oriented, cropped and scaled."""

import io

import numpy as np
import pytest
import torch
from PIL import Image

from grandrounds.data.images.mammogram import (
    fit_square,
    mammogram_square,
    read_mammogram,
    to_bytes,
    to_chest_wall_left,
    without_background,
)
from grandrounds.errors import DataError
from grandrounds.models.intensities import standardise

STORED = np.array([[0, 1000], [2000, 4095]])


def encoded(array, kind):
    stream = io.BytesIO()
    Image.fromarray(array).save(stream, kind)
    return stream.getvalue()


def test_dicom_keeps_twelve_bits_and_the_side(mammogram):
    levels, side = read_mammogram(mammogram(STORED, ImageLaterality="R"), "a.dcm")
    np.testing.assert_allclose(levels, STORED / 4095, atol=1e-6)
    assert side == "R"


def test_monochrome1_is_inverted(mammogram):
    levels, side = read_mammogram(mammogram(STORED, PhotometricInterpretation="MONOCHROME1"), "a.dcm")
    np.testing.assert_allclose(levels, 1 - STORED / 4095, atol=1e-6)
    assert side == ""


def test_the_files_window_counts_and_clips(mammogram):
    content = mammogram(STORED, WindowCenter="1500", WindowWidth="1001", Laterality="L")
    levels, side = read_mammogram(content, "a.dcm")
    # LINEAR: (x - 1499.5) / 1000 + 0.5
    np.testing.assert_allclose(levels, [[0, 0.0005], [1, 1]], atol=1e-6)
    assert side == "L"


def test_the_brightest_pixels_are_not_cut_off(mammogram):
    stored = np.zeros((100, 100), np.int64)
    stored[50:, :] = 1000
    stored[0, 0] = 4000  # one of ten thousand: below the percentile that counts for other images
    levels, _ = read_mammogram(mammogram(stored), "a.dcm")
    assert levels[0, 0] == 1
    assert levels[99, 0] == pytest.approx(0.25)


def test_other_sides_are_unknown(mammogram):
    assert read_mammogram(mammogram(STORED, ImageLaterality="B"), "a.dcm")[1] == ""


@pytest.mark.parametrize("kind", ["PNG", "PPM", "TIFF"])
def test_sixteen_bit_pictures_keep_their_bits(kind):
    array = np.array([[0, 257], [30000, 65535]], np.uint16)
    levels, side = read_mammogram(encoded(array, kind), "a")
    assert levels.tolist() == array.tolist()
    assert side == ""


def test_eight_bit_images_are_read_unchanged():
    array = np.array([[0, 7], [128, 255]], np.uint8)
    assert read_mammogram(encoded(array, "PPM"), "mdb001.pgm")[0].tolist() == array.tolist()


def test_colours_become_luma():
    red = np.zeros((1, 1, 3), np.uint8)
    red[..., 0] = 255
    assert read_mammogram(encoded(red, "PNG"), "a.png")[0].tolist() == [[76]]


def test_refuses_what_is_no_image_and_colour_dicom(ct_slice):
    with pytest.raises(DataError, match=r"a\.png is not an image"):
        read_mammogram(b"nothing", "a.png")
    with pytest.raises(DataError, match=r"a\.dcm is not a DICOM file"):
        read_mammogram(b"nothing", "a.dcm")
    whole = encoded(np.random.default_rng(0).integers(0, 255, (50, 50), np.uint8), "PNG")
    with pytest.raises(DataError, match=r"a\.png cannot be decoded"):
        read_mammogram(whole[:200], "a.png")
    coloured = ct_slice(
        np.zeros((2, 6)), SamplesPerPixel=3, PhotometricInterpretation="RGB", PlanarConfiguration=0, Columns=2
    )
    with pytest.raises(DataError, match=r"a\.dcm is a colour image"):
        read_mammogram(coloured, "a.dcm")


def test_left_and_right_breast_look_the_same(breast):
    image = breast(300, 220)
    left, right = (mammogram_square(view, 64, "a") for view in (image, image[:, ::-1]))
    np.testing.assert_array_equal(left, right)
    assert left[:, :16].sum() > left[:, -16:].sum()


def test_label_and_border_are_gone_and_the_breast_fills_the_height(breast):
    image = np.pad(breast(300, 220), ((80, 40), (0, 100)))
    marked = image.copy()
    marked[5:30, -30:-5] = image.max() * 2
    square = mammogram_square(marked, 64, "a")
    np.testing.assert_array_equal(square, mammogram_square(image, 64, "a"))
    assert (square > 0).any(axis=1).all()
    assert square.max() == 255


def test_any_unit_and_offset_give_the_same_square(breast):
    image = breast(300, 220)
    np.testing.assert_array_equal(
        mammogram_square(image * 0.01 - 50, 64, "a"), mammogram_square(image * 4 + 100, 64, "a")
    )


def test_wide_breasts_are_fitted_by_their_width():
    square = fit_square(np.ones((10, 40), np.float32), 20)
    np.testing.assert_array_equal(square.any(axis=1), [True] * 5 + [False] * 15)
    assert square[:5].min() == 1


def test_aspect_is_kept_and_padding_is_on_the_right():
    square = fit_square(np.ones((40, 10), np.float32), 20)
    np.testing.assert_array_equal(square.any(axis=0), [True] * 5 + [False] * 15)


def test_resizing_averages_and_does_not_skip():
    # Of columns that alternate between 0 and 1 nearest or unfiltered bilinear sampling would make 0, 1 or stripes.
    stripes = np.tile(np.float32([0, 1]), (64, 32))
    assert fit_square(stripes, 8)[:, 1:-1] == pytest.approx(0.5, abs=0.05)


def test_a_known_laterality_decides_unless_the_shape_is_clear():
    levels, even = np.float32([[1, 2]]), np.ones((1, 2), np.bool_)
    assert to_chest_wall_left(levels, even, "R")[0].tolist() == [[2, 1]]
    assert to_chest_wall_left(levels, even, "L")[0].tolist() == [[1, 2]]
    assert to_chest_wall_left(levels, even)[0].tolist() == [[1, 2]]
    pointed = np.array([[True, True], [True, False]])
    wall_left = np.float32([[1, 2], [3, 4]])
    assert to_chest_wall_left(wall_left, pointed, "R")[0].tolist() == wall_left.tolist()
    # 11 against 10 pixels: a breast that fills the film.
    full = np.ones((11, 2), np.bool_)
    full[0, 1] = False
    numbered = np.arange(22, dtype=np.float32).reshape(11, 2)
    assert to_chest_wall_left(numbered, full, "R")[0].tolist() == numbered[:, ::-1].tolist()
    assert to_chest_wall_left(numbered, full, "L")[0].tolist() == numbered.tolist()
    assert to_chest_wall_left(numbered, full)[0].tolist() == numbered.tolist()


def test_the_films_of_mini_mias_tell_their_side_by_their_number():
    picture = encoded(np.zeros((2, 2), np.uint8), "PNG")
    sides = [read_mammogram(picture, name)[1] for name in ("mdb151.png", "a/mdb152.pgm", "mdb1510.png", "scan.png")]
    assert sides == ["R", "L", "", ""]


def test_background_is_black_even_where_it_is_brighter_than_tissue():
    levels = np.float32([[0, 5, 9]])
    mask = np.array([[True, True, False]])
    assert without_background(levels, mask).tolist() == [[0, 1, 0]]
    assert without_background(np.float32([[3, 3]]), np.array([[True, True]])).tolist() == [[0, 0]]


def test_eight_bits_cost_less_than_half_of_the_networks_own_input_noise(breast):
    # 12-bit levels; the network adds noise of 0.01 to the standardised image. An error of half a level at most is
    # uniform: its root mean square is 1 / (255 sqrt(12)) of the range, over the standard deviation.
    levels = fit_square(without_background(breast(900, 600), breast(900, 600) > 0), 256)
    exact, stored = (
        standardise(torch.from_numpy(array.astype(np.float32))[None, None])
        for array in (levels, to_bytes(levels) * levels.max() / 255)
    )
    inside = torch.from_numpy(levels > 0)
    error = (stored - exact)[0, 0][inside].square().mean().sqrt().item()
    assert error == pytest.approx(1 / (255 * np.sqrt(12)) * levels.max() / levels.std(), rel=0.1)
    assert error < 0.005


@pytest.mark.parametrize("levels", [np.zeros((20, 20), np.float32), np.full((20, 20), 9, np.float32)])
def test_an_image_without_a_breast_is_refused(levels):
    with pytest.raises(DataError, match=r"scan\.png shows no breast"):
        mammogram_square(levels, 8, "scan.png")
