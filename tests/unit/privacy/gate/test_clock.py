"""An answer leaves at fixed times after its task came, however long the work took."""

from types import SimpleNamespace

import pytest
from nvflare.apis.filter import FilterChainType, FilterContextKey, FilterSource
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable

from grandrounds.privacy.gate import filters
from grandrounds.privacy.gate.filters import LeavingTime
from grandrounds.privacy.gate.gate import Gate
from grandrounds.privacy.gate.policy import parse_policy


@pytest.fixture
def now(monkeypatch):
    """A clock that only sleep moves; ``now[0]`` is the time."""
    times = [1000.0]
    slept = lambda seconds: times.__setitem__(0, times[0] + seconds)  # noqa: E731
    # The module's own name, not the library's functions: threads of other tests sleep as well, and would move this clock.
    monkeypatch.setattr(filters, "time", SimpleNamespace(monotonic=lambda: times[0], sleep=slept))
    return times


@pytest.mark.parametrize(("worked", "leaves"), [(0.0, 60.0), (1.25, 60.0), (59.75, 60.0), (60.25, 120.0)])
def test_the_work_shows_in_the_number_of_intervals_alone(now, worked, leaves):
    leaving = LeavingTime(60.0)
    now[0] += worked
    leaving.wait(lambda: False)
    assert now[0] == 1000.0 + leaves


def test_without_an_interval_or_after_an_abort_it_leaves_at_once(now):
    LeavingTime().wait(lambda: False)
    LeavingTime(60.0).wait(lambda: True)
    assert now == [1000.0]


def test_an_answer_and_a_refusal_leave_at_the_same_time(now, tmp_path, monkeypatch):
    policy = parse_policy({"unit": "site", "delta": 1e-5, "answer_interval": 30}, "scope")
    monkeypatch.setattr(filters, "_gate", lambda fl_ctx: Gate(policy, tmp_path, "site-1"))
    monkeypatch.setattr(filters, "_folder", lambda fl_ctx: tmp_path)
    for worked in (0.5, 12.5):
        began, context = now[0], FLContext()
        context.set_prop(FLContextKey.TASK_NAME, "train", private=True, sticky=False)
        for chain in (FilterChainType.TASK_DATA_CHAIN, FilterChainType.TASK_RESULT_CHAIN):
            gate = filters.SitePrivacyGate()
            gate.set_prop(FilterContextKey.CHAIN_TYPE, chain)
            gate.set_prop(FilterContextKey.SOURCE, FilterSource.SITE)
            gate.process(Shareable(), context)
            now[0] += worked if chain == FilterChainType.TASK_DATA_CHAIN else 0.0
        assert now[0] - began == 30.0
