"""A trained model predicts images of a site that took no part."""

import csv
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from grandrounds.data.manifest import Record, write_manifest
from grandrounds.data.site import DatasetLocation
from grandrounds.errors import ConfigurationError, DataError
from grandrounds.evaluation.explanation import prediction_maps
from grandrounds.evaluation.external import (
    ImagePredictions,
    labels_are_groups,
    load_test_images,
    predict_images,
    write_predictions,
)
from grandrounds.evaluation.grouping import grouping_of
from grandrounds.models.registry import build_model
from grandrounds.models.trained import load_trained
from grandrounds.protocol.problem import ModelSpec, Problem
from grandrounds.protocol.tasks import SINGLE

CLASSES = ("mel", "nv")
SPEC = ModelSpec("compact", classes=2)
CPU = torch.device("cpu")


@pytest.fixture
def location(tmp_path):
    """Write these records with an 8x8 image each, whose grey value is its number."""

    def make(*records, max_unreadable=0.01):
        for number, record in enumerate(records):
            Image.fromarray(np.full((8, 8, 3), number, np.uint8)).save(tmp_path / record.image)
        write_manifest(records, tmp_path / "list.csv")
        return DatasetLocation(tmp_path / "list.csv", tmp_path, max_unreadable)

    return make


def load(location, tmp_path, vocabulary=CLASSES):
    return load_test_images("clinic", location, Problem("skin", CLASSES, 8), vocabulary, tmp_path / "cache")


def test_only_labelled_test_images_are_read_in_the_order_of_the_manifest(location, tmp_path):
    records = [
        Record("0.png", "nv", "train"),
        Record("1.png", "nv", "test"),
        Record("2.png", "", "test"),
        Record("3.png", "mel", "val"),
        Record("4.png", "mel", "test"),
    ]
    test_images = load(location(*records), tmp_path)
    assert test_images.names == ("1.png", "4.png")
    assert test_images.labels.tolist() == [1, 0]
    assert test_images.images[:, 0, 0, 0].tolist() == [1, 4]
    assert test_images.unreadable == 0


def test_unreadable_images_are_left_out_and_counted(location, tmp_path):
    here = location(*(Record(f"{n}.png", CLASSES[n % 2], "test") for n in range(4)), max_unreadable=0.5)
    (tmp_path / "1.png").write_bytes(b"no image")
    test_images = load(here, tmp_path)
    assert test_images.names == ("0.png", "2.png", "3.png")
    assert test_images.labels.tolist() == [0, 0, 1]
    assert test_images.images[:, 0, 0, 0].tolist() == [0, 2, 3]
    assert test_images.unreadable == 1


def test_a_site_without_labelled_test_images_is_refused(location, tmp_path):
    here = location(Record("0.png", "nv", "train"), Record("1.png", "", "test"))
    with pytest.raises(DataError, match=r"list.csv.*labelled"):
        load(here, tmp_path)


def test_a_label_that_the_model_does_not_know_is_refused_with_its_line(location, tmp_path):
    here = location(Record("0.png", "nv", "test"), Record("1.png", "scc", "test"))
    with pytest.raises(DataError, match=r"list.csv line 3, column label: 'scc' is not one of the classes mel, nv"):
        load(here, tmp_path)


@pytest.mark.parametrize(
    ("labels", "groups", "expected"),
    [
        (("bad", "good"), ["bad", "good"], True),
        (("bad",), ["bad", "good"], True),
        (("mel", "nv"), ["bad", "good"], False),
        (("mel", "nv"), ["nv", "mel"], False),  # what could be either is a class
        (("bad", "nv"), ["bad", "good"], False),
        (("bad", "good"), (), False),
    ],
)
def test_labels_are_groups_if_all_are_groups_and_not_all_are_classes(location, labels, groups, expected):
    records = [Record(f"{number}.png", label, "test") for number, label in enumerate(labels)]
    here = location(*records, Record("9.png", "other", "train"))
    assert labels_are_groups({"clinic": here}, CLASSES, groups) is expected


