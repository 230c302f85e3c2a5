"""Images are decoded once; no reader sees an incomplete cache, and unreadable images are set aside."""

import json
import multiprocessing
from concurrent.futures import ProcessPoolExecutor

import numpy as np
import pytest
from PIL import Image

from grandrounds.data.images import cache as cache_module
from grandrounds.data.images import readers
from grandrounds.data.images.cache import open_cache
from grandrounds.errors import ConfigurationError, DataError
from grandrounds.seeding import numpy_generator

NAMES = [f"{row}.png" for row in range(6)]
PIXELS = numpy_generator("cache").integers(0, 256, (6, 8, 8, 3), dtype=np.uint8)


@pytest.fixture
def root(tmp_path):
    folder = tmp_path / "images"
    folder.mkdir()
    for name, pixels in zip(NAMES, PIXELS, strict=True):
        Image.fromarray(pixels).save(folder / name)
    return folder


@pytest.fixture
def decoded_bytes(monkeypatch):
    """Names of the images that are decoded, in order."""
    seen = []
    decode = readers.decode_image
    monkeypatch.setattr(readers, "decode_image", lambda data, name: (seen.append(name), decode(data, name))[1])
    return seen


def files_in(folder):
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def test_rows_are_the_images_in_the_order_of_the_names(root, tmp_path):
    cache = open_cache(NAMES[::-1], root, 8, 3, tmp_path / "cache")
    assert isinstance(cache.images, np.memmap)
    np.testing.assert_array_equal(cache.images, PIXELS[::-1])
    assert (cache.decoded, cache.quarantined, cache.shapes) == (6, (), ((8, 8, 3, 6),))


def test_the_second_time_nothing_is_decoded(root, tmp_path, decoded_bytes):
    open_cache(NAMES, root, 4, 1, tmp_path / "cache")
    assert decoded_bytes == NAMES
    again = open_cache(NAMES, root, 4, 1, tmp_path / "cache")
    assert again.images.sum() > 0
    assert decoded_bytes == NAMES
    assert (again.decoded, again.shapes) == (0, ((8, 8, 3, 6),))


def test_images_cannot_be_changed_through_the_cache(root, tmp_path):
    images = open_cache(NAMES, root, 4, 1, tmp_path / "cache").images
    with pytest.raises(ValueError, match="read-only"):
        images[0] = 0


def test_another_size_channel_order_or_content_is_another_cache(root, tmp_path):
    folder = tmp_path / "cache"
    assert open_cache(NAMES, root, 4, 3, folder).images.shape == (6, 4, 4, 3)
    assert open_cache(NAMES, root, 5, 3, folder).decoded == 6
    assert open_cache(NAMES, root, 4, 1, folder).images.shape == (6, 4, 4, 1)
    assert open_cache(NAMES[::-1], root, 4, 3, folder).decoded == 6
    # None of them has taken the place of another.
    assert [open_cache(NAMES, root, size, count, folder).decoded for size, count in ((4, 3), (5, 3), (4, 1))] == [0] * 3
    Image.fromarray(PIXELS[1]).save(root / NAMES[0], compress_level=0)
    changed = open_cache(NAMES, root, 4, 3, folder)
    assert changed.decoded == 6
    np.testing.assert_array_equal(changed.images[0], changed.images[1])


def test_another_order_of_an_arrays_rows_is_another_cache(tmp_path):
    np.savez(tmp_path / "m.npz", train=PIXELS)
    for rows in (range(6), range(5, -1, -1)):
        images = open_cache([f"train/{row}" for row in rows], tmp_path / "m.npz", 8, 3, tmp_path / "cache").images
        np.testing.assert_array_equal(images, PIXELS[list(rows)])


@pytest.mark.parametrize("damage", ["array short", "array long", "header", "record", "no record", "other shape"])
def test_a_damaged_cache_is_rebuilt(root, tmp_path, damage):
    folder = tmp_path / "cache"
    whole = np.array(open_cache(NAMES, root, 4, 3, folder).images)
    record, array = (next(folder.glob(pattern)) for pattern in ("*.json", "*.npy"))
    content = array.read_bytes()
    if damage == "array short":
        array.write_bytes(content[:-1])
    elif damage == "array long":
        array.write_bytes(content + b"\0")
    elif damage == "header":
        array.write_bytes(b"x" + content[1:])
    elif damage == "record":
        record.write_text('{"quarantined": [')
    elif damage == "no record":
        record.unlink()
    else:
        np.save(array, np.zeros((5, 4, 4, 3), np.uint8))
    again = open_cache(NAMES, root, 4, 3, folder)
    assert again.decoded == 6
    np.testing.assert_array_equal(again.images, whole)
    assert open_cache(NAMES, root, 4, 3, folder).decoded == 0


