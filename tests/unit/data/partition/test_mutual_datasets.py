"""MDH-FL's setting: Matek-19 is divided between the sites; MLL23 (once INT-20), whose labels are not used, is public."""

import csv
from collections import Counter

import numpy as np
import pytest
from PIL import Image
from published_data.blood import BLOOD_CELL_CLASSES, INT20, MATEK19, MLL23
from published_data.cifar10 import CIFAR10_CLASSES

from benchmarks.fedperl_cifar10.published import CifarImages, write_once
from grandrounds.data.manifest import read_manifest
from grandrounds.data.partition.public_set import PublicImage, PublicSet
from grandrounds.data.partition.schemes import make_partition

EACH = 5


def read_list(path):
    """The public set that a list names."""
    with path.open(newline="") as stream:
        _, *rows = csv.reader(stream)
    return PublicSet(tuple(PublicImage(*row) for row in rows))


def layout(root, folders, per_folder, side):
    """A folder for each class with TIFF files in it, as published."""
    generator = np.random.default_rng(side)
    for folder in folders:
        (root / folder).mkdir(parents=True)
        for number in range(per_folder):
            pixels = generator.integers(0, 256, (side, side, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(root / folder / f"{folder}_{number:04}.tiff")
    return root


@pytest.mark.parametrize("published", [MLL23, INT20])
def test_sites_have_the_thirteen_classes_of_one_and_the_pictures_of_the_other(published, tmp_path):
    private = layout(tmp_path / "AML-Cytomorphology", MATEK19, EACH, 40)
    public = layout(tmp_path / "public", published, 1, 28)
    chosen = {"public": "mll23", "public_root": public, "public_size": 16, "noise": "symmetric", "noise_rate": 0.2}
    numbers = {"alpha": 5.0, "validation": 0.0, "test": 0.2}
    description = make_partition("matek19", private, tmp_path / "out", scheme="mdhfl", **numbers, **chosen)
    assert description["classes"] == list(BLOOD_CELL_CLASSES)
    # Of fifteen folders one is left out, and monoblasts are monocytes: 70 images, a fifth of each class for testing.
    images = [site["images"] for site in description["sites"].values()]
    assert images == [{"train": 14, "val": 0, "test": 14}] * 4
    records = read_manifest(tmp_path / "out" / "site-2" / "manifest.csv", BLOOD_CELL_CLASSES)
    tested = Counter(record.label for record in records if record.split == "test")
    assert tested == Counter({name: 2 if name == "monocyte" else 1 for name in BLOOD_CELL_CLASSES})
    assert not any("PMB" in record.image for record in records)
    listed = read_list(tmp_path / "out" / "site-4" / "public.sha256.csv").images
    assert len(listed) == 14  # four of MLL23's eighteen folders are of no common class
    assert all(published[image.image.split("/")[0]] and image.pixels for image in listed)
    unlabelled = read_manifest(tmp_path / "out" / "site-4" / "public.csv")
    assert {record.label for record in unlabelled} == {""}
    assert np.sum(list(description["noise_matrices"].values())) == 56


NUMBERS = {"alpha": 5.0, "validation": 0.0, "test": 0.2, "noise": "pair", "noise_rate": 0.2, "public_size": 32}


def archive(path, seed, per_class, classes):
    """A training part with so many images of each class, and a test part with one of each."""
    generator = np.random.default_rng(seed)

    def part(count):
        labels = np.repeat(np.arange(classes), count)
        return CifarImages(generator.integers(0, 256, (len(labels), 32, 32, 3), dtype=np.uint8), labels)

    return write_once(path, [], lambda: {"train": part(per_class), "test": part(1)})


def test_the_public_images_are_of_cifar_100_and_the_private_ones_of_cifar_10(tmp_path):
    private = archive(tmp_path / "cifar10.npz", 1, 9, len(CIFAR10_CLASSES))
    public = archive(tmp_path / "cifar100.npz", 2, 1, 100)
    chosen = {"public": "folder", "public_root": public, "public_images": 30}
    out = tmp_path / "out"
    description = make_partition("cifar10", private, out, **NUMBERS, **chosen)
    assert description["classes"] == list(CIFAR10_CLASSES)
    # 100 images, 20 of them for testing.
    assert [site["images"] for site in description["sites"].values()] == [{"train": 20, "val": 0, "test": 20}] * 4
    listed = read_list(out / "site-3" / "public.sha256.csv").images
    assert len(listed) == 30
    with np.load(public) as arrays:
        assert {image.image.partition("/")[0] for image in listed} <= {name.partition("_")[0] for name in arrays}
    unlabelled = read_manifest(out / "site-3" / "public.csv")
    assert [record.image for record in unlabelled] == [image.image for image in listed]
    assert {record.label for record in unlabelled} == {""}


@pytest.mark.realdata
def test_without_cifar_100_a_part_of_cifar_10_that_no_site_has_is_public(realdata, tmp_path):
    out = tmp_path / "out"
    chosen = {"public_share": 0.5, "public_images": 60, "private_images": 400}
    description = make_partition("cifar10", realdata / "cifar10", out, **NUMBERS, **chosen)
    assert [site["images"]["train"] for site in description["sites"].values()] == [80] * 4
    public = {image.image for image in read_list(out / "site-1" / "public.sha256.csv").images}
    private = {
        record.image for number in range(1, 5) for record in read_manifest(out / f"site-{number}" / "manifest.csv")
    }
    assert len(public) == 60
    assert len(private) == 400
    assert not public & private
