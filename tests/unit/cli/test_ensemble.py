"""An ensemble is the mean of the probabilities of the sites' own models, in a run's folder or handed over as files."""

import csv
import json
import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from grandrounds.data.manifest import Record, write_manifest
from grandrounds.errors import ConfigurationError, MessageError
from grandrounds.models.registry import build_model
from grandrounds.models.site_model import model_description, with_description, write_released
from grandrounds.protocol.problem import Problem
from grandrounds.protocol.tasks import FINDINGS
from grandrounds.reporting.external.trained import trained_model

PROBLEM = Problem("skin", ("nevus", "melanoma"), image_size=32)
NETWORKS = {"site-1": "compact", "site-2": "resnet9"}


@pytest.fixture
def finished(tmp_path, images, make_summary):
    """A run whose two sites have left untrained networks, and a manifest of other images; arguments change its problem."""

    def make(place="state/run", labels=("nevus", "melanoma", "nevus"), **changes):
        problem, workspace = replace(PROBLEM, **changes), tmp_path / "run"
        configuration = {"method": "LocalController", "run_name": "run", "problem": problem.to_dict()}
        base = {"configuration": configuration, "contributions": {}, "seconds": 1.0, "bytes": {}}
        (workspace / "results").mkdir(parents=True)
        (workspace / "results" / "summary.json").write_text(json.dumps(make_summary(**base)))
        networks = {}
        for seed, (site, backbone) in enumerate(NETWORKS.items(), 1):
            spec = replace(problem.model_spec(pretrained=False), backbone=backbone)
            networks[site] = build_model(spec, seed).eval()
            tensors = with_description(networks[site].state_dict(), model_description(spec, problem, seed))
            write_released(workspace / place / site, tensors)
        names = images("clinic", len(labels))
        records = [Record(name, label, "test") for name, label in zip(names, labels, strict=True)]
        write_manifest(records, tmp_path / "clinic.csv")
        data = ["--manifest", tmp_path / "clinic.csv", "--root", tmp_path / "images"]
        files = [tmp_path / "images" / name for name in names]
        return SimpleNamespace(workspace=workspace, own=workspace / place, networks=networks, data=data, files=files)

    return make


def by_hand(made, activation):
    pixels = np.stack([np.array(Image.open(path)) for path in made.files])
    inputs = torch.from_numpy(pixels).permute(0, 3, 1, 2).float() / 255
    with torch.no_grad():
        return np.mean([activation(network(inputs)).double().numpy() for network in made.networks.values()], axis=0)


def predicted(path):
    with path.open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    return [[float(value) for name, value in row.items() if name.startswith("probability_")] for row in rows]


@pytest.mark.parametrize("place", ["state/run", "results"])
def test_probabilities_are_the_mean_of_the_sites_models(run, finished, tmp_path, place):
    made, out = finished(place), tmp_path / "found.csv"
    expected = by_hand(made, lambda logits: logits.softmax(dim=1))
    result = run("evaluate", made.workspace, *made.data, "--ensemble", "--predictions", out, "--json")
    assert result.exit_code == 0, result.output
    np.testing.assert_allclose(predicted(out), expected, atol=2e-6)
    told = json.loads(result.stdout)["external"]
    assert told["run"] == "run, ensemble of site-1, site-2"
    assert set(told["sha256"]) == {"model 1", "model 2", "clinic"}
    right = [int(np.argmax(row)) == label for row, label in zip(expected, (0, 1, 0), strict=True)]
    assert json.loads(result.stdout)["pooled"]["accuracy"] == pytest.approx(np.mean(right))
    assert run("predict", made.workspace, *made.files, "--ensemble", "--out", out).exit_code == 0
    np.testing.assert_allclose(predicted(out), expected, atol=2e-6)


def test_findings_are_averaged_each_for_itself(run, finished, tmp_path):
    made, out = finished(task=FINDINGS.name, labels=("nevus|melanoma", "none", "melanoma")), tmp_path / "found.csv"
    result = run("evaluate", made.workspace, *made.data, "--ensemble", "--predictions", out)
    assert result.exit_code == 0, result.output
    np.testing.assert_allclose(predicted(out), by_hand(made, torch.sigmoid), atol=2e-6)


def test_models_that_were_handed_over_are_taken_in_place_of_those_of_the_run(run, finished, tmp_path):
    made, out = finished(), tmp_path / "found.csv"
    for name in ("pt", "json"):
        (made.own / f"site-2/own.{name}").rename(tmp_path / f"theirs.{name}")
    one_line(run("evaluate", made.workspace, *made.data, "--ensemble"), r"an ensemble needs .* and .*run has 1: sites")
    members = ["--member", made.own / "site-1" / "own.pt", "--member", tmp_path / "theirs.pt"]
    told = json.loads(run("evaluate", made.workspace, *made.data, *members, "--predictions", out, "--json").stdout)
    np.testing.assert_allclose(predicted(out), by_hand(made, lambda logits: logits.softmax(dim=1)), atol=2e-6)
    assert told["external"]["run"] == "run, ensemble of site-1, theirs"
    one_line(
        run("predict", made.workspace, *made.files, *members[:2], "--member", tmp_path / "no.pt"), "no model .*no.pt"
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("classes", ["melanoma", "nevus"]),
        ("image_size", 64),
        ("channels", 1),
        ("task", "multi"),
        ("preprocessing", "draft"),
    ],
)
def test_a_model_of_another_problem_is_refused_by_what_differs(run, finished, name, value):
    made = finished()
    path = made.own / "site-2" / "own.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), name: value}))
    one_line(run("evaluate", made.workspace, *made.data, "--ensemble"), rf"site-2/own\.pt: {name} of this model is ")


def test_a_description_that_is_none_is_refused(run, finished):
    made = finished()
    path = made.own / "site-1" / "own.json"
    for content in ({}, {"model": {"backbone": "compact", "size": 3}, "seed": 1}):
        path.write_text(json.dumps(content))
        one_line(
            run("predict", made.workspace, *made.files, "--ensemble"), r"own\.json does not say how own\.pt is built"
        )
    with pytest.raises(MessageError, match="must come with its description"):
        write_released(path.parent, {"weight": torch.zeros(2)})
    with pytest.raises(ConfigurationError, match="a model of the ensemble must be a path, got int"):
        trained_model(made.workspace, [1, 2])


def test_what_needs_predictions_of_the_runs_sites_or_one_network_is_refused(run, finished):
    made = finished(labels=["nevus", "melanoma"] * 15)
    arguments = ["evaluate", made.workspace, *made.data, "--ensemble"]
    assert "there is no operating point" in run(*arguments, "--positive", "melanoma").stderr
    one_line(run(*arguments, "--recalibrate", "head:10"), "--recalibrate head: an ensemble has no last layer")
    one_line(run(*arguments, "--recalibrate", "shares"), "--recalibrate shares: the run has no predictions")
    assert run(*arguments, "--recalibrate", "labels:10").exit_code == 0
    one_line(run(*arguments[:-1]), "LocalController has no common model, .* take --ensemble")


def one_line(result, pattern):
    assert result.exit_code == 1, result.output
    assert re.fullmatch(f"error: .*{pattern}.*\n", result.stderr), result.stderr
