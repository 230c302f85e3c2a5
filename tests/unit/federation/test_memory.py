"""Threads and garbage of processes that run for many rounds."""

import gc
import threading
import time
import weakref

import pytest
from nvflare.fuel.f3.streaming.byte_receiver import RxTask

from grandrounds.federation.memory import AlarmClock, collect_garbage, share_cleanup_thread

MESSAGES = 40


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
    before = threading.active_count()
    for task in tasks:
        task._schedule_remove_task(ttl=0.05)
        task._schedule_remove_task(ttl=0.05)
    assert threading.active_count() <= before + 1
    assert all(("hospital-a", task.sid) in RxTask.rx_task_map for task in tasks)
    deadline = time.monotonic() + 5
    while any(key[0] == "hospital-a" for key in list(RxTask.rx_task_map)) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not [key for key in RxTask.rx_task_map if key[0] == "hospital-a"]
    assert all(task.cleanup_timer is None for task in tasks)


def test_alarms_ring_in_the_order_of_their_times_unless_cancelled():
    clock, rung, done, start = AlarmClock(), [], threading.Event(), time.monotonic() + 0.1
    for offset, act in ((0.03, done.set), (0.02, lambda: rung.append("late")), (0.0, lambda: rung.append("early"))):
        clock.set(start + offset - time.monotonic(), act)
    clock.set(start + 0.01 - time.monotonic(), lambda: rung.append("cancelled")).cancel()
    assert done.wait(5)
    assert rung == ["early", "late"]


@pytest.mark.parametrize("prepared", [True, False])
def test_what_a_cycle_holds_is_freed_in_a_prepared_process(prepared):
    """In others, as a notebook, a collection of all objects would take too long after each round."""

    class Message:
        pass

    gc.disable()
    try:
        if prepared:
            gc.freeze()
        message = Message()
        message.itself = message
        lives = weakref.ref(message)
        del message
        collect_garbage()
        assert (lives() is None) is prepared
    finally:
        gc.unfreeze()
        gc.enable()
