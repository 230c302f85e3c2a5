"""The breast is found on digital images and on films, its fatty rim included."""

import io
import zipfile
from collections import Counter

import numpy as np
import pytest
from PIL import Image

from grandrounds.data.images.mammogram import (
    bounding_box,
    breast_mask,
    chest_wall_on_right,
    otsu_threshold,
    read_mammogram,
    to_chest_wall_left,
)
from grandrounds.data.manifest import read_table


def half_disc(height=256, width=192, radius=90, on_right=False):
    """Where a breast would be: half a disc at one side."""
    rows, columns = np.mgrid[:height, :width]
    disc = (rows - height / 2) ** 2 + columns**2 <= radius**2
    return disc[:, ::-1] if on_right else disc


def overlap(found, expected):
    return (found & expected).sum() / (found | expected).sum()


def digital(disc, generator, label=True):
    image = np.where(disc, generator.uniform(200, 3000, disc.shape), 0.0).astype(np.float32)
    if label:
        image[10:40, -40:-10] = 4095
    return image


def film(disc, generator):
    """A film on a scanner's black: base, noise, a label, and black on both sides."""
    image = 12 + generator.normal(0, 2, disc.shape) + np.where(disc, generator.uniform(60, 180, disc.shape), 0)
    image[10:40, -40:-10] = 250
    padded = np.pad(image.clip(1, 255), ((0, 0), (30, 30)))
    return padded.astype(np.float32)


@pytest.mark.parametrize("on_right", [False, True])
def test_digital_breast_is_found_without_the_label(on_right):
    disc = half_disc(on_right=on_right)
    image = digital(disc, np.random.default_rng(0), label=False)
    image[10:40, 80:110] = 4095  # far from the breast on either side
    found = breast_mask(image)
    assert overlap(found, disc) > 0.95
    assert not found[10:40, 80:110].any()
    assert chest_wall_on_right(found[bounding_box(found)]) is on_right


def test_dark_fat_of_a_digital_image_is_breast():
    # Under Otsu's threshold the rim at a twentieth of the glands' level would be background.
    disc, core = half_disc(radius=100), half_disc(radius=50)
    image = np.where(core, 4000, np.where(disc, 200, 0)).astype(np.float32)
    assert overlap(breast_mask(image), disc) > 0.95


def test_film_is_separated_from_the_breast_and_from_padding():
    disc = half_disc()
    found = breast_mask(film(disc, np.random.default_rng(0)))
    assert overlap(found, np.pad(disc, ((0, 0), (30, 30)))) > 0.95


def test_bright_film_is_separated_from_the_breast_although_padding_is_darker():
    # Half the scan is padding: a threshold over all pixels would divide padding from film.
    disc = half_disc(radius=60)
    image = np.where(disc, 120, 50) + np.random.default_rng(0).normal(0, 2, disc.shape)
    padded = np.pad(image, ((0, 0), (96, 96))).astype(np.float32)
    assert overlap(breast_mask(padded), np.pad(disc, ((0, 0), (96, 96)))) > 0.9


def test_a_label_that_a_thin_line_joins_to_the_breast_is_cut_off():
    disc = half_disc()
    image = disc.astype(np.float32)
    image[20:45, 120:170] = 1
    image[30:60, 140:143] = 1
    image[59:61, 40:143] = 1
    found = breast_mask(image)
    assert not found[20:45, 120:170].any()
    assert overlap(found, disc) > 0.9


def test_large_images_are_searched_at_low_resolution_and_cover_the_breast():
    disc = half_disc(1100, 900, 400)
    found = breast_mask(digital(disc, np.random.default_rng(0)))
    assert found.shape == disc.shape
    assert found[disc].mean() > 0.999
    assert overlap(found, disc) > 0.95


def test_holes_are_filled():
    image = half_disc().astype(np.float32)
    image[118:138, 20:40] = 0
    assert breast_mask(image)[128, 30]


@pytest.mark.parametrize("value", [0.0, 7.0])
def test_nothing_is_found_where_there_is_one_level(value):
    assert not breast_mask(np.full((32, 32), value, np.float32)).any()


