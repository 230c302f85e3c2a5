"""Views that other processes draw in advance are those that would be drawn when they are needed."""

import multiprocessing
import os
import signal

import numpy as np
import psutil
import pytest

from grandrounds.data.images import ahead
from grandrounds.data.images.ahead import ViewsAhead
from grandrounds.data.images.augmentation import draw_views

BATCHES = [np.array(rows) for rows in ([0, 3, 5], [1, 2, 11], [4, 7, 8], [6, 9, 10], [0, 1])]


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    path = tmp_path_factory.mktemp("images") / "images.npy"
    np.save(path, np.random.default_rng(0).integers(0, 256, (12, 16, 16, 3), dtype=np.uint8))
    return np.load(path, mmap_mode="r")


def started(count):
    """A fresh object whose processes have started."""
    found = ViewsAhead(count)
    while len(found._processes) < count:
        found._processes.append(ahead._Process())
        assert found._processes[-1]._line.poll(60)
    return found


@pytest.fixture(scope="module")
def processes():
    found = started(2)
    found.close()
    yield
    for process in ahead._idle.pop(os.getpid()):
        process._process.kill()
        process._process.wait()


@pytest.fixture(params=(1, 2))
def drawing(request, processes):
    found = ViewsAhead(request.param)
    yield found
    found.close()


@pytest.fixture
def take(drawing, images):
    def take(view, key, step, *positions, **options):
        return drawing.take(images, BATCHES[step], view, key, step, *positions, **options)

    return take


def test_all_steps_of_several_plans_are_drawn_in_advance(drawing, images, take):
    drawing.plan(images, BATCHES, "weak", 5)
    drawing.plan(images, BATCHES, "strong", 7, strong_levels=(3, 9))
    for step, rows in enumerate(BATCHES):
        weak, positions = take("weak", 5, step), np.array([0, 1])
        strong = take("strong", 7, step, positions, strong_levels=(3, 9))
        assert np.array_equal(weak.numpy(), draw_views(images, rows, "weak", 5, step))
        expected = draw_views(images, rows, "strong", 7, step, positions=positions, strong_levels=(3, 9))
        assert np.array_equal(strong.numpy(), expected)


def test_what_is_not_taken_holds_nothing_up(drawing, images, take):
    drawing.plan(images, BATCHES * 80, "weak", 5)
    drawing.plan(images, BATCHES * 80, "strong", 7)
    for step in range(0, 400, 5):
        assert drawing.take(images, BATCHES[0], "weak", 5, step) is not None
    views = drawing.take(images, BATCHES[4], "strong", 7, 399)
    assert np.array_equal(views, draw_views(images, BATCHES[4], "strong", 7, 399))
    assert drawing.take(images, BATCHES[1], "strong", 7, 1) is None  # its place is taken


def test_a_plan_that_comes_later_replaces_those_that_have_begun(drawing, images, take):
    drawing.plan(images, BATCHES, "weak", 5)
    take("weak", 5, 3)
    drawing.plan(images, BATCHES, "strong", 7)
    assert take("weak", 5, 4) is None
    assert np.array_equal(take("strong", 7, 0), draw_views(images, BATCHES[0], "strong", 7, 0))


def test_without_processes_or_a_plan_nothing_is_drawn(drawing, images, take):
    unused = ViewsAhead(0)
    unused.plan(images, BATCHES, "weak", 5)
    assert unused.take(images, BATCHES[0], "weak", 5, 0) is None
    drawing.plan(images, BATCHES, "none", 5)
    drawing.plan(np.array(images), BATCHES, "mild", 5)  # in this process's own memory
    assert take("none", 5, 0) is None
    assert take("mild", 5, 0) is None
    assert take("weak", 5, 0) is None


def test_other_batches_images_and_options_than_planned_are_not_mistaken_for_them(drawing, images, take):
    drawing.plan(images, BATCHES, "weak", 5)
    assert drawing.take(images, BATCHES[1], "weak", 5, 0) is None
    assert drawing.take(images.copy(), BATCHES[0], "weak", 5, 0) is None
    assert drawing.take(images, BATCHES[0], "weak", 5, 0, equalize_noop=True) is None
    assert drawing.take(images, BATCHES[0], "weak", 5, len(BATCHES)) is None
    assert take("weak", 5, 0) is not None


def test_a_process_that_was_killed_leaves_its_views_to_the_caller_and_is_not_used_again(images):
    drawing = started(1)
    drawing.plan(images, BATCHES, "weak", 5)
    assert drawing.take(images, BATCHES[0], "weak", 5, 0) is not None
    killed = drawing._processes[0]._process
    killed.kill()
    killed.wait()
    assert drawing.take(images, BATCHES[4], "weak", 5, 4) is None
    idle = len(ahead._idle.get(os.getpid(), []))
    drawing.close()
    assert len(ahead._idle[os.getpid()]) == idle


def test_processes_serve_the_next_task_and_end_with_their_parent(images, processes):
    def begin(line):
        for _ in range(2):
            drawing = ViewsAhead(1)
            drawing.plan(images, BATCHES, "weak", 5)
            drawing.take(images, BATCHES[0], "weak", 5, 0)
            line.send(drawing._processes[0]._process.pid)
            drawing.close()
        line.recv()
        os.kill(os.getpid(), signal.SIGKILL)

    forking = multiprocessing.get_context("fork")
    line, theirs = forking.Pipe()
    parent = forking.Process(target=begin, args=(theirs,))
    parent.start()
    drawer = psutil.Process(line.recv())
    assert line.recv() == drawer.pid != ahead._idle[os.getpid()][-1]._process.pid
    line.send("end")
    parent.join()
    assert not psutil.wait_procs([drawer], timeout=600)[1]
