"""A federation of real processes, runs that go on while a test does harm, and the means to do it."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from benchmarks.faults.run import NOTES_VARIABLE
from benchmarks.rehearsal.kit_processes import running_module, training_child
from grandrounds.data.partition.phantom_site import IMAGES_FILE, MANIFEST_FILE, phantom_site
from grandrounds.data.site import CONFIG_NAME
from grandrounds.deployment.jobs import Job, load_job
from grandrounds.deployment.kit.read import processes_of
from grandrounds.deployment.local_federation import await_clients, start_participant
from grandrounds.deployment.presets import with_options
from grandrounds.deployment.simulate import simulate
from grandrounds.deployment.submission import submit_and_watch
from grandrounds.federation.server.record import EVENTS, read_events
from grandrounds.models.registry import build_model
from grandrounds.reporting.external.prediction import trained_model
from tests.federations import await_true

LIMIT_SECONDS = 900
"""Of one wait; the machine may have much other work."""
STUDY = "study"
"""A privacy scope that one hospital does not have."""


@pytest.fixture(scope="session")
def federation(consortium, shared_cache):
    """Server and hospitals; one of them lets its answers be spoilt, and knows no scope but its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parent))
        with consortium(Run.HOSPITALS, change=spoil) as made:
            yield made


def spoil(federation):
    """Behind the gate of the victim a filter that spoils what leaves; at the others a scope that it does not have."""
    for site in Run.HOSPITALS:
        path = federation.kits / site / "local" / "privacy.json"
        content = json.loads(path.read_text())
        (scope,) = content["scopes"]
        if site == Run.VICTIM:
            trigger = str(federation.folder / "spoil")
            scope["task_result_filters"].append({"path": "sabotage.Spoil", "args": {"trigger": trigger}})
        else:
            content["scopes"].append({**scope, "name": STUDY})
        path.write_text(json.dumps(content))


@pytest.fixture
def run(federation, tmp_path):
    """Starts a run: ``run("name", "executor.steps=3", grace=25)``; with ``again`` one of this name exists already."""

    def go(name, *options, again=False, **more):
        if not again:  # a state of the same name is of an earlier test
            shutil.rmtree(federation.kits / federation.server / "grandrounds" / name, ignore_errors=True)
        return Run(federation, tmp_path, name, options, **more)

    return go


