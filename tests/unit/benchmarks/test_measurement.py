"""A measurement of time is written only where other programs were idle meanwhile."""

import json
import sys
from types import SimpleNamespace

import pytest

from benchmarks import measure

SECONDS = 10.0


@pytest.fixture
def measured_beside(tmp_path, monkeypatch):
    """Measure for ten seconds on a given clock while other programs use so many cores; the result, if it is written."""

    def measured(cores, **options):
        clock, others = iter([0.0, SECONDS]), iter([5.0, 5.0 + cores * SECONDS])
        monkeypatch.setattr(measure, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
        monkeypatch.setattr(measure, "seconds_of_others", lambda: next(others))
        monkeypatch.setattr(sys, "argv", ["run.py"])
        measure.run(str(tmp_path / "run.py"), lambda options: {"found": 1}, lambda result: "a table", **options)
        return json.loads((tmp_path / "result.json").read_text())

    return measured


def test_nothing_is_written_where_others_were_busy(measured_beside, tmp_path):
    with pytest.raises(SystemExit, match=r"other programs used 0\.20 cores meanwhile: nothing is written"):
        measured_beside(0.2)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("cores", "options"), [(0.05, {}), (0.2, {"timed": False})], ids=["idle", "not timed"])
def test_a_result_says_how_busy_others_were(measured_beside, cores, options):
    result = measured_beside(cores, **options)
    assert (result["found"], result["machine"]["cores_of_others"]) == (1, cores)
