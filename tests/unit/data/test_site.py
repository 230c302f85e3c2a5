"""A data set's name leads to the site's own files, and rows are split as in the manifest."""

import json
import re

import numpy as np
import pytest
from PIL import Image

from grandrounds.data.images.cache import DecodedCache
from grandrounds.data.manifest import Record, write_manifest
from grandrounds.data.site import (
    DatasetLocation,
    SiteData,
    load_site_data,
    locate_dataset,
    min_support_from,
    read_site_config,
)
from grandrounds.errors import ConfigurationError, DataError
from grandrounds.protocol.problem import Problem

RECORDS = (
    Record("a.png", "nevus", "train", "p1"),
    Record("b.png", "", "train", "p1"),
    Record("c.png", "melanoma", "train", "p2", labelled=False),
    Record("d.png", "melanoma", "train", "p3"),
    Record("e.png", "nevus", "val", "p4"),
    Record("f.png", "melanoma", "test", "p5", labelled=False),
    Record("g.png", "", "test", "", "l6"),
)
CLASSES = ("melanoma", "nevus", "keratosis")
COLOUR, GREY = Problem("skin", CLASSES, 4), Problem("skin", CLASSES, 4, 1)


@pytest.fixture
def place(tmp_path):
    (tmp_path / "images").mkdir()
    for row, record in enumerate(RECORDS):
        Image.new("L", (4, 4), 30 * (row + 1)).save(tmp_path / "images" / record.image)
    write_manifest(RECORDS, tmp_path / "skin.csv")
    return tmp_path


def write_config(folder, datasets):
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "grandrounds.json"
    path.write_text(datasets if isinstance(datasets, str) else json.dumps({"datasets": datasets}))
    return path


def test_relative_paths_start_at_the_configurations_folder(place):
    path = write_config(place / "local", {"skin": {"manifest": "../skin.csv", "root": str(place / "images")}})
    location = read_site_config(path)["skin"]
    assert location.manifest.resolve() == place / "skin.csv"
    assert (location.root, location.max_unreadable) == (place / "images", 0.01)


def test_the_limit_for_unreadable_images_is_read(place):
    path = write_config(place, {"skin": {"manifest": "skin.csv", "root": "images", "max_unreadable": 0}})
    assert read_site_config(path) == {"skin": DatasetLocation(place / "skin.csv", place / "images", 0.0)}


@pytest.mark.parametrize(
    ("datasets", "message"),
    [
        ("{", r"grandrounds\.json is not valid JSON"),
        ("[]", r"grandrounds\.json must be a JSON object, got list"),
        ("{}", "'datasets' is missing"),
        ('{"datasets": {}, "data": 1}', "unknown key 'data'; expected datasets"),
        ('{"datasets": ["skin"]}', r"datasets must be an object of data sets by name, got \['skin'\]"),
        ({"skin": {"manifest": "skin.csv"}}, r"datasets\.skin: 'root' is missing"),
        ({"skin": {"manifest": "skin.csv", "root": "images", "rot": 1}}, r"datasets\.skin: unknown key 'rot'"),
        ({"skin": {"manifest": 3, "root": "images"}}, r"datasets\.skin\.manifest must be a path, got 3"),
        ({"skin": {"manifest": "skin.csv", "root": ""}}, r"datasets\.skin\.root must be a path, got ''"),
        (
            {"skin": {"manifest": "skin.csv", "root": "images", "max_unreadable": True}},
            r"datasets\.skin\.max_unreadable must be a number between 0 and 1, got True",
        ),
        (
            {"skin": {"manifest": "skin.csv", "root": "images", "max_unreadable": 1.01}},
            r"max_unreadable must be a number between 0 and 1, got 1\.01",
        ),
        ({"skin": {"manifest": "x.csv", "root": "images"}}, r"datasets\.skin\.manifest: there is no file .*x\.csv"),
        ({"skin": {"manifest": "skin.csv", "root": "x"}}, r"datasets\.skin\.root: there is no file or folder .*/x"),
    ],
)
def test_a_wrong_configuration_is_refused_by_file_and_field(place, datasets, message):
    with pytest.raises(ConfigurationError, match=message):
        read_site_config(write_config(place, datasets))


def test_a_missing_configuration_is_refused(tmp_path):
    with pytest.raises(ConfigurationError, match=r"grandrounds\.json cannot"):
        read_site_config(tmp_path / "grandrounds.json")


