"""Mammograms are cropped before they are cached where the data set asks for it; other images do not change."""

import json
import zipfile

import numpy as np
import pytest
from PIL import Image

from grandrounds.data.images.cache import open_cache
from grandrounds.data.images.devices import retaken
from grandrounds.data.images.files.reading import Reading
from grandrounds.data.images.mammogram import mammogram_square
from grandrounds.data.site import load_site_data, read_site_config
from grandrounds.errors import ConfigurationError, DataError
from grandrounds.protocol.problem import Problem


@pytest.fixture
def pictures(tmp_path, breast):
    folder = tmp_path / "images"
    folder.mkdir()
    for number in range(3):
        levels = breast(60 + number, 40, np.random.default_rng(number))
        Image.fromarray((levels * 16).astype(np.uint16)).save(folder / f"{number}.png")
    return folder


MAMMOGRAMS = Reading(preprocess="mammogram")
NAMES = ["0.png", "1.png", "2.png"]


def test_the_cache_holds_cropped_squares_and_the_original_sizes(pictures, tmp_path, breast):
    cache = open_cache(NAMES, pictures, 32, 1, tmp_path / "cache", reading=MAMMOGRAMS)
    assert cache.images.shape == (3, 32, 32, 1)
    expected = mammogram_square((breast(61, 40, np.random.default_rng(1)) * 16), 32, "1.png")
    np.testing.assert_array_equal(cache.images[1, ..., 0], expected)
    assert cache.shapes == ((60, 40, 1, 1), (61, 40, 1, 1), (62, 40, 1, 1))


def test_plain_and_cropped_images_do_not_share_a_cache(pictures, tmp_path):
    plain = open_cache(NAMES, pictures, 32, 1, tmp_path / "cache")
    cropped = open_cache(NAMES, pictures, 32, 1, tmp_path / "cache", reading=MAMMOGRAMS)
    again = open_cache(NAMES, pictures, 32, 1, tmp_path / "cache", reading=MAMMOGRAMS)
    assert plain.decoded == cropped.decoded == 3
    assert again.decoded == 0
    assert (plain.images != cropped.images).any()


def test_three_channels_are_equal(pictures, tmp_path):
    images = open_cache(NAMES, pictures, 16, 3, tmp_path / "cache", reading=MAMMOGRAMS).images
    assert (images == images[..., :1]).all()
    assert images.any()


def test_zip_archives_are_read_as_folders_are(pictures, tmp_path):
    with zipfile.ZipFile(tmp_path / "images.zip", "w") as archive:
        for name in NAMES:
            archive.write(pictures / name, name)
    zipped, folder = (
        open_cache(NAMES, root, 16, 1, tmp_path / "cache", reading=MAMMOGRAMS).images
        for root in (tmp_path / "images.zip", pictures)
    )
    np.testing.assert_array_equal(zipped, folder)


def test_an_image_without_a_breast_is_quarantined(pictures, tmp_path):
    Image.fromarray(np.full((40, 40), 9, np.uint8)).save(pictures / "0.png")
    cache = open_cache(NAMES, pictures, 16, 1, tmp_path / "cache", max_unreadable=0.5, reading=MAMMOGRAMS)
    assert [(row, name) for row, name, _ in cache.quarantined] == [(0, "0.png")]
    assert "shows no breast" in cache.quarantined[0][2]
    assert not cache.images[0].any()


def test_arrays_of_pixels_are_refused(tmp_path):
    np.savez(tmp_path / "a.npz", train_images=np.zeros((2, 8, 8), np.uint8))
    with pytest.raises(DataError, match="is not a file but pixels in an array"):
        open_cache(["train_images/0"], tmp_path / "a.npz", 16, 1, tmp_path / "cache", reading=MAMMOGRAMS)


def site(folder, **more):
    (folder / "breast.csv").write_text(
        "image,label,split,patient\n0.png,benign,train,a\n1.png,malignant,val,b\n2.png,benign,test,c\n"
    )
    content = {"datasets": {"breast": {"manifest": "breast.csv", "root": "images", **more}}}
    (folder / "grandrounds.json").write_text(json.dumps(content))
    return folder / "grandrounds.json"


def test_a_synthetic_device_retakes_the_resized_images(pictures, tmp_path):
    plain = open_cache(NAMES, pictures, 32, 3, tmp_path / "cache").images
    taken = open_cache(NAMES, pictures, 32, 3, tmp_path / "cache", reading=Reading(preprocess="device-2")).images
    np.testing.assert_array_equal(taken, np.stack([retaken(image, "device-2") for image in plain]))


def test_preprocessing_is_an_entry_of_the_site_configuration(pictures, tmp_path):
    location = read_site_config(site(tmp_path, preprocess="mammogram"))["breast"]
    assert location.reading.preprocess == "mammogram"
    data = load_site_data(location, Problem("breast", ("benign", "malignant"), 32, 1), tmp_path / "cache")
    np.testing.assert_array_equal(
        data.images,
        open_cache(NAMES, pictures, 32, 1, tmp_path / "other", reading=MAMMOGRAMS).images,
    )
    assert read_site_config(site(tmp_path))["breast"].reading.preprocess == "none"


def test_refuses_another_word_and_windows_beside_it(pictures, tmp_path):
    with pytest.raises(ConfigurationError, match=r"breast\.preprocess must be none, mammogram"):
        read_site_config(site(tmp_path, preprocess="crop"))
    with pytest.raises(ConfigurationError, match="windows are for CT and preprocess is for other images"):
        read_site_config(site(tmp_path, preprocess="mammogram", windows=[[40, 80]]))
