"""Phantoms can be learned but not by colour, devices leave their mark, and a site is drawn once."""

import json
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from scipy.ndimage import gaussian_filter
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier

from grandrounds.data.datasets.phantom import PHANTOM_CLASSES, draw_phantom
from grandrounds.data.images.devices import DEVICES, Device, retaken, take_picture
from grandrounds.data.manifest import read_manifest
from grandrounds.data.partition.phantom_site import phantom_site
from grandrounds.errors import ConfigurationError
from grandrounds.seeding import numpy_generator


@pytest.fixture(scope="module")
def pictures():
    """400 pictures of one device, and which class each shows."""
    labels = np.arange(400) % len(PHANTOM_CLASSES)
    drawn = [draw_phantom(PHANTOM_CLASSES[k], "device-1", 32, numpy_generator(0, i)) for i, k in enumerate(labels)]
    return np.stack(drawn), labels


def test_a_picture_is_square_and_in_colour():
    picture = draw_phantom("ring", "device-2", 40, numpy_generator(0))
    assert picture.shape == (40, 40, 3)
    assert picture.dtype == np.uint8


def test_the_same_generator_draws_the_same_picture():
    first, again, other = (draw_phantom("ring", "device-1", 32, numpy_generator(seed)) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert (first != other).mean() > 0.5


def test_nearest_neighbours_recognise_shapes_far_above_chance_but_not_all(pictures):
    images, labels = pictures
    grey = images.mean(axis=3).reshape(400, 16, 2, 16, 2).mean(axis=(2, 4)).reshape(400, -1)
    grey -= grey.mean(axis=1, keepdims=True)
    accuracy = KNeighborsClassifier(3).fit(grey[:300], labels[:300]).score(grey[300:], labels[300:])
    # Chance is 0.25, with a standard error of 0.043 on 100 pictures.
    assert 0.42 < accuracy < 0.95


def test_mean_colours_do_not_give_the_class_away(pictures):
    images, labels = pictures
    colours = images.mean(axis=(1, 2)) / 255
    accuracy = LogisticRegression(C=100).fit(colours[:300], labels[:300]).score(colours[300:], labels[300:])
    assert accuracy < 0.40


def test_no_class_is_darker_than_another(pictures):
    images, labels = pictures
    # The mean of a picture varies by about 14 grey levels, that of 100 pictures by 1.4.
    means = [images[labels == k].mean() for k in range(len(PHANTOM_CLASSES))]
    assert max(means) - min(means) < 6


def test_mean_colours_give_the_device_away():
    devices = np.arange(80) % len(DEVICES)
    drawn = [draw_phantom("round", DEVICES[k], 24, numpy_generator(0, i)) for i, k in enumerate(devices)]
    colours = np.stack(drawn).mean(axis=(1, 2)) / 255
    model = LogisticRegression(C=1000, max_iter=1000).fit(colours[:60], devices[:60])
    assert model.score(colours[60:], devices[60:]) > 0.7


PLAIN = Device(white_balance=(1.0, 1.0, 1.0), contrast=1.0, blur=0.001, noise=0.0, vignetting=0.0)


def photograph(scene, **features):
    return take_picture(scene, replace(PLAIN, **features), numpy_generator(0))


@pytest.mark.parametrize(
    ("features", "expected"),
    [
        ({}, [204, 204, 204]),
        ({"white_balance": (1.0, 0.5, 0.0)}, [204, 102, 0]),
        ({"contrast": 0.5}, [166, 166, 166]),  # (0.8 - 0.5) / 2 + 0.5 = 0.65; 165.75
        ({"contrast": 2.0}, [255, 255, 255]),
    ],
)
def test_a_flat_scene_of_reflectance_80_percent_has_the_computed_grey_levels(features, expected):
    picture = photograph(np.full((9, 9, 3), 0.8), **features)
    np.testing.assert_array_equal(picture, np.broadcast_to(expected, (9, 9, 3)))


def test_vignetting_takes_its_share_of_light_from_the_corners_and_none_from_the_middle():
    picture = photograph(np.full((9, 9, 3), 0.8), vignetting=0.5)
    assert picture[4, 4].tolist() == [204, 204, 204]
    assert picture[0, 8].tolist() == [102, 102, 102]
    assert picture[0, 4].tolist() == [153, 153, 153]


def test_blur_agrees_with_a_gaussian_filter_away_from_the_border():
    scene = numpy_generator(0).random((40, 40, 3))
    expected = 255 * gaussian_filter(scene, (2, 2, 0), truncate=8)
    np.testing.assert_allclose(photograph(scene, blur=0.05)[12:-12, 12:-12], expected[12:-12, 12:-12], atol=0.51)


@pytest.mark.parametrize("channels", [1, 3])
def test_an_image_is_retaken_with_the_devices_gain_and_always_the_same_noise(channels):
    image = np.full((33, 33, channels), 128, np.uint8)
    again = retaken(image, "device-3")
    np.testing.assert_array_equal(again, retaken(image, "device-3"))
    gain = np.array([0.84, 0.98, 1.16] if channels == 3 else [0.98])
    # Middle: (128/255 * gain - 0.5) * 0.8 + 0.5; noise of 5 grey levels over 81 pixels, light fall-off below 1 %.
    expected = ((128 / 255 * gain - 0.5) * 0.8 + 0.5) * 255
    np.testing.assert_allclose(again[12:21, 12:21].mean(axis=(0, 1)), expected, atol=2)


def test_noise_has_the_stated_standard_deviation():
    picture = photograph(np.full((60, 60, 3), 0.5), noise=0.06)
    assert picture.std() / 255 == pytest.approx(0.06, rel=0.03)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("ring", "camera", 32), "device must be one of device-1, .*device-4, got 'camera'"),
        (("ring", "device-1", 4), "size must be at least 8, got 4"),
    ],
)
def test_an_impossible_draw_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        draw_phantom(*arguments, numpy_generator(0))


