"""MDH-FL's setting: Matek-19 is divided between the sites; MLL23 (once INT-20), whose labels nobody reads, is public."""

from collections import Counter

import numpy as np
import pytest
from PIL import Image

from grandrounds.data.datasets.blood import BLOOD_CELL_CLASSES, INT20, MATEK19, MLL23
from grandrounds.data.manifest import read_manifest
from grandrounds.data.partition.make import make_partition
from grandrounds.data.partition.public_set import read_public_set

EACH = 5


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
    records = read_manifest(tmp_path / "out" / "site-2" / "manifest.csv", BLOOD_CELL_CLASSES).records
    tested = Counter(record.label for record in records if record.split == "test")
    assert tested == Counter({name: 2 if name == "monocyte" else 1 for name in BLOOD_CELL_CLASSES})
    assert not any("PMB" in record.image for record in records)
    listed = read_public_set(tmp_path / "out" / "site-4" / "public.sha256.csv").images
    assert len(listed) == 14  # four of MLL23's eighteen folders are of no common class
    assert all(published[image.image.split("/")[0]] and image.pixels for image in listed)
    unlabelled = read_manifest(tmp_path / "out" / "site-4" / "public.csv").records
    assert {record.label for record in unlabelled} == {""}
    assert np.sum(list(description["noise_matrices"].values())) == 56