def test_unreadable_images_are_zero_and_reported(root, tmp_path):
    (root / NAMES[2]).write_bytes(b"no image")
    for expected_decoded in (5, 0):
        cache = open_cache(NAMES, root, 4, 3, tmp_path / "cache", max_unreadable=0.2)
        assert cache.decoded == expected_decoded
        assert cache.quarantined == (
            (2, "2.png", "2.png is not an image that can be read (8 bytes); expected PNG, JPEG, ..."),
        )
        assert (cache.images[2] == 0).all()
        assert (cache.images[[0, 1, 3, 4, 5]].reshape(5, -1).max(axis=1) > 0).all()


def test_too_many_unreadable_images_leave_nothing_behind(root, tmp_path):
    for name in NAMES[1:]:
        (root / name).write_bytes(b"no image")
    with pytest.raises(DataError, match=r"5 of 6 images .* 50\.00%.*1\.png.*2\.png.*3\.png") as error:
        open_cache(NAMES, root, 4, 3, tmp_path / "cache", max_unreadable=0.5)
    assert "4.png" not in str(error.value)
    assert files_in(tmp_path / "cache") == []


def test_a_stricter_limit_counts_on_reuse_too(root, tmp_path):
    (root / NAMES[2]).write_bytes(b"no image")
    open_cache(NAMES, root, 4, 3, tmp_path / "cache", max_unreadable=0.2)
    with pytest.raises(DataError, match=r"1 of 6 images cannot be read, allowed are 0\.00%"):
        open_cache(NAMES, root, 4, 3, tmp_path / "cache", max_unreadable=0.0)


def test_an_image_that_can_be_read_again_is_taken_out_of_quarantine(root, tmp_path, monkeypatch):
    decode = readers.decode_image

    def without_decoder(data, name):
        if name == NAMES[3]:
            raise DataError(f"{name}: no decoder")
        return decode(data, name)

    with monkeypatch.context() as patch:
        patch.setattr(readers, "decode_image", without_decoder)
        assert open_cache(NAMES, root, 8, 3, tmp_path / "cache", max_unreadable=0.2).quarantined[0][0] == 3
    cache = open_cache(NAMES, root, 8, 3, tmp_path / "cache")
    assert cache.quarantined == ()
    np.testing.assert_array_equal(cache.images[3], PIXELS[3])


def fail_on(*names):
    """A decoder that cannot read these images for now."""
    decode = readers.decode_image

    def failing(data, name):
        if name in names:
            raise DataError(f"{name}: busy")
        return decode(data, name)

    return failing


def zero_rows(cache):
    return tuple(np.flatnonzero(~cache.images.reshape(len(NAMES), -1).any(axis=1)))