def records_of(configuration):
    return read_manifest(configuration.parent / "manifest.csv", PHANTOM_CLASSES)


def test_a_site_has_its_files_counts_and_groups(tmp_path):
    configuration = phantom_site("site-2", tmp_path, size=16, images=100, labelled=0.2)
    assert configuration == tmp_path / "site-2" / "grandrounds.json"
    assert json.loads(configuration.read_text()) == {
        "datasets": {"phantom": {"manifest": "manifest.csv", "root": "images.npz"}}
    }
    with np.load(configuration.parent / "images.npz") as arrays:
        assert (arrays["images"].shape, arrays["images"].dtype) == ((100, 16, 16, 3), np.uint8)
        assert len(np.unique(arrays["images"].reshape(100, -1), axis=0)) == 100
    records = records_of(configuration)
    assert [record.image for record in records] == [f"images/{index}" for index in range(100)]
    assert Counter((record.split, record.labelled) for record in records) == {
        ("train", True): 12,
        ("train", False): 48,
        ("val", True): 15,
        ("test", True): 25,
    }
    assert set(Counter(record.patient for record in records).values()) == {1, 2, 3}
    assert [path.name for path in tmp_path.iterdir()] == ["site-2"]


def test_images_match_the_labels_of_the_manifest(tmp_path):
    configuration = phantom_site("site-1", tmp_path, size=32, images=24, devices=("device-3",))
    with np.load(configuration.parent / "images.npz") as arrays:
        images = arrays["images"]
    for index, record in enumerate(records_of(configuration)):
        generator = numpy_generator(0, "phantom", "site-1", record.image)
        np.testing.assert_array_equal(images[index], draw_phantom(record.label, "device-3", 32, generator))
        assert record.source == "phantom/device-3"


def test_hospitals_differ_in_device_and_in_case_mix(tmp_path):
    sites = {k: records_of(phantom_site(f"site-{k}", tmp_path, size=8, images=120)) for k in (1, 2, 4, 5)}
    device = {k: Counter(record.source for record in own).most_common(1)[0] for k, own in sites.items()}
    assert {k: name for k, (name, _) in device.items()} == {
        1: "phantom/device-1",
        2: "phantom/device-2",
        4: "phantom/device-4",
        5: "phantom/device-1",
    }
    assert all(count == pytest.approx(102, abs=12) for _, count in device.values())
    commonest = {k: Counter(record.label for record in own).most_common(1)[0][0] for k, own in sites.items()}
    assert commonest[1] != commonest[2]
    assert commonest[1] != commonest[5]
    assert all({record.label for record in own} == set(PHANTOM_CLASSES) for own in sites.values())


def test_a_name_without_a_number_is_a_site_like_others(tmp_path):
    assert len(records_of(phantom_site("ward", tmp_path, size=8, images=12))) == 12


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_the_same_arguments_are_drawn_once_and_give_the_same_bytes_anywhere(tmp_path):
    first = phantom_site("site-1", tmp_path / "a", size=8, images=12).parent
    before = (first / "images.npz").stat().st_mtime_ns
    phantom_site("site-1", tmp_path / "a", size=8, images=12)
    assert (first / "images.npz").stat().st_mtime_ns == before
    assert contents(first) == contents(phantom_site("site-1", tmp_path / "b", size=8, images=12).parent)
    assert (
        contents(first)["images.npz"]
        != contents(phantom_site("site-1", tmp_path / "c", size=8, images=12, seed=1).parent)["images.npz"]
    )


def test_other_arguments_or_a_lost_file_are_drawn_anew(tmp_path):
    folder = phantom_site("site-1", tmp_path, size=8, images=12).parent
    before = contents(folder)
    assert len(records_of(phantom_site("site-1", tmp_path, size=8, images=15))) == 15
    phantom_site("site-1", tmp_path, size=8, images=12)
    (folder / "images.npz").unlink()
    phantom_site("site-1", tmp_path, size=8, images=12)
    assert contents(folder) == before


def test_files_of_others_are_never_replaced(tmp_path):
    (tmp_path / "site-1").mkdir()
    (tmp_path / "site-1" / "scan.dcm").write_bytes(b"irreplaceable")
    with pytest.raises(ConfigurationError, match=r"site-1 holds scan\.dcm, which is not of a phantom"):
        phantom_site("site-1", tmp_path, size=8, images=12)
    assert (tmp_path / "site-1" / "scan.dcm").read_bytes() == b"irreplaceable"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"images": 11}, "images must be at least 12, got 11"), ({"devices": ()}, "number of devices must be at least 1")],
)
def test_too_few_images_or_devices_are_refused(tmp_path, arguments, message):
    with pytest.raises(ValueError, match=message):
        phantom_site("site-1", tmp_path, size=8, **arguments)
