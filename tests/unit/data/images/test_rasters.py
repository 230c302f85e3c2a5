"""Files that Pillow opens come out upright, with their depth, sign and polarity; expected values are by hand."""

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import EpsImagePlugin, Image, PngImagePlugin
from PIL.TiffImagePlugin import ImageFileDirectory_v2

from grandrounds.data.images.decoding import decode_picture
from grandrounds.data.images.files.identity import stored_pixels
from grandrounds.data.images.files.picture import count_rules
from grandrounds.data.images.mammogram import read_mammogram
from grandrounds.errors import DataError

ORIENTED = {
    1: ["123", "456"], 2: ["321", "654"], 3: ["654", "321"], 4: ["456", "123"],
    5: ["14", "25", "36"], 6: ["41", "52", "63"], 7: ["63", "52", "41"], 8: ["36", "25", "14"],
}  # fmt: skip
"""How the stored rows 123 and 456 are to be shown (EXIF 2.3, tag Orientation)."""
CELL = 16
FORMATS = {
    "png": {"format": "PNG"}, "webp": {"format": "WEBP", "lossless": True}, "jpeg": {"format": "JPEG", "quality": 100},
    "mpo": {"format": "MPO", "save_all": True, "append_images": [Image.new("RGB", (8, 8))], "quality": 100},
    "avif": {"format": "AVIF", "quality": 100},
    "tiff": {"format": "TIFF"}, "tiff lzw": {"format": "TIFF", "compression": "tiff_lzw"},
}  # fmt: skip
RAMP = [0, 64 * 16, 128 * 16, 4095]


def cells(rows):
    levels = np.array([[int(digit) * 40 for digit in row] for row in rows], np.uint8)
    return np.kron(levels, np.ones((CELL, CELL), np.uint8))


def saved(picture, **options):
    stream = io.BytesIO()
    picture.save(stream, **options)
    return stream.getvalue()


def decoded(data, name="a.x", bits=0):
    return np.array(decode_picture(data, name, bits).image)


def deep(values, **options):
    return saved(Image.fromarray(np.array([values], np.uint16)), **{"format": "PNG", **options})


def tiff(values, dtype, **tags):
    """A TIFF file of one row, by hand: Pillow writes neither signs nor polarities."""
    pixels = np.array([values], dtype)
    depth, kind = 8 * pixels.itemsize, {"u": 1, "i": 2, "f": 3}[pixels.dtype.kind]
    entries = {256: len(values), 257: 1, 258: depth, 259: 1, 262: 1, 277: 1, 278: 1, 279: pixels.nbytes, 339: kind}
    entries |= {int(tag[1:]): value for tag, value in tags.items()}
    start = 8 + 2 + 12 * (len(entries) + 1) + 4
    entries[273] = start
    body = struct.pack("<H", len(entries))
    for tag, value in sorted(entries.items()):
        body += (
            struct.pack("<HHI", tag, 11, 1) + struct.pack("<f", value)
            if isinstance(value, float)
            else struct.pack("<HHIi", tag, 4 if value >= 0 else 9, 1, value)
        )
    return b"II*\0" + struct.pack("<I", 8) + body + struct.pack("<I", 0) + pixels.tobytes()


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("orientation", ORIENTED)
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_the_exif_orientation_is_applied_once(kind, orientation, mode):
    exif = Image.Exif()
    exif[0x0112] = orientation
    picture = decode_picture(
        saved(Image.fromarray(cells(["123", "456"])).convert(mode), exif=exif, **FORMATS[kind]), "a"
    )
    shown = np.array(picture.image.convert("L")).astype(int)
    expected = cells(ORIENTED[orientation])
    assert shown.shape == expected.shape
    assert np.abs(shown - expected).max() <= (0 if kind in ("png", "webp", "tiff", "tiff lzw") else 6)
    assert ("orientation" in picture.rules) == (orientation != 1)


def test_orientation_of_cmyk_palette_and_deep_files_is_applied():
    exif = Image.Exif()
    exif[0x0112] = 6
    ink = Image.fromarray(cells(["123", "456"])).convert("RGB").convert("CMYK")
    shown = decoded(saved(ink, format="JPEG", exif=exif, quality=100))
    assert np.abs(shown.astype(int) - cells(ORIENTED[6])[..., None]).max() <= 6
    indexed = Image.fromarray(cells(["123", "456"])).convert("RGB").quantize(8)
    np.testing.assert_array_equal(decoded(saved(indexed, format="PNG", exif=exif))[..., 1], cells(ORIENTED[6]))
    wide = Image.fromarray(cells(["123", "456"]).astype(np.uint16) * 257)
    for options in ({"format": "PNG"}, {"format": "TIFF"}):
        data = saved(wide, exif=exif, **options)
        np.testing.assert_array_equal(decoded(data), cells(ORIENTED[6]))
        np.testing.assert_array_equal(read_mammogram(data, "a")[0], cells(ORIENTED[6]) * 257.0)