def test_a_sites_own_folder_comes_first_then_the_next_places(place):
    skin = {"manifest": str(place / "skin.csv"), "root": str(place / "images")}
    write_config(place / "one", {"skin": skin})
    write_config(place / "one" / "site-1", {"skin": {**skin, "max_unreadable": 0.5}})
    write_config(place / "two", {"blood": skin, "skin": {**skin, "max_unreadable": 0.7}})
    folders = [place / "none", place / "one", place / "two"]
    assert locate_dataset("site-1", "skin", folders).max_unreadable == 0.5
    assert locate_dataset("site-2", "skin", folders).max_unreadable == 0.01
    assert locate_dataset("site-1", "blood", folders).max_unreadable == 0.01


def test_the_placeholder_is_replaced_by_the_sites_name(place):
    write_manifest(RECORDS, place / "site-3" / "skin.csv")
    path = write_config(place, {"skin": {"manifest": "{site}/skin.csv", "root": "images"}})
    assert locate_dataset("site-3", "skin", [place]).manifest == place / "site-3" / "skin.csv"
    assert set(read_site_config(path)) == {"skin"}
    with pytest.raises(ConfigurationError, match=r"there is no file .*site-4/skin\.csv"):
        locate_dataset("site-4", "skin", [place])


def test_a_broken_data_set_does_not_block_another(place):
    skin = {"manifest": "skin.csv", "root": "images"}
    write_config(place, {"blood": {"manifest": "gone.csv", "root": "gone"}, "skin": skin})
    assert locate_dataset("site-1", "skin", [place]).root == place / "images"


def test_an_unknown_data_set_lists_the_places_and_what_they_define(place):
    write_config(place, {"skin": {"manifest": "skin.csv", "root": "images"}})
    expected = r"site-1: data set 'brain' is not defined.*site-1/grandrounds\.json \(not there\).*\(defines skin\)"
    with pytest.raises(ConfigurationError, match=expected):
        locate_dataset("site-1", "brain", [place])
    with pytest.raises(ConfigurationError, match="looked at: no folder was given"):
        locate_dataset("site-1", "brain", [])


def test_loaded_data_follow_the_manifest_and_the_vocabulary(place):
    data = load_site_data(DatasetLocation(place / "skin.csv", place / "images"), COLOUR, place / "cache")
    assert data.images.shape == (7, 4, 4, 3)
    np.testing.assert_array_equal(data.images[:, 0, 0, 0], [30, 60, 90, 120, 150, 180, 210])
    np.testing.assert_array_equal(data.labels, [1, -1, 0, 0, 1, 0, -1])
    assert data.labels.dtype == np.int64
    assert data.groups == ("p1", "p1", "p2", "p3", "p4", "p5", "l6")
    assert (data.classes, data.names[2], data.cache.shapes) == (CLASSES, "c.png", ((4, 4, 1, 7),))


@pytest.mark.parametrize(
    ("part", "rows", "counts"),
    [
        ("train", [0, 1, 2, 3], [2, 1, 0]),
        ("labelled", [0, 3], [1, 1, 0]),
        ("unlabelled", [1, 2], [1, 0, 0]),
        ("val", [4], [0, 1, 0]),
        ("test", [5], [1, 0, 0]),
    ],
)
def test_rows_of_each_part(place, part, rows, counts):
    data = load_site_data(DatasetLocation(place / "skin.csv", place / "images"), GREY, place / "cache")
    np.testing.assert_array_equal(data.rows(part), rows)
    np.testing.assert_array_equal(data.class_counts(part), counts)
    assert data.rows(part).dtype == data.class_counts(part).dtype == np.int64


def test_quarantined_rows_are_in_no_part(place):
    (place / "images" / "a.png").write_bytes(b"no image")
    location = DatasetLocation(place / "skin.csv", place / "images", 0.2)
    data = load_site_data(location, GREY, place / "cache")
    assert data.cache.unreadable == [0]
    np.testing.assert_array_equal(data.rows("train"), [1, 2, 3])
    np.testing.assert_array_equal(data.rows("labelled"), [3])
    with pytest.raises(DataError, match="1 of 7 images cannot be read"):
        load_site_data(DatasetLocation(place / "skin.csv", place / "images"), GREY, place / "cache")


def test_a_label_outside_the_vocabulary_is_refused(place):
    with pytest.raises(DataError, match=r"skin\.csv line 2.*'nevus'"):
        load_site_data(
            DatasetLocation(place / "skin.csv", place / "images"),
            Problem("skin", ("melanoma", "wart"), 4, 1),
            place / "cache",
        )


