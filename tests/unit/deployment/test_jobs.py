"""Jobs are configuration that FLARE builds unchanged; a wrong name is refused before anything starts."""

import hashlib
import json
import os
import re
from argparse import Namespace
from pathlib import Path

import pytest
from nvflare.apis.workspace import Workspace
from nvflare.private.fed.client.client_json_config import ClientJsonConfigurator
from nvflare.private.fed.server.server_json_config import ServerJsonConfigurator
from nvflare.tool.job.config.configer import build_config_file_indices

from grandrounds.deployment import jobs
from grandrounds.deployment.code_digest import PACKAGE
from grandrounds.deployment.jobs import JOBS, job_names, load_job, write_job
from grandrounds.deployment.presets import with_options
from grandrounds.errors import ConfigurationError
from grandrounds.methods.fedperl.executor import FedPerlExecutor
from grandrounds.option_keys import option_types


def tree(folder: Path) -> dict[str, str]:
    """Every file below a folder with its content's hash."""
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


def configure(job: Path, workspace: Path, name: str):
    """Read a party's part of a job with FLARE's own configurator."""
    for part in ("local", "startup"):
        (workspace / part).mkdir(parents=True, exist_ok=True)
    place = Workspace(str(workspace), name)
    server = name == "server"
    file = "config_fed_server.json" if server else "config_fed_client.json"
    configurator = (ServerJsonConfigurator if server else ClientJsonConfigurator)(
        workspace_obj=place,
        config_file_name=str(job / "app" / "config" / file),
        app_root=str(job / "app"),
        args=Namespace(sp_scheme="", sp_target="", client_name=name, job_id="job", workspace=str(workspace), set=[]),
        kv_list=[],
    )
    configurator.configure()
    return configurator


def test_the_jobs_of_the_package_are_found():
    assert {"fedavg", "fedperl", "local", "ssfl"} <= set(job_names())


@pytest.mark.parametrize("name", job_names())
def test_flare_builds_every_component_of_every_job(name, tmp_path):
    job = load_job(name)
    job.checked()
    server = configure(JOBS / name, tmp_path / "server", "server").runner_config
    client = configure(JOBS / name, tmp_path / "client", "site-1").runner_config
    (workflow,) = server.workflows
    assert f"{type(workflow.controller).__module__}.{type(workflow.controller).__name__}" == job.controller["path"]
    for task in ("train", "validate", "test"):
        executor = client.task_router.route(task)
        assert f"{type(executor).__module__}.{type(executor).__name__}" == job.executor["path"]
    assert workflow.controller.rounds == job.options("controller")["rounds"]
    assert workflow.controller.run.run_name == name


@pytest.mark.parametrize("name", job_names())
def test_every_job_lists_all_its_options(name):
    job = load_job(name)
    for entry in (job.controller, job.executor):
        module, _, class_name = entry["path"].rpartition(".")
        component = getattr(__import__(module, fromlist=[class_name]), class_name)
        assert set(entry["args"]) == set(option_types(component)), "a reader must see every value"
    assert job.meta["name"] == name
    assert job.meta["min_clients"] == job.options("controller")["min_sites"]


@pytest.mark.parametrize("name", job_names())
def test_a_job_is_configuration_only(name):
    files = [path for path in (JOBS / name).rglob("*") if path.is_file()]
    assert {path.suffix for path in files} == {".json"}
    assert not any(path.is_symlink() for path in (JOBS / name).rglob("*"))


def test_options_are_set_from_outside_on_a_copy():
    job = load_job("fedperl")
    changed = with_options(
        job,
        [
            "controller.peers=0",
            "executor.labels=all",
            "problem.image_size=64",
            "controller.grace=null",
            "executor.steps=7",
        ],
    )
    assert changed.options("controller")["peers"] == 0
    assert changed.options("executor")["labels"] == "all"
    assert changed.options("problem")["image_size"] == 64
    assert changed.options("controller")["grace"] is None
    assert changed.executor["args"]["steps"] == 7
    assert job.options("controller")["peers"] == 2
    assert changed.server["workflows"][0]["args"]["problem"]["image_size"] == 64


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        (
            "controller.pears=1",
            r"controller.pears: the controller of job fedperl has no option 'pears'; did you mean controller.peers\?",
        ),
        ("executor.learning_rat=1", r"did you mean executor.learning_rate\?"),
        ("problem.image=1", r"did you mean problem.image_size\?"),
        ("controller.zzzz=1", "has no option 'zzzz'; all its options: grandrounds jobs fedperl"),
        ("server.peers=1", "expected part.option with part controller, executor, problem"),
        ("controller.peers", "expected part.option=value"),
        ("peers=1", "expected part.option=value"),
    ],
)
def test_a_mistyped_option_is_refused_with_the_nearest(assignment, message):
    with pytest.raises(ConfigurationError, match=message):
        with_options(load_job("fedperl"), [assignment])


