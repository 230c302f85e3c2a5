"""Sites whose batch norms use the statistics of their own images: these stay at the site, the rest is trained together."""

import csv
import json

import numpy as np
import pytest
import torch

from grandrounds.api.prediction import predict_with
from grandrounds.commands.report import export
from grandrounds.data.partition.phantom_site import FINDINGS_NAME, phantom_site
from grandrounds.data.site import load_site_data, locate_dataset
from grandrounds.deployment.jobs import load_job
from grandrounds.deployment.presets import with_options
from grandrounds.errors import GrandRoundsError
from grandrounds.evaluation.prediction import predict, tensors_of
from grandrounds.models.pretrained import add_file
from grandrounds.models.registry import build_model
from grandrounds.protocol.messages import is_running_statistic
from grandrounds.protocol.problem import ModelSpec, Problem
from grandrounds.reporting.runs import read_run, site_predictions

from .conftest import names_in

SITES = ["site-1", "site-2", "site-3"]
PHANTOMS = Problem("phantom", ("round", "ring", "clustered", "irregular"), 32)
STEPS = ["controller.rounds=2", "executor.steps=2", "executor.batch_size=8", "executor.device=cpu"]
OWN_NORM = ["problem.backbone=compact", "problem.weights=start", "problem.norm=site", "problem.trainable=from:2"]
OPTIONS = {
    "fedavg": [],
    "ssfl": [
        "executor.threshold=0.26",
        "executor.teacher=average",
        "executor.teacher_views=2",
        "executor.feature_cache=2",
    ],
    "fedperl": ["executor.threshold=0.26", "controller.peers=1", "controller.anonymise=false", "controller.warm_up=1"],
    "fedirm": ["controller.unlabelled_start=0", "controller.min_support=0", "executor.min_support=0"],
}


@pytest.fixture(scope="module")
def hospitals(tmp_path_factory, shared_cache):
    folder = tmp_path_factory.mktemp("hospitals")
    for site in SITES:
        phantom_site(site, folder, size=32, images=60, labelled=0.7)
        own = {"phantom": {"manifest": "manifest.csv", "root": "images.npz"}}
        (folder / site / "grandrounds.json").write_text(json.dumps({"datasets": own}))
    return folder


@pytest.fixture(scope="module")
def go(run, hospitals, tmp_path_factory):
    """Run a job whose network starts from named weights."""
    folder = tmp_path_factory.mktemp("weights")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRANDROUNDS_WEIGHTS", str(folder / "named"))
        torch.save(build_model(ModelSpec("compact", classes=4), seed=5).state_dict(), folder / "start.pt")
        add_file(folder / "start.pt", "start", "scaled", "MIT")

        def start(job, *assignments, workers=1):
            workspace = tmp_path_factory.mktemp(job)
            chosen = [*STEPS, *OWN_NORM, *OPTIONS.get(job, []), *assignments]
            found = run(with_options(load_job(job), chosen), workspace, SITES, sites_dir=hospitals, workers=workers)
            found.workspace = workspace
            return found

        yield start


@pytest.fixture(scope="module")
def fedavg(go):
    return go("fedavg")


def predictions_of(workspace, site):
    """The probabilities that a site has written in the run."""
    with (workspace / "results" / site / "predictions_common.csv").open() as stream:
        lines = list(csv.DictReader(stream))
    return [[float(line[name]) for name in line if name.startswith("probability_")] for line in lines]


@pytest.mark.parametrize("job", OPTIONS)
def test_parameters_of_the_trained_layers_are_all_that_leaves_and_is_kept_at_the_server(go, job):
    found = go(job)
    assert (found.summary["status"], [entry["dropped"] for entry in found.summary["rounds"]]) == ("finished", [{}, {}])
    trained = dict(build_model(ModelSpec("compact", classes=4, trainable="from:2"), 1).named_parameters())
    assert all(model.keys() == trained.keys() for model in found.models.values())
    paths = [
        path for path in found.workspace.rglob("*.pt") if "flare" not in path.parts and path.parent.name not in SITES
    ]
    kept = {name for path in paths for name in names_in(torch.load(path, weights_only=True))}
    assert {name for name in kept if name.startswith(("blocks.", "classifier."))} == trained.keys()
    for site, sent in found.summary["bytes"].items():
        assert (
            sent["up.update"] == sum(value.nbytes for value in trained.values()) * found.summary["contributions"][site]
        )