def test_a_speck_is_no_breast():
    image = np.zeros((200, 200), np.float32)
    image[100:110, 100:110] = 1
    assert not breast_mask(image).any()


def test_otsu_divides_two_heaps_between_them():
    generator = np.random.default_rng(0)
    values = np.concatenate([generator.normal(10, 1, 500), generator.normal(30, 1, 100)])
    assert 13 < otsu_threshold(values) < 27
    # By hand: of 0, 0, 1, 9 the cut after 1 has variance 3*1*(9 - 1/3)^2, the cut after 0 has 2*2*5^2.
    assert 1 < otsu_threshold(np.array([0.0, 0.0, 1.0, 9.0])) < 9


def test_the_fatty_rim_of_a_film_of_a_dense_breast_is_breast():
    # Glands at 200 and fat at 25 above a film's base of 6: Otsu's threshold lies between fat and glands.
    generator = np.random.default_rng(0)
    disc, core = half_disc(radius=100), half_disc(radius=76)
    image = 6 + generator.normal(0, 2, disc.shape) + np.where(core, 194, np.where(disc, 19, 0))
    image[10:40, -40:-10] = 250
    padded = np.pad(image.clip(1, 255), ((0, 0), (30, 30))).astype(np.float32)
    found = breast_mask(padded)
    assert overlap(found, np.pad(disc, ((0, 0), (30, 30)))) > 0.95
    assert not found[10:40, -70:-40].any()


def lesion_centres(row):
    """The annotated centres of a film in the archive's half size, as rows and columns."""
    text = row["lesions_xyr_1024_origin_bottom_left"]
    numbers = [] if "*" in text else [part.split() for part in text.split(";") if part.strip()]
    return [((1023 - int(y)) // 2, int(x) // 2) for x, y, _ in numbers]


@pytest.mark.realdata
def test_all_annotated_lesions_of_mini_mias_are_in_the_breast(realdata):
    columns = ("image", "lesions_xyr_1024_origin_bottom_left")
    rows = [row for _, row in read_table(realdata / "mias" / "mini_mias_manifest.csv", columns)]
    inside = []
    with zipfile.ZipFile(realdata / "mias" / "mini_mias_512.zip") as archive:
        for row in rows:
            centres = lesion_centres(row)
            if centres:
                content = archive.read(row["image"])
                mask = breast_mask(read_mammogram(content, row["image"])[0])
                inside += [(row["image"], bool(mask[place])) for place in centres]
    assert len(inside) == 119
    assert [image for image, found in inside if not found] == []


@pytest.mark.realdata
@pytest.mark.parametrize("film", ["mdb015", "mdb151", "mdb152", "mdb261"])
def test_known_laterality_turns_films_whose_shape_is_not_clear(film, realdata):
    with zipfile.ZipFile(realdata / "mias" / "mini_mias_512.zip") as archive:
        levels, laterality = read_mammogram(archive.read(f"{film}.png"), f"{film}.png")
    assert laterality == ("R" if int(film[3:]) % 2 else "L")
    mask = breast_mask(levels)
    box = bounding_box(mask)
    turned, _ = to_chest_wall_left(levels[box], mask[box], laterality)
    expected = levels[box][:, ::-1] if laterality == "R" else levels[box]
    np.testing.assert_array_equal(turned, expected)


@pytest.mark.realdata
def test_the_side_of_nearly_all_films_of_mini_mias_follows_from_the_shape(realdata):
    # Every fourth film, with one of the pair that fills the picture and has no side.
    rows = [row for _, row in read_table(realdata / "mias" / "mini_mias_manifest.csv", ("image", "side"))][2::4]
    right = Counter()
    with zipfile.ZipFile(realdata / "mias" / "mini_mias_512.zip") as archive:
        for row in rows:
            levels = np.asarray(Image.open(io.BytesIO(archive.read(row["image"]))).convert("L"), np.float32)
            mask = breast_mask(levels)
            right[chest_wall_on_right(mask[bounding_box(mask)]) is (row["side"] == "right")] += 1
    assert right == {True: 79, False: 1}
