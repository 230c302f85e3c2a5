"""FLARE's swarm learning with this package's training, in FLARE's simulator."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from grandrounds.console.scores import facts
from grandrounds.data.partition.phantom_site import phantom_site
from grandrounds.deployment.jobs import load_job
from grandrounds.deployment.presets import with_options
from grandrounds.deployment.simulate import Execution, simulate
from grandrounds.errors import ConfigurationError

JOB = Path(__file__).parents[2] / "examples" / "swarm" / "job"
SITES = ["site-1", "site-2", "site-3"]
SMALL = [
    "controller.rounds=2",
    "controller.min_sites=3",
    "problem.backbone=compact",
    "executor.pretrain_epochs=0.5",
    "executor.batch_size=8",
    "executor.device=cpu",
]


@pytest.fixture(scope="module")
def hospitals(phantom_hospitals):
    return phantom_hospitals(dict.fromkeys(SITES, 48))


def small(name, *assignments):
    return with_options(load_job(name), [*SMALL, *assignments])


def alone(hospitals, folder):
    """The sites' models after the same local training without any exchange: the job mdhfl whose sites send nothing."""
    with_public = folder / "hospitals"
    shutil.copytree(hospitals, with_public)
    drawn = phantom_site("public", folder / "drawn", size=32, images=24).parent
    for site in SITES:
        shutil.copytree(drawn, with_public / site / "public", dirs_exist_ok=True)
        described = json.loads((with_public / site / "grandrounds.json").read_text())
        described["datasets"]["public"] = {
            "manifest": "public/manifest.csv",
            "root": "public/images.npz",
            "public": True,
        }
        (with_public / site / "grandrounds.json").write_text(json.dumps(described))
    only_local = ("controller.content=none", "executor.final_phase=alignment", "executor.backbones=null")
    simulate(small("mdhfl", *only_local, "executor.test_last=true"), folder / "alone", SITES, with_public)
    states = [next((folder / "alone" / "state").glob(f"*/{site}/own_last.pt")) for site in SITES]
    return [torch.load(path, weights_only=True) for path in states]


def test_the_swarm_ends_with_the_mean_of_the_sites_models_at_every_site(hospitals, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(JOB.parent))
    summary = simulate(
        small(JOB, "controller.round_timeout=300"), tmp_path / "swarm", SITES, hospitals, Execution("flare")
    )
    assert summary["status"] == "finished"
    assert facts(summary)[0] == "selected: the model after round 1 of 2"
    saved = sorted((tmp_path / "swarm" / "flare").glob("*/simulate_job/app_*/FL_global_model.pt"))
    assert [path.parts[-4] for path in saved] == SITES, "the server has no model"
    first, *others = [torch.load(path, weights_only=True)["model"] for path in saved]
    models = alone(hospitals, tmp_path)
    assert first.keys() == {name for name, value in models[0].items() if value.is_floating_point()}
    for name, value in first.items():
        mean = sum(model[name].double() for model in models) / len(SITES)
        torch.testing.assert_close(value, mean.float(), rtol=1e-5, atol=1e-6)
        assert all(torch.equal(value, other[name]) for other in others)
    for site in SITES:
        assert (tmp_path / "swarm" / "results" / site / "predictions_common.csv").is_file()


def test_swarm_learning_in_one_process_is_refused(hospitals, tmp_path):
    with pytest.raises(
        ConfigurationError, match="swarm learning needs sites that reach each other; run it with --engine"
    ):
        simulate(small(JOB), tmp_path, SITES, hospitals)


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("controller.rounds=1", "rounds must be at least 2"),
        ("problem.weights=weights.pt", "problem.weights must be null"),
        ("executor.model=own", "model must be shared"),
        ("executor.optimizer=kept", "optimizer must be fresh"),
    ],
)
def test_invalid_options_are_refused(assignment, message, hospitals, tmp_path):
    with pytest.raises(ConfigurationError, match=message):
        simulate(small(JOB, assignment), tmp_path, SITES, hospitals)
