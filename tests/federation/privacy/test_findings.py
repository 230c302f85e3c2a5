"""Findings through the gate with the policy of startup kits: curves, relation rows and tables without small counts."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from grandrounds.data.partition.phantom_site import FINDINGS_NAME
from grandrounds.deployment.jobs import load_job
from grandrounds.deployment.presets import with_options
from grandrounds.evaluation.record import NO_COUNTS
from grandrounds.federation.server.record import read_events
from grandrounds.reporting.figures.runs import run_drawings
from grandrounds.reporting.model import report_on
from grandrounds.reporting.runs import read_run

OVERLAY = Path(__file__).parents[3] / "provisioning" / "overlays" / "open.json"
OPTIONS = [
    "problem.task=multi",
    f"problem.dataset={FINDINGS_NAME}",
    'problem.classes=["round","ring","clustered"]',
    "controller.rounds=2",
    "executor.steps=2",
    "executor.device=cpu",
    "executor.release_relation=true",
]


@pytest.fixture(scope="module")
def finished(run, install, tmp_path_factory):
    place = tmp_path_factory.mktemp("findings")
    policy = json.loads(OVERLAY.read_text())["scopes"][0]["properties"]["grandrounds"]
    for site in ("site-1", "site-2"):
        install(place / "flare" / site / "local", policy, site)
    found = run(with_options(load_job("fedirm"), OPTIONS), place, sites=["site-1", "site-2"])
    (server,) = {
        path.parents[1] for path in (place / "flare").glob("**/curves_common.json") if "state" not in str(path)
    }
    return SimpleNamespace(**vars(found), server=server)


def test_a_table_of_findings_passes_without_small_counts_or_stays(finished):
    assert finished.summary["status"] == "finished"
    for site in ("site-1", "site-2"):
        found = finished.summary["records"][site]["common"].get("counts")
        patients = np.array(found["patients"]) if found else np.zeros((3, 2, 3), np.int64)
        assert patients.shape == (3, 2, 3)
        assert ((patients >= 10) | (patients == 0)).all()
        assert ("counts_common" in finished.summary["privacy"][site]["treated"]) is bool(found)


def test_relation_rows_of_few_patients_are_withheld(finished):
    relation = next(event for event in read_events(finished.results) if event["event"] == "relation")
    assert np.array(relation["matrix"]).shape == (6, 2)
    assert 0 < sum(count > 0 for count in relation["support"]) <= 6


def test_a_report_without_predictions_has_curves_counts_and_the_sites_means(finished):
    found = read_run(finished.server, "run")
    assert not found.tests.questions
    report = report_on([found])
    scores = report.runs["run"].scores
    assert scores.headline("auc_macro").value == pytest.approx(
        np.mean([one["common"]["exact"]["auc_macro"] for one in finished.summary["records"].values()])
    )
    balanced = scores.pooled.best("balanced_accuracy")
    assert balanced.known or balanced.reason == NO_COUNTS
    assert {"roc", "precision_recall"} <= {drawing.name for drawing in run_drawings(report, report.first)}
