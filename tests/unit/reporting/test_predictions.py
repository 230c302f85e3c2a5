"""Predictions are read whole and in the run's vocabulary, with the patients behind them where they are known."""

import pytest

from grandrounds.errors import DataError
from grandrounds.protocol.tasks import FINDINGS, SINGLE
from grandrounds.reporting.runs import read_predictions

from .conftest import CLASSES, predictions


@pytest.fixture
def written(tmp_path):
    def write(text):
        path = tmp_path / "predictions_common.csv"
        path.write_text(text)
        return lambda: read_predictions(path, SINGLE, CLASSES)[0]

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
        (
            lambda text: text.replace("probability_nevus", "probability_naevus"),
            "is of another vocabulary or version than its run",
        ),
        (lambda text: text[:-11], r"line 41: 4 cells after the image, expected 5; the file was cut"),
        (lambda text: text.replace("-1.png,nevus,", "-1.png,mole,"), "line 3: label 'mole' is not one of the classes"),
        (
            lambda text: text.replace("-1.png,nevus,nevus", "-1.png,nevus,mole"),
            "line 3: predicted 'mole' is not one of",
        ),
        (lambda text: text.replace(",0.", ",x.", 1), "could not convert string to float"),
        (lambda text: text.replace(",0.", ",9.", 1), "does not sum to one"),
        (lambda text: "", "no table of predictions"),
    ],
)
def test_damage_is_named(written, change, message):
    with pytest.raises(DataError, match=message):
        written(change(predictions("site-1")))()


def test_the_patients_that_the_site_knew_are_cases(written):
    lines = predictions("site-1").splitlines()
    patients = [lines[0], *(f"{line.rpartition(',')[0]},{number // 4}" for number, line in enumerate(lines[1:]))]
    assert written("\n".join(patients) + "\n")().count == 10


def test_findings_of_a_run_before_predicted_answers_are_decided_at_one_half(tmp_path):
    path = tmp_path / "predictions_common.csv"
    path.write_text("image,label_a,label_b,probability_a,probability_b,case\nx.png,1,,0.5,0.9,0\ny.png,0,1,0.4,0.2,1\n")
    a, b = read_predictions(path, FINDINGS, ["a", "b"])
    assert (a.predicted.tolist(), b.predicted.tolist()) == ([1, 0], [0])
    path.write_text(
        "image,label_a,predicted_a,probability_a,case\nx.png,1,,0.5,0\n",
    )
    with pytest.raises(DataError, match="line 2"):
        read_predictions(path, FINDINGS, ["a"])
