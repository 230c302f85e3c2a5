"""Images are decoded once; no reader sees an incomplete cache, and unreadable images are set aside."""

import json
import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from grandrounds.data.images import cache as cache_module
from grandrounds.data.images.cache import open_cache
from grandrounds.data.images.decoding import image_digests
from grandrounds.data.images.files import encoded
from grandrounds.data.images.files.reading import Reading
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
    """Names of the images that are decoded; threads may exchange some."""
    seen = []
    decode = encoded.decode_picture
    monkeypatch.setattr(
        encoded, "decode_picture", lambda data, name, *more: (seen.append(name), decode(data, name, *more))[1]
    )
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
    assert sorted(decoded_bytes) == NAMES
    again = open_cache(NAMES, root, 4, 1, tmp_path / "cache")
    assert again.images.sum() > 0
    assert sorted(decoded_bytes) == NAMES
    assert (again.decoded, again.shapes) == (0, ((8, 8, 3, 6),))


def test_the_second_time_no_pixels_are_digested(root, tmp_path, monkeypatch):
    (root / NAMES[2]).write_bytes(b"no image")
    first = open_cache(NAMES, root, 8, 3, tmp_path / "cache", max_unreadable=0.5)
    assert list(first.digests) == image_digests(first.images)
    assert [not digest for digest in first.digests] == [row == 2 for row in range(len(NAMES))]
    monkeypatch.setattr(cache_module, "image_digests", None)
    again = open_cache(NAMES, root, 8, 3, tmp_path / "cache", max_unreadable=0.5)
    assert again.digests == first.digests
    (path,) = (tmp_path / "cache").glob("*.json")
    record = json.loads(path.read_text())
    del record["digests"]  # as an earlier release wrote it
    path.write_text(json.dumps(record))
    earlier = open_cache(NAMES, root, 8, 3, tmp_path / "cache", max_unreadable=0.5)
    assert (earlier.decoded, earlier.digests) == (0, ())


def test_images_cannot_be_changed_through_the_cache(root, tmp_path):
    images = open_cache(NAMES, root, 4, 1, tmp_path / "cache").images
    with pytest.raises(ValueError, match="read-only"):
        images[0] = 0


def test_another_size_channel_order_or_content_is_another_cache(root, tmp_path):
    folder = tmp_path / "cache"
    assert open_cache(NAMES, root, 4, 3, folder).images.shape == (6, 4, 4, 3)
    assert open_cache(NAMES, root, 5, 3, folder).decoded == 6
    assert open_cache(NAMES, root, 4, 1, folder).images.shape == (6, 4, 4, 1)
    # The same images in another order need no decoding.
    turned = open_cache(NAMES[::-1], root, 4, 3, folder)
    assert turned.decoded == 0
    np.testing.assert_array_equal(turned.images[::-1], open_cache(NAMES, root, 4, 3, folder).images)
    # None of them has taken the place of another.
    assert [open_cache(NAMES, root, size, count, folder).decoded for size, count in ((4, 3), (5, 3), (4, 1))] == [0] * 3
    Image.fromarray(PIXELS[1]).save(root / NAMES[0], compress_level=0)
    changed = open_cache(NAMES, root, 4, 3, folder)
    assert changed.decoded == 1
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
    decode = encoded.decode_picture

    def without_decoder(data, name, *more):
        if name == NAMES[3]:
            raise DataError(f"{name}: no decoder")
        return decode(data, name, *more)

    with monkeypatch.context() as patch:
        patch.setattr(encoded, "decode_picture", without_decoder)
        assert open_cache(NAMES, root, 8, 3, tmp_path / "cache", max_unreadable=0.2).quarantined[0][0] == 3
    cache = open_cache(NAMES, root, 8, 3, tmp_path / "cache")
    assert cache.quarantined == ()
    np.testing.assert_array_equal(cache.images[3], PIXELS[3])


def fail_on(*names):
    """A decoder that cannot read these images for now."""
    decode = encoded.decode_picture

    def failing(data, name, *more):
        if name in names:
            raise DataError(f"{name}: busy")
        return decode(data, name, *more)

    return failing


def zero_rows(cache):
    return tuple(np.flatnonzero(~cache.images.reshape(len(NAMES), -1).any(axis=1)))


