"""The place in which pages and notebooks run, and the plug-ins of the examples."""

import inspect
import sys

import pytest

import grandrounds as gr
from grandrounds import plotting, plugins
from grandrounds.api import running
from grandrounds.api.sweeping import sweep
from grandrounds.data.families import OWN_DATASETS
from grandrounds.data.images.augmentation import OWN_VIEWS
from grandrounds.data.partition.phantom_site import phantom_site
from grandrounds.deployment import presets
from grandrounds.evaluation.metrics import OWN_METRICS
from grandrounds.federation.own_methods import OWN_METHODS
from grandrounds.models import registry as networks
from grandrounds.models.backbones.own import OWN_BACKBONES
from tests.documentation.pages import ROOT
from tests.documentation.world import small

EXAMPLES = ("fedala", "joined_encoders", "own_data", "own_networks", "own_view", "published_data")


@pytest.fixture
def own_registries(monkeypatch):
    """Plug-ins that a test registers are forgotten after it, and those of other tests are not there."""
    for registry in (OWN_BACKBONES, OWN_DATASETS, OWN_METHODS, OWN_VIEWS, OWN_METRICS):
        monkeypatch.setattr(registry, "entries", {})
    monkeypatch.setattr(plugins, "_registering", {})
    for name in EXAMPLES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    plugins.load_plugins.cache_clear()
    yield
    plugins.load_plugins.cache_clear()
    for name in EXAMPLES:
        sys.modules.pop(name, None)


@pytest.fixture
def examples(own_registries, monkeypatch):
    """The examples as plug-ins."""
    for name in EXAMPLES:
        monkeypatch.syspath_prepend(str(ROOT / "examples" / name))
    monkeypatch.setenv(plugins.PLUGINS_VARIABLE, ",".join(EXAMPLES))


def with_few_features():
    """The networks, where the one of most presets has two taps: a head in closed form then has 240 features, not 2,192."""
    lite = networks.BACKBONES["efficientnet_lite0"]
    return {**networks.BACKBONES, "efficientnet_lite0": lite._replace(taps=lite.taps[:2])}


@pytest.fixture
def place(tmp_path, monkeypatch, own_registries, shared_cache):
    """An empty working directory in which runs and figures are small and in this process, with 40 images at a site."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GRANDROUNDS_WEIGHTS", str(tmp_path / "weights"))
    for module in (
        presets,
        running,
    ):  # running has a name of its own for it, which a first import here would keep small
        monkeypatch.setattr(module, "with_preset", small)
    monkeypatch.setattr(networks, "BACKBONES", with_few_features())
    monkeypatch.setattr(plotting, "DOTS_PER_INCH", 30)
    parameters = inspect.signature(phantom_site).parameters.values()
    defaults = {one.name: one.default for one in parameters if one.default is not one.empty}
    monkeypatch.setattr(phantom_site, "__defaults__", tuple((defaults | {"images": 40, "labelled": 0.5}).values()))
    monkeypatch.setattr(running, "default_workers", lambda job, sites: 1)
    monkeypatch.setattr(gr, "sweep", lambda *given, processes, **options: sweep(*given, **options))
    return tmp_path
