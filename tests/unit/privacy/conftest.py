import pytest

from grandrounds.privacy.entries import DatasetIdentity, Purpose
from grandrounds.privacy.ledger import Ledger
from grandrounds.privacy.spending import Mechanism, Spending
from grandrounds.privacy.units import Unit


@pytest.fixture
def ledger(tmp_path):
    """A new ledger of site-1."""
    return Ledger.create(tmp_path / "privacy", "site-1")


@pytest.fixture
def skin():
    return DatasetIdentity("skin", "a" * 64)


@pytest.fixture
def update():
    """The cost of an update with noise multiplier 16."""
    return Spending(Mechanism.GAUSSIAN, Unit.SITE, sensitivity=2.0, sigma=32.0)


@pytest.fixture
def purpose():
    """The update of a round of a job."""
    return lambda number=1, job="job-1": Purpose(job, "run", number, "update")
