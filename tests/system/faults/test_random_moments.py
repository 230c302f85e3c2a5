"""Twenty faults of one hospital at random moments of all phases, half of them in runs with secure sums.

``python -m benchmarks.rehearsal.random_faults`` draws three hundred.
"""

import pytest

from benchmarks.rehearsal import random_faults

pytestmark = pytest.mark.faults


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("number", [0, 1], ids=["updates", "secure sums"])
def test_each_costs_one_round_of_one_site_at_most(number, tmp_path):
    messages = []
    session = random_faults.session(random_faults.plan_of(number), tmp_path / "session", messages.append)
    faults = session["faults"]
    assert len(faults) == random_faults.DRAWS, messages
    assert [fault for fault in faults if fault["missed"] > 1 or fault["recovered"] is None] == [], messages
    assert [run["name"] for run in session["runs"] if run["fault"]] == []
    assert (session["left_processes"], session["left_files"]) == ([], [])
    assert len({fault["moment"] for fault in faults}) > 1
