"""Readers give the same pixels whatever the images are kept in, and say which image is wrong and why."""

import gzip
import io
import os
import struct
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from grandrounds.data.images import readers
from grandrounds.data.images.decoding import decode_image, to_square
from grandrounds.data.images.readers import NPY_HEADERS, open_archive, open_images
from grandrounds.errors import DataError
from grandrounds.seeding import numpy_generator

GREY = numpy_generator("readers", "grey").integers(0, 256, (6, 9), dtype=np.uint8)
COLOUR = numpy_generator("readers", "colour").integers(0, 256, (6, 9, 3), dtype=np.uint8)


def encoded(pixels, kind="PNG", mode=None, **options):
    stream = io.BytesIO()
    picture = pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)
    (picture.convert(mode) if mode else picture).save(stream, kind, **options)
    return stream.getvalue()


def real_data(*parts):
    root = Path(os.environ.get("GRANDROUNDS_DATA") or Path(__file__).parents[5] / "shared" / "data")
    path = root.joinpath(*parts)
    if not path.exists():
        pytest.skip(f"{path} is not there; set GRANDROUNDS_DATA to the folder of real images")
    return path


@pytest.fixture
def folder(tmp_path):
    root = tmp_path / "images"
    (root / "sub").mkdir(parents=True)
    (root / "grey.png").write_bytes(encoded(GREY))
    (root / "sub" / "colour.TIF").write_bytes(encoded(COLOUR, "TIFF"))
    (root / "notes.txt").write_text("no image")
    (root / ".hidden.png").write_bytes(encoded(GREY))
    return root


def test_a_folder_gives_its_images_by_relative_name(folder):
    with open_images(folder) as reader:
        assert reader.names() == ["grey.png", "sub/colour.TIF"]
        np.testing.assert_array_equal(reader.read("grey.png"), GREY)
        np.testing.assert_array_equal(reader.read("sub/colour.TIF"), COLOUR)


@pytest.mark.parametrize("name", ["../images/grey.png", "/etc/hostname", "sub/../../images/grey.png", ""])
def test_a_name_may_not_leave_the_folder(folder, name):
    with open_images(folder) as reader, pytest.raises(DataError, match="leads out of"):
        reader.read(name)


def test_an_absolute_name_is_refused_even_inside_the_folder(folder):
    with open_images(folder) as reader, pytest.raises(DataError, match="names must be relative paths"):
        reader.read(str(folder / "grey.png"))


def test_a_link_may_not_leave_the_folder(folder, tmp_path):
    (tmp_path / "outside.png").write_bytes(encoded(GREY))
    (folder / "link.png").symlink_to(tmp_path / "outside.png")
    with open_images(folder) as reader, pytest.raises(DataError, match=r"'link\.png' leads out of"):
        reader.read("link.png")


def test_a_missing_image_is_named_with_its_path(folder):
    with open_images(folder) as reader, pytest.raises(DataError, match=r"images/gone\.png: No such file"):
        reader.read("gone.png")


def test_a_folder_fingerprint_follows_its_images_but_neither_its_place_nor_other_files(folder, tmp_path):
    names = ["grey.png", "gone.png"]
    before = open_images(folder).fingerprint(names)
    moved = folder.rename(tmp_path / "elsewhere")
    (moved / "notes.txt").write_text("other text")
    assert open_images(moved).fingerprint(names) == before
    os.utime(moved / "grey.png", (1, 1))
    touched = open_images(moved).fingerprint(names)
    (moved / "gone.png").write_bytes(encoded(COLOUR))
    assert len({before, touched, open_images(moved).fingerprint(names)}) == 3


