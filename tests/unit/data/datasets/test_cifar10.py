"""CIFAR-10's pickles are read as they are published and nothing else in them is run; pixels arrive where they belong."""

import io
import pickle
import struct
from typing import ClassVar

import numpy as np
import pytest
from published_data.cifar10 import CIFAR10_CLASSES, read_cifar10

from benchmarks.fedperl_cifar10.published import batches_folder, unpack_cifar10
from grandrounds.data.images.readers import open_images
from grandrounds.data.manifest import Record
from grandrounds.errors import DataError
from grandrounds.seeding import numpy_generator

FILES = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]


class Python2Pickler(pickle._Pickler):
    """Writes what Python 2 and the NumPy of 2009 wrote: texts of bytes, and functions under their names of then."""

    dispatch: ClassVar = dict(pickle._Pickler.dispatch)

    def save_bytes(self, content: bytes) -> None:
        self.write(b"T" + struct.pack("<i", len(content)) + content)
        self.memoize(content)

    def save_function(self, function: object, name: str | None = None) -> None:
        assert function.__name__ == "_reconstruct"
        self.write(b"cnumpy.core.multiarray\n_reconstruct\n")
        self.memoize(function)

    dispatch[bytes] = save_bytes
    dispatch[type(np.empty(0).__reduce__()[0])] = save_function


def python2_pickle(content: object) -> bytes:
    stream = io.BytesIO()
    Python2Pickler(stream, protocol=2).dump(content)
    return stream.getvalue()


def write_batches(folder, images=4, **changed):
    """The published files, with a few images each; returns their pixels, ``(images, 32, 32, 3)`` per file."""
    folder.mkdir(parents=True, exist_ok=True)
    meta = {
        b"num_cases_per_batch": images,
        b"label_names": [name.encode() for name in CIFAR10_CLASSES],
        b"num_vis": 3072,
    }
    (folder / "batches.meta").write_bytes(python2_pickle(changed.get("meta", meta)))
    pixels = {}
    for number, name in enumerate(FILES):
        pixels[name] = numpy_generator(name).integers(0, 256, (images, 32, 32, 3), dtype=np.uint8)
        planes = [pixels[name][..., channel].reshape(images, 1024) for channel in range(3)]
        batch = {
            b"batch_label": b"training batch 1 of 5",
            b"labels": [(number + row) % 10 for row in range(images)],
            b"data": np.hstack(planes),
            b"filenames": [b"leptodactylus_pentadactylus_s_000004.png"] * images,
        }
        (folder / name).write_bytes(changed.get(name) or python2_pickle({**batch, **changed.get("every", {})}))
    return pixels


def test_the_published_batches_become_an_npz_file_with_every_pixel_in_its_place(tmp_path):
    pixels = write_batches(tmp_path / "data" / "cifar-10-batches-py")
    path = unpack_cifar10(tmp_path / "data", tmp_path / "unpacked")
    assert path == tmp_path / "unpacked" / "cifar10.npz"
    with open_images(path) as reader:
        for row, name in enumerate(FILES[:5]):
            np.testing.assert_array_equal(reader.read(f"train/{4 * row + 1}"), pixels[name][1])
        np.testing.assert_array_equal(reader.read("test/3"), pixels["test_batch"][3])
        assert len(reader.names()) == 24
    records, root = read_cifar10(tmp_path / "unpacked")
    assert root == path
    assert records[0] == Record("train/0", "airplane", source="CIFAR-10")
    assert [record.label for record in records[4:8]] == ["automobile", "bird", "cat", "deer"]
    assert records[20] == Record("test/0", "dog", source="CIFAR-10")
    assert len(records) == 24
    assert read_cifar10(path) == (records, root)


