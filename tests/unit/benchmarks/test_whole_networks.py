"""The rows of trained networks hold predictions from which their scores follow, of the head as of the network."""

import numpy as np
import pytest

from benchmarks.experiment import BENCHMARKS
from benchmarks.report import experiment_parts
from benchmarks.whole_networks.experiment import THOUSANDTH, packed, unpacked
from grandrounds.evaluation.metrics import site_metrics
from grandrounds.files import read_json_object
from grandrounds.protocol.tasks import SINGLE

NAME = "whole_networks"
ROWS = sorted((BENCHMARKS / NAME / "results").glob("*.json"))


def test_numbers_survive_as_text():
    numbers = np.array([[0, 1], [999, 65535]])
    assert unpacked(packed(numbers)).tolist() == [0, 1, 999, 65535]


@pytest.mark.parametrize("path", ROWS, ids=lambda path: path.stem)
def test_scores_follow_from_the_predictions_of_the_row(path):
    row = read_json_object(path)
    labels = unpacked(row["labels"]).astype(np.int64)
    for content in (row, row["ridge"]):
        given = unpacked(content["predictions"]).reshape(len(labels), -1) / THOUSANDTH
        probabilities = given / given.sum(axis=1, keepdims=True)
        decided = unpacked(content["decided"]).astype(np.int64) if "decided" in content else None
        found = site_metrics(SINGLE, labels, probabilities, decided)
        for score in ("accuracy", "balanced_accuracy", "auc_macro"):
            assert found[score] == pytest.approx(content["scores"][score], abs=0.01)


def test_the_page_compares_each_network_with_the_head_that_it_starts_from():
    page = "\n".join(str(part) for part in experiment_parts(NAME, None))
    for path in ROWS:
        row = read_json_object(path)
        for scores in (row["scores"], row["ridge"]["scores"]):
            assert f"{scores['balanced_accuracy']:.3f}" in page
    assert "trained` - ridge head" in page
