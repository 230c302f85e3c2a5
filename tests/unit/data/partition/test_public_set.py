"""Two sites have the same public set or know which image differs first."""

import csv
import hashlib
import io
import zipfile

import numpy as np
import pytest
from PIL import Image

from grandrounds.data.partition.public_set import (
    PublicImage,
    PublicSet,
    list_public_set,
    open_public_set,
    write_public_set,
)
from grandrounds.errors import DataError
from grandrounds.seeding import numpy_generator

NAMES = ("a/1.png", "a/2.png", "b/1.png")


def read_list(path):
    """The public set that a list names."""
    with path.open(newline="") as stream:
        _, *rows = csv.reader(stream)
    return PublicSet(tuple(PublicImage(*row) for row in rows))


def png(number):
    pixels = numpy_generator("public", number).integers(0, 256, (12, 12, 3), dtype=np.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "PNG")
    return stream.getvalue()


def folder(root, names=NAMES):
    for number, name in enumerate(names):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(png(number))
    return root


@pytest.fixture
def opened(tmp_path):
    return open_public_set(folder(tmp_path / "here"), 8, 3, tmp_path / "cache")


def opened_at(tmp_path, names=None, size=8):
    return open_public_set(tmp_path / "there", size, 3, tmp_path / "cache", names)[0]


def test_images_are_listed_in_the_order_of_their_names_with_both_hashes(tmp_path, opened):
    public, images = opened
    assert [image.image for image in public.images] == list(NAMES)
    assert images.shape == (3, 8, 8, 3)
    for number, (name, image) in enumerate(zip(NAMES, public.images, strict=True)):
        assert image.content == hashlib.sha256((tmp_path / "here" / name).read_bytes()).hexdigest()
        assert image.pixels == hashlib.sha256(images[number].tobytes()).hexdigest()


def test_copies_elsewhere_and_in_an_archive_are_the_same_set(tmp_path, opened):
    public, _ = opened
    folder(tmp_path / "there")
    assert opened_at(tmp_path, names=list(reversed(NAMES))) == public
    with zipfile.ZipFile(tmp_path / "set.zip", "w") as archive:
        for name in reversed(NAMES):
            archive.write(tmp_path / "here" / name, name)
    zipped, _ = open_public_set(tmp_path / "set.zip", 8, 3, tmp_path / "cache")
    assert zipped.digest == public.digest


def test_an_image_fewer_is_another_set(opened):
    public, _ = opened
    for lacking in (0, 1):
        fewer = PublicSet(tuple(image for number, image in enumerate(public.images) if number != lacking))
        assert fewer.digest != public.digest


def test_another_size_is_another_set(tmp_path, opened):
    folder(tmp_path / "there")
    smaller = opened_at(tmp_path, size=6)
    assert smaller.digest != opened[0].digest


def test_arrays_are_public_sets_too(tmp_path):
    images = numpy_generator("arrays").integers(0, 256, (3, 8, 8), dtype=np.uint8)
    for name, content in (("here", images), ("there", images[[0, 2, 1]])):
        np.savez(tmp_path / f"{name}.npz", train=content)
    here, there = (open_public_set(tmp_path / f"{n}.npz", 8, 1, tmp_path / "cache")[0] for n in ("here", "there"))
    assert [image.image for image in here.images] == [image.image for image in there.images]
    assert here.digest != there.digest


def test_a_list_survives_its_file_and_its_digest_is_the_files(tmp_path, opened):
    public, _ = opened
    write_public_set(public, tmp_path / "public.csv")
    assert read_list(tmp_path / "public.csv") == public
    assert hashlib.sha256((tmp_path / "public.csv").read_bytes()).hexdigest() == public.digest


def test_an_unreadable_image_or_a_name_given_twice_is_refused(tmp_path):
    there = folder(tmp_path / "there")
    with pytest.raises(DataError, match=r"public image 'a/1\.png' is named twice"):
        opened_at(tmp_path, names=["a/1.png", "a/2.png", "a/1.png"])
    (there / NAMES[0]).write_bytes(b"no image")
    with pytest.raises(DataError, match="1 of 3 images cannot be read"):
        opened_at(tmp_path)


def test_a_list_without_decoding_has_the_hashes_of_the_files_alone(tmp_path, opened):
    public, images = opened
    listed = list_public_set(tmp_path / "here")
    assert listed.images == tuple(image._replace(pixels="") for image in public.images)
    assert listed.digest != public.digest
    assert list_public_set(tmp_path / "here", NAMES[::-1], images) == public
    (tmp_path / "here" / NAMES[2]).write_bytes(png(7))
    changed = list_public_set(tmp_path / "here")
    assert [ours == theirs for ours, theirs in zip(changed.images, listed.images, strict=True)] == [True, True, False]
    with pytest.raises(DataError, match="3 public images are named, 2 were decoded"):
        list_public_set(tmp_path / "here", images=images[:2])


def test_an_empty_folder_or_a_missing_file_is_no_public_set(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="there is no public image"):
        list_public_set(tmp_path / "empty")
    with pytest.raises(DataError, match=r"public image 'a\.png' cannot be read"):
        list_public_set(tmp_path / "empty", ["a.png"])
