"""CIFAR-100's two files become images of a public set, and nothing else in them is run."""

import pickle

import numpy as np
import pytest

from grandrounds.data.cifar100 import unpack_cifar100
from grandrounds.data.images.readers import open_images
from grandrounds.data.partition.public_set import open_public_set
from grandrounds.errors import DataError


def published(root, counts=(3, 2), label=99):
    folder = root / "cifar-100-python"
    folder.mkdir(parents=True, exist_ok=True)
    pixels = {}
    for part, count in zip(("train", "test"), counts, strict=True):
        pixels[part] = np.random.default_rng(count).integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)
        rows = pixels[part].transpose(0, 3, 1, 2).reshape(count, -1)
        content = {b"data": rows, b"fine_labels": [label] * count, b"coarse_labels": [19] * count}
        # NumPy's old name of the function, as in the published files.
        text = pickle.dumps(content, protocol=3).replace(b"numpy._core.multiarray", b"numpy.core.multiarray")
        (folder / part).write_bytes(text)
    return pixels


@pytest.mark.parametrize("below", ["", "cifar-100-python"])
def test_every_pixel_is_in_its_place_and_the_file_is_a_public_set(tmp_path, below):
    pixels = published(tmp_path / "raw")
    path = unpack_cifar100(tmp_path / "raw" / below, tmp_path / "images")
    with open_images(path) as reader:
        assert reader.names() == ["test/0", "test/1", "train/0", "train/1", "train/2"]
        assert np.array_equal(reader.read("train/2"), pixels["train"][2])
    public, images = open_public_set(path, 32, 3, tmp_path / "cache")
    assert len(public.images) == 5
    assert np.array_equal(images[0], pixels["test"][0])
    before = path.stat().st_mtime_ns
    assert unpack_cifar100(tmp_path / "raw", tmp_path / "images").stat().st_mtime_ns == before


def test_files_that_are_not_the_published_ones_are_refused(tmp_path):
    with pytest.raises(DataError, match=r"no CIFAR-100 in .*: looked for train and test there and in cifar-100-python"):
        unpack_cifar100(tmp_path, tmp_path / "images")
    published(tmp_path, label=100)
    with pytest.raises(DataError, match="fine_labels: labels must be from 0 to 99, got 100 to 100"):
        unpack_cifar100(tmp_path, tmp_path / "images")
    (tmp_path / "cifar-100-python" / "train").write_bytes(b"cos\nsystem\n(S'true'\ntR.")
    with pytest.raises(DataError, match=r"train is no file of CIFAR-100's Python version: it asks for \w+\.system"):
        unpack_cifar100(tmp_path, tmp_path / "images")
