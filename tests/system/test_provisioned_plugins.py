"""The examples as installed packages in a federation of startup kits: FedALA, networks of libraries, joined encoders."""

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from grandrounds import plugins
from grandrounds.data.site import LABELLED_NAME
from grandrounds.deployment.jobs import load_job
from grandrounds.deployment.kit.distributions import listed_plugins, locked_plugins
from grandrounds.deployment.kit.doctor import allowed_classes, plug_ins
from grandrounds.deployment.kit.overlay import Settings
from grandrounds.deployment.kit.shipped import OVERLAYS
from grandrounds.deployment.presets import with_options
from grandrounds.deployment.submission import submit_and_watch, with_roster
from grandrounds.federation.own_methods import OWN_METHODS
from grandrounds.federation.server.record import EVENTS, read_events
from grandrounds.models.backbones.own import OWN_BACKBONES
from grandrounds.models.pretrained import add_file
from grandrounds.models.registry import build_model
from grandrounds.protocol.paths import WEIGHTS_VARIABLE
from grandrounds.protocol.problem import ModelSpec

pytestmark = pytest.mark.provisioned

EXAMPLES = Path(__file__).parents[2] / "examples"
SITES = ("hospital-a", "hospital-b")
TINY = [
    "controller.round_timeout=240",
    "problem.image_size=64",
    "executor.steps=1",
    "executor.batch_size=2",
    "executor.device=cpu",
]
LIGHT = "timm_mobilenetv3_small" if find_spec("timm") else "efficientnet_lite0"


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The examples, installed where this process and those of the kits find them."""
    folder = tmp_path_factory.mktemp("packages")
    for name in ("fedala", "joined_encoders", "own_networks"):
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
        subprocess.run([*command, "--target", str(folder), str(EXAMPLES / name)], check=True)
    with pytest.MonkeyPatch.context() as patch:
        for registry in (OWN_BACKBONES, OWN_METHODS):
            patch.setattr(registry, "entries", {})
        patch.setattr(plugins, "_registering", {})
        patch.syspath_prepend(str(folder))
        patch.setenv("PYTHONPATH", str(folder))
        plugins.load_plugins.cache_clear()
        yield plugins.load_plugins()
    plugins.load_plugins.cache_clear()


@pytest.fixture(scope="module")
def federation(installed, consortium, tmp_path_factory):
    """Two sites, of which the first lets FedALA's own metric leave."""
    policy = json.loads((OVERLAYS / "open.json").read_text())
    for scope in policy["scopes"]:
        scope["properties"]["grandrounds"]["scalars"].append(
            {"name": "global_share", "part": "train", "minimum_support": 5}
        )
    path = tmp_path_factory.mktemp("policy") / "privacy.json"
    path.write_text(json.dumps(policy))
    plugins = ("grandrounds-fedala", "grandrounds-joined-encoders", "grandrounds-own-networks")
    settings = {name: Settings(plugins=plugins) for name in ("server", *SITES)}
    with consortium(SITES, {**settings, SITES[0]: Settings(privacy=path, plugins=plugins)}) as made:
        yield made


def finish(federation, name, out, *assignments, common=TINY):
    """Submit a job; give its summary and events."""
    job = with_roster(with_options(load_job(name), [*common, *assignments]), mandatory=SITES, min_sites=2)
    reported = []
    outcome = submit_and_watch(federation.kit(federation.researcher), job, out, reported.append)
    assert outcome.finished, reported
    return outcome.summary, read_events(next(outcome.download.rglob(EVENTS)).parent)


def test_the_doctor_names_the_plugins_and_the_kits_allow_their_classes(federation, installed):
    kit = federation.kit(SITES[0])
    with listed_plugins(locked_plugins(kit)):
        (finding,) = plug_ins(kit)
        assert [found.level for found in allowed_classes(kit)] == ["ok"]
    assert "grandrounds-fedala 0.1.0 (fedala)" in finding.message
    assert "grandrounds-own-networks 0.1.0 (own_networks)" in finding.message
    resources = json.loads((federation.kits / SITES[0] / "local" / "resources.json").read_text())
    assert "fedala.FedAlaExecutor" in resources["class_allow_list"]


def test_fedala_trains_timms_network(federation, tmp_path):
    options = ("controller.rounds=2", f"problem.backbone={LIGHT}", "executor.first_epochs=1")
    summary, events = finish(federation, "fedala", tmp_path / "fedala", *options)
    assert all("own_last" in summary["records"][site] for site in SITES)
    shares = [event["site"] for event in events if "global_share" in event.get("metrics", {})]
    assert shares == [SITES[0]]  # the other site's gate does not know the metric and withholds it


@pytest.mark.slow
def test_fedavg_trains_monais_network(federation, tmp_path):
    options = ("controller.rounds=1", "problem.backbone=monai_densenet121")
    summary, _ = finish(federation, "fedavg", tmp_path / "fedavg", *options)
    assert set(summary["records"]) == set(SITES)


@pytest.mark.slow
def test_ridge_solves_a_head_on_joined_encoders(federation, tmp_path, monkeypatch):
    # The folder of the user as whom the kits run.
    monkeypatch.setenv(
        WEIGHTS_VARIABLE, str(federation.folder / "home" / ".local" / "share" / "grandrounds" / "weights")
    )
    drawn = build_model(ModelSpec("lite0_resnet50_thin", classes=2), seed=3)
    torch.save({"state_dict": drawn.state_dict(), "intensities": "scaled"}, tmp_path / "joined.pt")
    add_file(tmp_path / "joined.pt", "joined", None, "")
    network = ("problem.backbone=lite0_resnet50_thin", "problem.weights=joined", "problem.image_size=224")
    options = (*network, f"problem.dataset={LABELLED_NAME}")
    summary, _ = finish(federation, "ridge", tmp_path / "ridge", *options, common=["executor.device=cpu"])
    assert set(summary["records"]) == set(SITES)
    assert summary["status"] == "finished"
