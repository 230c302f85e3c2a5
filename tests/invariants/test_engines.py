"""A job gives the same bits in one process, in workers, with a new process for each task, and in FLARE's simulator."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from nvflare.recipe import SimEnv

import grandrounds as gr
from grandrounds.data.partition.phantom_site import phantom_site
from grandrounds.deployment.code_digest import PACKAGE
from grandrounds.deployment.jobs import write_job
from grandrounds.federation import engine
from grandrounds.federation.engine import Site
from tests.federations import SIDE, Federation, draw_hospitals, give_public_images, registered_small_networks

SITES = ["site-1", "site-2"]
UNLABELLED = "site-3"
SMALL = "problem.backbone=small"
MUTUAL = 'executor.backbones={"site-1": "small", "site-2": "narrow"}'
PEERS = ["controller.warm_up=1", "controller.peers=1", "controller.pa_min_peers=1", "executor.threshold=0.26"]
JOBS = {
    "fedavg": [SMALL, "controller.rounds=2"],
    "fedavg, secure": [SMALL, "controller.rounds=2", "controller.aggregation=secure"],
    "fedperl": [SMALL, "controller.rounds=3", "executor.optimizer=kept", *PEERS],
    "local_fixmatch": [SMALL, "controller.rounds=2", "executor.threshold=0.26"],
    "fedirm": [SMALL, "controller.rounds=3"],
    "fed_align_cl": [SMALL, "controller.rounds=3"],
    "mdhfl": [MUTUAL, "controller.rounds=3", "controller.public_batch=32"],
    "statistics": [],
}
LIMIT_SECONDS = 900


@pytest.fixture(autouse=True, scope="module")
def small_networks():
    with registered_small_networks():
        yield


@pytest.fixture(scope="module")
def hospitals(tmp_path_factory, shared_cache):
    """Three hospitals with labels of half their images, and one without; all and the server have public images."""
    labelled = {"site-1": 0.5, "site-2": 0.5, "site-4": 0.5, UNLABELLED: 0.0}
    folder = draw_hospitals(tmp_path_factory.mktemp("hospitals"), list(labelled), 60, labelled)
    for site in labelled:
        give_public_images(folder, site, 32)
    drawn = phantom_site("server", folder, size=SIDE, images=32)
    described = json.loads(drawn.read_text())["datasets"]
    drawn.write_text(json.dumps({"datasets": {"public": described["phantom"]}}))
    return folder


@pytest.fixture(scope="module")
def federation(hospitals):
    def make(name, options):
        sites = {"fedirm": [*SITES, UNLABELLED], "fedavg, secure": [*SITES, "site-4"]}
        job = name.partition(",")[0]
        return Federation(job, sites.get(name, SITES), hospitals, ["controller.min_sites=2", *options])

    return make


@pytest.fixture(scope="module", params=JOBS)
def plain(request, federation, tmp_path_factory):
    """A job, and what is left of it after a run in this process."""
    job = federation(request.param, JOBS[request.param])
    workspace = tmp_path_factory.mktemp(request.param)
    job(workspace)
    return job, left(workspace)


def left(workspace):
    """The summary of a run without its times, and every tensor that the server and the sites have kept."""
    summary = json.loads((workspace / "results" / "summary.json").read_text())
    said = {key: summary[key] for key in ("status", "selected", "bytes", "contributions", "records")}
    said["rounds"] = [{**entry, "round_seconds": 0} for entry in summary["rounds"]]
    paths = [*(workspace / "results").glob("*.pt"), *workspace.glob("state/*/site-*/**/*.pt")]
    return said, {path.relative_to(workspace).as_posix(): flat(torch.load(path, weights_only=True)) for path in paths}


def flat(content, prefix=""):
    """The tensors of nested containers by their paths."""
    if isinstance(content, torch.Tensor):
        return {prefix: content}
    pairs = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    return {path: value for key, part in pairs for path, value in flat(part, f"{prefix}.{key}").items()}


def assert_same(found, expected):
    """Two runs agree bit for bit, in what they keep and in what they say."""
    assert found[0] == expected[0]
    assert found[1].keys() == expected[1].keys()
    for path, tensors in expected[1].items():
        assert tensors.keys() == found[1][path].keys(), path
        assert [name for name, value in tensors.items() if not torch.equal(value, found[1][path][name])] == [], path


def test_workers_and_flares_serialiser_change_nothing(plain, tmp_path):
    job, expected = plain
    job(tmp_path, workers=2, wire=True)
    assert_same(left(tmp_path), expected)


class Restarted(Site):
    """A site whose executor is made anew for every task: nothing may live in memory alone."""

    def work(self, task, message, server):
        folder = Path(self.party.workspace.get_root_dir())
        app = folder.parents[1] / "job" / "app"
        party = engine._party(app, folder.parent, self.party.name)
        party.fire("_start_run")
        reply = Site(party).work(task, message, server)
        party.fire("_about_to_end_run")
        party.fire("_end_run")
        return reply


def test_a_process_for_each_task_changes_nothing(plain, tmp_path, monkeypatch):
    monkeypatch.setattr(engine, "Site", Restarted)
    job, expected = plain
    job(tmp_path)
    assert_same(left(tmp_path), expected)


@pytest.fixture
def deadline():
    """A simulator in which a site cannot fetch its task waits for ever; the test does not."""

    def give_up(*_signal):
        raise TimeoutError(f"the run did not end within {LIMIT_SECONDS} s")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(LIMIT_SECONDS)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


FLARE = ["controller.rounds=2", "executor.cpu_threads=1", "controller.round_timeout=600", *PEERS]


@pytest.fixture(scope="module")
def with_peers(federation, tmp_path_factory):
    """FedPerl with a network that FLARE's processes know."""
    job = federation("fedperl", FLARE)
    workspace = tmp_path_factory.mktemp("with_peers")
    job(workspace)
    return job, left(workspace)