@pytest.mark.parametrize("value", [0, 9, 77])
def test_an_orientation_that_means_nothing_changes_nothing(value):
    exif = Image.Exif()
    exif[0x0112] = value
    data = saved(Image.fromarray(cells(["123", "456"])), format="PNG", exif=exif)
    np.testing.assert_array_equal(decoded(data), cells(ORIENTED[1]))


def png_chunk(kind, content):
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


@pytest.mark.parametrize(
    ("bits", "row", "expected"),
    [(1, b"\x50", [0, 255, 0, 255]), (2, b"\x1b", [0, 85, 170, 255]), (4, b"\x01\x2f", [0, 17, 34, 255])],
)
def test_png_of_few_bits_uses_the_whole_range(bits, row, expected):
    header = png_chunk(b"IHDR", struct.pack(">IIBBBBB", 4, 1, bits, 0, 0, 0, 0))
    pixels = png_chunk(b"IDAT", zlib.compress(b"\0" + row))
    data = b"\x89PNG\r\n\x1a\n" + header + pixels + png_chunk(b"IEND", b"")
    np.testing.assert_array_equal(decoded(data)[0], expected)


def test_significant_bits_of_a_png_are_its_depth_unless_its_values_are_scaled():
    info = PngImagePlugin.PngInfo()
    info.add(b"sBIT", bytes([12]))
    np.testing.assert_array_equal(decoded(deep(RAMP, pnginfo=info))[0], [0, 64, 128, 255])
    scaled = [value << 4 | value >> 8 for value in RAMP]
    np.testing.assert_array_equal(decoded(deep(scaled, pnginfo=info))[0], [0, 64, 128, 255])
    dark = [value << 4 for value in (0, 16, 160)]
    np.testing.assert_array_equal(decoded(deep(dark, pnginfo=info))[0], [0, 1, 10])


@pytest.mark.parametrize(("bits", "highest"), [(10, 1023), (12, 4095), (14, 16383), (16, 65535)])
def test_stated_bits_are_the_depth_of_grey_files(bits, highest):
    values = [0, highest // 3, highest]
    for kind in ("PNG", "TIFF"):
        picture = decode_picture(deep(values, format=kind), "a", bits)
        np.testing.assert_array_equal(np.array(picture.image)[0], [0, 85, 255])
        assert picture.rules == ("depth",)


def test_values_above_the_stated_bits_are_refused_and_eight_bits_are_left_alone():
    with pytest.raises(
        DataError, match=r"a\.png has values from 0 to 4096, outside 0 to 4095; .*bits.*grandrounds\.json"
    ):
        decoded(deep([0, 4096]), "a.png", 12)
    np.testing.assert_array_equal(
        decoded(saved(Image.fromarray(np.array([[7, 200]], np.uint8)), format="PNG"), "a", 12), [[7, 200]]
    )
    colour = saved(Image.new("RGB", (2, 2)), format="PNG")
    assert decoded(colour, "a", 12).shape == (2, 2, 3)


@pytest.mark.parametrize("highest", [3, 255, 1023, 4095, 65535])
def test_the_maximum_of_a_pgm_file_is_its_scale(highest):
    values = [0, highest // 3, highest]
    word = ">u2" if highest > 255 else "u1"
    binary = b"P5\n# made by hand\n3 1\n%d\n" % highest + np.array(values, word).tobytes()
    plain = b"P2\n3 1\n%d\n%d %d %d\n" % (highest, *values)
    np.testing.assert_array_equal([decoded(binary)[0], decoded(plain)[0]], [[0, 85, 255]] * 2)


def test_stated_bits_count_in_a_pgm_file_that_says_nothing():
    data = b"P5\n2 1\n65535\n" + np.array([0, 4095], ">u2").tobytes()
    np.testing.assert_array_equal(decoded(data, bits=12), [[0, 255]])


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (tiff([0, 128 * 257, 65535], "<u2"), [0, 128, 255]),
        (tiff([0, 128 * 257, 65535], "<u2", t262=0), [255, 127, 0]),
        (tiff([0, 100, 255], "u1", t262=0), [255, 155, 0]),
        (tiff([-128, 0, 127], "i1"), [0, 128, 255]),
        (tiff([-32768, 0, 32767], "<i2"), [0, 128, 255]),
        (tiff([-1000, 0, 1000], "<i2", t340=-1000, t341=1000), [0, 128, 255]),
        (tiff([0, 1000, 2000], "<u4", t340=0, t341=2000), [0, 128, 255]),
        (tiff([-1000, 0, 1000], "<i4", t340=-1000, t341=1000), [0, 128, 255]),
        (tiff([0.0, 0.2, 1.0], "<f4"), [0, 51, 255]),
        (tiff([0.0, 0.2, 1.0], "<f4", t262=0), [255, 204, 0]),
        (tiff([-1024.0, 0.0, 3071.0], "<f4", t340=-1024.0, t341=3071.0), [0, 64, 255]),
        (tiff([0, 2048, 4095], "<u2", t341=4095, t340=0), [0, 128, 255]),
    ],
)
def test_depth_sign_range_and_polarity_of_tiff_are_followed(data, expected):
    np.testing.assert_array_equal(decoded(data)[0], expected)


