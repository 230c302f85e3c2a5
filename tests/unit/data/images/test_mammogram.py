"""Mammograms are read with all their bits; the breast is found on digital images and on films and oriented."""

import io
import zipfile
from collections import Counter

import numpy as np
import pytest
import torch
from PIL import Image

from grandrounds.data.images.mammogram import (
    bounding_box,
    breast_mask,
    chest_wall_on_right,
    fit_square,
    mammogram_square,
    otsu_threshold,
    read_mammogram,
    to_bytes,
    to_chest_wall_left,
    without_background,
)
from grandrounds.data.manifest import read_table
from grandrounds.errors import DataError
from grandrounds.models.intensities import standardise


def half_disc(height=256, width=192, radius=90, on_right=False):
    """Where a breast would be: half a disc at one side."""
    rows, columns = np.mgrid[:height, :width]
    disc = (rows - height / 2) ** 2 + columns**2 <= radius**2
    return disc[:, ::-1] if on_right else disc


def overlap(found, expected):
    return (found & expected).sum() / (found | expected).sum()


def digital(disc, generator, label=True):
    image = np.where(disc, generator.uniform(200, 3000, disc.shape), 0.0).astype(np.float32)
    if label:
        image[10:40, -40:-10] = 4095
    return image


def film(disc, generator):
    """A film on a scanner's black: base, noise, a label, and black on both sides."""
    image = 12 + generator.normal(0, 2, disc.shape) + np.where(disc, generator.uniform(60, 180, disc.shape), 0)
    image[10:40, -40:-10] = 250
    padded = np.pad(image.clip(1, 255), ((0, 0), (30, 30)))
    return padded.astype(np.float32)


@pytest.mark.parametrize("on_right", [False, True])
def test_digital_breast_is_found_without_the_label(on_right):
    disc = half_disc(on_right=on_right)
    image = digital(disc, np.random.default_rng(0), label=False)
    image[10:40, 80:110] = 4095  # far from the breast on either side
    found = breast_mask(image)
    assert overlap(found, disc) > 0.95
    assert not found[10:40, 80:110].any()
    assert chest_wall_on_right(found[bounding_box(found)]) is on_right


def test_dark_fat_of_a_digital_image_is_breast():
    # Under Otsu's threshold the rim at a twentieth of the glands' level would be background.
    disc, core = half_disc(radius=100), half_disc(radius=50)
    image = np.where(core, 4000, np.where(disc, 200, 0)).astype(np.float32)
    assert overlap(breast_mask(image), disc) > 0.95


def test_film_is_separated_from_the_breast_and_from_padding():
    disc = half_disc()
    found = breast_mask(film(disc, np.random.default_rng(0)))
    assert overlap(found, np.pad(disc, ((0, 0), (30, 30)))) > 0.95


def test_bright_film_is_separated_from_the_breast_although_padding_is_darker():
    # Half the scan is padding: a threshold over all pixels would divide padding from film.
    disc = half_disc(radius=60)
    image = np.where(disc, 120, 50) + np.random.default_rng(0).normal(0, 2, disc.shape)
    padded = np.pad(image, ((0, 0), (96, 96))).astype(np.float32)
    assert overlap(breast_mask(padded), np.pad(disc, ((0, 0), (96, 96)))) > 0.9


def test_a_label_that_a_thin_line_joins_to_the_breast_is_cut_off():
    disc = half_disc()
    image = disc.astype(np.float32)
    image[20:45, 120:170] = 1
    image[30:60, 140:143] = 1
    image[59:61, 40:143] = 1
    found = breast_mask(image)
    assert not found[20:45, 120:170].any()
    assert overlap(found, disc) > 0.9


def test_large_images_are_searched_at_low_resolution_and_cover_the_breast():
    disc = half_disc(1100, 900, 400)
    found = breast_mask(digital(disc, np.random.default_rng(0)))
    assert found.shape == disc.shape
    assert found[disc].mean() > 0.999
    assert overlap(found, disc) > 0.95


def test_holes_are_filled():
    image = half_disc().astype(np.float32)
    image[118:138, 20:40] = 0
    assert breast_mask(image)[128, 30]


@pytest.mark.parametrize("value", [0.0, 7.0])
def test_nothing_is_found_where_there_is_one_level(value):
    assert not breast_mask(np.full((32, 32), value, np.float32)).any()


def test_a_speck_is_no_breast():
    image = np.zeros((200, 200), np.float32)
    image[100:110, 100:110] = 1
    assert not breast_mask(image).any()


def test_otsu_divides_two_heaps_between_them():
    generator = np.random.default_rng(0)
    values = np.concatenate([generator.normal(10, 1, 500), generator.normal(30, 1, 100)])
    assert 13 < otsu_threshold(values) < 27
    # By hand: of 0, 0, 1, 9 the cut after 1 has variance 3*1*(9 - 1/3)^2, the cut after 0 has 2*2*5^2.
    assert 1 < otsu_threshold(np.array([0.0, 0.0, 1.0, 9.0])) < 9


def test_an_empty_mask_has_no_box():
    with pytest.raises(ValueError, match="the mask is empty"):
        bounding_box(np.zeros((3, 3), np.bool_))


@pytest.mark.realdata
def test_the_side_of_nearly_all_films_of_mini_mias_follows_from_the_shape(realdata):
    # Every fourth film, with one of the pair that fills the picture and has no side.
    rows = [row for _, row in read_table(realdata / "mias" / "mini_mias_manifest.csv", ("image", "side"))][2::4]
    right = Counter()
    with zipfile.ZipFile(realdata / "mias" / "mini_mias_512.zip") as archive:
        for row in rows:
            levels = np.asarray(Image.open(io.BytesIO(archive.read(row["image"]))).convert("L"), np.float32)
            mask = breast_mask(levels)
            right[chest_wall_on_right(mask[bounding_box(mask)]) is (row["side"] == "right")] += 1
    assert right == {True: 79, False: 1}


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


def test_laterality_decides_only_where_the_shape_does_not():
    levels, even = np.float32([[1, 2]]), np.ones((1, 2), np.bool_)
    assert to_chest_wall_left(levels, even, "R")[0].tolist() == [[2, 1]]
    assert to_chest_wall_left(levels, even, "L")[0].tolist() == [[1, 2]]
    assert to_chest_wall_left(levels, even)[0].tolist() == [[1, 2]]
    pointed = np.array([[True, True], [True, False]])
    wall_left = np.float32([[1, 2], [3, 4]])
    assert to_chest_wall_left(wall_left, pointed, "R")[0].tolist() == wall_left.tolist()


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


def test_refuses_a_size_below_one():
    with pytest.raises(ValueError, match="size must be at least 1, got 0"):
        fit_square(np.ones((2, 2), np.float32), 0)
