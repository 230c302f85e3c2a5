"""Which pictures are copies of each other, by every way in which copies are made, and that others are none."""

import io
from itertools import combinations

import numpy as np
import pytest
from PIL import Image

from grandrounds.data import leaks
from grandrounds.data.leaks import (
    Looked,
    PlacedImage,
    changed_pictures,
    copies_of_kept,
    keep_pictures,
    near_copies,
    near_pairs,
    thumbnails,
)

SIDE = 96


def picture(generator):
    """Blobs of several colours and sizes on a ground, as an image."""
    y, x = np.mgrid[:SIDE, :SIDE]
    values = np.tile(generator.uniform(80, 140, 3), (SIDE, SIDE, 1))
    for _ in range(30):
        down, across, radius = *generator.uniform(0, SIDE, 2), generator.uniform(2, 18)
        values += np.exp(-((y - down) ** 2 + (x - across) ** 2) / radius**2)[..., None] * generator.uniform(-60, 60, 3)
    return Image.fromarray(values.clip(0, 255).astype(np.uint8))


def pictures(count, seed=0):
    generator = np.random.default_rng(seed)
    return [picture(generator) for _ in range(count)]


def saved_again(image):
    stream = io.BytesIO()
    image.save(stream, "JPEG", quality=75)
    return Image.open(stream)


def cropped(image):
    return image.crop((5, 2, SIDE - 4, SIDE - 5)).resize(image.size)


WAYS = {
    "mirrored": lambda image: image.transpose(Image.Transpose.FLIP_LEFT_RIGHT),
    "turned": lambda image: image.transpose(Image.Transpose.ROTATE_90),
    "transposed": lambda image: image.transpose(Image.Transpose.TRANSVERSE),
    "darker": lambda image: image.point(lambda value: value * 0.8),
    "brighter": lambda image: image.point(lambda value: value * 1.2),
    "cropped": cropped,
    "saved again": saved_again,
}


def thumbs_of(images):
    squares = np.stack(
        [np.asarray(image.convert("RGB").resize((64, 64), Image.Resampling.BILINEAR)) for image in images]
    )
    return thumbnails(squares, range(len(images)))


ALONE_AND_IN_PAIRS = [*((way,) for way in WAYS), *combinations(WAYS, 2)]


@pytest.mark.parametrize(
    ("ways", "count"),
    [*((ways, 20) for ways in ALONE_AND_IN_PAIRS), (("transposed", "darker"), 200), (("cropped",), 200)],
)
def test_every_picture_finds_its_copy_and_no_other(ways, count):
    images = pictures(count)
    copies = images[:20]
    for way in ways:
        copies = [WAYS[way](image) for image in copies]
    found = near_pairs(thumbs_of([*images, *copies]))
    assert found.tolist() == [[row, row + count] for row in range(20)]


def test_grey_pictures_are_compared_too():
    images = [image.convert("L") for image in pictures(10)]
    squares = np.stack([np.asarray(image) for image in [*images, WAYS["turned"](images[3])]])[..., None]
    assert near_pairs(thumbnails(squares, range(11))).tolist() == [[3, 10]]


@pytest.mark.parametrize("change", ["another tint", "shifted", "another scale"])
def test_two_photographs_of_one_thing_are_no_copies(change):
    image = pictures(1)[0]
    tinted = [
        band.point(lambda value, by=by: value * by) for band, by in zip(image.split(), (1, 0.85, 1.1), strict=True)
    ]
    again = {
        "another tint": Image.merge("RGB", tinted),
        "shifted": Image.fromarray(np.roll(np.asarray(image), (4, -4), (0, 1))),
        "another scale": image.crop((14, 14, SIDE - 14, SIDE - 14)).resize(image.size),
    }[change]
    assert near_pairs(thumbs_of([image, again])).size == 0


def test_too_many_candidates_are_not_compared(monkeypatch):
    thumbs = np.tile(thumbs_of(pictures(1)), (200, 1, 1, 1))
    monkeypatch.setattr(leaks, "MAX_CANDIDATES", 19_899)
    assert near_pairs(thumbs) is None


def test_pictures_that_show_too_little_are_no_copies():
    assert near_pairs(np.full((5, leaks.SIDE, leaks.SIDE, 3), 9, np.uint8)).shape == (0, 2)


def looked(images):
    placed = tuple(PlacedImage("Leeds", row, f"{row}", "train", "", f"{row}") for row in range(len(images)))
    digests = tuple(f"{image.tobytes().__hash__():x}" for image in images)
    return Looked(placed, digests, thumbs_of(images), ("",) * len(images), np.zeros(len(images), np.int64), ())


def test_pictures_that_are_kept_are_known_again(tmp_path):
    images = pictures(6)
    keep_pictures(tmp_path / "kept.npz", {"Leeds": looked(images)})
    assert changed_pictures(tmp_path / "kept.npz", {"Leeds": looked(images[::-1])}) == 0
    assert changed_pictures(tmp_path / "kept.npz", {"Leeds": looked([*images[:4], *pictures(2, seed=1)])}) == 2
    assert changed_pictures(tmp_path / "kept.npz", {"York": looked(pictures(2, seed=1))}) == 0
    tested = np.stack([np.asarray(WAYS["mirrored"](images[2])), np.asarray(pictures(1, seed=2)[0])])
    assert copies_of_kept(tmp_path / "kept.npz", tested) == 1


def test_a_mirrored_copy_in_another_split_is_a_warning():
    image = pictures(1)[0]
    thumbs = thumbs_of([image, WAYS["mirrored"](image)])
    places = [PlacedImage("Leeds", row, f"{row}", split, "", f"{row}") for row, split in enumerate(("train", "test"))]
    findings = near_copies([(place, f"{row}", thumbs[row]) for row, place in enumerate(places)], within=True)
    assert [level for level, *_ in findings] == ["warning"]