class Run:
    """A submitted run of four rounds, in which two of three hospitals are enough."""

    ERROR = "the site replied EXECUTION_EXCEPTION"
    """All that a site's gate lets out of an error."""
    HOSPITALS = ("hospital-a", "hospital-b", "hospital-c")
    VICTIM = "hospital-c"
    ROUNDS = 4
    SITE_JOB, SITE_PARENT = "worker_process", "client_train"
    SERVER_JOB, SERVER_PARENT = "runner_process", "server_train"
    OPTIONS = (
        *("executor.steps=2", "executor.batch_size=8", "executor.device=cpu", "executor.cpu_threads=1"),
        *("controller.warm_up=1", "executor.threshold=0.26", f"controller.rounds={ROUNDS}", "controller.min_sites=2"),
        "controller.round_timeout=300",
    )

    def __init__(self, federation, folder, name, options=(), grace=None, attempts=1, scope=None, sites=HOSPITALS):
        self.federation = federation
        limits = [f"controller.run_name={name}", *([f"controller.grace={grace}"] if grace else [])]
        job = with_options(load_job("fedperl"), [*self.OPTIONS, *limits, *options])
        self.job = Job({**job.meta, "scope": scope}, job.server, job.client) if scope else job
        self.record = federation.kits / federation.server / "grandrounds" / name / "server"
        self.reported, self.outcome, self._folder = [], None, folder
        await_clients(federation, sites)
        self._thread = threading.Thread(target=self._submit, args=(attempts,), daemon=True)
        self._thread.start()

    def _submit(self, attempts):
        kit = self.federation.kit(self.federation.researcher)
        self.outcome = submit_and_watch(kit, self.job, self._folder / "results", self.reported.append, attempts)

    def events(self):
        return read_events(self.record) if (self.record / EVENTS).is_file() else []

    def await_round(self, number):
        """Wait until this round has begun according to the record."""
        self.wait_until(lambda: any(e["event"] == "round_start" and e["round"] >= number for e in self.events()))

    def await_drop(self):
        """Wait until a site is dropped."""
        self.wait_until(lambda: any(event["event"] == "dropped" for event in self.events()))

    def wait_until(self, condition):
        """Wait for a condition while the run goes on; what it gave is returned."""
        deadline = time.monotonic() + LIMIT_SECONDS
        while not (found := condition()):
            assert time.monotonic() < deadline, self.reported
            assert self._thread.is_alive(), self.reported
            time.sleep(0.2)
        return found

    def process(self, participant, module):
        """The one process of a participant that runs this module of FLARE."""
        found = running_module(self.federation.kits / participant, module)
        assert len(found) == 1, found
        return found[0]

    def training_child(self, participant):
        """The process in which a participant trains; None while there is none."""
        return training_child(self.process(participant, self.SITE_JOB))

    def end(self):
        """Wait for the end: all rounds are done, the model is usable, and the summary is right."""
        self._thread.join(LIMIT_SECONDS)
        assert self.outcome is not None, self.reported
        assert self.outcome.finished, self.reported
        self._require_usable_model()
        self._require_right_summary()
        self._note()
        return self.outcome

    def _require_usable_model(self):
        """The download holds a model that fits its network, and whose outputs are numbers."""
        found = trained_model(self.outcome.download / "workspace")
        network = build_model(found.problem.model_spec(pretrained=False), seed=0)
        network.load_state_dict(torch.load(found.networks[0].path, weights_only=True))
        side = found.problem.image_size
        outputs = network.eval()(torch.rand(2, found.problem.channels, side, side))
        assert outputs.shape == (2, len(found.problem.classes))
        assert outputs.isfinite().all()

    def _require_right_summary(self):
        """Nobody is left out in silence: who was asked has answered or is named, and only the victim ever is."""
        summary = self.outcome.summary
        rounds, everybody = summary["rounds"], set(self.HOSPITALS)
        assert summary["rounds_done"] == self.ROUNDS
        assert [entry["round"] for entry in rounds] == list(range(1, self.ROUNDS + 1))
        for entry in rounds:
            assert everybody - set(entry["asked"]) <= {self.VICTIM}
            assert set(entry["asked"]) == set(entry["answered"]) | set(entry["dropped"]), entry
            assert set(entry["dropped"]) <= {self.VICTIM}
            assert all(entry["dropped"].values()), "every drop has its reason"
        answers = Counter(site for entry in rounds for site in entry["answered"])
        assert summary["contributions"] == answers
        reported = [
            (e["round"], e["site"]) for e in self.events() if e["event"] == "dropped" and e["round"] <= self.ROUNDS
        ]
        assert {*reported} == {(entry["round"], site) for entry in rounds for site in entry["dropped"]}
        assert everybody - {*summary["records"]} <= {self.VICTIM}

    def _note(self):
        """For the table of faults, if one is made: what the run has cost, and what it has said."""
        if not (folder := os.environ.get(NOTES_VARIABLE)):
            return
        summary, everybody = self.outcome.summary, set(self.HOSPITALS)
        missed = Counter(site for entry in summary["rounds"] for site in everybody - set(entry["answered"]))
        ends = (self.record / EVENTS).read_text().count('"round_end"')
        told = [reason for _, reason in self.dropped()] + [*self.outcome.refused.values(), *summary["remarks"]]
        told += [line for line in self.reported if not re.match(r"(round|submitted) |[A-Z]+$", line)]
        note = {
            "test": os.environ["PYTEST_CURRENT_TEST"].split("::")[-1].removesuffix(" (call)"),
            "run": self.record.parent.name,
            "rounds": summary["rounds_done"],
            "missed": missed,
            "repeated": ends - summary["rounds_done"],
            "submissions": len(self.outcome.jobs),
            "status": summary["status"],
            "told": [*dict.fromkeys(line.replace(f"{self.federation.kits}/", "") for line in told)],
        }
        with (Path(folder) / "notes.jsonl").open("a") as stream:
            stream.write(json.dumps(note) + "\n")

    def dropped(self):
        """Site and reason of everybody who was dropped in a round."""
        return [entry for round_ in self.outcome.summary["rounds"] for entry in round_["dropped"].items()]

    def log_of(self, site):
        """What a site has logged of the last attempt: its gate lets out that there was an error, and not which."""
        return (self.federation.kits / site / self.outcome.jobs[-1] / "log.txt").read_text()

    def others_gave_all(self):
        """Whether only the victim has missed a round."""
        given = self.outcome.summary["contributions"]
        return all(given[site] == self.ROUNDS for site in self.HOSPITALS if site != self.VICTIM)

    def same_as_undisturbed(self):
        """Whether the last model is that of the same run in one process, where nothing goes wrong."""
        simulate(self.job, self._folder / "alone", list(self.HOSPITALS))
        alone = torch.load(self._folder / "alone" / "results" / "last.pt", weights_only=True)
        here = torch.load(self.outcome.download / "workspace" / "results" / "last.pt", weights_only=True)
        return alone.keys() == here.keys() and all(torch.equal(alone[name], here[name]) for name in alone)


@pytest.fixture
def submission(federation, tmp_path):
    """Starts the command of a run, with its progress in a pipe: ``submission("name", "executor.steps=3")``."""

    def start(name, *options):
        settings = [*Run.OPTIONS, f"controller.run_name={name}", *options]
        kit, out = federation.kits / federation.researcher, tmp_path / "results"
        command = [sys.executable, "-m", "grandrounds.cli", "submit", "fedperl", "--kit", kit, "--out", out]
        assignments = [part for setting in settings for part in ("--set", setting)]
        return subprocess.Popen([*command, *assignments], stderr=subprocess.PIPE, text=True)

    return start


