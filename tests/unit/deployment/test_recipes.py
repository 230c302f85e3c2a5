"""What a recipe does for each of FLARE's environments before FLARE gets the job."""

import json

import pytest
from nvflare.recipe import PocEnv, ProdEnv, SimEnv

import grandrounds as gr
from grandrounds import plugins
from grandrounds.deployment import recipe as recipes


@pytest.fixture
def recipe(monkeypatch):
    monkeypatch.setattr(plugins, "_registering", {})  # those of other tests
    return gr.recipe("fedavg", min_sites=2)


@pytest.fixture
def deployed(tmp_path, monkeypatch):
    """In place of running it, an environment exports the job: the folder of it."""

    def export(env, job):
        job.export_job(str(tmp_path / "deployed"))
        return job.name

    for kind in (SimEnv, PocEnv, ProdEnv):
        monkeypatch.setattr(kind, "deploy", export)
    return tmp_path / "deployed" / "fedavg"


def test_the_simulator_is_allowed_the_classes_and_keeps_what_its_workspace_says(recipe, deployed, tmp_path):
    resources = tmp_path / "fedavg" / "local" / "resources.json"
    resources.parent.mkdir(parents=True)
    resources.write_text('{"components": [], "class_allow_list": ["nvflare."]}')
    recipe.run(SimEnv(num_clients=2, workspace_root=str(tmp_path)))
    found = json.loads(resources.read_text())
    assert found["components"] == []
    assert "grandrounds." in found["class_allow_list"]
    assert not (deployed / "app" / "custom").exists()


def test_too_few_sites_are_refused_before_anything_is_written(recipe, tmp_path):
    with pytest.raises(gr.ConfigurationError, match=r"min_sites is 2.*are 1"):
        recipe.run(SimEnv(num_clients=1, workspace_root=str(tmp_path / "flare")))
    assert not (tmp_path / "flare").exists()


def test_only_a_proof_of_concept_gets_the_code(recipe, deployed, tmp_path):
    recipe.run(PocEnv(num_clients=2))
    assert (deployed / "app" / "custom" / "grandrounds" / "cli.py").is_file()
    recipe.export(str(tmp_path / "after"))
    assert not (tmp_path / "after" / "fedavg" / "app" / "custom").exists()


class _Session:
    """A server that sees some sites."""

    def __init__(self, *sites):
        self.sites = list(sites)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


@pytest.fixture
def sees(monkeypatch):
    def connect(*sites):
        monkeypatch.setattr(recipes, "read_kit", lambda folder: None)
        monkeypatch.setattr(recipes, "admin_session", lambda kit: _Session(*sites))
        monkeypatch.setattr(recipes, "connected_sites", lambda session: session.sites)

    return connect


def test_a_job_for_kits_is_shown_with_the_connected_sites_and_has_the_statement(
    recipe, deployed, sees, tmp_path, capsys
):
    sees("hospital-a", "hospital-b")
    recipe.run(ProdEnv(startup_kit_location=str(tmp_path)))
    shown = capsys.readouterr().err
    assert "runs at: hospital-a, hospital-b (minimum 2)" in shown
    statement = json.loads((deployed / "meta.json").read_text())["custom_props"]["statement"]
    assert "  leaves each site, in every round: update (model_update); and scalar metrics" in statement
    assert not (deployed / "app" / "custom").exists()


def test_what_was_added_to_a_recipe_is_shown(recipe, deployed, sees, tmp_path, capsys):
    from nvflare.app_common.filters.svt_privacy import SVTPrivacy

    recipe.add_client_output_filter(SVTPrivacy(), tasks=["train"])
    sees("hospital-a", "hospital-b")
    recipe.run(ProdEnv(startup_kit_location=str(tmp_path)))
    assert "further classes: nvflare.app_common.filters.svt_privacy.SVTPrivacy" in capsys.readouterr().err


def test_parameters_of_one_run_are_sent_and_do_not_stay(recipe, deployed, sees, tmp_path):
    sees("hospital-a", "hospital-b")
    recipe.run(ProdEnv(startup_kit_location=str(tmp_path)), client_exec_params={"get_task_timeout": 5})
    recipe.export(str(tmp_path / "after"))
    for folder, expected in ((deployed, 5), (tmp_path / "after" / "fedavg", None)):
        client = json.loads((folder / "app" / "config" / "config_fed_client.json").read_text())
        assert client.get("get_task_timeout") == expected


def test_nothing_is_sent_without_the_sites_that_the_job_needs(recipe, deployed, sees, tmp_path):
    sees("hospital-a")
    with pytest.raises(gr.GrandRoundsError, match="needs 2 sites, 1 are connected"):
        recipe.run(ProdEnv(startup_kit_location=str(tmp_path)))
    assert not deployed.exists()