def test_a_job_with_an_unknown_option_is_refused_by_name():
    job = load_job("fedperl")
    job.options("executor")["threshhold"] = 0.9
    with pytest.raises(ConfigurationError, match=r"fedperl.*'threshhold'"):
        job.checked()


@pytest.mark.parametrize("name", ["prefix", "identifies_run", "images"])
def test_a_problem_with_an_unknown_option_is_refused_by_name(name):
    job = with_options(load_job("fedavg"), [])
    job.options("problem")[name] = True
    with pytest.raises(ConfigurationError, match=name):
        job.checked()


def test_a_job_that_lacks_a_required_option_is_refused():
    job = load_job("fedperl")
    del job.options("controller")["rounds"]
    with pytest.raises(ConfigurationError, match="option rounds is missing"):
        job.checked()


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("grandrounds.methods.nowhere.Executor", "grandrounds.methods.nowhere.Executor cannot be imported"),
        ("grandrounds.methods.fedperl.executor.Fed", "cannot be imported"),
        ("Executor", "cannot be imported"),
        ("grandrounds.ordering.natural_key", "is not a class"),
    ],
)
def test_a_class_that_is_not_there_is_refused(path, message):
    job = load_job("fedperl")
    job.client["executors"][0]["executor"]["path"] = path
    with pytest.raises(ConfigurationError, match=message):
        job.checked()


def test_options_are_checked_against_each_other():
    with pytest.raises(ConfigurationError, match="sites_per_round is 1, below min_sites = 2"):
        with_options(load_job("fedperl"), ["controller.sites_per_round=1"]).checked()


@pytest.mark.parametrize(
    "assignment",
    [
        *("controller.seed=x", "controller.anonymise=False", "controller.grace=x", "controller.rounds=true"),
        *("executor.steps=abc", "executor.cpu_threads=abc", "executor.strong_levels=[3]", "controller.problem=5"),
        *("problem.dropout=abc", "problem.channels=3.0", "problem.classes=[1, 2]"),
    ],
)
def test_a_text_that_is_no_value_of_the_option_is_refused_by_part_and_option(assignment):
    name = assignment.partition("=")[0].removeprefix("executor.strong").removeprefix("executor.")
    with pytest.raises(ConfigurationError, match=name):
        with_options(load_job("fedperl"), [assignment]).checked()


def test_any_error_of_a_constructor_is_reported_as_an_error_of_the_job(monkeypatch):
    def broken(self, **options):
        raise KeyError("no such thing")

    monkeypatch.setattr(FedPerlExecutor, "__init__", broken)
    job = load_job("fedperl")
    job.options("executor").clear()
    with pytest.raises(ConfigurationError, match="job fedperl: FedPerlExecutor: 'no such thing'"):
        job.checked()


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("meta.json", b"[]", "meta.json must be a JSON object, got list"),
        ("meta.json", b"{}", "meta.json: name must be the name of a folder, got None"),
        ("meta.json", b'{"name": "../thesis"}', "name must be the name of a folder, got '../thesis'"),
        ("meta.json", b"\xff\xfe", "meta.json is not valid JSON: no UTF-8 text"),
        ("app/config/config_fed_server.json", b'{"workflows": []}', "config_fed_server.json: expected workflows: "),
        ("app/config/config_fed_server.json", b"{}", "config_fed_server.json: expected workflows: "),
        ("app/config/config_fed_client.json", b'{"executors": 5}', "config_fed_client.json: expected executors: "),
        (
            "app/config/config_fed_client.json",
            b'{"executors": [{"executor": {"path": "a.B", "args": []}}]}',
            "config_fed_client.json: expected executors: ",
        ),
    ],
)
def test_a_file_that_is_not_as_it_must_be_is_named(tmp_path, file, content, message):
    folder = write_job(load_job("fedperl"), tmp_path / "mine")
    (folder / file).write_bytes(content)
    with pytest.raises(ConfigurationError, match=re.escape(message)):
        load_job(folder)