def test_a_zip_gives_what_was_put_in_without_what_macos_adds(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("b/grey.png", encoded(GREY))
        archive.writestr("a.bmp", encoded(COLOUR, "BMP"))
        archive.writestr("__MACOSX/grey.png", b"resource fork")
        archive.writestr("b/._grey.png", b"resource fork")
    with open_images(tmp_path / "a.zip") as reader:
        assert reader.names() == ["a.bmp", "b/grey.png"]
        np.testing.assert_array_equal(reader.read("b/grey.png"), GREY)
        np.testing.assert_array_equal(reader.read("a.bmp"), COLOUR)
        with pytest.raises(DataError, match=r"a\.zip holds no 'c\.png'"):
            reader.read("c.png")


def test_a_zip_fingerprint_is_that_of_its_content(tmp_path):
    for name, pixels in (("a", GREY), ("b", GREY), ("c", GREY[::-1])):
        with zipfile.ZipFile(tmp_path / f"{name}.zip", "w") as archive:
            archive.writestr("x.bmp", encoded(np.ascontiguousarray(pixels), "BMP"))
    a, b, c = (open_images(tmp_path / f"{name}.zip").fingerprint() for name in "abc")
    assert a == b
    assert a != c


def test_readers_of_one_archive_read_its_names_once(tmp_path, monkeypatch):
    opened, path = [], tmp_path / "a.zip"
    monkeypatch.setattr(readers, "open_archive", lambda root: opened.append(root) or open_archive(root))
    prints = set()
    for content in (b"first", b"second"):
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("x.png", content)
        for _ in range(2):
            with open_images(path) as reader:
                prints.add(reader.fingerprint())
                assert reader.read_bytes("x.png") == content
    assert (len(opened), len(prints)) == (2, 2)
    monkeypatch.setattr(os, "getpid", lambda: -1)  # in a fork
    open_images(path)
    assert len(opened) == 3


def test_a_damaged_member_of_a_zip_is_named(tmp_path):
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.bmp", encoded(GREY, "BMP"))
    raw = bytearray(path.read_bytes())
    raw[100] ^= 0xFF
    path.write_bytes(raw)
    with open_images(path) as reader, pytest.raises(DataError, match=r"x\.bmp in .*a\.zip cannot be read: Bad CRC"):
        reader.read("x.bmp")


def test_an_npz_gives_rows_of_its_image_arrays_only(tmp_path):
    np.savez_compressed(
        tmp_path / "m.npz",
        train_images=np.stack([GREY, GREY + 1]),
        val_images=COLOUR[None],
        deep_images=np.full((1, 2, 2, 1), 514, np.uint16),
        train_labels=np.zeros((2, 1), np.uint8),
    )
    with open_images(tmp_path / "m.npz") as reader:
        assert reader.names() == ["deep_images/0", "train_images/0", "train_images/1", "val_images/0"]
        np.testing.assert_array_equal(reader.read("train_images/1"), GREY + 1)
        np.testing.assert_array_equal(reader.read("val_images/0"), COLOUR)
        np.testing.assert_array_equal(reader.read("deep_images/0"), np.full((2, 2), 2, np.uint8))


def test_the_header_of_an_array_is_parsed_once_and_by_one_thread_at_a_time(tmp_path, monkeypatch):
    """Python 3.11 cannot parse two texts at a time: an image would now and then count as damaged."""
    np.savez(tmp_path / "m.npz", train_images=np.stack([GREY] * 40))
    parsed, read = [], np.lib.format.read_array_header_1_0

    def parse(stream):
        assert NPY_HEADERS.locked()
        parsed.append(stream)
        return read(stream)

    monkeypatch.setattr(np.lib.format, "read_array_header_1_0", parse)
    with open_images(tmp_path / "m.npz") as reader, ThreadPoolExecutor(8) as pool:
        rows = list(pool.map(lambda number: reader.encoded(f"train_images/{number}"), range(40)))
    assert len(rows) == 40
    assert len(parsed) == 1


@pytest.mark.parametrize("name", ["train_images/2", "train_images/-1", "train_images/01", "train_images/x"])
def test_an_index_outside_an_npz_is_refused(tmp_path, name):
    np.savez(tmp_path / "m.npz", train_images=np.stack([GREY, GREY]))
    with open_images(tmp_path / "m.npz") as reader, pytest.raises(DataError, match="expected an index from 0 to 1"):
        reader.read(name)


@pytest.mark.parametrize("name", ["train_labels/0", "test_images/0", "0"])
def test_an_npz_without_an_array_of_images_is_refused(tmp_path, name):
    np.savez(tmp_path / "m.npz", train_labels=np.zeros((2, 1), np.uint8))
    with open_images(tmp_path / "m.npz") as reader, pytest.raises(DataError, match="expected <array>/<index>"):
        reader.read(name)


@pytest.mark.parametrize("ends_with_total", [True, False])
def test_jpeg_bytes_in_an_npz_are_cut_at_their_offsets(tmp_path, ends_with_total):
    parts = [encoded(picture, "JPEG") for picture in (COLOUR, GREY, COLOUR[::-1].copy())]
    offsets = np.cumsum([0, *map(len, parts)])
    offsets = offsets if ends_with_total else offsets[:-1]
    np.savez(tmp_path / "j.npz", train_jpeg=np.frombuffer(b"".join(parts), np.uint8), train_offsets=offsets)
    with open_images(tmp_path / "j.npz") as reader:
        assert reader.names() == ["train/0", "train/1", "train/2"]
        for row, part in enumerate(parts):
            expected = np.array(Image.open(io.BytesIO(part)))
            np.testing.assert_array_equal(reader.read(f"train/{row}"), expected)
        with pytest.raises(DataError, match="expected an index from 0 to 2"):
            reader.read("train/3")


def test_offsets_that_fall_are_refused(tmp_path):
    np.savez(tmp_path / "j.npz", train_jpeg=np.zeros(9, np.uint8), train_offsets=np.array([0, 5, 3]))
    with open_images(tmp_path / "j.npz") as reader, pytest.raises(DataError, match=r"train_offsets.*from 0"):
        reader.read("train/0")


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_an_idx_file_gives_its_rows_plain_or_compressed(tmp_path, suffix):
    data = b"\0\0\x08\x03" + struct.pack(">3I", 2, 6, 9) + GREY.tobytes() + (GREY + 7).tobytes()
    path = tmp_path / f"train-images-idx3-ubyte{suffix}"
    path.write_bytes(gzip.compress(data) if suffix else data)
    with open_images(path) as reader:
        assert reader.names() == ["0", "1"]
        np.testing.assert_array_equal(reader.read("1"), GREY + 7)
        with pytest.raises(DataError, match="holds no image '2'; expected an index from 0 to 1"):
            reader.read("2")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\0\0\x08\x01" + struct.pack(">I", 3) + bytes(20), "is not an idx file of images"),
        (b"\0\0\x08\x03" + struct.pack(">3I", 2, 2, 2) + bytes(7), r"header states \[2, 2, 2\], it contains 7 bytes"),
        (b"short", "is not an idx file of images"),
    ],
)
def test_an_idx_file_of_labels_or_cut_short_is_refused(tmp_path, data, message):
    (tmp_path / "idx").write_bytes(data)
    with open_images(tmp_path / "idx") as reader, pytest.raises(DataError, match=message):
        reader.read("0")


