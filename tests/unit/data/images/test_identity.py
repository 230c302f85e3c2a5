"""What an image is known by is frozen: if one of these digests changes, every budget would begin anew."""

import io

import numpy as np
import pytest
from PIL import Image

from grandrounds.data.images.files.encoded import ArrayRow, EncodedFile
from grandrounds.data.images.files.identity import image_identity

RGB = np.arange(24, dtype=np.uint8).reshape(2, 4, 3) * 10
DEEP = np.arange(8, dtype=np.uint16).reshape(2, 4) * 500


def saved(image, kind="PNG", **options):
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return EncodedFile(stream.getvalue(), "a.png")


def of_pixels(image):
    return {digest for digest in image_identity(image) if digest.startswith("pixels")}


def alpha(pixels):
    return np.dstack([pixels, np.full(pixels.shape[:2], 255, np.uint8)])


def turned(pixels):
    exif = Image.Exif()
    exif[0x0112] = 3
    return saved(Image.fromarray(pixels[::-1, ::-1].copy()), exif=exif)


@pytest.mark.parametrize(
    ("digest", "pixels", "images"),
    [
        (
            "1d597e6946461ba7d09b53a2ac887ee4",
            RGB,
            [
                saved(Image.fromarray(RGB)),
                saved(Image.fromarray(RGB), compress_level=0),
                saved(Image.fromarray(RGB), "TIFF"),
                saved(Image.fromarray(RGB), "BMP"),
                saved(Image.fromarray(alpha(RGB))),
                saved(Image.fromarray(RGB).quantize(8, dither=0)),
                turned(RGB),
            ],
        ),
        (
            "68a6297a3f164901a4b0d909eaa98f8e",
            RGB[..., 0],
            [
                saved(Image.fromarray(RGB[..., 0])),
                saved(Image.fromarray(np.repeat(RGB[..., :1], 3, axis=2))),
                ArrayRow(RGB[..., 0].astype(np.uint16), "0"),
            ],
        ),
        (
            "f9009074ac0707ac9c1ba2b530054772",
            DEEP,
            [saved(Image.fromarray(DEEP)), saved(Image.fromarray(DEEP), "TIFF")],
        ),
    ],
    ids=["colours", "grey", "16 bits"],
)
def test_files_of_the_same_pixels_are_one_image(digest, pixels, images):
    same = [ArrayRow(pixels, "0"), *images]
    assert [of_pixels(image) for image in same] == [{f"pixels-1:{digest}"}] * len(same)


def test_bytes_are_an_identity_of_their_own_and_flat_or_damaged_images_have_no_other():
    whole = saved(Image.fromarray(RGB))
    assert {digest.partition(":")[0] for digest in image_identity(whole)} == {"bytes", "pixels-1"}
    for other in (saved(Image.new("RGB", (4, 2))), EncodedFile(whole.data[:40], "a.png")):
        assert [digest.partition(":")[0] for digest in image_identity(other)] == ["bytes"]
    assert image_identity(ArrayRow(np.zeros((4, 2), np.uint8), "0")) == set()
