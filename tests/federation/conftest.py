"""Tiny federations of phantoms in one process."""

import sys
from pathlib import Path

import pytest
import torch

from grandrounds.data.partition.phantom_site import phantom_site
from grandrounds.deployment.jobs import load_job
from grandrounds.deployment.presets import with_options
from grandrounds.deployment.simulate import Execution, simulate
from grandrounds.federation.site import model
from tests.federations import outcome, registered_small_networks

TINY = [
    "controller.rounds=3",
    "executor.steps=2",
    "executor.batch_size=8",
    "executor.device=cpu",
    "problem.backbone=small",
]
SITES = ["site-1", "site-2", "site-3"]
DRAWN_IMAGES, FEW_IMAGES = 240, 120


@pytest.fixture(autouse=True, scope="session")
def faulty_parties():
    """Let jobs name the classes of ``faulty.py``."""
    folder = str(Path(__file__).parent)
    sys.path.insert(0, folder)
    yield
    sys.path.remove(folder)


# Of each module: with --dist loadfile a process goes on with files of other folders, and a package's fixture stays.
@pytest.fixture(autouse=True, scope="module")
def small_networks():
    """Networks that take a twentieth of the time of the package's."""
    with registered_small_networks():
        yield


@pytest.fixture(autouse=True, scope="module")
def few_images(shared_cache):
    """Sites that draw their own images draw half as many, into a cache of their own: others draw as many as users do."""
    few = tuple(FEW_IMAGES if value == DRAWN_IMAGES else value for value in phantom_site.__defaults__)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRANDROUNDS_CACHE", str(shared_cache / "few"))
        patch.setattr(phantom_site, "__defaults__", few)
        yield


def names_in(content):
    """All names in what a file holds, at any depth."""
    if isinstance(content, dict):
        for name, value in content.items():
            yield str(name)
            yield from names_in(value)
    elif isinstance(content, list | tuple):
        for value in content:
            yield from names_in(value)


@pytest.fixture(scope="session")
def tiny(shared_cache):
    """Make a small job: ``tiny("fedperl", "controller.peers=1")``."""

    def make(name, *assignments):
        # With a low threshold pseudo-labels, and with them the peers, matter from the first step on.
        threshold = [] if name in ("fedavg", "local") else ["executor.threshold=0.26"]
        return with_options(load_job(name), [*TINY, *threshold, *assignments])

    return make


@pytest.fixture(scope="session")
def run(shared_cache):
    """Run a job: the summary, the models and the record of what it left."""

    def go(job, workspace, sites=SITES, sites_dir=None, allow_overlap=False, **execution):
        simulate(job, workspace, list(sites), sites_dir, Execution(**execution), allow_overlap)
        return outcome(workspace)

    return go


@pytest.fixture
def graphs(monkeypatch):
    """Networks are compiled by a backend that counts their graphs."""
    from torch._dynamo.testing import CompileCounterWithBackend  # seconds, which most files need not spend

    torch._dynamo.reset()
    counter, compile_network = CompileCounterWithBackend("aot_eager"), model.compile_network
    monkeypatch.setattr(model, "compile_network", lambda network, _: compile_network(network, counter))
    yield counter
    torch._dynamo.reset()


@pytest.fixture(scope="session")
def assert_same_run():
    """Assert that two runs have the same models, selection, bytes and rounds."""

    def check(first, second):
        assert same_models(first.models, second.models)
        for key in ("status", "selected", "bytes", "contributions", "records", "rounds_done"):
            assert first.summary[key] == second.summary[key], key
        assert [timeless(entry) for entry in first.summary["rounds"]] == [
            timeless(entry) for entry in second.summary["rounds"]
        ]

    return check


def timeless(entry):
    return {key: value for key, value in entry.items() if key != "round_seconds"}


def same_models(first, second):
    """Whether two collections of models are equal bit for bit."""
    return first.keys() == second.keys() and all(
        first[name].keys() == second[name].keys()
        and all(torch.equal(first[name][entry], second[name][entry]) for entry in first[name])
        for name in first
    )


@pytest.fixture(scope="session")
def identical():
    """The function that compares models bit for bit."""
    return same_models