def test_a_root_that_is_not_there_or_no_archive_is_refused(tmp_path):
    with pytest.raises(DataError, match="nowhere does not exist; expected a folder"):
        open_images(tmp_path / "nowhere")
    (tmp_path / "bad.zip").write_bytes(b"no archive")
    with pytest.raises(DataError, match=r"bad\.zip cannot be opened: File is not a zip file"):
        open_images(tmp_path / "bad.zip")
    (tmp_path / "bad.gz").write_bytes(b"not compressed")
    with open_images(tmp_path / "bad.gz") as reader, pytest.raises(DataError, match=r"bad\.gz cannot be read"):
        reader.names()


def test_sixteen_bits_become_value_over_257():
    deep = np.array([[0, 128, 129, 257], [65535, 65407, 32896, 514]], np.uint16)
    expected = np.rint(deep / 257.0)
    np.testing.assert_array_equal(decode_image(encoded(deep), "deep.png"), expected)
    np.testing.assert_array_equal(decode_image(encoded(deep, "TIFF"), "deep.tif"), expected)


@pytest.mark.filterwarnings("error")
def test_palette_alpha_and_cmyk_become_rgb():
    palette = Image.fromarray(COLOUR).quantize(16)
    see_through = encoded(palette, transparency=b"\x80" * 16)
    on_black = np.asarray(palette.convert("RGB"), np.int64) * 0x80 / 255
    assert np.abs(decode_image(see_through, "p.png") - on_black).max() <= 1
    np.testing.assert_array_equal(decode_image(encoded(COLOUR, mode="RGBA"), "a.png"), COLOUR)
    grey_alpha = decode_image(encoded(GREY, mode="LA"), "la.png")
    np.testing.assert_array_equal(grey_alpha, np.stack([GREY] * 3, axis=-1))
    cmyk = decode_image(encoded(np.full((4, 4, 3), 200, np.uint8), "TIFF", mode="CMYK"), "c.tif")
    np.testing.assert_array_equal(cmyk, np.full((4, 4, 3), 200))


