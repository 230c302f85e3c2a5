"""Fashion-MNIST's four idx files become one file with every pixel and label in its place."""

import gzip
import struct

import numpy as np
import pytest

from benchmarks.fedperl_cifar10.fashion_mnist import FASHION_MNIST_CLASSES, read_fashion_mnist
from grandrounds.data.images.readers import open_images
from grandrounds.data.manifest import Record
from grandrounds.errors import DataError
from grandrounds.seeding import numpy_generator

TRAIN = numpy_generator("train").integers(0, 256, (5, 28, 28), dtype=np.uint8)
TEST = numpy_generator("test").integers(0, 256, (2, 28, 28), dtype=np.uint8)


def write_idx(folder, **changed):
    contents = {
        "train-images-idx3-ubyte": struct.pack(">4I", 2051, 5, 28, 28) + TRAIN.tobytes(),
        "train-labels-idx1-ubyte": struct.pack(">2I", 2049, 5) + bytes([9, 0, 0, 3, 8]),
        "t10k-images-idx3-ubyte": struct.pack(">4I", 2051, 2, 28, 28) + TEST.tobytes(),
        "t10k-labels-idx1-ubyte": struct.pack(">2I", 2049, 2) + bytes([1, 2]),
    }
    for name, content in contents.items():
        content = changed.get(name[:5].strip("-") + "_" + name.split("-")[1], content)
        if content is None:
            continue
        (folder / f"{name}.gz").write_bytes(gzip.compress(content))


def test_training_and_test_images_are_in_one_file(tmp_path):
    write_idx(tmp_path)
    records, path = read_fashion_mnist(tmp_path, tmp_path / "unpacked")
    assert path == tmp_path / "unpacked" / "fashion_mnist.npz"
    labels = ["ankle_boot", "t-shirt_top", "t-shirt_top", "dress", "bag"]
    assert records[:5] == tuple(Record(f"train/{n}", name, source="Fashion-MNIST") for n, name in enumerate(labels))
    assert [(record.image, record.label) for record in records[5:]] == [("test/0", "trouser"), ("test/1", "pullover")]
    with open_images(path) as reader:
        np.testing.assert_array_equal(reader.read("train/4"), TRAIN[4])
        np.testing.assert_array_equal(reader.read("test/1"), TEST[1])
    before = path.stat()
    assert read_fashion_mnist(tmp_path, tmp_path / "unpacked") == (records, path)
    assert path.stat() == before


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"train_labels": None}, "train-labels-idx1-ubyte.gz is missing"),
        ({"train_labels": struct.pack(">2I", 2049, 4) + bytes(4)}, "has 4 labels, .* has 5 images"),
        ({"t10k_labels": struct.pack(">2I", 2049, 2) + bytes([0, 10])}, "labels must be from 0 to 9, got 0 to 10"),
    ],
)
def test_damaged_files_are_refused_with_the_file_and_the_cause(tmp_path, changed, message):
    write_idx(tmp_path, **changed)
    with pytest.raises(DataError, match=message):
        read_fashion_mnist(tmp_path, tmp_path / "unpacked")
    assert not (tmp_path / "unpacked").exists()


@pytest.mark.realdata
def test_the_published_files_have_the_published_images(realdata, tmp_path):
    records, _ = read_fashion_mnist(realdata / "fashion-mnist", tmp_path)
    labels = [record.label for record in records]
    assert len(records) == 70_000
    assert {labels.count(name) for name in FASHION_MNIST_CLASSES} == {7_000}
    assert labels[0] == "ankle_boot"