@pytest.mark.parametrize("scale", [1, 257])
def test_a_colour_map_of_a_tiff_may_hold_eight_bits_in_words(scale):
    indexed = Image.fromarray(np.array([[0, 1, 2]], np.uint8), "P")
    indexed.putpalette([255, 0, 0, 10, 20, 30, 0, 0, 255])
    table = [0] * 768
    for entry, colour in enumerate([(255, 0, 0), (10, 20, 30), (0, 0, 255)]):
        for part in range(3):
            table[256 * part + entry] = colour[part] * scale
    tags = ImageFileDirectory_v2()
    tags[320] = tuple(table)
    data = saved(indexed, format="TIFF", tiffinfo=tags)
    picture = decode_picture(data, "a.tif")
    assert np.array(picture.image).tolist() == [[[255, 0, 0], [10, 20, 30], [0, 0, 255]]]
    assert picture.rules == ("palette",)


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ([0, 4095], "<u4"),
        ([0, 0], "<u4"),
        ([0, 2**32 - 1], "<u4"),
        ([-1000, 3000], "<i4"),
        ([-100_000, 0], "<i4"),
        ([0, 65536], "<i4"),
    ],
)
def test_a_file_of_32_bits_needs_a_range_whatever_its_pixels_are(values, word):
    """Over the whole range of 32 bits the usual few would be one level."""
    with pytest.raises(DataError, match=r"a\.tif has 32 bits per pixel and no stated range; save it with 8 or 16"):
        decoded(tiff(values, word), "a.tif")
    assert decoded(tiff([0, 4095], word), "a.tif", bits=12).tolist() == [[0, 255]]


def test_floats_outside_zero_to_one_need_a_range():
    with pytest.raises(DataError, match=r"a\.tif has floating-point values .*SMinSampleValue"):
        decoded(tiff([-5.0, 9.0], "<f4"), "a.tif")


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "TIFF", "PNG"])
def test_several_frames_are_refused(kind):
    pages = [Image.fromarray(np.full((8, 8, 3), level, np.uint8)) for level in (1, 100, 200)]
    data = saved(pages[0], format=kind, save_all=True, append_images=pages[1:])
    with pytest.raises(DataError, match=r"a\.x has 3 frames, expected one"):
        decoded(data)


def test_smaller_copies_in_a_tiff_are_no_frames():
    pages = [Image.new("L", (8, 8), 9), Image.new("L", (4, 4), 9)]
    smaller = ImageFileDirectory_v2()
    smaller[254] = 1
    pages[1].encoderinfo = {"tiffinfo": smaller}
    data = saved(pages[0], format="TIFF", save_all=True, append_images=pages[1:])
    np.testing.assert_array_equal(decoded(data), np.full((8, 8), 9))


def test_polarity_holds_for_mammograms():
    levels, _ = read_mammogram(tiff([0, 100, 65535], "<u2", t262=0), "a.tif")
    np.testing.assert_array_equal(levels, [[65535, 65435, 0]])


def test_rules_are_counted_by_image():
    turned = decode_picture(saved(Image.new("L", (2, 2)), format="PNG"), "a").rules
    assert count_rules([turned, ("depth",), ("depth", "polarity")]) == {"depth": 2, "polarity": 1}


@pytest.mark.parametrize("read", [decode_picture, stored_pixels, read_mammogram], ids=lambda read: read.__name__)
def test_a_document_is_refused_before_its_program_runs(read, monkeypatch):
    monkeypatch.setattr(EpsImagePlugin.EpsImageFile, "load", lambda *_: pytest.fail("Ghostscript would run"))
    data = saved(Image.new("RGB", (8, 8)), format="EPS")
    with pytest.raises(DataError, match=r"a\.png is a document \(EPS\).* to PNG"):
        read(data, "a.png")