def test_each_site_has_the_whole_model_with_its_own_statistics(fedavg, hospitals, tmp_path):
    statistics = []
    for site in SITES:
        (path,) = fedavg.workspace.rglob(f"{site}/common.pt")
        description = json.loads(path.with_suffix(".json").read_text())
        network = build_model(ModelSpec(**description["model"]), description["seed"])
        network.load_state_dict(torch.load(path, weights_only=True))
        data = load_site_data(locate_dataset(site, "phantom", [hospitals]), PHANTOMS, tmp_path)
        found = predict(network.eval(), tensors_of(data.images), data.rows("test")).risks.numpy()
        np.testing.assert_allclose(found, predictions_of(fedavg.workspace, site), atol=2e-6)
        statistics.append(network.get_submodule("blocks.2.residual.1").running_mean)
    assert not torch.allclose(statistics[0], statistics[1])


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_head_on_several_depths_reads_layers_with_a_sites_statistics(go, hospitals, tmp_path, precision):
    options = ["problem.head=depths", "executor.feature_cache=2", f"executor.precision={precision}"]
    found = go("fedavg", *options, "problem.trainable=from:1")
    assert (found.summary["status"], [entry["dropped"] for entry in found.summary["rounds"]]) == ("finished", [{}, {}])
    for site in SITES:
        (path,) = found.workspace.rglob(f"{site}/common.pt")
        description = json.loads(path.with_suffix(".json").read_text())
        network = build_model(ModelSpec(**description["model"]), description["seed"])
        network.load_state_dict(torch.load(path, weights_only=True))
        data = load_site_data(locate_dataset(site, "phantom", [hospitals]), PHANTOMS, tmp_path)
        expected = predict(network.eval(), tensors_of(data.images), data.rows("test")).risks.numpy()
        close = 2e-3 if precision == "float32" else 2e-2
        np.testing.assert_allclose(expected, predictions_of(found.workspace, site), atol=close)


def test_workers_and_child_processes_compute_the_same(go, fedavg, assert_same_run, monkeypatch):
    assert_same_run(go("fedavg", workers=2), fedavg)
    monkeypatch.setenv("GRANDROUNDS_ISOLATION", "process")
    assert_same_run(go("fedavg"), fedavg)


def test_statistics_make_a_difference(go, fedavg):
    other = go("fedavg", "problem.norm=frozen")
    assert not torch.allclose(other.models["last"]["classifier.weight"], fedavg.models["last"]["classifier.weight"])


def test_a_report_predicts_with_each_sites_statistics_and_an_export_says_where_the_models_are(
    fedavg, hospitals, tmp_path
):
    run = read_run(fedavg.workspace, "fedavg")
    found = {one.site: one.probabilities for one in site_predictions(run, hospitals, "test")}
    for site in SITES:
        np.testing.assert_allclose(found[site], predictions_of(fedavg.workspace, site), atol=2e-6)
    with pytest.raises(GrandRoundsError, match=r"problem\.norm=site.*belong"):
        export(fedavg.workspace, out=tmp_path / "model")
    with pytest.raises(GrandRoundsError, match="name the folder of the partition, --sites-dir"):
        export(fedavg.workspace, out=tmp_path / "model", site="site-2")


def test_a_model_for_all_sites_is_not_exported_for_one(go, hospitals, tmp_path):
    found = go("fedavg", "problem.norm=frozen")
    with pytest.raises(GrandRoundsError, match=r"\(problem\.norm=frozen\).*--site"):
        export(found.workspace, out=tmp_path / "model", sites_dir=hospitals, site="site-2")


