"""An ensemble is the mean of the probabilities of the sites' own models, in a run's folder or handed over as files."""

import csv
import json
import re
import shutil
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from grandrounds.data.manifest import Record, write_manifest
from grandrounds.errors import ConfigurationError, MessageError
from grandrounds.models.registry import build_model
from grandrounds.models.site_model import model_description, with_description
from grandrounds.models.trained import write_released
from grandrounds.protocol.problem import ModelSpec, Problem
from grandrounds.protocol.tasks import FINDINGS
from grandrounds.reporting.external.prediction import trained_model

PROBLEM = Problem("skin", ("nevus", "melanoma"), image_size=32)
RUN = "a1"
OF_PANDAS = ("grandrounds.api.evaluation", "grandrounds.api.prediction")
NETWORKS = {"site-1": "compact", "site-2": "resnet9"}


@pytest.fixture
def finished(tmp_path, images, make_summary):
    """A run whose two sites have left untrained networks, and a manifest of other images; arguments change its problem."""

    def make(place="state/run", labels=("nevus", "melanoma", "nevus"), **changes):
        problem, workspace = replace(PROBLEM, **changes), tmp_path / "run"
        configuration = {"method": "LocalController", "run_name": "run", "problem": problem.to_dict()}
        base = {"configuration": configuration, "run_id": RUN, "contributions": {}, "seconds": 1.0, "bytes": {}}
        (workspace / "results").mkdir(parents=True)
        (workspace / "results" / "summary.json").write_text(json.dumps(make_summary(**base)))
        networks = {}
        for seed, (site, backbone) in enumerate(NETWORKS.items(), 1):
            spec = replace(problem.model_spec(pretrained=False), backbone=backbone)
            networks[site] = build_model(spec, seed).eval()
            description = model_description(networks[site], spec, problem, seed, RUN, site)
            tensors = with_description(networks[site].state_dict(), description)
            write_released(workspace / place / site, tensors, problem, RUN)
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


def test_images_are_predicted_without_the_libraries_of_a_study_and_evaluate_says_which_it_needs(
    run, finished, tmp_path, monkeypatch
):
    made, out = finished(), tmp_path / "found.csv"
    for module in [name for name in sys.modules if name.partition(".")[0] == "pandas" or name in OF_PANDAS]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "pandas", None)
    assert run("predict", made.workspace, *made.files, "--ensemble", "--out", out).exit_code == 0
    assert len(predicted(out)) == len(made.files)
    refused = run("evaluate", made.workspace, *made.data, "--ensemble")
    assert refused.exit_code == 1
    assert "grandrounds[study]" in refused.stderr


def test_what_is_no_image_is_named(run, finished, tmp_path):
    text = tmp_path / "bare.py"
    text.write_text("import this")
    refused = run("predict", finished().workspace, text, "--ensemble")
    assert refused.exit_code == 1
    assert "bare.py" in refused.stderr
    assert "max_unreadable" not in refused.stderr


def test_findings_are_averaged_each_for_itself(run, finished, tmp_path):
    made, out = finished(task=FINDINGS.name, labels=("nevus|melanoma", "none", "melanoma")), tmp_path / "found.csv"
    result = run("evaluate", made.workspace, *made.data, "--ensemble", "--predictions", out)
    assert result.exit_code == 0, result.output
    np.testing.assert_allclose(predicted(out), by_hand(made, torch.sigmoid), atol=2e-6)


def test_models_that_were_handed_over_are_taken_in_place_of_those_of_the_run(run, finished, tmp_path):
    made, out = finished(), tmp_path / "found.csv"
    for name in ("pt", "json"):
        (made.own / f"site-2/own.{name}").rename(tmp_path / f"theirs.{name}")
    assert_line(
        run("evaluate", made.workspace, *made.data, "--ensemble"), r"an ensemble needs .* and .*run has 1: sites"
    )
    members = ["--member", made.own / "site-1" / "own.pt", "--member", tmp_path / "theirs.pt"]
    told = json.loads(run("evaluate", made.workspace, *made.data, *members, "--predictions", out, "--json").stdout)
    np.testing.assert_allclose(predicted(out), by_hand(made, lambda logits: logits.softmax(dim=1)), atol=2e-6)
    assert told["external"]["run"] == "run, ensemble of site-1, theirs"
    assert_line(
        run("predict", made.workspace, *made.files, *members[:2], "--member", tmp_path / "no.pt"), "no model .*no.pt"
    )


