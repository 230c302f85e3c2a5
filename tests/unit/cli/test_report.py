"""``grandrounds report`` and ``grandrounds export`` from a run to files, and what they refuse."""

import json

import monai.bundle
import pytest
import torch
from safetensors import safe_open

from grandrounds.models.registry import architecture_fingerprint
from grandrounds.reporting.bundle import ImageReader


@pytest.fixture
def trained(run, sites_dir, tmp_path, tiny):
    partition = sites_dir(2)
    workspace = tmp_path / "run"
    result = run("simulate", "fedavg", "--sites-dir", partition, "--workspace", workspace, *tiny)
    assert result.exit_code == 0, result.output
    return workspace, partition


def test_a_run_becomes_a_page_and_a_model(run, trained, tmp_path, monkeypatch):
    workspace, partition = trained
    out = tmp_path / "report"
    result = run("report", workspace, "--out", out, "--sites-dir", partition, "--groups", partition, "--title", "Trial")
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines() == [str(out / "report.html")]
    numbers = json.loads((out / "report.json").read_text())
    assert numbers["title"] == "Trial"
    assert numbers["runs"][0]["communities"].keys() == {"site-1", "site-2"}

    result = run("export", workspace, "--out", tmp_path / "model", "--licence", "CC0")
    assert result.exit_code == 0, result.output
    card = json.loads((tmp_path / "model" / "model_card.json").read_text())
    assert card["classes"] == ["nevus", "melanoma"]
    assert card["data"]["licence"] == "CC0"
    state = torch.load(workspace / "results" / "selected.pt", weights_only=True)
    assert card["weights"]["architecture_fingerprint"] == architecture_fingerprint(state)
    with safe_open(tmp_path / "model" / "model.safetensors", "pt") as file:
        assert json.loads(file.metadata()["classes"]) == card["classes"]
        assert {name: file.get_tensor(name).equal(value) for name, value in state.items()} == dict.fromkeys(state, True)

    network = monai.bundle.load("bundle", bundle_dir=tmp_path / "model", workflow_type="inference", device="cpu")
    assert all(torch.equal(network.state_dict()[name], value) for name, value in state.items())
    image = ImageReader(32, 3)(tmp_path / "images" / "site-1" / "0.png")
    assert network.eval()(image[None]).shape == (1, 2)


def test_what_is_no_run_is_one_line(run, tmp_path):
    result = run("report", tmp_path, "--out", tmp_path / "report")
    assert result.exit_code == 1
    assert "is no run" in result.stderr
    assert not (tmp_path / "report").exists()


def test_a_run_without_a_common_model_cannot_be_exported(run, tmp_path, make_summary):
    folder = tmp_path / "local"
    folder.mkdir()
    problem = {"dataset": "skin", "classes": ["a", "b"]}
    content = make_summary(configuration={"method": "LocalController", "problem": problem}, contributions={}, seconds=1)
    (folder / "summary.json").write_text(json.dumps(content))
    result = run("export", folder, "--out", tmp_path / "model")
    assert result.exit_code == 1
    assert "has no selected model" in result.stderr
