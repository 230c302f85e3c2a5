"""Threads, garbage and the C library's memory in processes that run for many rounds."""

import gc
import os
import platform
import subprocess
import sys
import threading
import time
import weakref
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from nvflare.fuel.f3.streaming.byte_receiver import RxTask

from grandrounds.federation import memory
from grandrounds.federation.memory import AlarmClock, collect_garbage, share_cleanup_thread, shared_with_forks
from tests.federations import await_true

MESSAGES = 40
GNU = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only the GNU C library has these settings")


@pytest.fixture
def shared(monkeypatch):
    """FLARE forgets its messages in one thread."""
    monkeypatch.setattr(RxTask, "_schedule_remove_task", RxTask._schedule_remove_task)
    share_cleanup_thread()


def received(number):
    """A message that has been received whole and waits to be forgotten."""
    task = RxTask(number, "hospital-a", cell=None, reliable=True)
    RxTask.rx_task_map["hospital-a", number] = task
    return task


def test_received_messages_share_one_thread_and_are_forgotten(shared):
    """FLARE's own way takes a thread for each of them."""
    tasks = [received(number) for number in range(MESSAGES)]
    before, started = set(threading.enumerate()), time.monotonic()
    with memory._clock._changed:  # no alarm rings meanwhile
        for task in tasks:
            task._schedule_remove_task(ttl=0.05)
            task._schedule_remove_task(ttl=0.05)
        assert not [thread for thread in set(threading.enumerate()) - before if isinstance(thread, threading.Timer)]
        assert min(due for due, _, _ in memory._clock._alarms) >= started + 0.05
    await_true(lambda: not [key for key in list(RxTask.rx_task_map) if key[0] == "hospital-a"])
    assert all(task.cleanup_timer is None for task in tasks)


def test_alarms_ring_in_the_order_of_their_times_unless_cancelled(monkeypatch):
    now, rung, rang = [0.0], [], threading.Event()
    monkeypatch.setattr(memory, "time", SimpleNamespace(monotonic=lambda: now[0]))
    clock = AlarmClock()
    for seconds, name in ((4, "not yet"), (2, "late"), (1, "early")):
        clock.set(seconds, lambda name=name: rung.append(name))
    clock.set(1.5, lambda: rung.append("cancelled")).cancel()
    now[0] = 3.0
    clock.set(0, rang.set)
    assert rang.wait(60)
    assert rung == ["early", "late"]


@pytest.mark.parametrize("prepared", [True, False])
def test_what_a_cycle_holds_is_freed_in_a_prepared_process(prepared):
    """In others, as a notebook, a collection of all objects would take too long after each round."""

    class Message:
        pass

    gc.disable()
    try:
        with shared_with_forks() if prepared else nullcontext():
            message = Message()
            message.itself = message
            lives = weakref.ref(message)
            del message
            collect_garbage()
            assert (lives() is None) is prepared
    finally:
        gc.enable()


COUNT_FAULTS = """
import ctypes, resource, sys
sys.path.insert(0, "custom")
from grandrounds.federation.memory import keep_freed_memory
if {kept}:
    assert keep_freed_memory()
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
libc.malloc.argtypes, libc.memset.argtypes = [ctypes.c_size_t], [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
def touch():
    block = libc.malloc(60_000_000)
    libc.memset(block, 1, 60_000_000)
    libc.free(block)
touch()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(4):
    big, small = libc.malloc(70_000_000), libc.malloc(60_000_000)
    libc.memset(big, 1, 70_000_000)
    libc.memset(small, 1, 60_000_000)
    libc.free(big)
    libc.free(small)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


RESIDENT_MIB = """
import ctypes, sys
from pathlib import Path
sys.path.insert(0, "custom")
from grandrounds.federation.memory import give_back_freed_memory, keep_freed_memory
assert keep_freed_memory()
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
libc.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
blocks = [libc.malloc(1 << 20) for _ in range(64)]
for block in blocks:
    libc.memset(block, 1, 1 << 20)
for block in blocks:
    libc.free(block)
if {given_back}:
    give_back_freed_memory()
lines = Path("/proc/self/status").read_text().splitlines()
print(next(int(line.split()[1]) // 1024 for line in lines if line.startswith("VmRSS")))
"""


COUNT_ARENAS = """
import ctypes, sys, tempfile, threading
sys.path.insert(0, "custom")
from grandrounds.federation.memory import share_freed_memory
if {shared}:
    assert share_freed_memory()
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.fopen.restype = ctypes.c_void_p, ctypes.c_void_p
libc.malloc_info.argtypes, libc.fclose.argtypes = [ctypes.c_int, ctypes.c_void_p], [ctypes.c_void_p]
for _ in range(3):
    thread = threading.Thread(target=libc.malloc, args=(10_000,))
    thread.start()
    thread.join()
with tempfile.NamedTemporaryFile() as place:
    file = libc.fopen(place.name.encode(), b"w")
    assert libc.malloc_info(0, file) == 0
    libc.fclose(file)
    print(place.read().count(b"<heap "))
"""


def printed(code):
    """What a new process prints, without settings of the C library in its environment."""
    plain = {name: value for name, value in os.environ.items() if name not in ("MALLOC_ARENA_MAX", "GLIBC_TUNABLES")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=plain)
    return int(done.stdout)


def test_objects_are_left_out_of_searches_while_processes_are_forked(monkeypatch, nothing_frozen):
    asked = []
    monkeypatch.setattr(memory, "share_freed_memory", lambda: asked.append(True))
    with shared_with_forks():
        assert gc.get_freeze_count() > 10_000
    assert gc.get_freeze_count() == 0
    assert asked
    with pytest.raises(OSError, match="no process"), shared_with_forks():
        raise OSError("no process can be forked")
    assert gc.get_freeze_count() == 0


def test_what_an_application_has_frozen_stays_frozen():
    gc.freeze()
    frozen = gc.get_freeze_count()
    with shared_with_forks():
        pass
    assert gc.get_freeze_count() > frozen / 2  # 0 once unfrozen; threads of earlier tests may free a few of them


@GNU
def test_large_blocks_are_used_again_without_new_pages():
    assert printed(COUNT_FAULTS.format(kept=True)) < printed(COUNT_FAULTS.format(kept=False)) / 2


@GNU
def test_freed_memory_is_given_back_when_asked_for():
    assert printed(RESIDENT_MIB.format(given_back=True)) < printed(RESIDENT_MIB.format(given_back=False)) - 48


@GNU
def test_threads_share_what_was_freed():
    assert printed(COUNT_ARENAS.format(shared=True)) < printed(COUNT_ARENAS.format(shared=False))
