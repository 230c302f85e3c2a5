"""Colours are those of sRGB and what is transparent lies on one ground; other images stay as they are."""

import io
import struct

import numpy as np
import pytest
from PIL import Image, ImageCms

from grandrounds.data.images.decoding import decode_picture
from tests.unit.data.images.test_dicom import dicom

NOISE = np.random.default_rng(0).integers(0, 256, (12, 10, 3), np.uint8)
SRGB = ImageCms.createProfile("sRGB")
PLAIN = ImageCms.ImageCmsProfile(SRGB).tobytes()


def swapped():
    """A profile whose red is blue."""
    count = struct.unpack(">I", PLAIN[128:132])[0]
    places = {PLAIN[132 + 12 * entry : 136 + 12 * entry]: 132 + 12 * entry for entry in range(count)}
    wide, red, blue = bytearray(PLAIN), places[b"rXYZ"], places[b"bXYZ"]
    wide[red + 4 : red + 12], wide[blue + 4 : blue + 12] = PLAIN[blue + 4 : blue + 12], PLAIN[red + 4 : red + 12]
    return bytes(wide)


def saved(image, form, **options):
    stream = io.BytesIO()
    image.save(stream, form, **options)
    return stream.getvalue()


def decoded(data):
    picture = decode_picture(data, "image")
    return np.asarray(picture.image), picture.rules


@pytest.mark.parametrize(
    ("form", "mode", "options"),
    [
        ("PNG", "RGB", {}),
        ("TIFF", "RGB", {}),
        ("WEBP", "RGB", {"lossless": True}),
        ("JPEG", "RGB", {"quality": 100, "subsampling": 0}),
        ("PNG", "P", {}),
        ("PNG", "RGBA", {}),
    ],
)
def test_colours_are_those_that_a_profile_means(form, mode, options):
    image = Image.fromarray(NOISE).convert(mode)
    stored, rules = decoded(saved(image, form, **options))
    shown, with_profile = decoded(saved(image, form, icc_profile=swapped(), **options))
    assert np.abs(shown.astype(int) - stored[..., ::-1]).max() <= 3
    assert (set(with_profile) - set(rules)) == {"profile"}


@pytest.mark.parametrize("profile", [PLAIN, PLAIN[:100], b"damaged", b""], ids=["sRGB", "cut", "damaged", "empty"])
@pytest.mark.parametrize("mode", ["RGB", "L", "P"])
def test_a_profile_of_srgb_or_a_damaged_one_changes_no_pixel(profile, mode):
    image = Image.fromarray(NOISE).convert(mode)
    shown, rules = decoded(saved(image, "PNG", icc_profile=profile))
    stored, _ = decoded(saved(image, "PNG"))
    np.testing.assert_array_equal(shown, stored)
    assert "profile" not in rules


def test_a_profile_of_inks_is_used_and_grey_stays_grey():
    assert decoded(saved(Image.fromarray(NOISE).convert("CMYK"), "TIFF"))[0].shape == (12, 10, 3)
    assert decoded(saved(Image.fromarray(NOISE).convert("L"), "PNG", icc_profile=swapped()))[0].shape == (12, 10)


def test_dicom_files_have_their_profile_too():
    stored, _ = decoded(dicom(NOISE, "RGB", bits=8))
    shown, rules = decoded(dicom(NOISE, "RGB", bits=8, ICCProfile=swapped()))
    assert np.abs(shown.astype(int) - stored[..., ::-1]).max() <= 3
    assert rules == ("profile",)


@pytest.mark.parametrize("form", ["PNG", "TIFF", "WEBP"])
@pytest.mark.parametrize("alpha", [0, 128, 255])
def test_what_is_transparent_lies_on_black(form, alpha):
    options = {"lossless": True, "exact": True} if form == "WEBP" else {}
    hidden = NOISE.copy()
    hidden[:4] = 240
    pictures = []
    for colours in (NOISE, hidden):
        whole = np.dstack([colours, np.full(NOISE.shape[:2], 255, np.uint8)])
        whole[:4, :, 3] = alpha
        pictures.append(decoded(saved(Image.fromarray(whole), form, **options)))
    (first, rules), (second, _) = pictures
    np.testing.assert_array_equal(first[4:], NOISE[4:])
    assert ("ground" in rules) == (alpha < 255)
    assert (first[:4] == second[:4]).all() == (alpha == 0)
    assert np.abs(first[:4] - NOISE[:4] * (alpha / 255)).max() <= 1


@pytest.mark.parametrize("mode", ["L", "RGB"])
def test_a_colour_that_a_png_calls_transparent_is_black(mode):
    pixels = np.full((4, 4), 90, np.uint8)
    pixels[0] = 200
    image = Image.fromarray(pixels).convert(mode)
    shown, rules = decoded(saved(image, "PNG", transparency=200 if mode == "L" else (200, 200, 200)))
    assert (shown[0].max(), shown[1:].min(), rules) == (0, 90, ("ground",))
    assert shown.ndim == (2 if mode == "L" else 3)
