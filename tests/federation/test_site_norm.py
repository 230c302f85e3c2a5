"""Sites whose batch norms use the statistics of their own images: these stay at the site, the rest is trained together."""

import csv
import json

import numpy as np
import pytest
import torch

from grandrounds.commands.report import export
from grandrounds.data.partition.phantom_site import phantom_site
from grandrounds.data.site import load_site_data, locate_dataset
from grandrounds.deployment.jobs import load_job, with_options
from grandrounds.errors import GrandRoundsError
from grandrounds.evaluation.external import predict, tensors_of
from grandrounds.models.norm import is_running_statistic
from grandrounds.models.pretrained import add_file
from grandrounds.models.registry import build_model
from grandrounds.protocol.problem import ModelSpec
from grandrounds.reporting.predictions import site_predictions
from grandrounds.reporting.runs import read_run

SITES = ["site-1", "site-2", "site-3"]
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


def names_in(content):
    if isinstance(content, dict):
        for name, value in content.items():
            yield str(name)
            yield from names_in(value)


@pytest.mark.parametrize("job", OPTIONS)
def test_a_run_ends_and_statistics_are_in_no_message_and_no_file_of_the_server(go, job):
    found = go(job)
    assert (found.summary["status"], [entry["dropped"] for entry in found.summary["rounds"]]) == ("finished", [{}, {}])
    for model in found.models.values():
        assert not any(map(is_running_statistic, model))
    files = [path for path in found.workspace.rglob("*.pt") if "flare" not in path.parts and path.stem != "common"]
    assert files
    for path in files:
        if path.parent.name not in SITES:
            assert not any(map(is_running_statistic, names_in(torch.load(path, weights_only=True)))), path


def test_each_site_has_the_whole_model_with_its_own_statistics(fedavg, hospitals, tmp_path):
    statistics = []
    for site in SITES:
        (path,) = fedavg.workspace.rglob(f"{site}/common.pt")
        description = json.loads(path.with_suffix(".json").read_text())
        network = build_model(ModelSpec(**description["model"]), description["seed"])
        network.load_state_dict(torch.load(path, weights_only=True))
        data = load_site_data(locate_dataset(site, "phantom", [hospitals]), description["classes"], 32, 3, tmp_path)
        found = predict(network.eval(), tensors_of(data.images), data.rows("test")).numpy()
        np.testing.assert_allclose(found, predictions_of(fedavg.workspace, site), atol=2e-6)
        statistics.append(network.get_submodule("blocks.2.residual.1").running_mean)
    assert not torch.allclose(statistics[0], statistics[1])


def test_workers_and_child_processes_compute_the_same(go, fedavg, same_run):
    same_run(go("fedavg", workers=2), fedavg)
    same_run(go("fedavg", "executor.isolation=process"), fedavg)


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
    with pytest.raises(GrandRoundsError, match=r"with problem\.norm=site they belong to a site"):
        export(fedavg.workspace, out=tmp_path / "model")
    with pytest.raises(GrandRoundsError, match="name the folder of the partition, --sites-dir"):
        export(fedavg.workspace, out=tmp_path / "model", site="site-2")


def test_an_export_is_for_a_site(fedavg, hospitals, tmp_path):
    export(fedavg.workspace, out=tmp_path, sites_dir=hospitals, site="site-2")
    state = torch.load(tmp_path / "bundle" / "models" / "model.pt", weights_only=True)
    (path,) = fedavg.workspace.rglob("site-2/common.pt")
    own = torch.load(path, weights_only=True)
    assert any(map(is_running_statistic, own))
    for name, value in own.items():
        torch.testing.assert_close(state[name], value)
    assert "images of site-2" in json.loads((tmp_path / "model_card.json").read_text())["intended_use"]


def test_record_level_privacy_and_images_of_the_server_are_refused(go):
    with pytest.raises(GrandRoundsError, match=r"every image changes how the others are normalised"):
        go("fedavg", "executor.record_noise_multiplier=1.0", "executor.class_weights=none", "controller.min_sites=1")
    with pytest.raises(GrandRoundsError, match=r"problem\.norm=site leaves a part at the sites"):
        go("fedavg", "controller.selection_images=server")
