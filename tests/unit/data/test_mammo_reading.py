"""Mammograms are read with all their bits, bright tissue, from DICOM and picture files."""

import io

import numpy as np
import pytest
from PIL import Image

from grandrounds.data.images.mammogram import read_mammogram
from grandrounds.errors import DataError

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


def test_eight_bit_pictures_are_read_as_they_are():
    array = np.array([[0, 7], [128, 255]], np.uint8)
    assert read_mammogram(encoded(array, "PPM"), "mdb001.pgm")[0].tolist() == array.tolist()


def test_colours_become_luma():
    red = np.zeros((1, 1, 3), np.uint8)
    red[..., 0] = 255
    assert read_mammogram(encoded(red, "PNG"), "a.png")[0].tolist() == [[76]]


def test_refuses_what_is_no_image_and_colour_dicom(ct_slice):
    with pytest.raises(DataError, match=r"a\.png is no image"):
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