def test_a_build_killed_before_its_record_changes_nothing_and_is_cleared_away_by_the_next(root, tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    with monkeypatch.context() as patch:
        patch.setattr(readers, "decode_image", fail_on(NAMES[3]))
        open_cache(NAMES, root, 8, 3, folder, max_unreadable=0.2)
    with monkeypatch.context() as patch:
        # Image 3 can be read now, which starts a build; by then image 1 cannot; then the process dies.
        patch.setattr(readers, "decode_image", fail_on(NAMES[1]))
        patch.setattr(cache_module, "write_json", lambda path, content: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            open_cache(NAMES, root, 8, 3, folder, max_unreadable=0.2)
    with monkeypatch.context() as patch:
        patch.setattr(readers, "decode_image", fail_on(NAMES[3]))
        cache = open_cache(NAMES, root, 8, 3, folder, max_unreadable=0.2)
    assert (cache.decoded, cache.quarantined[0][0], zero_rows(cache)) == (0, 3, (3,))
    assert open_cache(NAMES, root, 8, 3, folder).quarantined == ()
    assert len(files_in(folder)) == 2
    assert zero_rows(cache) == (3,), "a map that is open keeps its array"


def test_two_concurrent_builds_leave_a_record_that_matches_its_array(root, tmp_path, monkeypatch):
    folder, caches = tmp_path / "cache", []
    write = cache_module.write_json

    def write_after_another_build(path, content):
        if not caches:
            caches.append(None)
            with monkeypatch.context() as patch:
                patch.setattr(readers, "decode_image", fail_on(NAMES[4]))
                caches[0] = open_cache(NAMES, root, 8, 3, folder, max_unreadable=0.5)
        write(path, content)

    with monkeypatch.context() as patch:
        patch.setattr(readers, "decode_image", fail_on(NAMES[2]))
        patch.setattr(cache_module, "write_json", write_after_another_build)
        caches += [open_cache(NAMES, root, 8, 3, folder, max_unreadable=0.5) for _ in range(3)]
    assert [[row for row, _, _ in cache.quarantined] for cache in caches] == [[2, 4], [2], [2], [2]]
    assert [list(zero_rows(cache)) for cache in caches] == [[2, 4], [2], [2], [2]]
    assert caches[-1].decoded == 0


def test_an_array_replaced_while_its_record_was_read_is_looked_for_once_more(root, tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    open_cache(NAMES, root, 8, 3, folder)
    load, gone = np.load, []

    def load_after_a_replacement(path, **options):
        if not gone:
            gone.append(path)
            new = path.with_name(path.name.replace(".npy", "0.npy"))
            path.rename(new)
            record = next(folder.glob("*.json"))
            record.write_text(record.read_text().replace(path.name, new.name))
        return load(path, **options)

    monkeypatch.setattr(np, "load", load_after_a_replacement)
    assert open_cache(NAMES, root, 8, 3, folder).decoded == 0
    assert len(gone) == 1


def test_an_interrupted_build_leaves_nothing_behind(root, tmp_path, monkeypatch):
    def interrupted(data, name):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(readers, "decode_image", interrupted)
        with pytest.raises(KeyboardInterrupt):
            open_cache(NAMES, root, 4, 3, tmp_path / "cache")
    assert files_in(tmp_path / "cache") == []


def test_several_processes_may_build_the_same_cache(root, tmp_path):
    folder = tmp_path / "cache"
    with ProcessPoolExecutor(2, multiprocessing.get_context("fork")) as pool:
        futures = [pool.submit(sum_of_cache, root, folder) for _ in range(6)]
        sums = {future.result() for future in futures}
    assert sums == {int(PIXELS.sum(dtype=np.int64))}
    (record,) = folder.glob("*.json")
    assert (folder / json.loads(record.read_text())["array"]).exists()


def sum_of_cache(root, folder):
    return int(open_cache(NAMES, root, 8, 3, folder).images.sum(dtype=np.int64))


def test_a_folder_that_cannot_be_written_is_named(root, tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ConfigurationError, match="file/cache: the image cache cannot be written"):
        open_cache(NAMES, root, 4, 3, tmp_path / "file" / "cache")


def test_the_record_contains_original_shapes(root, tmp_path):
    Image.fromarray(PIXELS[0, :5, :, 0]).save(root / NAMES[0])
    cache = open_cache(NAMES, root, 4, 3, tmp_path / "cache")
    assert cache.shapes == ((5, 8, 1, 1), (8, 8, 3, 5))
    assert json.loads(next((tmp_path / "cache").glob("*.json")).read_text())["quarantined"] == []


def test_wrong_arguments_are_refused(root, tmp_path):
    with pytest.raises(DataError, match="the list of images is empty"):
        open_cache([], root, 4, 3, tmp_path)
    with pytest.raises(ValueError, match="expected image_size >= 1 and channels 1 or 3, got 0 and 3"):
        open_cache(NAMES, root, 0, 3, tmp_path)
    with pytest.raises(ValueError, match="got 4 and 2"):
        open_cache(NAMES, root, 4, 2, tmp_path)
    with pytest.raises(ValueError, match=r"max_unreadable must be between 0 and 1, got 1\.5"):
        open_cache(NAMES, root, 4, 3, tmp_path, max_unreadable=1.5)