def test_a_model_of_another_run_of_the_same_name_is_refused_with_both_identities(run, finished):
    made = finished()
    path = made.own / "site-2" / "own.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "run_id": "b2"}))
    members = [one for site in NETWORKS for one in ("--member", made.own / site / "own.pt")]
    assert_line(
        run("predict", made.workspace, *made.files, *members),
        rf"site-2/own\.json: run_id of this model is b2, and of the run {RUN}: only models of one run are averaged",
    )


@pytest.mark.parametrize("old", ["results/summary.json", "state/run/site-1/own.json"])
def test_a_run_of_an_earlier_release_must_be_made_again(run, finished, old):
    made = finished()
    path = made.workspace / old
    path.write_text(json.dumps({k: v for k, v in json.loads(path.read_text()).items() if k != "run_id"}))
    assert_line(run("predict", made.workspace, *made.files, "--ensemble"), r"own\.json: an earlier release .*job again")


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
    assert_line(
        run("evaluate", made.workspace, *made.data, "--ensemble"), rf"site-2/own\.json: {name} of this model is "
    )


def test_a_description_that_is_none_is_refused(run, finished):
    made = finished()
    path = made.own / "site-1" / "own.json"
    content = json.loads(path.read_text())
    for changes, message in (
        ({"size": 3}, "unknown key 'size'"),
        ({"seed": float("inf")}, "seed must be of type int, got inf"),
        ({"seed": 2**64}, "seed must be at least 0"),
        ({"model": {**content["model"], "size": 3}}, "model does not say how it is built"),
        ({"model": {**content["model"], "classes": 3}}, r"model\.classes of this model is 3, and of the run 2"),
        ({"model": {**content["model"], "channels": 1}}, r"model\.channels of this model is 1, and of the run 3"),
        (
            {"model": {**content["model"], "weights": "/x/y.pt"}},
            r"weights must be a name, got .* `grandrounds weights add",
        ),
    ):
        path.write_text(json.dumps({**content, **changes}))
        assert_line(run("predict", made.workspace, *made.files, "--ensemble"), rf"site-1/own\.json: .*{message}")
    path.write_text(json.dumps({**content, "model": {**content["model"], "backbone": "resnet9"}}))
    assert_line(
        run("predict", made.workspace, *made.files, "--ensemble"), r"no resnet9 .* as the JSON file beside it says"
    )
    with pytest.raises(ConfigurationError, match="a model of the ensemble must be a path, got int"):
        trained_model(made.workspace, [1, 2])


def test_fewer_than_two_models_are_no_ensemble_and_leave_no_other_model(finished):
    made = finished()
    (made.workspace / "results" / "selected.pt").touch()
    own = made.own / "site-1" / "own.pt"
    for given, count in (([], 0), (own, 1), (str(own), 1)):
        with pytest.raises(ConfigurationError, match=f"two sites or more, and given were {count}: "):
            trained_model(made.workspace, given)


def test_one_site_is_not_averaged_with_itself(finished):
    made = finished()
    paths = [made.own / site / "own.pt" for site in NETWORKS]
    described = json.loads(paths[0].with_suffix(".json").read_text())
    with pytest.raises(ConfigurationError, match="are the same site's model; name one of them"):
        trained_model(made.workspace, [paths[0], paths[0]])
    shutil.copy(paths[0], paths[1])
    paths[1].with_suffix(".json").write_text(json.dumps({**described, "site": "site-2"}))
    with pytest.raises(ConfigurationError, match=r"site-2/own\.pt.*site-1/own\.pt"):
        trained_model(made.workspace, paths)