def test_an_unknown_part_is_refused():
    empty = SiteData(
        DecodedCache(np.zeros((0, 1, 1, 1), np.uint8)),
        np.zeros(0, np.int64),
        np.zeros(0, bool),
        np.zeros(0, str),
        (),
        (),
        ("a",),
    )
    with pytest.raises(ValueError, match=r"part .*got 'dev'"):
        empty.rows("dev")
    assert empty.class_counts("train").tolist() == [0]


@pytest.fixture
def read(tmp_path):
    """Read a configuration with this entry ``models`` and a data set ``skin``."""
    (tmp_path / "skin.csv").write_text("image,label,split,patient\n")

    def read_with(models):
        path = tmp_path / "grandrounds.json"
        skin = {"manifest": "skin.csv", "root": "."}
        path.write_text(json.dumps({"datasets": {"skin": skin, "blood": skin}, "models": models}))
        return read_site_config(path)

    return read_with


def test_the_choice_belongs_to_its_data_set(read):
    found = read({"skin": {"backbone": "resnet10", "norm": "group", "dropout": None}})
    assert found["skin"].model.changes == {"backbone": "resnet10", "norm": "group", "dropout": None}
    assert found["skin"].model.where.endswith("grandrounds.json: models.skin")
    assert found["blood"].model is None


def test_weights_are_looked_for_beside_the_file(read, tmp_path):
    (tmp_path / "own.pt").touch()
    found = read({"skin": {"weights": "own.pt"}, "blood": {"weights": "imagenet"}})
    assert found["skin"].model.changes == {"weights": str(tmp_path / "own.pt")}
    assert found["blood"].model.changes == {"weights": "imagenet"}


@pytest.mark.parametrize(
    ("models", "message"),
    [
        ([], r"grandrounds\.json: models must be an object of models by data set, got \[\]"),
        ({"skim": {}}, r"models\.skim: there is no such data set in this file \(there are: blood, skin\)"),
        (
            {"skin": "resnet10"},
            r"models\.skin must be an object with backbone, dropout, head, intensities, .* got 'resnet10'",
        ),
        (
            {"skin": {"backbon": "x"}},
            r"models\.skin: unknown key 'backbon'; expected backbone, dropout, head, intensit",
        ),
        ({"skin": {"backbone": 10}}, r"models\.skin\.backbone must be a name, got 10"),
        ({"skin": {"norm": "layer"}}, r"models\.skin\.norm must be batch or group, got 'layer'"),
        ({"skin": {"dropout": 1}}, r"models\.skin\.dropout must be a number from 0 to below 1, or null, got 1"),
        (
            {"skin": {"weights": "lost.pt"}},
            r"models\.skin\.weights must be imagenet or the path of a file.* got 'lost\.pt'",
        ),
        ({"skin": {"weights": 1}}, r"models\.skin\.weights must be .* got 1"),
        ({"skin": {"dropout": True}}, r"models\.skin\.dropout must be a number .* got True"),
    ],
)
def test_faults_are_named(read, models, message):
    with pytest.raises(ConfigurationError, match=message):
        read(models)


@pytest.mark.parametrize(
    ("privacy", "message"),
    [
        ({"min_support": -1}, "x.min_support must be a whole number of patients, 0 or more, got -1"),
        ({"min_support": 2.5}, "x.min_support must be a whole number of patients, 0 or more, got 2.5"),
        ({"min_support": True}, "x.min_support must be a whole number of patients, 0 or more, got True"),
        ({"floor": 3}, "x: unknown key 'floor'; expected min_support"),
        ([10], "x must be an object with min_support, got [10]"),
    ],
)
def test_an_invalid_floor_is_refused(privacy, message):
    with pytest.raises(ConfigurationError, match=f"^{re.escape(message)}$"):
        min_support_from(privacy, "x")


@pytest.mark.parametrize(("privacy", "expected"), [({}, 0), ({"privacy": {"min_support": 7}}, 7)])
def test_the_floor_holds_for_every_data_set_of_the_site(tmp_path, privacy, expected):
    (tmp_path / "a.csv").touch()
    datasets = {name: {"manifest": "a.csv", "root": "."} for name in ("skin", "ich")}
    (tmp_path / "grandrounds.json").write_text(json.dumps({"datasets": datasets, **privacy}))
    found = read_site_config(tmp_path / "grandrounds.json")
    assert {name: location.min_support for name, location in found.items()} == {"skin": expected, "ich": expected}
