"""A process of a kit loads the modules of its list and no others."""

import json
import subprocess
import sys

import pytest

from benchmarks.house.processes import (
    LISTS,
    PAGE,
    ROOTS,
    code_lines,
    file_of,
    imports,
    lists,
    page,
    reached,
    site_modules,
)
from grandrounds.deployment.jobs import job_names, load_job
from grandrounds.errors import ConfigurationError
from grandrounds.seal import CHILDREN, SEAL_VARIABLE, Seal, allowed, entries, seal_kit

CONTENT = json.loads(LISTS.read_text())
PLUGINS = {
    "grandrounds.federation.server.controller",
    "grandrounds.federation.site.executor",
    "grandrounds.federation.server",
}
"""What a method of a plug-in registers with."""


@pytest.fixture
def finders(monkeypatch):
    """The finders of this process, as they were before."""
    monkeypatch.setattr(sys, "meta_path", sys.meta_path.copy())
    monkeypatch.setenv(SEAL_VARIABLE, "")  # so that what a test sets is taken away after it
    monkeypatch.delenv(SEAL_VARIABLE)


def kit_with_job(folder, client, server=None, own=None):
    """A kit that has got a job, and its arguments of FLARE's."""
    config = folder / "job-id" / "app_hospital-a" / "config"
    config.mkdir(parents=True)
    (folder / "local").mkdir()
    (config / "config_fed_client.json").write_text(json.dumps(client))
    (config / "config_fed_server.json").write_text(json.dumps(server or {}))
    (folder / "local" / "grandrounds.json").write_text(json.dumps(own or {}))
    return ["/flare/worker_process.py", "-m", str(folder), "-n", "job-id", "-c", "hospital-a"]


def test_a_module_that_is_not_on_the_list_is_refused_by_name_and_process():
    seal = Seal("client", ["grandrounds", "grandrounds.errors"])
    assert [seal.find_spec(name) for name in ("grandrounds.errors", "torch", "grandrounds_own_networks")] == [None] * 3
    with pytest.raises(ConfigurationError, match=r"grandrounds\.data\.tables .* client"):
        seal.find_spec("grandrounds.data.tables")


def test_what_is_loaded_already_counts(finders):
    with pytest.raises(ConfigurationError, match="client"):
        Seal("client", ["grandrounds"]).close()
    assert not any(isinstance(finder, Seal) for finder in sys.meta_path)


def test_a_job_adds_what_its_configuration_names(tmp_path, finders, monkeypatch):
    """In the job's process and in those that it starts; nothing is sealed where the process is not FLARE's."""
    monkeypatch.setattr(Seal, "find_spec", lambda self, *_: None)  # this process has loaded everything
    arguments = kit_with_job(
        tmp_path,
        load_job("ridge").client,
        {"problem": {"backbone": "resnet22"}},
        {"datasets": {"skin": {"manifest": "a.csv"}}},
    )
    seal_kit(tmp_path, ["/usr/bin/pytest", *arguments[1:]])
    assert not any(isinstance(finder, Seal) for finder in sys.meta_path)
    seal_kit(tmp_path, arguments)
    first = sys.meta_path[0]
    assert isinstance(first, Seal)
    for name in ("methods.ridge.executor", "models.backbones.resnet22", "data.tables"):
        assert f"grandrounds.{name}" in first.modules
    for name in ("methods.fedperl.executor", "models.backbones.mobile", "data.partition.phantom_site"):
        assert f"grandrounds.{name}" not in first.modules


def test_a_process_that_a_job_starts_inherits_its_seal(monkeypatch):
    modules = ["grandrounds", "grandrounds.api", "grandrounds.api.methods", "grandrounds.seal", "grandrounds.errors"]
    monkeypatch.setenv(SEAL_VARIABLE, json.dumps(["job", [*modules, "grandrounds.files"]]))
    for module, status in (("grandrounds.errors", 0), ("grandrounds.csv_files", 1)):
        ended = subprocess.run([sys.executable, "-c", f"import {module}"], capture_output=True, text=True, check=False)
        assert ended.returncode == status, ended.stderr
        assert ("grandrounds.csv_files" in ended.stderr) is bool(status)


@pytest.mark.parametrize(
    ("document", "named"),
    [
        ({"args": {"weights": None, "steps": 3}}, ["args=...", "steps=3"]),
        ([{"plugins": []}, {"plugins": [{"name": "own"}]}], ["plugins=...", "name=own"]),
        ({"off": False, "on": True}, ["on=True"]),
    ],
)
def test_empty_values_name_nothing(document, named):
    assert list(entries(document)) == named


def test_the_lists_and_the_page_follow_from_the_imports():
    """``python -m benchmarks.house.processes write`` makes them again."""
    assert lists() == CONTENT
    assert page(CONTENT) == PAGE.read_text()


def test_lists_have_modules_of_the_package_only():
    named = [CONTENT["processes"], *CONTENT["additions"].values()]
    assert [
        module for group in named for one in group.values() for module in one if not file_of(module).is_file()
    ] == []


@pytest.mark.parametrize("process", [name for name in ROOTS if name != "submitter"])
def test_what_a_function_imports_is_on_the_list_or_added(process):
    """Otherwise a job's process would be refused a module in the middle of its work; the others do no work of a job."""
    added = CONTENT["additions"]["server_job" if process.startswith("server") else "job"]
    started_by = CONTENT["processes"]["job"] if process in CHILDREN else []
    options = {module for key, more in added.items() if not key.startswith(("path=", "plugins=")) for module in more}
    allowed_beside = options.union(started_by, reached(["api.methods"], inside=True), PLUGINS)
    paths = [more for key, more in added.items() if key.startswith("path=") and process.endswith("job")]
    for more in (*paths, options if paths else ()):
        known = {*CONTENT["processes"][process], *more}
        inside = {found for module in known for found in imports(module, inside=True)}
        assert inside - known - allowed_beside == set()


@pytest.mark.parametrize("name", job_names())
def test_every_job_of_the_package_finds_its_classes_on_the_lists(name):
    job = load_job(name)
    for process, part in (("job", job.client), ("server_job", job.server)):
        paths = {entry.removeprefix("path=") for entry in entries(part) if entry.startswith("path=grandrounds.")}
        assert {path.rpartition(".")[0] for path in paths} <= allowed(process, [part])


def test_a_hospital_runs_no_more_than_it_can_read():
    site = site_modules()
    assert len(site) <= 170
    assert code_lines(site) <= 15_500
