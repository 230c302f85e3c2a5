"""The processes of a federation of kits load what their committed lists have: ``python -m benchmarks.house.processes``."""

import os

import pytest

from benchmarks.house.processes import ROOTS, UNSEEN, compared, observed

pytestmark = pytest.mark.provisioned


def test_each_process_loads_its_list_for_fedavg_and_ridge(tmp_path, monkeypatch):
    for variable in ("HOME", "TMPDIR", "XDG_CACHE_HOME"):
        monkeypatch.setenv(variable, str(tmp_path / "elsewhere"))
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    monkeypatch.setenv("HOUSE_MODULES", "")
    (tmp_path / "elsewhere").mkdir()
    found = observed(tmp_path / "observed")
    assert {*found} >= {*ROOTS} - {*UNSEEN}
    assert compared(found) == []
