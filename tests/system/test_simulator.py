"""The same job gives the same models in one process, under FLARE's simulator, and with its code in the job."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from grandrounds.deployment.jobs import PACKAGE, load_job, with_options, write_job
from grandrounds.deployment.simulate import simulate

pytestmark = pytest.mark.slow

TINY = ["executor.steps=2", "executor.batch_size=8", "executor.device=cpu", "executor.cpu_threads=1"]
JOBS = {
    "fedperl": [*TINY, "controller.rounds=3", "controller.warm_up=1", "executor.threshold=0.26"],
    "local": [*TINY, "controller.rounds=2"],
    "fed_align_cl": [
        *("executor.iterations=4", "executor.pace=2", "executor.warm_up=0", "executor.embedding_noise_source=seeded"),
        *("executor.device=cpu", "executor.cpu_threads=1", "controller.rounds=3"),
    ],
    "mdhfl": [
        "controller.rounds=3",
        "controller.public_batch=32",
        "controller.per_round=32",
        "executor.pretrain_epochs=0.2",
        "executor.local_epochs=0.2",
        'executor.backbones={"site-1": "compact", "site-2": "shufflenet"}',
        *TINY[2:],
    ],
}
LIMIT_SECONDS = 170


@pytest.fixture(autouse=True)
def deadline(shared_cache):
    """A simulator in which a site cannot fetch its task waits for ever; the test does not."""

    def give_up(*_signal):
        raise TimeoutError(f"the run did not end within {LIMIT_SECONDS} s")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(LIMIT_SECONDS)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def sites(count):
    return [f"site-{number}" for number in range(1, count + 1)]


def small(name, *assignments):
    return with_options(load_job(name), [*JOBS[name], "controller.round_timeout=100", *assignments])


def finish(job, workspace, count, **options):
    """Run a job, and give its summary and every model that it and its sites have kept."""
    summary = simulate(job, workspace, sites(count), **options)
    kept = {}
    for path in [*(workspace / "results").glob("*.pt"), *workspace.glob("state/*/site-*/*/round_*.pt")]:
        content = torch.load(path, weights_only=True)
        content = content.get("content", content)
        kept[path.relative_to(workspace).as_posix()] = flat(content)
    return summary, kept


def flat(content, prefix=""):
    """The tensors of nested dictionaries by their paths."""
    found = {}
    for key, value in content.items():
        if isinstance(value, dict):
            found |= flat(value, f"{prefix}{key}.")
        elif isinstance(value, torch.Tensor):
            found[f"{prefix}{key}"] = value
    return found


def same(first, second):
    """Assert that two runs agree bit for bit, in what they keep and what they say."""
    (summary, kept), (other_summary, other_kept) = first, second
    assert kept.keys() == other_kept.keys()
    assert any(kept.values())
    for path, tensors in kept.items():
        assert tensors.keys() == other_kept[path].keys()
        differing = [name for name, value in tensors.items() if not torch.equal(value, other_kept[path][name])]
        assert not differing, path
    for key in ("status", "selected", "bytes", "contributions", "test"):
        assert summary[key] == other_summary[key], key
    for entry, other in zip(summary["rounds"], other_summary["rounds"], strict=True):
        assert {**entry, "round_seconds": 0} == {**other, "round_seconds": 0}


@pytest.fixture(scope="module")
def in_process(tmp_path_factory, shared_cache):
    """FedPerl with four sites in one process."""
    return finish(small("fedperl"), tmp_path_factory.mktemp("in_process"), 4)


@pytest.mark.parametrize("threads", [4, 2])
def test_flares_simulator_gives_the_same_fedperl_run(in_process, tmp_path, threads):
    """With two threads for four sites every task runs in a process of its own: nothing may live in memory alone."""
    same(finish(small("fedperl"), tmp_path, 4, engine="flare", threads=threads), in_process)


def test_sites_that_train_alone_find_their_model_and_optimiser_on_disk(tmp_path):
    alone = finish(small("local"), tmp_path / "flare", 2, engine="flare", threads=1)
    same(alone, finish(small("local"), tmp_path / "in_process", 2))
    assert any("optimizer" in name for tensors in alone[1].values() for name in tensors)


def test_sites_align_by_banks_and_discriminators_in_separate_processes(tmp_path):
    flare = finish(small("fed_align_cl"), tmp_path / "flare", 2, engine="flare", threads=1)
    same(flare, finish(small("fed_align_cl"), tmp_path / "in_process", 2))
    assert [entry["banks_from"] for entry in flare[0]["rounds"]] == [sites(2)] * 3
    for sent in flare[0]["bytes"].values():
        # What the other has sent in each of three communications comes with the second and third model.
        assert sent["down.discriminator"] == sent["up.discriminator"] * 2 / 3 > 0


def test_sites_with_different_networks_learn_from_each_other_in_separate_processes(tmp_path):
    flare = finish(small("mdhfl"), tmp_path / "flare", 2, engine="flare", threads=2)
    same(flare, finish(small("mdhfl"), tmp_path / "in_process", 2))
    assert [site["facts"]["backbone"] for site in flare[0]["registered"].values()] == ["compact", "shufflenet"]
    assert [entry.get("contributors") for entry in flare[0]["rounds"]] == [
        {"site-1": 1, "site-2": 1},
        {"site-1": 2, "site-2": 2},
        None,
    ]


def test_a_job_that_brings_its_code_needs_nothing_else(tmp_path, shared_cache):
    """The installed package is hidden from Python, so only the copy inside the job can be imported.

    The copy is marked: it writes down from where it was imported.
    """
    folder = write_job(small("fedperl", "controller.rounds=1"), tmp_path / "job", byoc=True)
    diary = tmp_path / "imported"
    package = folder / "app" / "custom" / "grandrounds" / "__init__.py"
    package.write_text(f"{package.read_text()}\nwith open({str(diary)!r}, 'a') as s:\n    s.write(__file__ + '\\n')\n")
    environment = without_package(tmp_path / "hidden") | {
        "GRANDROUNDS_STATE": str(tmp_path / "state"),
        "GRANDROUNDS_CACHE": str(shared_cache),
    }
    probe = subprocess.run([sys.executable, "-c", "import grandrounds"], env=environment, cwd=tmp_path, check=False)
    assert probe.returncode != 0, "the package is not hidden, so the test would show nothing"
    command = [sys.executable, "-m", "nvflare.cli", "simulator", str(folder), "-w", str(tmp_path / "flare")]
    ended = subprocess.run(
        [*command, "-c", ",".join(sites(2)), "-t", "2"],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout[-3000:]
    model = torch.load(tmp_path / "state" / "fedperl" / "server" / "last.pt", weights_only=True)
    _, reference = finish(small("fedperl", "controller.rounds=1"), tmp_path / "in_process", 2)
    assert all(torch.equal(model[name], value) for name, value in reference["results/last.pt"].items())
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
