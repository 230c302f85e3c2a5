"""Predictions are read whole and in the run's vocabulary, with the patients behind them where they are known."""

import pytest

from grandrounds.data.manifest import Record
from grandrounds.data.partition.files import write_partition
from grandrounds.errors import DataError
from grandrounds.reporting.predictions import groups_in, read_predictions
from grandrounds.reporting.runs import read_run

from .conftest import CLASSES, predictions


@pytest.fixture
def written(tmp_path):
    def write(text):
        path = tmp_path / "predictions_common.csv"
        path.write_text(text)
        return lambda groups=None: read_predictions(path, CLASSES, "site-1", "skin", groups)

    return write


def test_labels_and_probabilities(written):
    cases = written(predictions("site-1", right=1.0))()
    assert (cases.predicted == cases.labels).all()
    assert cases.confusion().diagonal().tolist() == [20, 12, 8]


def test_images_without_a_label_are_left_out(written):
    cases = written(predictions("site-1").replace("melanoma-3.png,melanoma,", "melanoma-3.png,,"))()
    assert cases.positives().tolist() == [20, 11, 8]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text.replace("probability_nevus", "probability_naevus"), "of another vocabulary than its run"),
        (lambda text: text[:-11], r"line 41: \d cells, expected 6; the file was cut"),
        (lambda text: text.replace("-1.png,nevus,", "-1.png,mole,"), "line 3: label 'mole' is not one of the classes"),
        (lambda text: text.replace(",0.", ",x.", 1), "a probability is no number"),
        (lambda text: text.replace(",0.", ",9.", 1), "does not sum to one"),
        (lambda text: "", "got no probabilities"),
    ],
)
def test_damage_is_named(written, change, message):
    with pytest.raises(DataError, match=message):
        written(change(predictions("site-1")))()


def test_patients_are_looked_up_in_the_manifests(make_run, tmp_path):
    sites = {
        site: [
            Record(f"secret/{site}-{label}-{number}.png", label, split="test", patient=f"{site}-{number // 4}")
            for label, count in {"nevus": 20, "melanoma": 12, "other": 8}.items()
            for number in range(count)
        ]
        for site in ("site-1", "site-2", "site-10")
    }
    write_partition(sites, tmp_path / "sites", "skin", tmp_path, CLASSES, {"scheme": "test"})
    run = read_run(make_run(), "x", groups_in(tmp_path / "sites"))
    assert run.unit == "patient or lesion"
    assert run.predictions["site-1"].count == 5  # of 20 nevi, four a patient; the other images are of the same five
    with pytest.raises(DataError, match="1 of 1 predicted images are not in"):
        groups_in(tmp_path / "sites")("site-1", "skin", ["unknown.png"])