def test_unpacking_again_writes_only_what_has_changed(tmp_path):
    write_batches(tmp_path / "cifar-10-batches-py")
    path = unpack_cifar10(tmp_path, tmp_path)
    before = path.stat()
    assert unpack_cifar10(tmp_path / "cifar-10-batches-py", tmp_path).stat() == before
    write_batches(tmp_path / "cifar-10-batches-py", images=3)
    assert len(read_cifar10(unpack_cifar10(tmp_path, tmp_path))[0]) == 18
    path.write_bytes(path.read_bytes()[:-100])
    assert len(read_cifar10(unpack_cifar10(tmp_path, tmp_path))[0]) == 18


def test_a_pickle_that_asks_for_more_is_not_opened(tmp_path):
    class Evil:
        def __reduce__(self):
            return (print, ("opened",))

    for content in (pickle.dumps(Evil(), protocol=2), b"cos\nsystem\n(S'true'\ntR.", b"cnumpy\nload\n(S'x'\ntR."):
        write_batches(tmp_path, data_batch_2=content)
        with pytest.raises(DataError, match=r"data_batch_2 is not a file of CIFAR-10"):
            unpack_cifar10(tmp_path, tmp_path / "unpacked")
    assert not (tmp_path / "unpacked" / "cifar10.npz").exists()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"data_batch_3": b"no pickle"}, "data_batch_3 is not a file of CIFAR-10's Python version"),
        ({"data_batch_3": python2_pickle([1])}, "data_batch_3 is not a file .* expected a dictionary"),
        ({"every": {b"data": np.zeros((4, 3071), np.uint8)}}, "data_batch_1: data must be rows of 3072 bytes"),
        ({"every": {b"data": [0] * 4}}, "data_batch_1: data must be rows of 3072 bytes"),
        ({"every": {b"labels": [0, 1]}}, "labels must be a list of 4 numbers"),
        ({"every": {b"labels": [0, 1, 2, 10]}}, "labels must be from 0 to 9, got 0 to 10"),
        ({"every": {b"labels": [0, 1, 2, 0.5]}}, "labels must be a row of integers, got float64"),
        ({"meta": {b"fine_label_names": [b"apple"]}}, "batches.meta: label_names must be airplane, .* got None"),
    ],
)
def test_damaged_batches_are_refused_with_the_file_and_the_cause(tmp_path, changed, message):
    write_batches(tmp_path, **changed)
    with pytest.raises(DataError, match=message):
        unpack_cifar10(tmp_path, tmp_path / "unpacked")


def test_missing_parts_are_named(tmp_path):
    with pytest.raises(DataError, match=r"looked.*cifar10.npz"):
        read_cifar10(tmp_path)
    with pytest.raises(DataError, match=r"looked.*batches\.meta"):
        unpack_cifar10(tmp_path, tmp_path)
    write_batches(tmp_path)
    assert batches_folder(tmp_path) == tmp_path
    with pytest.raises(DataError, match=r"published\.py"):
        read_cifar10(tmp_path)
    (tmp_path / "data_batch_4").unlink()
    with pytest.raises(DataError, match="data_batch_4 cannot"):
        unpack_cifar10(tmp_path, tmp_path)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"train_labels": [0, 1]}, "test_labels.*expected train_labels, test_labels"),
        ({"train_labels": [0, 1], "test_labels": [0]}, "has 2 images and 3 labels; every image needs one label"),
        ({"train_labels": [0, 10], "test_labels": []}, "train_labels: labels must be from 0 to 9, got 0 to 10"),
    ],
)
def test_an_npz_file_whose_labels_do_not_fit_is_refused(tmp_path, arrays, message):
    labels = {name: np.array(values, np.uint8) for name, values in arrays.items()}
    np.savez(tmp_path / "cifar10.npz", train=np.zeros((2, 32, 32, 3), np.uint8), **labels)
    with pytest.raises(DataError, match=message):
        read_cifar10(tmp_path)


@pytest.mark.realdata
def test_the_jpeg_archive_has_all_images_under_the_names_of_their_classes(realdata):
    records, root = read_cifar10(realdata / "cifar10")
    assert len(records) == 60_000
    with np.load(root) as content:
        assert [record.label for record in records[:50_000:97]] == [
            name.split("/")[1] for name in content["train_files"][::97]
        ]
