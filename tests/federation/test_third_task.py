"""A task of a plug-in runs through a federation, its report and an evaluation elsewhere, decided in its own way."""

import csv

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, balanced_accuracy_score, f1_score

import grandrounds as gr
from grandrounds.data.partition.phantom_site import PHANTOM_CLASSES
from grandrounds.data.site import read_site_config
from grandrounds.errors import ConfigurationError
from grandrounds.protocol.tasks import task_named
from tests.federation.ordinal import GRADES

SITES = ("site-1", "site-2")


def medians(rows):
    """By hand: go up until half of the probability is at or below the grade."""
    found = []
    for row in rows:
        total = 0.0
        for grade in PHANTOM_CLASSES:
            total += float(row[f"probability_{grade}"])
            if total >= 0.5:
                found.append(grade)
                break
    return found


def predictions(path):
    with path.open() as stream:
        return list(csv.DictReader(stream))


@pytest.fixture(scope="module")
def graded(tiny, run, phantom_hospitals, tmp_path_factory):
    """Two rounds at two hospitals, and the folder of a third."""
    folder = phantom_hospitals({"site-1": 60, "site-2": 60, "site-3": 60})
    workspace = tmp_path_factory.mktemp("graded")
    job = tiny("fedavg", "problem.task=ordinal", "controller.rounds=2", "controller.min_sites=2")
    return run(job, workspace, SITES, sites_dir=folder), workspace, folder


def test_sites_decide_by_the_median_and_their_scores_are_of_these_decisions(graded):
    found, _, _ = graded
    different = 0
    for site in SITES:
        rows = predictions(found.results / site / "predictions_common.csv")
        assert [row["predicted"] for row in rows] == medians(rows)
        likeliest = [max(PHANTOM_CLASSES, key=lambda name: float(row[f"probability_{name}"])) for row in rows]
        different += sum(one != row["predicted"] for one, row in zip(likeliest, rows, strict=True))
        truth, scores = [row["label"] for row in rows], found.summary["records"][site]["common"]["exact"]
        assert scores["accuracy"] == pytest.approx(accuracy_score(truth, medians(rows)))
        assert scores["balanced_accuracy"] == pytest.approx(balanced_accuracy_score(truth, medians(rows)))
        assert scores["f1_weighted"] == pytest.approx(
            f1_score(truth, medians(rows), average="weighted", zero_division=0)
        )
    assert different, "else the most probable grade would pass as well"


def test_a_report_speaks_of_grades_and_an_evaluation_decides_by_the_median(graded, tmp_path):
    _, workspace, folder = graded
    page = gr.report([workspace], tmp_path / "report", progress=False).read_text()
    assert f"{len(PHANTOM_CLASSES)} grades" in page
    place = read_site_config(folder / "site-3" / "grandrounds.json")["phantom"]
    evaluation = gr.evaluate(workspace, {"elsewhere": place}, progress=False)
    evaluation.write_predictions(tmp_path / "elsewhere.csv")
    rows = predictions(tmp_path / "elsewhere.csv")
    truth = [row["label"] for row in rows]
    assert evaluation.scores().loc["elsewhere", "accuracy"] == pytest.approx(accuracy_score(truth, medians(rows)))


def test_its_loss_and_decisions_are_the_hand_computed_ones():
    logits = torch.tensor([[0.4, 0.15, 0.45]]).log()
    # cross-entropy -ln .45; distances 2, 1, 0
    expected = -np.log(0.45) + 0.4 * 2 + 0.15 * 1
    assert GRADES.loss(logits, torch.tensor([2])).item() == pytest.approx(expected)
    assert GRADES.likeliest(logits).tolist() == [1]
    assert GRADES.decide(np.array([[0.4, 0.15, 0.45], [0.5, 0.1, 0.4]])).tolist() == [1, 0]
    (question,) = GRADES.questions(np.array([2, -1]), np.array([[0.4, 0.15, 0.45], [0.5, 0.1, 0.4]]))
    assert (question.rows.tolist(), question.labels.tolist(), question.predicted.tolist()) == ([0], [2], [1])


def test_a_task_that_nobody_has_registered_is_refused_with_the_names_of_those_there_are():
    with pytest.raises(ConfigurationError, match=r"problem\.task must be one of single"):
        task_named("nominal")
