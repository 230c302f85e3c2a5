"""Rows of joined encoders: the area within devices by hand, and what is kept of frozen layers."""

import itertools

import numpy as np
import pytest
import torch

from benchmarks.experiment import BENCHMARKS, Predicted
from benchmarks.joined_encoders import features
from benchmarks.joined_encoders.experiment import within_devices
from benchmarks.joined_encoders.features import KeptFeatures
from grandrounds.files import read_json_object

ROWS = sorted((BENCHMARKS / "joined_encoders" / "results").glob("*.json"))


def device(labels, scores):
    first = np.array(scores)
    return Predicted(np.array(labels), np.stack([first, 1 - first], axis=1), np.zeros(len(labels), int))


def test_the_area_within_devices_is_weighted_by_their_images_of_the_class():
    right = device([0, 0, 0, 1, 1, 1, 1, 1, 1], [0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1])
    wrong = device([0, 0, 0, 0, 0, 0, 1, 1, 1], [0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.8, 0.8, 0.8])
    too_few = device([0, 0, 1, 1, 1], [0.1, 0.1, 0.9, 0.9, 0.9])
    # Class 0: 3 images with an area of 1, 6 with 0; class 1: 6 with 1, 3 with 0.
    assert within_devices([right, wrong, too_few]) == pytest.approx((3 / 9 + 6 / 9) / 2)


class Layers:
    """In place of a site's features: the mean of an image's pixels, and how many images it was asked for."""

    def __init__(self, digest):
        self._front = self
        self.digest, self.asked = digest, []

    def compute(self, images):
        self.asked.append(len(images))
        return torch.from_numpy(images.mean((1, 2, 3), dtype=np.float32))[:, None, None, None]


def test_an_image_is_computed_once_for_the_same_layers_and_its_seconds_count_once(tmp_path, monkeypatch):
    clock = itertools.count(step=6)
    monkeypatch.setattr(features, "cpu_seconds", lambda: next(clock))
    images = np.arange(3, dtype=np.uint8)[:, None, None, None].repeat(2, 1)
    first, again, other = Layers("a"), Layers("a"), Layers("b")
    rows = [KeptFeatures(tmp_path / "kept.sqlite") for _ in range(3)]
    for layers, row in zip((first, again, other), rows, strict=True):
        made = row.around(Layers.compute)
        for batch in ([0, 1, 1], [1, 2]):
            assert made(layers, images[batch])[:, 0, 0, 0].tolist() == batch
    assert (first.asked, again.asked, other.asked) == ([2, 1], [], [2, 1])
    # Six seconds for two images, and six for the third.
    assert [row.saved for row in rows] == [0, 12, 0]


@pytest.mark.parametrize("path", ROWS, ids=lambda path: path.stem)
def test_a_row_has_four_devices_and_counts_what_it_found(path):
    row = read_json_object(path)
    assert row["devices"] == 4
    assert 0 <= row["shared_seconds"] < row["cpu_seconds"]
