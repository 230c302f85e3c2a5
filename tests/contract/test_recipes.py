"""FLARE's job API writes every option of every job: a recipe, and a ``FedJob`` with our components, are the job again."""

import json
from dataclasses import MISSING

import pytest
from nvflare.job_config.api import FedJob
from nvflare.recipe import set_per_site_config

import grandrounds as gr
from grandrounds.deployment.jobs import job_names, load_job
from grandrounds.deployment.presets import presets_of, with_preset
from grandrounds.methods.supervised.controller import FedAvgController
from grandrounds.methods.supervised.executor import SupervisedExecutor
from grandrounds.option_keys import option_defaults, option_types

JOBS_AND_PRESETS = [(name, preset) for name in job_names() for preset in (None, *presets_of(load_job(name)))]


@pytest.mark.parametrize(("name", "preset"), JOBS_AND_PRESETS)
def test_an_exported_recipe_is_the_job(name, preset, tmp_path):
    expected = with_preset(load_job(name), preset)
    gr.recipe(name, preset=preset).export(str(tmp_path))
    folder = tmp_path / expected.name
    found = load_job(folder)
    assert found.server == expected.server
    assert found.client == expected.client
    assert found.meta == {**expected.meta, "min_clients": expected.min_sites}
    files = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert files == {"meta.json", "app/config/config_fed_server.json", "app/config/config_fed_client.json"}


def exported(folder, controller, executor):
    """The job that FLARE writes of two components which somebody has made."""
    job = FedJob("own")
    job.to_server(controller)
    job.to_clients(executor)
    job.export_job(str(folder))
    assert not list(folder.rglob("custom")), "the code of an installed package is not in the job"
    return load_job(folder / "own")


@pytest.mark.parametrize("name", job_names())
def test_a_plain_fed_job_has_all_options(name, tmp_path):
    """Of components that were made from all options, and from those alone that differ from the defaults."""
    job = load_job(name)
    given = {part: job.options(part) for part in ("controller", "executor")}
    defaults = {part: option_defaults(job.component(part)) for part in given}
    few = {
        part: {option: value for option, value in options.items() if defaults[part].get(option, MISSING) != value}
        for part, options in given.items()
    }
    for number, options in enumerate((given, few)):
        found = exported(tmp_path / str(number), *(job.component(part)(**options[part]) for part in given))
        for part in given:
            expected = {**defaults[part], **options[part]}
            assert found.options(part) == json.loads(json.dumps(expected))
            assert found.options(part).keys() == option_types(job.component(part)).keys()


class Diarist(SupervisedExecutor):
    """Has an argument beside its groups, as a plug-in may."""

    def __init__(self, *, diary, **options):
        super().__init__(**options)
        self.pages = [diary]


def test_an_argument_of_a_component_s_own_constructor_is_exported(tmp_path):
    job = FedJob("own")
    job.to_server(FedAvgController(**load_job("fedavg").options("controller")))
    job.to_clients(Diarist(diary="d", steps=3), tasks=["train"])
    job.set_app_packages(["tests", "test_recipes", *job.job.app_packages])
    job.export_job(str(tmp_path))
    (entry,) = load_job(tmp_path / "own").client["executors"]
    assert (entry["tasks"], entry["executor"]["args"]["diary"], entry["executor"]["args"]["steps"]) == (
        ["train"],
        "d",
        3,
    )


def refused(*arguments, **options):
    with pytest.raises(gr.ConfigurationError) as caught:
        gr.recipe(*arguments, **options)
    return str(caught.value)


def test_wrong_options_are_refused_by_name():
    assert refused("fedperl", peer=2) == "peer: job fedperl has no option 'peer'; did you mean peers?"
    assert refused("fedperl", peers="two").startswith("controller.peers must be an integer, got 'two'")
    assert "steps must be at least 1, got 0" in refused("fedperl", steps=0)
    assert "controller.min_support and executor.min_support; name one" in refused("fedirm", min_support=2)
    assert "executor.peers: the executor of job fedperl has no option" in refused("fedperl", **{"executor.peers": 2})
    assert refused("fedperl", sites="hospital-a") == "sites must be a list of names, got 'hospital-a'"
    assert "did you mean fedperl?" in refused("fedprl")
    assert "a method must be a path, got int" in refused(3)


def test_options_sites_and_presets_are_in_the_exported_job(tmp_path):
    options = {"executor.min_support": 2, "rounds": 2, "mandatory_sites": ["a"]}
    gr.recipe("fedirm", preset="paper", sites=["a", "b"], min_sites=2, **options).export(str(tmp_path))
    (folder,) = tmp_path.iterdir()
    job = load_job(folder)
    assert (job.value("executor", "min_support"), job.value("controller", "rounds")) == (2, 2)
    assert job.value("controller", "preset") == "paper, but controller.rounds, executor.min_support"
    assert (job.sites, job.meta["mandatory_clients"]) == (["a", "b"], ["a"])


def test_options_by_site_are_refused():
    """FLARE would drop them without a word."""
    with pytest.raises(gr.ConfigurationError, match="the same at all sites"):
        set_per_site_config(gr.recipe("fedavg"), {"site-1": {"steps": 3}})
