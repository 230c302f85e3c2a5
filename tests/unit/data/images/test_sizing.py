"""The named preprocessings of the problem: each is what it says, and no cache or site mixes them."""

import io
from typing import get_args

import numpy as np
import pytest
from PIL import Image

from grandrounds.data.images.decoding import decode_picture
from grandrounds.data.images.sizing import SIZINGS
from grandrounds.protocol.problem import Preprocessing, Problem


def photo(height=600, width=800):
    generator = np.random.default_rng(0)
    small = Image.fromarray(generator.integers(0, 256, (6, 8, 3), dtype=np.uint8))
    return small.resize((width, height), Image.Resampling.BICUBIC)


def jpeg(picture, **options):
    stream = io.BytesIO()
    picture.save(stream, "JPEG", quality=90, **options)
    return stream.getvalue()


def square(data, name, size=32, channels=3):
    sizing = SIZINGS[name]
    return sizing.square(decode_picture(data, "a.jpg", draft=sizing.draft(size)).image, size, channels)


def test_the_problem_names_those_that_there_are():
    assert get_args(Preprocessing) == tuple(SIZINGS)
    assert Problem("skin", ("a", "b")).preprocessing == "exact"


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("mode", ["L", "RGB"])
def test_exact_is_pillows_resizing_of_the_whole_image(mode, channels):
    data = jpeg(photo().convert(mode))
    plain = Image.open(io.BytesIO(data)).convert("L" if channels == 1 else "RGB")
    expected = np.array(plain.resize((32, 32), Image.Resampling.BILINEAR)).reshape(32, 32, channels)
    np.testing.assert_array_equal(square(data, "exact", channels=channels), expected)


def test_a_draft_differs_by_few_levels_and_says_the_original_size():
    exif = Image.Exif()
    exif[0x0112] = 6
    data = jpeg(photo(), exif=exif)
    picture = decode_picture(data, "a.jpg", draft=96)
    assert picture.image.size == (150, 200)
    assert (picture.shape, picture.rules) == ((800, 600, 3), ("orientation",))
    difference = np.abs(square(data, "draft").astype(int) - square(data, "exact"))
    assert 0 < difference.mean() < 0.5
    assert difference.max() <= 4


def test_proportion_keeps_the_aspect_in_the_middle_of_black():
    wide = Image.new("L", (80, 40), 200)
    found = SIZINGS["proportion"].square(wide, 8, 1)[..., 0]
    np.testing.assert_array_equal(found, [[0] * 8] * 2 + [[200] * 8] * 4 + [[0] * 8] * 2)
    np.testing.assert_array_equal(
        SIZINGS["proportion"].square(wide.transpose(Image.Transpose.ROTATE_90), 8, 1)[..., 0], found.T
    )
    assert SIZINGS["proportion"].square(Image.new("RGB", (500, 1)), 8, 3).shape == (8, 8, 3)
