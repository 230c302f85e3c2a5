"""The reference row of a simulation: a ridge head that does not change the run, and says which one it is."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

import grandrounds as gr
from grandrounds.deployment import reference
from grandrounds.deployment.jobs import load_job
from grandrounds.deployment.presets import with_options, with_preset
from grandrounds.deployment.reference import POLICY, add_reference, ridge_row, shared_features
from grandrounds.errors import GrandRoundsError
from grandrounds.federation.site.features import VARIABLE
from grandrounds.files import write_json

TINY = {"executor.steps": 2, "executor.batch_size": 8, "executor.device": "cpu"}


@pytest.fixture
def go(tmp_path, shared_cache):
    """Run a job with two synthetic sites, with or without the row."""

    def run(job, name, row=True, **options):
        options = {**(TINY if job == "fedavg" else {}), **options}
        place = tmp_path / name
        return gr.run(
            job,
            2,
            rounds=3,
            options=options,
            workspace=place,
            progress=False,
            reference=row,
            execution=gr.Execution(workers=1),
            seed=4,
        )

    return run


def test_models_and_scores_are_the_same_with_and_without_the_row(go):
    with_row, without = go("fedavg", "with"), go("fedavg", "without", row=False)
    ours, theirs = (
        torch.load(run.workspace / "results" / "selected.pt", weights_only=False) for run in (with_row, without)
    )
    assert str(ours) == str(theirs)
    assert "references" not in without.summary
    assert with_row.summary["records"] == without.summary["records"]
    assert "ridge" not in without.scores().index


def test_the_row_is_the_run_of_the_job_ridge_on_the_same_network(go):
    frame = go("fedavg", "fedavg").scores()
    ridge = go("ridge", "ridge", **{"problem.test_view": "half_turn"})
    assert "references" not in ridge.summary  # ridge is no reference of itself
    ours, theirs = frame.loc["ridge"], ridge.scores().loc["pooled"]
    for name in ("accuracy", "balanced_accuracy", "f1_weighted"):
        assert ours[name] == pytest.approx(theirs[name], abs=1e-9)


def test_the_same_command_takes_the_row_over_and_another_seed_computes_it_anew(go, tmp_path, monkeypatch):
    first = go("fedavg", "run").summary["references"]["ridge"]
    assert first["told"].endswith("the run's network, compact from random weights, untrained")
    assert first["cpu_seconds"] > 0
    assert not (tmp_path / "run" / "reference").exists()
    with monkeypatch.context() as patch:
        patch.setattr(reference, "simulate", None)
        assert go("fedavg", "run").summary["references"]["ridge"] == first
    row = ridge_row(with_options(load_job("fedavg"), ["controller.seed=9"]).checked(), 2)
    other = add_reference(row, tmp_path / "run", ["site-1", "site-2"])
    assert other["records"] != first["records"]


def test_what_is_remarked_on_the_row_is_remarked_on_the_run_once(go, tmp_path, monkeypatch):
    run, row = go("fedavg", "run", row=False), ridge_row(load_job("fedavg").checked(), 2)

    def remarked(*_, **__):
        (tmp_path / "run" / "reference").mkdir()
        return {"remarks": ["labels exchanged"]}

    monkeypatch.setattr(reference, "simulate", remarked)
    for _ in range(2):
        add_reference(row, run.workspace, ["site-1", "site-2"])
        (remark,) = json.loads((tmp_path / "run" / "results" / "summary.json").read_text())["remarks"]
        assert remark.endswith(": labels exchanged")


def test_a_row_that_fails_or_may_not_be_leaves_the_run_as_it_is_with_the_reason(go, tmp_path, monkeypatch):
    run = go("fedavg", "run", row=False)
    row = ridge_row(load_job("fedavg").checked(), 2)

    def failed(*_, **__):
        raise GrandRoundsError("no site has a labelled image")

    monkeypatch.setattr(reference, "simulate", failed)
    assert add_reference(row, run.workspace, ["site-1", "site-2"]) == {
        "reason": "not computed: no site has a labelled image"
    }
    write_json(tmp_path / "run" / "flare" / "site-2" / "local" / "privacy.json", {})
    assert add_reference(row, run.workspace, ["site-1", "site-2"]) == {"reason": POLICY}
    assert run.summary["status"] == "finished"
    assert list(run.scores().index) == ["site-1", "site-2", "mean", "pooled", "always irregular", "chance"]
    assert (
        "ridge: not computed: policy"
        in json.loads((run.report(tmp_path / "r").parent / "report.json").read_text())["runs"][0]["reference"]
    )


LITE = "efficientnet_lite0 from imagenet weights"
AT_64 = f"{LITE} at 64 pixels, as"


@pytest.mark.parametrize(
    ("job", "preset", "options", "network"),
    [
        ("fedavg", "scratch", [], f"the run's network, {LITE}"),
        ("fedavg", "scratch", ["problem.norm=site"], f"the run's network, {LITE}"),
        (
            "mdhfl",
            None,
            [],
            f"{AT_64} the sites have networks of their own (labels with the noise that was drawn)",
        ),
        (
            "fedavg",
            None,
            ["problem.weights=/models/mine.pt"],
            f"{AT_64} compact cannot have such a head here",
        ),
        (
            "fedavg",
            None,
            ["problem.backbone=monai:resnet10", "problem.image_size=64"],
            f"{AT_64} the run names no weights of monai:resnet10",
        ),
    ],
)
def test_the_row_says_what_its_features_are_of(job, preset, options, network):
    made = with_options(with_preset(load_job(job), preset), options).checked()
    row = ridge_row(made, 4, noisy=job == "mdhfl")
    assert row.network == network
    assert row.description.startswith("head in closed form from the sites' training labels, on ")
    assert row.job.value("problem", "image_size") == max(made.value("problem", "image_size"), 64)
    assert row.job.value("problem", "classes") == made.value("problem", "classes")


@pytest.mark.parametrize("preset", ["recommended", "scratch"])
def test_with_the_recommended_network_the_row_is_the_recommended_ridge(preset):
    made = with_preset(load_job("fedavg"), preset).checked()
    wanted = dict(with_preset(load_job("ridge"), "recommended").options("problem"))
    wanted["image_size"] = made.value("problem", "image_size")
    assert ridge_row(made, 4).job.options("problem") == wanted


def test_a_run_that_keeps_the_same_features_shares_them(tmp_path, monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    same = ["problem.head=depths", "problem.trainable=head", "executor.feature_cache=1"]
    for options, shares in ((same, True), (same[:2], False), (same[1:], False)):
        with shared_features(with_options(load_job("fedavg"), options), tmp_path):
            assert (VARIABLE in reference.os.environ) == shares
        assert VARIABLE not in reference.os.environ


@pytest.fixture
def partition(tmp_path, monkeypatch):
    """Two sites of noise in two classes, without a folder of decoded images or of features in the environment."""
    monkeypatch.delenv("GRANDROUNDS_CACHE", raising=False)
    monkeypatch.delenv(VARIABLE, raising=False)
    numbers = np.random.default_rng(0)
    for number in range(48):
        path = tmp_path / "images" / f"site-{number % 2}" / f"class-{number // 2 % 2}" / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(numbers.integers(0, 256, (32, 32, 3), dtype=np.uint8)).save(path)
    return gr.Sites.from_folders(tmp_path / "images", tmp_path / "sites", warn=False)


def start(sites, workspace, learning_rate):
    options = {
        "controller.start_from": "ridge",
        "problem.head": "depths",
        "problem.trainable": "head",
        "executor.feature_cache": 1,
    }
    options |= {**TINY, "problem.image_size": 32, "executor.learning_rate": learning_rate, "controller.rounds": 1}
    return gr.run("fedavg", sites, options=options, workspace=workspace, progress=False, seed=4)


def test_methods_on_one_partition_share_the_start_and_its_features(partition, tmp_path, monkeypatch):
    first = start(partition, tmp_path / "a", 1e-3)
    cache = tmp_path / "sites.cache"
    features = {path: path.stat().st_mtime_ns for path in (cache / "features").glob("*none*.features")}
    assert len(features) == 2
    assert not (tmp_path / "a" / "cache").exists()
    calls = []
    monkeypatch.setattr(reference, "simulate", lambda *_, **__: calls.append(1))
    second = start(partition, tmp_path / "b", 1e-2)
    assert not calls
    assert second.summary["references"] == first.summary["references"]
    assert {path: path.stat().st_mtime_ns for path in features} == features
    for name in ("reference.pt", "results/site-0/predictions_ridge.csv"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_a_start_is_computed_anew_for_other_pixels_under_the_same_names(partition, tmp_path):
    first = start(partition, tmp_path / "a", 1e-3)
    for path in (tmp_path / "images" / "site-0").glob("*/*.png"):
        Image.open(path).transpose(Image.Transpose.ROTATE_90).save(path)
    second = start(partition, tmp_path / "b", 1e-3)
    assert second.summary["references"]["ridge"]["records"] != first.summary["references"]["ridge"]["records"]
