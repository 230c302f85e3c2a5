"""A finished run stays as it is: another one in its folder is refused before anything is written, or moves it aside."""

import hashlib

import pytest

from grandrounds.api.running import run as run_job
from grandrounds.data.partition.phantom_site import phantom_site
from grandrounds.deployment.jobs import load_job
from grandrounds.deployment.simulate import simulate
from grandrounds.errors import ConfigurationError

SMALL = {("problem", "image_size"): 32, ("controller", "rounds"): 1, ("executor", "steps"): 1}


def job(name="fedavg", **changes):
    return load_job(name).with_values({**SMALL, **{tuple(key.split("__")): value for key, value in changes.items()}})


def content(folder):
    return {path: hashlib.sha256(path.read_bytes()).digest() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def finished(tmp_path_factory, shared_cache):
    folder = tmp_path_factory.mktemp("study") / "run"
    simulate(job(), folder, ["site-1", "site-2"])
    return folder


@pytest.mark.parametrize(
    ("other", "sites", "named"),
    [
        (job(executor__learning_rate=0.5), 2, "executor.learning_rate=0.001 there, 0.5 here"),
        (job(controller__weighting="samples"), 2, "controller.weighting=uniform there, samples here"),
        (job(controller__seed=9), 2, "controller.seed=1 there, 9 here"),
        (job(controller__run_name="second"), 2, "controller.run_name=fedavg there, second here"),
        (job(problem__image_size=64), 2, "problem.image_size=32 there, 64 here"),
        (job("fedperl"), 2, "the method was fedavg, is fedperl"),
        (job(), 3, "its sites were site-1, site-2, are site-1, site-2, site-3"),
    ],
)
def test_another_run_is_refused_and_nothing_is_written(finished, other, sites, named):
    before = content(finished)
    with pytest.raises(ConfigurationError, match="has another run, which stays as it is") as refused:
        simulate(other, finished, [f"site-{number}" for number in range(1, sites + 1)])
    assert named in str(refused.value)
    assert "--overwrite" in str(refused.value)
    assert content(finished) == before


def test_more_rounds_and_options_of_the_machine_are_the_same_run(finished):
    same = job(controller__rounds=2, executor__cpu_threads=1, controller__resume="require")
    assert simulate(same, finished, ["site-1", "site-2"])["rounds_done"] == 2


def test_other_images_under_the_same_names_are_another_run(tmp_path, shared_cache):
    names = ["site-1", "site-2"]
    for seed in (1, 2):
        for site in names:
            phantom_site(site, tmp_path / str(seed), seed=seed, labelled=0.15 * seed)
    simulate(job(), tmp_path / "run", names, tmp_path / "1")
    with pytest.raises(ConfigurationError, match="the manifest of site-1 is another"):
        simulate(job(), tmp_path / "run", names, tmp_path / "2")


def test_a_run_that_is_asked_to_take_the_place_moves_the_other_aside(tmp_path, shared_cache):
    options = {".".join(key): value for key, value in SMALL.items()}
    for number in (1, 2, 3):
        run_job("fedavg", 2, workspace=tmp_path / "run", options=options, seed=number, overwrite=True, progress=False)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run", "run.1", "run.2"]
    seeds = {path.name: load_job(path / "job").value("controller", "seed") for path in tmp_path.iterdir()}
    assert seeds == {"run.1": 1, "run.2": 2, "run": 3}