def test_predictions_are_those_of_the_saved_weights(location, tmp_path):
    saved = build_model(SPEC, seed=3)
    torch.save(saved.state_dict(), tmp_path / "selected.pt")
    here = location(*(Record(f"{number * 60}.png", "nv", "test") for number in range(3)))
    images = load_test_images("clinic", here, Problem("skin", CLASSES, 32), CLASSES, tmp_path / "cache")
    found = predict_images(load_trained(SPEC, tmp_path / "selected.pt", None), images, CPU)
    with torch.inference_mode():
        pixels = torch.tensor(np.array(images.images)).permute(0, 3, 1, 2) / 255
        expected = saved.eval()(pixels).softmax(dim=1).numpy()
    np.testing.assert_allclose(found.probabilities, expected, atol=1e-5)
    assert found.names == images.names
    assert found.labels.tolist() == [1, 1, 1]


@pytest.mark.parametrize("norm", ["batch", "group"])
def test_frozen_layers_are_back_in_a_trained_model(tmp_path, norm):
    """Also where only the head was trained there are maps to explain a prediction by."""
    spec = replace(SPEC, trainable="head", norm=norm)
    network = build_model(spec, seed=3).eval()
    with torch.no_grad():
        network.classifier.weight.add_(0.1)
    torch.save(network.state_dict(), tmp_path / "selected.pt")
    found = load_trained(spec, tmp_path / "selected.pt", 3)
    batch = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        torch.testing.assert_close(found(batch), network(batch), rtol=1e-4, atol=1e-4)
    assert found.state_dict().keys() == build_model(SPEC, seed=3).state_dict().keys()
    assert prediction_maps(found, batch).shape == (2, 32, 32)


def test_a_model_that_has_diverged_is_refused(location, tmp_path):
    model = build_model(SPEC, seed=3)
    with torch.no_grad():
        next(model.parameters()).fill_(torch.nan)
    images = load(location(Record("0.png", "nv", "test")), tmp_path)
    with pytest.raises(ConfigurationError, match="not finite; it has diverged"):
        predict_images(model, images, CPU)


@pytest.mark.parametrize(
    "content", [build_model(ModelSpec("compact", classes=3), seed=0).state_dict(), [1, 2], {"weight": 5}]
)
def test_weights_of_another_network_are_refused(content, tmp_path):
    torch.save(content, tmp_path / "other.pt")
    with pytest.raises(ConfigurationError, match=r"other.pt.*with 2"):
        load_trained(SPEC, tmp_path / "other.pt", None)


def test_a_file_that_is_no_model_is_refused(tmp_path):
    (tmp_path / "model.pt").write_text("hello")
    with pytest.raises(ConfigurationError, match=r"model.pt.*with 2"):
        load_trained(SPEC, tmp_path / "model.pt", None)


def read(path):
    with path.open(newline="") as stream:
        return list(csv.reader(stream))


def test_predictions_are_written_with_their_place(tmp_path):
    sites = {
        "a": ImagePredictions(("x.png", "y.png"), np.array([0, 1]), *[np.array([[0.25, 0.75], [0.125, 0.875]])] * 2),
        "b": ImagePredictions(("x.png",), np.array([1]), *[np.array([[0.5, 0.5]])] * 2),
    }
    write_predictions(tmp_path / "new" / "found.csv", sites, SINGLE, CLASSES, CLASSES)
    assert read(tmp_path / "new" / "found.csv") == [
        ["site", "image", "label", "predicted", "probability_mel", "probability_nv"],
        ["a", "x.png", "mel", "nv", "0.25", "0.75"],
        ["a", "y.png", "nv", "nv", "0.125", "0.875"],
        ["b", "x.png", "nv", "mel", "0.5", "0.5"],
    ]
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["found.csv"]


def test_labels_that_are_groups_are_written_beside_both_readings(tmp_path):
    classes = ("mel", "bcc", "nv")
    grouping = grouping_of({"bad": ["mel", "bcc"], "good": ["nv"]}, classes)
    sites = {"a": ImagePredictions(("x.png",), np.array([1]), *[np.array([[0.3, 0.3, 0.4]])] * 2)}
    write_predictions(tmp_path / "found.csv", sites, SINGLE, classes, grouping.names, grouping)
    header, row = read(tmp_path / "found.csv")
    named = dict(zip(header, row, strict=True))
    assert {name: cell for name, cell in named.items() if not name.startswith("probability_")} == {
        "site": "a",
        "image": "x.png",
        "label": "good",
        "predicted": "nv",
        "group_argmax": "good",
        "group_summed": "bad",
    }