@pytest.mark.usefixtures("deadline")
def test_flares_simulator_gives_the_same_run(with_peers, tmp_path):
    """With one thread for two sites every task runs in a process of its own."""
    job, expected = with_peers
    job(tmp_path, engine="flare", threads=1)
    assert_same(left(tmp_path), expected)


@pytest.mark.usefixtures("deadline")
def test_flares_simulator_opens_the_same_sums(federation, tmp_path):
    job = federation("fedavg, secure", [*FLARE[: -len(PEERS)], "controller.aggregation=secure"])
    job(tmp_path / "here")
    job(tmp_path / "flare", engine="flare")
    assert_same(left(tmp_path / "flare"), left(tmp_path / "here"))


@pytest.mark.slow
@pytest.mark.usefixtures("deadline")
def test_a_recipe_and_flares_command_give_the_same_model(with_peers, tmp_path, shared_cache, monkeypatch):
    """The command runs what the recipe exports; both find a workspace in which the classes are allowed."""
    job, expected = with_peers
    monkeypatch.setenv("GRANDROUNDS_CACHE", str(shared_cache))
    monkeypatch.setenv("GRANDROUNDS_SITES", str(job.folder))
    recipe = gr.recipe(job.job())
    done = recipe.execute(SimEnv(clients=SITES, num_threads=2, workspace_root=str(tmp_path / "flare")))
    workspace = Path(done.get_result())
    recipe.export(str(tmp_path))
    shutil.copytree(workspace / "local", tmp_path / "command" / "local")
    command = [sys.executable, "-m", "nvflare.cli", "simulator", str(tmp_path / recipe.name)]
    command += ["-w", str(tmp_path / "command"), "-c", ",".join(SITES), "-t", "2"]
    subprocess.run(command, capture_output=True, timeout=LIMIT_SECONDS, check=True)
    for folder in (workspace, tmp_path / "command"):
        model = flat(torch.load(folder / "server" / "simulate_job" / "results" / "last.pt", weights_only=True))
        assert_same((None, {"last": model}), (None, {"last": expected[1]["results/last.pt"]}))


def test_a_job_that_brings_its_code_needs_nothing_else(with_peers, tmp_path, shared_cache):
    """The installed package is hidden from Python, so only the copy inside the job can be imported.

    The copy is marked: it writes down from where it was imported.
    """
    job, expected = with_peers
    folder = write_job(job.job(), tmp_path / "job", byoc=True)
    diary = tmp_path / "imported"
    package = folder / "app" / "custom" / "grandrounds" / "__init__.py"
    package.write_text(f"{package.read_text()}\nwith open({str(diary)!r}, 'a') as s:\n    s.write(__file__ + '\\n')\n")
    environment = without_package(tmp_path / "hidden") | {
        "GRANDROUNDS_STATE": str(tmp_path / "state"),
        "GRANDROUNDS_CACHE": str(shared_cache),
        "GRANDROUNDS_SITES": str(job.folder),
    }
    probe = subprocess.run([sys.executable, "-c", "import grandrounds"], env=environment, cwd=tmp_path, check=False)
    assert probe.returncode != 0, "the package is not hidden, so the test would show nothing"
    command = [sys.executable, "-m", "nvflare.cli", "simulator", str(folder), "-w", str(tmp_path / "flare")]
    command += ["-c", ",".join(SITES), "-t", "2"]
    ended = subprocess.run(
        command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False
    )
    assert ended.returncode == 0, ended.stdout[-3000:]
    model = flat(torch.load(tmp_path / "state" / "fedperl" / "server" / "last.pt", weights_only=True))
    reference = expected[1]["results/last.pt"]
    assert model.keys() == reference.keys()
    assert all(torch.equal(model[name], value) for name, value in reference.items())
    imported = {Path(line) for line in diary.read_text().splitlines()}
    assert imported
    assert not any(path.is_relative_to(PACKAGE) for path in imported)


def without_package(folder):
    """An environment in which Python does not find this package, whichever way it is installed."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(
        f"import sys\nsys.path[:] = [entry for entry in sys.path if entry != {str(PACKAGE.parent)!r}]\n"
    )
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GRANDROUNDS_")}
    return {**kept, "PYTHONPATH": str(folder)}
