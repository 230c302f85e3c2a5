"""Errands for forked workers, and the messages between processes."""

import gc
import os
import pickle
import signal
import threading
from multiprocessing import Pipe

import pytest
import torch
from nvflare.apis.shareable import Shareable

from grandrounds.federation import machine
from grandrounds.federation.workers import NO_WORKER, Errand, Workers, receive, send

MESSAGE = {
    "channels last": torch.arange(24.0).reshape(1, 2, 3, 4).contiguous(memory_format=torch.channels_last),
    "half": torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
    "scalar": torch.tensor(7),
    "empty": torch.zeros(0, 3),
    "flags": torch.tensor([True, False, True]),
}


def answers(count, work, sites):
    """What each site got, by name: an answer or the reason why there is none."""
    found, complete = {}, threading.Event()

    def note(site, value):
        found[site] = value
        if len(found) == len(sites):
            complete.set()

    with Workers(count, work) as workers:
        for site in sites:
            request = "train", Shareable({"model": torch.ones(3)}), {}
            workers.take(
                Errand(site, request, lambda: True, lambda r, s=site: note(s, r), lambda r, s=site: note(s, r))
            )
        assert complete.wait(300)
    return found


def test_messages_keep_every_kind_of_tensor_and_share_none():
    here, there = Pipe()
    send(here, os.getpid(), {"parts": MESSAGE, "name": "site-1"})
    received = receive(there)
    assert received["name"] == "site-1"
    assert received["parts"].keys() == MESSAGE.keys()
    for name, value in received["parts"].items():
        assert value.dtype == MESSAGE[name].dtype, name
        assert value.shape == MESSAGE[name].shape, name
        assert torch.equal(value, MESSAGE[name]), name
    received["parts"]["scalar"] += 1
    assert MESSAGE["scalar"] == 7


def test_what_was_sent_is_freed_at_once():
    """Buffers in a cycle would wait for the collector, which crashes on memoryviews of each other."""
    gc.collect()
    gc.disable()
    try:
        here, there = Pipe()
        send(here, os.getpid(), MESSAGE)
        receive(there)
        assert not [found for found in gc.get_objects() if type(found) is pickle.PickleBuffer]
    finally:
        gc.enable()


def test_memory_is_given_back_after_errands_on_both_sides(monkeypatch, tmp_path):
    def note():
        with (tmp_path / "given_back").open("a") as file:
            file.write(f"{os.getpid()}\n")

    monkeypatch.setattr("grandrounds.federation.workers.give_back_freed_memory", note)
    assert len(answers(1, lambda site, *request: Shareable({"site": site}), ["site-1", "site-2"])) == 2
    # The second errand has been answered; what follows the first is done on both sides.
    processes = (tmp_path / "given_back").read_text().split()
    assert str(os.getpid()) in processes
    assert set(processes) > {str(os.getpid())}


def test_an_errand_that_is_no_longer_wanted_is_left_out():
    found, complete = [], threading.Event()
    with Workers(1, lambda site, *request: Shareable({"site": site})) as workers:
        for site, wanted in (("site-1", False), ("site-2", True)):
            done = lambda reply: (found.append(reply["site"]), complete.set())  # noqa: E731
            workers.take(Errand(site, ("train", Shareable(), {}), lambda wanted=wanted: wanted, done, found.append))
        assert complete.wait(300)
    assert found == ["site-2"]


def test_every_site_gets_its_own_answer_from_several_processes():
    def work(site, task, message, server):
        return Shareable({"site": site, "sum": message["model"].sum(), "process": os.getpid()})

    sites = [f"site-{number}" for number in range(6)]
    found = answers(2, work, sites)
    assert {site: (answer["site"], float(answer["sum"])) for site, answer in found.items()} == {
        site: (site, 3.0) for site in sites
    }
    assert os.getpid() not in {answer["process"] for answer in found.values()}


def test_a_site_whose_worker_is_killed_gets_the_reason_and_the_others_go_on():
    def work(site, task, message, server):
        if site == "site-0":
            os.kill(os.getpid(), signal.SIGKILL)
        return Shareable({"site": site})

    found = answers(2, work, ["site-0", "site-1", "site-2"])
    assert "its worker has ended: the child process was ended by SIGKILL; the system kills" in found["site-0"]
    assert [found[site]["site"] for site in ("site-1", "site-2")] == ["site-1", "site-2"]


def test_without_workers_all_others_get_the_reason():
    found = answers(1, lambda site, *_: os._exit(3), ["site-0", "site-1"])
    assert "exit status 3" in found["site-0"]
    assert found["site-1"] == NO_WORKER


@pytest.mark.parametrize(("limit", "expected"), [("150000 100000", 1), ("800000 100000", 8), ("max 100000", 64)])
def test_the_limit_of_a_container_bounds_the_cores(limit, expected, monkeypatch, tmp_path):
    (tmp_path / "cpu.max").write_text(limit)
    monkeypatch.setattr(machine, "CGROUP", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(64))
    assert machine.usable_cores() == expected


def test_the_limit_of_a_container_bounds_the_memory_without_what_is_cached(monkeypatch, tmp_path):
    (tmp_path / "meminfo").write_text("MemTotal: 9000 kB\nMemAvailable:    8000 kB\n")
    monkeypatch.setattr(machine, "MEMORY", tmp_path / "meminfo")
    monkeypatch.setattr(machine, "CGROUP", tmp_path)
    assert machine.available_memory() == 8000 * 1024
    (tmp_path / "memory.max").write_text("5000000")
    (tmp_path / "memory.current").write_text("4000000")
    (tmp_path / "memory.stat").write_text("anon 100\ninactive_file 500000\n")
    assert machine.available_memory() == 1_500_000