def test_only_a_bare_name_means_a_job_of_the_package(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert load_job("fedperl").source == JOBS / "fedperl"
    with pytest.raises(ConfigurationError, match="elsewhere/fedperl is not a job"):
        load_job("elsewhere/fedperl")


def test_a_job_never_replaces_its_source_or_one_of_the_package(tmp_path, monkeypatch):
    monkeypatch.setattr(jobs, "JOBS", tmp_path / "package")
    theirs = tmp_path / "package" / "ssfl"
    mine = write_job(load_job(JOBS / "fedperl"), tmp_path / "mine")
    (theirs / "app").mkdir(parents=True)
    (theirs / "meta.json").write_text("{}")
    before = tree(tmp_path)
    changed = with_options(load_job(mine), ["controller.rounds=3"])
    for folder in (mine, theirs, theirs / "app"):
        with pytest.raises(ConfigurationError, match=f"{folder} is a job's source and is not overwritten"):
            write_job(changed, folder)
    assert tree(tmp_path) == before


def test_files_that_are_missing_or_no_json_are_named(tmp_path):
    folder = write_job(load_job("fedperl"), tmp_path / "mine")
    client = folder / "app" / "config" / "config_fed_client.json"
    client.write_text('{\n "executors": [,]}')
    with pytest.raises(ConfigurationError, match=r"config_fed_client.json.*line 2:"):
        load_job(folder)
    client.unlink()
    with pytest.raises(ConfigurationError, match=r"config_fed_client.json cannot"):
        load_job(folder)


def test_a_written_job_is_the_same_job(tmp_path):
    job = with_options(load_job("fedperl"), ["controller.peers=3"])
    assert load_job(write_job(job, tmp_path / "job")) == job


def test_a_job_with_its_code_has_the_same_configuration_as_one_without(tmp_path):
    job = load_job("fedperl")
    plain, byoc = tree(write_job(job, tmp_path / "plain")), tree(write_job(job, tmp_path / "byoc", byoc=True))
    code = {name: content for name, content in byoc.items() if name.startswith("app/custom/")}
    assert {name: content for name, content in byoc.items() if name not in code} == plain
    sources = {f"app/custom/grandrounds/{n}": c for n, c in tree(PACKAGE).items() if n.endswith(".py")}
    assert sources.items() <= code.items()
    assert "app/custom/grandrounds/methods/fedperl/loss.py" in code


def test_a_job_with_its_code_has_no_links_and_no_compiled_files(tmp_path):
    folder = write_job(load_job("fedperl"), tmp_path / "byoc", byoc=True)
    for root, folders, files in os.walk(folder):
        assert "__pycache__" not in folders
        for name in (*folders, *files):
            assert not (Path(root) / name).is_symlink(), "FLARE drops links without a word"
            assert not name.endswith(".pyc")


def test_an_older_job_is_replaced_and_another_folder_is_not(tmp_path):
    write_job(load_job("fedperl"), tmp_path / "job", byoc=True)
    write_job(load_job("ssfl"), tmp_path / "job")
    assert not (tmp_path / "job" / "app" / "custom").exists()
    assert json.loads((tmp_path / "job" / "meta.json").read_text())["name"] == "ssfl"
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter").write_text("years of work")
    with pytest.raises(ConfigurationError, match="thesis exists and is not a job folder; choose another folder"):
        write_job(load_job("ssfl"), tmp_path / "thesis")
    assert (tmp_path / "thesis" / "chapter").read_text() == "years of work"


def test_options_of_the_bases_are_accepted_too():
    known = set(option_types(FedPerlExecutor))
    assert {"consistency_weight", "threshold", "learning_rate", "cpu_threads"} <= known
    assert "options" not in known
    assert "self" not in known


def test_flares_own_command_can_read_a_job_with_the_packages_code(tmp_path):
    folder = write_job(load_job("fedavg"), tmp_path / "job", byoc=True)
    read = build_config_file_indices(str(folder), ["app"])
    assert {"config_fed_client.json", "config_fed_server.json"} <= {Path(path).name for path in read["app"]}
