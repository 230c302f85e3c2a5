"""Data sets that a benchmark's plug-in registers are forgotten after the test."""

import pytest

from grandrounds.data.families import OWN_DATASETS


@pytest.fixture(autouse=True)
def _own_datasets(monkeypatch):
    monkeypatch.setattr(OWN_DATASETS, "entries", dict(OWN_DATASETS.entries))
