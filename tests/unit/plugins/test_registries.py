"""Data sets, metrics and methods of plug-ins are found by their names, checked, and used like the package's own."""

import numpy as np
import pytest
from PIL import Image

import grandrounds as gr
from grandrounds import plugins
from grandrounds.data.families import OWN_DATASETS
from grandrounds.deployment.jobs import job_names, load_job, write_job
from grandrounds.deployment.kit.classes import classes_fault, component_classes, with_allowed_classes
from grandrounds.deployment.presets import with_options, with_preset
from grandrounds.errors import ConfigurationError, DataError
from grandrounds.evaluation.metrics import OWN_METRICS, selectable_metrics, site_metrics
from grandrounds.federation.own_methods import OWN_METHODS
from grandrounds.federation.server.options import RunOptions
from grandrounds.federation.server.selection import ModelSelection
from grandrounds.methods.supervised.controller import FedAvgController
from grandrounds.methods.supervised.executor import SupervisedExecutor
from grandrounds.protocol.problem import Problem
from grandrounds.protocol.tasks import SINGLE

LABELS, PROBABILITIES = np.array([0, 1, 1]), np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]])


@pytest.fixture(autouse=True)
def registries(monkeypatch):
    """Each test has registries of its own."""
    for registry in (OWN_DATASETS, OWN_METRICS, OWN_METHODS):
        monkeypatch.setattr(registry, "entries", {})
    monkeypatch.setattr(plugins, "_registering", {})


class Executor(SupervisedExecutor):
    """A method with the options of FedAvg."""


def test_a_metric_is_reported_and_may_select_the_model():
    gr.register_metric("confidence")(lambda labels, probabilities: probabilities.max(axis=1).mean())
    assert site_metrics(SINGLE, LABELS, PROBABILITIES)["confidence"] == pytest.approx((0.9 + 0.8 + 0.6) / 3)
    assert "confidence" in selectable_metrics()
    RunOptions(problem={}, rounds=1, selection_metric="confidence")
    selection = ModelSelection("confidence", Problem("phantom", ("a", "b")))
    scores = {
        "x": {"validation.n": 4, "validation.confidence": 0.5},
        "y": {"validation.n": 12, "validation.confidence": 0.9},
    }
    compared = selection.offer(1, scores, None)
    assert (compared["score"], compared["basis"]) == (pytest.approx(0.7), "mean over sites")
    assert "not known from counts" in compared["note"]


@pytest.mark.parametrize("value", [float("nan"), "text"])
def test_a_metric_that_gives_no_number_is_named(value):
    gr.register_metric("wrong")(lambda labels, probabilities: value)
    with pytest.raises(ConfigurationError, match="metric wrong"):
        site_metrics(SINGLE, LABELS, PROBABILITIES)


def test_a_metric_must_not_take_a_name_of_the_package():
    gr.register_metric("accuracy")(lambda labels, probabilities: 1.0)
    with pytest.raises(ConfigurationError, match="metric 'accuracy' is one of the package's own"):
        selectable_metrics()


def test_a_reader_gives_sites_patients_and_splits(tmp_path):
    @gr.register_dataset("named")
    def read(root, options):
        for path in sorted(root.glob("*.png")):
            site, label, patient, _ = path.stem.split("-")
            yield {"image": path.name, "label": label, "patient": patient, "site": site, "age": 40}

    (tmp_path / "images").mkdir()
    for number in range(40):
        name = f"{('leeds', 'york')[number // 20]}-{('nevus', 'melanoma')[number % 2]}-P{number // 4}-{number}.png"
        Image.new("RGB", (8, 8), (number, 0, 0)).save(tmp_path / "images" / name)
    sites = gr.partition("named", tmp_path / "images", tmp_path / "sites", labelled=1.0)
    assert sites.names == ("leeds", "york")
    assert sites.counts().loc["leeds", "training"] + sites.counts().loc["leeds", ["validation", "test"]].sum() == 20
    manifest = (tmp_path / "sites" / "leeds" / "manifest.csv").read_text().splitlines()
    assert manifest[0].endswith(",age")
    assert manifest[1].endswith(",40")


@pytest.mark.parametrize(
    ("rows", "message"),
    [([], "gives no row"), ([{"image": "a.png"}], "without 'label'"), (None, r"failed \(TypeError")],
)
def test_a_reader_that_fails_is_named(tmp_path, rows, message):
    gr.register_dataset("broken")(lambda root, options: rows)
    with pytest.raises(DataError, match=message):
        gr.partition("broken", tmp_path, tmp_path / "sites")


def test_a_method_is_a_job_with_fedavgs_values(tmp_path):
    presets = {"long": {"executor": {"steps": 50}}}
    register = gr.register_method(
        "own", controller=FedAvgController, summary="one line", options={"executor.steps": 3}, presets=presets
    )
    register(Executor)
    assert "own" in job_names()
    job = load_job("own")
    job.checked()
    assert (job.name, job.run_name, job.options("executor")["steps"]) == ("own", "own", 3)
    assert job.options("problem") == load_job("fedavg").options("problem")
    assert with_preset(job, "long").options("executor")["steps"] == 50
    assert with_options(job, ["controller.rounds=2"]).options("controller")["rounds"] == 2
    assert load_job(write_job(job, tmp_path / "own")).executor["path"] == f"{Executor.__module__}.Executor"


def test_a_kit_allows_the_classes_of_an_installed_method():
    before = component_classes()
    gr.register_method("own", controller=FedAvgController)(Executor)
    assert set(component_classes()) - set(before) == {f"{Executor.__module__}.Executor"}
    resources = with_allowed_classes({"class_allow_list": []}, at_site=True)
    assert classes_fault(resources, at_site=True) == ""


def test_a_method_needs_an_executor_and_a_controller_and_a_free_name():
    with pytest.raises(ConfigurationError, match="must be a class derived from RoundController"):
        gr.register_method("own", controller=Executor)
    with pytest.raises(ConfigurationError, match="must be a class derived from SiteExecutor"):
        gr.register_method("own", controller=FedAvgController)(FedAvgController)
    gr.register_method("fedavg", controller=FedAvgController)(Executor)
    with pytest.raises(ConfigurationError, match="method 'fedavg' is one of the package's own"):
        job_names()