def test_frozen_layers_come_from_the_same_weights_as_at_the_site_or_not_at_all(run, finished, tmp_path, monkeypatch):
    monkeypatch.setenv("GRANDROUNDS_WEIGHTS", str(tmp_path / "weights"))
    made = finished()
    files = {name: tmp_path / f"{name}.pt" for name in ("trained", "other")}
    for seed, file in enumerate(files.values()):
        torch.save(build_model(ModelSpec("compact", classes=2), seed).state_dict(), file)
    spec = ModelSpec("compact", classes=2, weights=str(files["trained"]), trainable="head", intensities="scaled")
    network = build_model(spec, 1).eval()
    description = model_description(network, spec, PROBLEM, 1, RUN, "site-1")
    assert description["model"]["weights"] == "site-1-trained"
    write_released(made.own / "site-1", with_description(network.state_dict(), description), PROBLEM, RUN)
    made.networks["site-1"] = network
    command = ("predict", made.workspace, *made.files, "--ensemble", "--out", tmp_path / "found.csv")
    assert_line(run(*command), "no weights named 'site-1-trained' .*weights add FILE --name site-1-trained")
    for name in files:
        assert run("weights", "add", files[name], "--name", "site-1-trained", "--intensities", "scaled").exit_code == 0
        (added,) = (tmp_path / "weights").iterdir()
        if name == "trained":
            assert run(*command).exit_code == 0
            np.testing.assert_allclose(
                predicted(tmp_path / "found.csv"), by_hand(made, lambda logits: logits.softmax(dim=1)), atol=2e-6
            )
        else:
            assert_line(run(*command), "the frozen layers are not those that site-1 had: .* are another file here")
        added.unlink()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ([], "cannot be read: description must be an object"),
        ("x", "cannot be read: description must be an object"),
        ({"seed": float("nan")}, "seed must be of type int, got nan"),
        ({"more": 1}, "unknown key 'more'"),
        ({"site": "site-2"}, "site is 'site-2'"),
        ({"run_id": "b2"}, f"run_id of this model is b2, and of the run {RUN}"),
    ],
)
def test_the_server_writes_no_description_but_that_of_the_sites_network(finished, tmp_path, changes, message):
    path = finished().own / "site-1" / "own.json"
    content = json.loads(path.read_text())
    entry = with_description({}, {**content, **changes} if isinstance(changes, dict) else changes)
    with pytest.raises(MessageError, match=message):
        write_released(tmp_path / "site-1", entry, PROBLEM, RUN)
    assert not (tmp_path / "site-1").exists()


def test_the_server_writes_no_entries_without_a_description_nor_more_than_the_network_has(finished, tmp_path):
    content = json.loads((finished().own / "site-1" / "own.json").read_text())
    for state in ({}, {"description": torch.zeros(3, dtype=torch.bfloat16)}, {"description": torch.zeros(2, 2).byte()}):
        with pytest.raises(MessageError, match="must come with its description"):
            write_released(tmp_path / "site-1", state, PROBLEM, RUN)
    with pytest.raises(MessageError, match="the model has 40000000 bytes, and compact at most"):
        write_released(tmp_path / "site-1", with_description({"w": torch.zeros(10**7)}, content), PROBLEM, RUN)


def test_what_needs_predictions_of_the_runs_sites_or_one_network_is_refused(run, finished):
    made = finished(labels=["nevus", "melanoma"] * 15)
    arguments = ["evaluate", made.workspace, *made.data, "--ensemble"]
    assert (
        "no site has predictions of the ensemble; give --threshold" in run(*arguments, "--positive", "melanoma").stderr
    )
    assert_line(run(*arguments, "--recalibrate", "head:10"), "--recalibrate head: an ensemble has no last layer")
    assert_line(run(*arguments, "--recalibrate", "shares"), "--recalibrate shares: the run has no predictions")
    assert run(*arguments, "--recalibrate", "labels:10").exit_code == 0
    assert_line(run(*arguments[:-1]), "LocalController has no common model, .* take --ensemble")


def assert_line(result, pattern):
    assert result.exit_code == 1, result.output
    *_, last = result.stderr.splitlines()
    assert re.fullmatch(f"error: .*{pattern}.*", last), result.stderr
