"""Work on all cores gives its results in order, and leaves Pillow's memory as it was."""

import threading
import time

import pytest
from PIL import Image

from grandrounds.data.images.ordered import in_order, kept_blocks


def test_results_are_in_the_order_of_the_items_whichever_is_done_first():
    def slow_at_first(item):
        time.sleep(0.02 if item == 0 else 0)
        return item, threading.get_ident()

    found = list(in_order(slow_at_first, range(50)))
    assert [item for item, _ in found] == list(range(50))
    assert threading.get_ident() not in {thread for _, thread in found}


def test_an_error_is_raised_in_its_place_and_ends_the_work():
    done = []

    def work(item):
        done.append(item)
        return 1 / item

    results = in_order(work, [1, 2, 0, *range(1, 100_000)])
    assert [next(results), next(results)] == [1, 0.5]
    with pytest.raises(ZeroDivisionError):
        next(results)
    assert len(done) < 50_000


def test_pillow_keeps_no_memory_afterwards():
    before = Image.core.get_blocks_max()
    with kept_blocks():
        assert Image.core.get_blocks_max() > before
        Image.new("L", (100, 100))
    assert Image.core.get_blocks_max() == before
    assert Image.core.get_stats()["blocks_cached"] <= before
