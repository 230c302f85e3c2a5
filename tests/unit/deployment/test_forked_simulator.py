"""The substitute that FLARE's simulator starts in place of a worker."""

import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from grandrounds.deployment.forked_simulator import ADDRESS_VARIABLE, WORKER, modules_of, start_server, write_substitute
from grandrounds.deployment.jobs import load_job, write_job


@pytest.fixture
def folder():
    """Short, unlike pytest's own: a socket's name has at most 107 bytes."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def substitute(folder, *arguments):
    """Run the substitute where the folder has the address of the server of workers."""
    environment = {ADDRESS_VARIABLE: str(folder / "workers"), "PYTHONPATH": "/somewhere"}
    program = str(write_substitute(folder))
    return subprocess.run(
        [program, *arguments], env=environment, cwd=folder, capture_output=True, text=True, timeout=600
    )


def answering(folder, answer):
    """A server that reads one request and answers; its requests."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(folder / "workers"))
    listener.listen()
    requests = []

    def serve():
        line, _ = listener.accept()
        with line, line.makefile("rb") as stream:
            requests.append(json.loads(stream.readline()))
            line.sendall(answer)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    return thread, requests


@pytest.mark.parametrize(("answer", "status"), [(bytes([0]), 0), (bytes([7]), 7), (b"", 1)])
def test_a_substitute_process_has_the_exit_status_of_its_worker(folder, answer, status):
    thread, requests = answering(folder, answer)
    assert substitute(folder, "-m", WORKER, "--client", "site-1").returncode == status
    thread.join(10)
    assert requests[0]["arguments"] == ["--client", "site-1"]
    assert requests[0]["environment"]["PYTHONPATH"] == "/somewhere"
    assert Path(requests[0]["folder"]) == folder.resolve()


def test_other_commands_are_left_to_python(folder):
    assert substitute(folder, "-c", "import sys; print(sys.argv[1:], sys.flags.isolated)", "x").stdout == "['x'] 0\n"


def test_without_a_server_a_substitute_becomes_the_worker(folder):
    done = substitute(folder, "-m", WORKER, "--help")
    assert done.returncode == 0
    assert "--parent_pid" in done.stdout


KILLS_ITS_GROUP = """
import json, os, socket
from types import SimpleNamespace
from grandrounds.deployment import forked_simulator

def run(**given):
    os.killpg(os.getpgrp(), 9)

worker = SimpleNamespace(parse_arguments=lambda: SimpleNamespace(workspace="."), main=None, mpm=SimpleNamespace(run=run))
forked_simulator.import_module = lambda name: worker
simulator, line = socket.socketpair()
simulator.sendall(json.dumps({"arguments": [], "environment": {}, "folder": os.getcwd()}).encode() + b"\\n")
child = os.fork()
if not child:
    simulator.close()
    forked_simulator._work(line)
line.close()
print(os.waitpid(child, 0)[1], simulator.recv(1))
"""


def test_a_worker_that_kills_its_process_group_kills_only_itself():
    """FLARE's does, if its watch over its parent wakes between the end of the work and the end of the process."""
    command = [sys.executable, "-c", KILLS_ITS_GROUP]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, start_new_session=True)
    assert (done.returncode, done.stdout) == (0, "9 b''\n"), done.stderr


def test_the_modules_of_a_jobs_classes_at_sites_are_found(tmp_path):
    job = write_job(load_job("fedavg"), tmp_path / "job")
    assert modules_of(job) == ["grandrounds.methods.supervised.executor"]


@pytest.mark.parametrize(("name", "programs_run"), [("temporary files", True), ("x" * 120, True), ("temporary", False)])
def test_where_flare_could_not_start_a_substitute_its_simulator_is_unchanged(folder, monkeypatch, name, programs_run):
    monkeypatch.delenv(ADDRESS_VARIABLE, raising=False)
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.X_OK or programs_run)
    before, place = sys.executable, folder / name
    place.mkdir()
    assert start_server(place, folder) is None
    assert (sys.executable, ADDRESS_VARIABLE in os.environ) == (before, False)
