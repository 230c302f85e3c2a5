"""Views that threads draw in advance are those that would be drawn when they are needed."""

import threading

import numpy as np
import pytest
import torch

from grandrounds.data.images import ahead
from grandrounds.data.images.ahead import ViewsAhead
from grandrounds.data.images.views import draw_views

IMAGES = np.random.default_rng(0).integers(0, 256, (12, 16, 16, 3), dtype=np.uint8)
BATCHES = [np.array(rows) for rows in ([0, 3, 5], [1, 2, 11], [4, 7, 8], [6, 9, 10])]


@pytest.fixture
def drawing():
    found = ViewsAhead(2)
    yield found
    found.close()


def taken(drawing, view, key, step, *positions, **options):
    """What was drawn; waits until it was begun."""
    for future in list(drawing._drawn.values()):
        future.exception()
    return take(drawing, view, key, step, *positions, **options)


def take(drawing, view, key, step, *positions, **options):
    return drawing.take(IMAGES, BATCHES[step], view, key, step, *positions, **options)


def test_all_steps_of_several_plans_are_drawn_in_advance(drawing):
    drawing.plan(IMAGES, BATCHES, "weak", 5)
    drawing.plan(IMAGES, BATCHES, "strong", 7, strong_levels=(3, 9))
    for step, rows in enumerate(BATCHES):
        weak, positions = taken(drawing, "weak", 5, step), np.array([0, 2])
        strong = taken(drawing, "strong", 7, step, positions, strong_levels=(3, 9))
        assert np.array_equal(weak.numpy(), draw_views(IMAGES, rows, "weak", 5, step))
        expected = draw_views(IMAGES, rows, "strong", 7, step, positions=positions, strong_levels=(3, 9))
        assert np.array_equal(strong.numpy(), expected)
    assert not drawing._drawn


def test_what_is_not_taken_is_dropped_and_later_steps_are_still_drawn(drawing):
    drawing.plan(IMAGES, BATCHES, "weak", 5)
    drawing.plan(IMAGES, BATCHES, "strong", 7)
    for step in range(3):
        taken(drawing, "weak", 5, step)
    assert {step for view, _, step in drawing._drawn if view == "strong"} == {2, 3}
    assert torch.is_tensor(taken(drawing, "strong", 7, 3))


def test_what_has_not_begun_is_left_to_the_caller(monkeypatch):
    held, drawing = threading.Event(), ViewsAhead(1)
    monkeypatch.setattr(ahead, "draw_views", lambda *_, **__: (held.wait(5), np.zeros((1, 2, 2, 3), np.uint8))[1])
    drawing.plan(IMAGES, BATCHES, "weak", 5)
    drawing.plan(IMAGES, BATCHES, "strong", 7)
    assert take(drawing, "strong", 7, 0) is None  # the only thread is at the weak views
    held.set()
    assert take(drawing, "weak", 5, 0) is not None
    drawing.close()


def test_without_threads_or_a_plan_nothing_is_drawn(drawing):
    unused = ViewsAhead(0)
    unused.plan(IMAGES, BATCHES, "weak", 5)
    assert take(unused, "weak", 5, 0) is None
    drawing.plan(IMAGES, BATCHES, "none", 5)
    assert take(drawing, "none", 5, 0) is None
    assert take(drawing, "weak", 5, 0) is None


def test_other_batches_images_and_options_than_planned_are_not_mistaken_for_them(drawing):
    drawing.plan(IMAGES, BATCHES, "weak", 5)
    assert drawing.take(IMAGES, BATCHES[1], "weak", 5, 0) is None
    assert drawing.take(IMAGES.copy(), BATCHES[0], "weak", 5, 0) is None
    assert drawing.take(IMAGES, BATCHES[0], "weak", 5, 0, equalize_noop=True) is None
    assert drawing.take(IMAGES, BATCHES[0], "weak", 5, len(BATCHES)) is None
    assert taken(drawing, "weak", 5, 0) is not None
