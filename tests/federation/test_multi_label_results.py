"""What a finished run of findings gives: scores, reports, predictions, external validation and exports."""

import json

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

import grandrounds as gr
from grandrounds.data.partition.phantom_site import FINDINGS_NAME, phantom_site
from grandrounds.data.site import read_site_config
from grandrounds.errors import ConfigurationError

FINDINGS = ["round", "ring", "clustered"]
OPTIONS = {
    "problem.task": "multi",
    "problem.dataset": FINDINGS_NAME,
    "problem.classes": FINDINGS,
    "executor.steps": 2,
    "executor.device": "cpu",
}


@pytest.fixture(autouse=True, scope="module")
def few_images():
    """Operating points need enough positive images of each finding: sites draw as many as those of users."""


@pytest.fixture(scope="module")
def finished(tmp_path_factory, shared_cache):
    return gr.run(
        "fedavg", 2, rounds=2, options=OPTIONS, workspace=tmp_path_factory.mktemp("run") / "r", progress=False
    )


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("place")
    return read_site_config(phantom_site("elsewhere", folder, images=240, size=32, dataset=FINDINGS_NAME))[
        FINDINGS_NAME
    ]


def test_scores_are_means_over_findings(finished):
    scores = finished.scores()
    assert list(scores.columns) == ["images", "auc_macro", "balanced_accuracy", "f1_macro", "few_cases"]
    assert list(scores.index) == ["site-1", "site-2", "mean", "pooled", "chance"]
    assert 0 <= scores.loc["pooled", "auc_macro"] <= 1
    assert scores.loc["mean", "auc_macro"] == pytest.approx(scores.loc[["site-1", "site-2"], "auc_macro"].mean())


def test_a_report_has_each_finding_and_no_confusion_matrix(finished, tmp_path):
    page = finished.report(tmp_path / "report")
    text = page.read_text(encoding="utf-8")
    assert "Detection of 3 findings" in text
    assert {path.stem for path in (page.parent / "figures").iterdir()} >= {
        "roc",
        "precision_recall",
        "sites",
        "learning",
    }
    assert not {"confusion", "reliability", "risk_coverage"} & {
        path.stem for path in (page.parent / "figures").iterdir()
    }
    pooled = json.loads((page.parent / "report.json").read_text())["runs"][0]["scores"]["pooled"]
    rows = [
        np.genfromtxt(finished.workspace / "results" / site / "predictions_common.csv", delimiter=",", skip_header=1)
        for site in ("site-1", "site-2")
    ]
    table = np.concatenate(rows)[:, 1:]
    areas = [roc_auc_score(table[:, n], table[:, 6 + n]) for n in range(3)]
    assert [pooled["classes"][name]["auroc"]["value"] for name in FINDINGS] == pytest.approx(areas, abs=1e-6)
    macro = pooled["scores"]["auc_macro"]
    assert macro["value"] == pytest.approx(np.mean(areas), abs=1e-6)
    assert macro["low"] < macro["value"] < macro["high"]


def test_two_runs_are_compared_by_macro_auroc(finished, tmp_path):
    page = gr.report({"first": finished, "second": finished}, tmp_path / "report")
    assert json.loads((page.parent / "report.json").read_text())["comparison"]["metric"] == "auc_macro"


def test_predictions_call_findings_from_a_threshold_on(finished):
    images = np.random.default_rng(0).integers(0, 256, (4, 32, 32, 3), dtype=np.uint8)
    found = finished.predict(images, thresholds={"round": 0.0, "ring": 1.0, "clustered": 1.0})
    assert set(found["predicted"]) == {"round"}
    assert set(finished.predict(images, thresholds=dict.fromkeys(FINDINGS, 1.0))["predicted"]) == {"none"}
    assert not np.allclose(found[FINDINGS].sum(axis=1), 1), "findings do not exclude each other"
    with pytest.raises(ConfigurationError, match="'mass' is no finding of this run"):
        finished.predict(images, thresholds={"mass": 0.2})


def test_external_validation_of_all_findings_and_of_one(finished, place, tmp_path):
    found = gr.evaluate(finished, {"elsewhere": place}, positive=["ring"], progress=False)
    group = found.result.group
    assert group.positive == "ring"
    assert group.operating.fixed.source.endswith("validation images of 2 training sites")
    predicted = found.place.sites["elsewhere"]
    expected = roc_auc_score(predicted.labels[:, 1], predicted.probabilities[:, 1])
    assert group.auroc.value == pytest.approx(expected, abs=1e-6)
    assert found.tables()["classes"]["ring"]["pooled"]["auroc"] == pytest.approx(expected)
    assert list(found.scores().index) == ["elsewhere", "mean", "pooled"]
    found.write_predictions(tmp_path / "p.csv")
    header = (tmp_path / "p.csv").read_text().splitlines()[0]
    columns = [f"{kind}_{name}" for kind in ("label", "predicted", "probability") for name in FINDINGS]
    assert header.split(",") == ["site", "image", *columns]
    found.write(tmp_path / "elsewhere.json")
    assert gr.report({"run": finished}, tmp_path / "report", external=[tmp_path / "elsewhere.json"]).is_file()
    with pytest.raises(ConfigurationError, match="not supported by --failures"):
        found.draw_failures(tmp_path / "f.png")
    with pytest.raises(ConfigurationError, match="several classes of --positive; name one"):
        gr.evaluate(finished, {"elsewhere": place}, positive=["ring", "round"], progress=False)


def test_exports_say_that_outputs_are_findings(finished, tmp_path):
    written = finished.export(tmp_path / "out", formats=["torchscript"])
    card = json.loads((tmp_path / "out" / "model_card.json").read_text())
    assert "sigmoid gives a probability of each finding" in card["preprocessing"]["output"]
    bundle = json.loads((tmp_path / "out" / "bundle" / "configs" / "inference.json").read_text())
    assert bundle["postprocessing"] == {"_target_": "monai.transforms.Activationsd", "keys": "pred", "sigmoid": True}
    images = np.random.default_rng(0).integers(0, 256, (2, 32, 32, 3), dtype=np.uint8)
    risk, decision = torch.jit.load(written[-1])(torch.from_numpy(images).permute(0, 3, 1, 2) / 255)
    found = finished.predict(images)[FINDINGS].to_numpy()
    assert risk.detach().numpy() == pytest.approx(found, abs=1e-5)
    assert torch.equal(risk, decision), "a head that is trained has no others"
