import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # tests of the gate share gate_answers

from gate_answers import NOISY, RELATION, ROWS, SCALARS

from grandrounds.privacy.gate.gate import Gate
from grandrounds.privacy.gate.policy import SitePolicy
from grandrounds.privacy.ledger.ledger import Ledger
from grandrounds.privacy.ledger.lines import DatasetIdentity, Purpose
from grandrounds.protocol.spending import Mechanism, Spending, Unit


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


@pytest.fixture
def gate(tmp_path):
    """Make a gate with a ledger."""
    Ledger.create(tmp_path, "site-1")

    def make(*rules, **changes):
        options = {"unit": Unit.SITE, "delta": 1e-5, "scalars": SCALARS, **changes}
        policy = SitePolicy(releases=rules or (NOISY, RELATION, ROWS), **options)
        return Gate(policy, tmp_path, "site-1")

    return make
