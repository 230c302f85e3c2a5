"""Planted images of every kind are found and nothing else; a clean set has no suspects."""

import numpy as np
import pytest

from grandrounds.data.suspicions import COPY_SIDE, SUSPICIONS, SmallCopies, small_copies, suspicions
from grandrounds.seeding import numpy_generator

SIDE = 16
LANDSCAPE, PORTRAIT = (150, 200, 3), (200, 150, 3)


def clean(count=40, channels=3):
    """Bright skin with a darker spot in the middle, each with its own level, contrast and noise."""
    generator = numpy_generator("suspicions", channels)
    rows, columns = np.mgrid[:SIDE, :SIDE] - (SIDE - 1) / 2
    spot = np.hypot(rows, columns) < 4
    skin = np.array((220, 160, 150))[:channels] + generator.normal(0, 10, (count, 1, 1, 1))
    depth = generator.uniform(60, 120, (count, 1, 1, 1))
    noise = generator.normal(0, 4, (count, SIDE, SIDE, channels))
    return np.clip(skin - depth * spot[..., None] + noise, 0, 255).astype(np.uint8)


def found(images, originals=(), sources=()):
    """The rows of the suspects, by kind, without kinds that have none."""
    names = [f"{row}.png" for row in range(len(images))]
    suspects = suspicions(SmallCopies(images, names, originals, sources))
    return {kind: [row for row, _ in listed] for kind, listed in suspects.items() if listed}


@pytest.mark.parametrize("channels", [1, 3])
def test_a_clean_set_has_no_suspects(channels):
    assert found(clean(channels=channels), [LANDSCAPE] * 40, ["one", "two"] * 20) == {}


def test_without_images_there_are_no_suspects():
    assert suspicions(SmallCopies(clean()[:0], ())) == {kind: [] for kind in SUSPICIONS}


def test_twelve_bits_in_sixteen_are_dark_in_spite_of_one_bright_pixel():
    images = clean()
    images[[3, 8]] //= 16
    images[8, 0, 0] = 255
    assert sorted(found(images)["dark"]) == [3, 8]


@pytest.mark.parametrize("channels", [1, 3])
def test_negatives_are_inverted_and_underexposed_images_are_not(channels):
    images = clean(channels=channels)
    images[[5, 21]] = 255 - images[[5, 21]]
    images[7] //= 3
    assert {kind: sorted(rows) for kind, rows in found(images).items()} == {"inverted": [5, 21]}


def test_few_portraits_among_landscapes_are_turned():
    assert found(clean(), [PORTRAIT] * 4 + [LANDSCAPE] * 36) == {"turned": [0, 1, 2, 3]}
    assert found(clean(), [LANDSCAPE] * 2 + [PORTRAIT] * 38) == {"turned": [0, 1]}


@pytest.mark.parametrize("originals", [[PORTRAIT] * 15 + [LANDSCAPE] * 25, [PORTRAIT] + [(9, 9, 3)] * 39])
def test_both_formats_may_be_usual_and_squares_are_neither(originals):
    assert found(clean(), originals) == {}


def test_one_level_is_flat_with_or_without_noise():
    images = clean()
    images[4] = 130
    images[6] = 130 + np.arange(SIDE * SIDE * 3).reshape(SIDE, SIDE, 3) % 3
    assert found(images) == {"flat": [4, 6]}


def test_copies_are_listed_together_and_name_each_other():
    images = clean()
    images[30] = images[2]
    images[12] = images[9]
    suspects = suspicions(SmallCopies(images, [f"{row}.png" for row in range(40)]))["duplicate"]
    assert [row for row, _ in suspects] == [2, 30, 9, 12]
    assert [reason.split()[-1] for _, reason in suspects] == ["30.png", "2.png", "12.png", "9.png"]


def test_two_levels_are_a_mask_with_a_soft_outline_and_a_dot_is_none():
    images = clean()
    images[1] = 0
    images[1, 4:12, 4:12] = 255
    images[1, 3, 4:12] = 128  # 8 of 256 pixels between the levels
    images[2] = 90
    images[2, 0, :2] = 255  # a letter on one level
    rows = found(images)
    assert rows["mask"] == [1]
    assert rows["flat"] == [2]


def test_a_source_of_other_colours_is_apart():
    images = clean()
    images[:12, ..., 2] = images[:12, ..., 2] // 3
    sources = ["old camera"] * 12 + ["one", "two"] * 14
    assert found(images, sources=sources)["device apart"] == list(range(12))
    reason = suspicions(SmallCopies(images, [""] * 40, sources=sources))["device apart"][0].reason
    assert "old camera" in reason


def test_a_few_images_or_a_single_source_are_no_device():
    images = clean()
    images[:9, ..., 2] = images[:9, ..., 2] // 3
    assert "device apart" not in found(images, sources=["old camera"] * 9 + ["one", "two"] * 15 + ["one"])
    assert "device apart" not in found(images, sources=["one"] * 40)


def test_small_copies_are_pixels_of_the_chosen_images():
    images = np.arange(3 * 70 * 70, dtype=np.uint32).reshape(3, 70, 70, 1).astype(np.uint8)
    copies = small_copies(images, [2, 0])
    assert copies.shape == (2, 24, 24, 1)
    assert max(copies.shape[1:3]) <= COPY_SIDE
    np.testing.assert_array_equal(copies[0], images[2, ::3, ::3])
    assert small_copies(images, []).shape == (0, 24, 24, 1)