def test_black_and_white_becomes_zero_and_255():
    checks = Image.fromarray(np.eye(4, dtype=np.uint8) * 255).convert("1")
    np.testing.assert_array_equal(decode_image(encoded(checks), "b.png"), np.eye(4) * 255)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"no image at all", r"x\.png is not an image that can be read \(15 bytes\)"),
        (encoded(np.zeros((200, 200), np.uint8), "BMP")[:-900], r"x\.png cannot be decoded: image file is truncated"),
        (
            encoded(np.full((4, 4), 300, np.float32), "TIFF"),
            r"x\.png has floating-point values that are not all from 0",
        ),
        (b"", r"x\.png is not an image that can be read \(0 bytes\)"),
    ],
)
def test_an_undecodable_image_is_named_with_the_cause(data, message):
    with pytest.raises(DataError, match=message):
        decode_image(data, "x.png")


def test_resizing_averages_over_what_it_removes():
    # A checkerboard of 0 and 200 has a mean of 100: sampling without antialiasing would give 0 or 200.
    board = (np.indices((16, 32)).sum(axis=0) % 2 * 200).astype(np.uint8)
    small = to_square(board, size=4, channels=1)
    assert small.shape == (4, 4, 1)
    assert (np.abs(small.astype(int) - 100) <= 2).all()


def test_both_sides_are_resized_and_the_aspect_is_not_kept():
    bar = np.zeros((8, 24), np.uint8)
    bar[:, 12:] = 255
    square = to_square(bar, size=8, channels=1)[..., 0]
    assert (square[:, :3] == 0).all()
    assert (square[:, 5:] == 255).all()


def test_grey_becomes_three_equal_channels_and_rgb_luma():
    np.testing.assert_array_equal(to_square(GREY[:, :6], 6, 3), np.stack([GREY[:, :6]] * 3, axis=-1))
    pure = np.zeros((2, 2, 3), np.uint8)
    pure[0, 0], pure[0, 1], pure[1, 0] = (255, 0, 0), (0, 255, 0), (0, 0, 255)
    # 0.299, 0.587 and 0.114 of 255
    np.testing.assert_array_equal(to_square(pure, 2, 1)[..., 0], [[76, 150], [29, 0]])


@pytest.mark.realdata
def test_real_archives_and_arrays_are_read():
    expected = {
        ("mias", "mini_mias_512.zip"): (322, (512, 512)),
        ("ham10000", "ham10000_200x150.zip"): (10015, (150, 200, 3)),
        ("medmnist", "breastmnist.npz"): (780, (28, 28)),
        ("fashion-mnist", "t10k-images-idx3-ubyte.gz"): (10000, (28, 28)),
        ("cifar10", "cifar10_jpeg.npz"): (60000, (32, 32, 3)),
    }
    for parts, (count, shape) in expected.items():
        with open_images(real_data(*parts)) as reader:
            names = reader.names()
            assert len(names) == count
            pictures = [reader.read(name) for name in names[:20]]
        assert {picture.shape for picture in pictures} == {shape}
        assert min(picture.std() for picture in pictures) > 5


@pytest.mark.realdata
def test_breastmnist_rows_are_those_of_the_official_file():
    path = real_data("medmnist", "breastmnist.npz")
    with open_images(path) as reader, np.load(path) as arrays:
        np.testing.assert_array_equal(reader.read("val_images/77"), arrays["val_images"][77])


@pytest.mark.realdata
def test_a_cifar_image_is_the_jpeg_that_its_offsets_delimit():
    path = real_data("cifar10", "cifar10_jpeg.npz")
    with np.load(path) as arrays:
        start, end = arrays["test_offsets"][[-2, -1]]
        expected = np.array(Image.open(io.BytesIO(arrays["test_jpeg"][start:end].tobytes())))
    with open_images(path) as reader:
        np.testing.assert_array_equal(reader.read("test/9999"), expected)
