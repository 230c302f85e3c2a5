"""FedALA with MONAI's network in FLARE's simulator: its processes find plug-ins and are allowed their classes."""

import sys
from pathlib import Path

import pytest

import grandrounds as gr
from grandrounds import plugins
from grandrounds.federation.own_methods import OWN_METHODS
from grandrounds.models.backbones.own import OWN_BACKBONES

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def installed(monkeypatch):
    """The examples as plug-ins of this process and of those that it starts."""
    for registry in (OWN_BACKBONES, OWN_METHODS):
        monkeypatch.setattr(registry, "entries", {})
    monkeypatch.setattr(plugins, "_registering", {})
    for name in ("fedala", "own_networks"):
        for module in [module for module in sys.modules if module.partition(".")[0] == name]:
            monkeypatch.delitem(sys.modules, module)  # another test's import has registered it elsewhere
        monkeypatch.syspath_prepend(str(EXAMPLES / name))
    monkeypatch.setenv(plugins.PLUGINS_VARIABLE, "fedala,own_networks")
    plugins.load_plugins.cache_clear()
    yield
    plugins.load_plugins.cache_clear()


@pytest.mark.slow
def test_the_examples_run_in_flares_simulator(installed, tmp_path):
    options = {"executor.steps": 1, "executor.batch_size": 2, "problem.image_size": 64}
    run = gr.run(
        "fedala",
        2,
        rounds=2,
        backbone="monai_densenet121",
        options=options,
        workspace=tmp_path,
        execution=gr.Execution("flare"),
        progress=False,
    )
    assert run.history()["global_share"].notna().sum() == 2
    assert "global_share" in run.figures()
    assert all("own_last" in tested for tested in run.summary["records"].values())