def test_a_build_killed_before_its_record_changes_nothing_and_is_cleared_away_by_the_next(root, tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    with monkeypatch.context() as patch:
        patch.setattr(encoded, "decode_picture", fail_on(NAMES[3]))
        open_cache(NAMES, root, 8, 3, folder, max_unreadable=0.2)
    with monkeypatch.context() as patch:
        # Image 3 can be read now, which starts a build; by then image 1 cannot; then the process dies.
        patch.setattr(encoded, "decode_picture", fail_on(NAMES[1]))
        patch.setattr(cache_module, "write_json", lambda path, content, private: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            open_cache(NAMES, root, 8, 3, folder, max_unreadable=0.2)
    with monkeypatch.context() as patch:
        patch.setattr(encoded, "decode_picture", fail_on(NAMES[3]))
        cache = open_cache(NAMES, root, 8, 3, folder, max_unreadable=0.2)
    assert (cache.decoded, cache.quarantined[0][0], zero_rows(cache)) == (0, 3, (3,))
    assert open_cache(NAMES, root, 8, 3, folder).quarantined == ()
    assert len(files_in(folder)) == 2
    assert zero_rows(cache) == (3,), "a map that is open keeps its array"


def test_two_concurrent_builds_leave_a_record_that_matches_its_array(root, tmp_path, monkeypatch):
    folder, caches = tmp_path / "cache", []
    write = cache_module.write_json

    def write_after_another_build(path, content, private):
        if not caches:
            caches.append(None)
            with monkeypatch.context() as patch:
                patch.setattr(encoded, "decode_picture", fail_on(NAMES[4]))
                caches[0] = open_cache(NAMES, root, 8, 3, folder, max_unreadable=0.5)
        write(path, content, private=private)

    with monkeypatch.context() as patch:
        patch.setattr(encoded, "decode_picture", fail_on(NAMES[2]))
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
        if not gone and path.parent == folder:
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
    def interrupted(data, name, *more):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(encoded, "decode_picture", interrupted)
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


def test_images_that_would_fill_the_disk_are_refused_before_one_is_decoded(root, tmp_path, monkeypatch, decoded_bytes):
    free = SimpleNamespace(free=cache_module.LEAST_FREE + 1000)
    monkeypatch.setattr(cache_module.shutil, "disk_usage", lambda folder: free)
    with pytest.raises(ConfigurationError, match=r"cache: .*lower problem\.image_size"):
        open_cache(NAMES, root, 64, 3, tmp_path / "cache")
    assert not decoded_bytes
    assert not any((tmp_path / "cache").iterdir())


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
    with pytest.raises(ValueError, match=r"max_unreadable .*got 1\.5"):
        open_cache(NAMES, root, 4, 3, tmp_path, max_unreadable=1.5)


def test_one_image_added_to_many_is_the_only_one_decoded(root, tmp_path, decoded_bytes):
    folder = tmp_path / "cache"
    before = open_cache(NAMES, root, 8, 3, folder)
    decoded_bytes.clear()
    (root / "sub").mkdir()
    Image.fromarray(255 - PIXELS[0]).save(root / "sub" / "new.png")
    (root / NAMES[2]).rename(root / "renamed.png")
    names = [*NAMES[:2], "renamed.png", *NAMES[3:], "sub/new.png"]
    after = open_cache(names, root, 8, 3, folder)
    assert (after.decoded, decoded_bytes) == (1, ["sub/new.png"])
    np.testing.assert_array_equal(after.images[:6], before.images)
    np.testing.assert_array_equal(after.images[6], 255 - PIXELS[0])
    assert (after.shapes, after.rules) == (((8, 8, 3, 7),), ((),) * 7)


def test_a_thousandth_site_opens_no_array_of_others_whose_images_it_has_not(root, tmp_path, monkeypatch):
    parsed, loaded = [], []
    load, loads = np.load, json.loads
    monkeypatch.setattr(np, "load", lambda path, **how: (loaded.append(path), load(path, **how))[1])
    monkeypatch.setattr(cache_module.json, "loads", lambda text: (parsed.append(text), loads(text))[1])
    costs = []
    for name in NAMES:  # a site each
        parsed.clear(), loaded.clear()
        open_cache([name], root, 8, 3, tmp_path / "cache")
        costs.append((len(loaded), len(parsed)))
    assert costs[1:] == costs[1:2] * len(costs[1:]), "the last of many sites costs what the second does"


def test_a_new_division_opens_the_array_of_each_old_site_once(root, tmp_path, monkeypatch, decoded_bytes):
    for names in (NAMES[::2], NAMES[1::2]):
        open_cache(names, root, 8, 3, tmp_path / "cache")
    decoded_bytes.clear()
    loaded, load = [], np.load
    monkeypatch.setattr(np, "load", lambda path, **how: (loaded.append(path), load(path, **how))[1])
    monkeypatch.setattr(cache_module, "in_order", map)  # two threads may open one array each
    cache = open_cache(NAMES, root, 8, 3, tmp_path / "cache")
    np.testing.assert_array_equal(cache.images, PIXELS)
    assert (decoded_bytes, len(loaded)) == ([], 3), "two old arrays and the new one"


def test_what_is_read_otherwise_is_decoded_again(tmp_path):
    Image.fromarray(np.array([[0, 4095]], np.uint16)).save(tmp_path / "a.png")
    found = [
        open_cache(["a.png"], tmp_path, 2, 1, tmp_path / "cache", 0, Reading(bits=bits), sizing)
        for bits, sizing in ((0, "exact"), (12, "exact"), (12, "proportion"))
    ]
    assert [cache.decoded for cache in found] == [1, 1, 1]
    assert [cache.images.max() for cache in found] == [16, 255, 255]
    assert found[0].rules == (("depth",),)


def test_files_are_private(root, tmp_path):
    open_cache(NAMES, root, 4, 3, tmp_path / "cache")
    assert (tmp_path / "cache").stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "cache").iterdir()} == {0o600}


def test_caches_of_earlier_versions_and_old_ones_beyond_the_limit_are_removed(root, tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    folder.mkdir()
    earlier = [f"{'a' * 64}.json", f"{'a' * 64}.{'b' * 32}.npy", f"images-1-2-{'c' * 16}-{'d' * 40}.json"]
    for name in (*earlier, "features.npy"):
        (folder / name).write_text("{}")
    open_cache(NAMES, root, 4, 3, folder)
    assert not set(earlier) & set(files_in(folder))
    assert "features.npy" in files_in(folder)
    for path in folder.glob("*.json"):
        os.utime(path, (1, 1))
    monkeypatch.setattr(cache_module, "FOLDER_BYTES", 1000)
    open_cache(NAMES, root, 8, 3, folder)
    assert len(files_in(folder)) == 3
    open_cache(NAMES, root, 9, 3, folder)
    assert len(files_in(folder)) == 5, "a cache of today stays"