@pytest.fixture
def restart(federation):
    """Ends all processes of a participant and starts it again: ``restart("hospital-c", CLOCK_SHIFT="60")``.

    The names are variables of its environment, and ``python`` is its interpreter. ``wait`` until the server sees it;
    ``stopped``: do not start it again. At the end it runs as usual. Sites only: the server lists a dead one for ten minutes,
    so the site's own log tells that it has registered anew.
    """
    changed = set()

    def again(name, wait=True, stopped=False, python=sys.executable, **environment):
        end_all(federation, name)
        unusual = environment or stopped or not wait or python != sys.executable
        (changed.add if unusual else changed.discard)(name)
        if stopped:
            return
        before = registrations(federation, name)
        with pytest.MonkeyPatch.context() as patch:
            for variable, value in environment.items():
                patch.setenv(variable, value)
            patch.setattr(sys, "executable", python)
            start_participant(federation, name)
        if wait:
            await_true(lambda: registrations(federation, name) > before)
            await_clients(federation, Run.HOSPITALS)

    yield again
    for name in [*changed]:
        again(name)


def registrations(federation, site):
    """How often a site has registered with the server, by its log."""
    return (federation.kits / site / "log.txt").read_text().count("Successfully registered client")


def end_all(federation, name):
    """Kill all processes of a participant, its start script first; it does not come back by itself."""
    while found := processes_of(federation.kits / name):
        for process in found:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        time.sleep(0.1)


@pytest.fixture
def grandrounds():
    """The exit status and the output of a command: ``grandrounds("doctor", "--kit", folder, CLOCK_SHIFT="60")``."""

    def command(*arguments, **environment):
        ended = subprocess.run(
            [sys.executable, "-m", "grandrounds.cli", *map(str, arguments)],
            env={**os.environ, "COLUMNS": "500", **environment},
            capture_output=True,
            text=True,
            timeout=LIMIT_SECONDS,
            check=False,
        )
        return ended.returncode, ended.stdout + ended.stderr

    return command


@pytest.fixture(scope="session")
def clock(tmp_path_factory):
    """The path of a library that shifts the clock of a process by $CLOCK_SHIFT seconds, for LD_PRELOAD.

    The content of $CLOCK_FILE, if it is set, is read at every look at the clock.
    """
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    library = tmp_path_factory.mktemp("clock") / "clock.so"
    source = Path(__file__).with_name("clock.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source], check=True, timeout=60)
    return str(library)


@pytest.fixture
def own_images(federation, tmp_path):
    """Gives the hospitals images and manifests in folders: ``own_images("skin", 60)``; the victim's folder is given back.

    The ledger refuses the same images under another name, so another data set has another number of images.
    """
    configurations = [federation.kits / site / "local" / CONFIG_NAME for site in Run.HOSPITALS]

    def give(dataset, images):
        for site, path in zip(Run.HOSPITALS, configurations, strict=True):
            folder = phantom_site(site, tmp_path / "images", size=32, images=images).parent
            entry = {"manifest": str(folder / MANIFEST_FILE), "root": str(folder / IMAGES_FILE)}
            path.write_text(json.dumps({"datasets": {dataset: entry}}))
        return tmp_path / "images" / Run.VICTIM

    yield give
    for path in configurations:
        path.unlink(missing_ok=True)


@pytest.fixture
def spoilt(federation):
    """A file whose being there makes the victim answer with NaN."""
    trigger = federation.folder / "spoil"
    yield trigger
    trigger.unlink(missing_ok=True)


@pytest.fixture
def limited():
    """Lets no file of a process grow beyond some bytes, as a full disk does: ``limited(process, 1000)``."""
    import resource

    before = {}

    def limit(process, size):
        old = resource.prlimit(process, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
        before.setdefault(process, old)

    yield limit
    for process, old in before.items():
        if os.path.exists(f"/proc/{process}"):
            resource.prlimit(process, resource.RLIMIT_FSIZE, old)


@pytest.fixture
def small_disk():
    """Mounts 40 MiB of memory as a disk of its own: ``small_disk(folder)``; the folder is given back."""
    mounted = []

    def mount(folder):
        folder.mkdir(parents=True, exist_ok=True)
        command = ["mount", "-t", "tmpfs", "-o", "size=40m", "tmpfs", str(folder)]
        if subprocess.run(command, capture_output=True, timeout=20, check=False).returncode:
            pytest.skip("this user may not mount a disk")
        mounted.append(folder)
        return folder

    yield mount
    for folder in mounted:
        subprocess.run(["umount", "--lazy", str(folder)], timeout=20, check=True)
