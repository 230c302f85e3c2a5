"""The measurement of a GPU runs where there is none, at the smallest size."""

import pytest

from benchmarks.gpu import run
from grandrounds.data.images import tensors
from grandrounds.federation.site.context import SiteContext
from grandrounds.federation.site.executor import SiteExecutor


@pytest.mark.parametrize("views", run.VIEWS)
def test_a_case_runs_on_a_cpu(monkeypatch, views):
    # A case has a process of its own and changes these.
    for place, name in ((SiteContext, "check_abort"), (SiteExecutor, "_trained"), (tensors, "FREE_SHARE")):
        monkeypatch.setattr(place, name, getattr(place, name))
    monkeypatch.setenv("GRANDROUNDS_CACHE", "")
    found = run.case("fedavg", "float32", views, steps=2, side=32, images=60, device="cpu", small=True)
    assert found["steps_per_second"]["count"] == run.SITES * (run.ROUNDS - 1)
    assert found["idle_share"] is None


def test_frozen_layers_and_the_tables(monkeypatch):
    monkeypatch.setattr(run, "FRONT_SECONDS", 0.01)
    front = run.front("cpu", [1, 2])
    assert [row["batch"] for row in front] == [1, 2]
    speed = {"median": 2.0, "lowest": 1.0, "highest": 3.0}
    case = {"method": "fedavg", "precision": "tf32", "views": "ahead", "steps_per_second": speed, "idle_share": 0.25}
    written = run.tables({"name": "CPU", "side": 32, "cases": [{**case, "load": 0.5}], "front": front})
    assert "| fedavg | tf32 | ahead | 2.00 | 1.00 | 3.00 | 0.25 | 0.50 |" in written
    assert "| 2 | " in written