def test_an_export_is_for_a_site(fedavg, hospitals, tmp_path):
    export(fedavg.workspace, out=tmp_path, sites_dir=hospitals, site="site-2")
    state = torch.load(tmp_path / "bundle" / "models" / "model.pt", weights_only=True)
    (path,) = fedavg.workspace.rglob("site-2/common.pt")
    own = torch.load(path, weights_only=True)
    assert any(map(is_running_statistic, own))
    for name, value in own.items():
        torch.testing.assert_close(state[name], value)
    assert "images of site-2" in json.loads((tmp_path / "model_card.json").read_text())["intended_use"]


def test_a_model_of_findings_is_exported_for_a_site(run, go, tmp_path):
    phantom_site("site-1", tmp_path / "sites", size=32, images=60, dataset=FINDINGS_NAME)
    findings = [
        "problem.task=multi",
        f"problem.dataset={FINDINGS_NAME}",
        'problem.classes=["round","ring","clustered"]',
        "controller.selection_metric=auto",
        "controller.min_sites=1",
        "problem.weights=three",
    ]
    torch.save(build_model(ModelSpec("compact", classes=3), seed=5).state_dict(), tmp_path / "three.pt")
    add_file(tmp_path / "three.pt", "three", "scaled", "MIT")
    job = with_options(load_job("fedavg"), [*STEPS, *OWN_NORM, *findings])
    run(job, tmp_path / "run", ["site-1"], sites_dir=tmp_path / "sites")
    export(tmp_path / "run", out=tmp_path / "model", sites_dir=tmp_path / "sites", site="site-1")
    (path,) = (tmp_path / "run").rglob("site-1/common.pt")
    own = torch.load(path, weights_only=True)
    state = torch.load(tmp_path / "model" / "bundle" / "models" / "model.pt", weights_only=True)
    assert all(torch.allclose(state[name], value) for name, value in own.items())


def test_predictions_take_the_statistics_of_their_images(fedavg, hospitals, tmp_path):
    data = load_site_data(locate_dataset("site-2", "phantom", [hospitals]), PHANTOMS, tmp_path)
    rows = data.rows("train")
    _, found, _ = predict_with(fedavg.workspace, np.array(data.images[rows]), {})
    (path,) = fedavg.workspace.rglob("site-2/common.pt")
    description = json.loads(path.with_suffix(".json").read_text())
    network = build_model(ModelSpec(**description["model"]), description["seed"])
    network.load_state_dict(torch.load(path, weights_only=True))
    np.testing.assert_allclose(found, predict(network.eval(), tensors_of(data.images), rows).risks.numpy(), atol=1e-5)
    with pytest.raises(GrandRoundsError, match="it needs at least 16 of one device, got 3"):
        predict_with(fedavg.workspace, np.array(data.images[:3]), {})


def test_a_site_with_too_few_images_does_not_join(go, run, hospitals, tmp_path):
    phantom_site("site-4", hospitals, size=32, images=18, labelled=0.7)
    own = {"phantom": {"manifest": "manifest.csv", "root": "images.npz"}}
    (hospitals / "site-4" / "grandrounds.json").write_text(json.dumps({"datasets": own}))
    job = with_options(load_job("fedirm"), [*STEPS, *OWN_NORM, *OPTIONS["fedirm"], "controller.min_sites=1"])
    found = run(job, tmp_path, ["site-1", "site-4"], sites_dir=hospitals)
    assert found.summary["contributions"].get("site-4", 0) == 0
    text = json.dumps(found.summary) + (found.results / "events.jsonl").read_text()
    assert "problem.norm=site takes the statistics of 16 training images or more" in text


@pytest.mark.parametrize(
    ("job", "options", "message"),
    [
        (
            "fedavg",
            ["executor.record_noise_multiplier=1.0", "executor.class_weights=none"],
            "every image changes how the",
        ),
        (
            "fedavg",
            ["controller.selection_images=server"],
            "controller.selection_images=server needs whole models at the s",
        ),
        (
            "fedperl",
            ["controller.peer_choice=fedmatch"],
            "controller.peer_choice=fedmatch needs whole models at the server",
        ),
    ],
)
def test_what_needs_whole_models_is_refused(go, job, options, message):
    with pytest.raises(GrandRoundsError, match=message):
        go(job, *options)
