"""Twenty faults at random moments of a round and of a secure sum: each costs one round of one site at most."""

import pytest

from benchmarks.rehearsal.random_faults import DRAWS, SITES, plan_of, session

pytestmark = pytest.mark.faults


@pytest.mark.parametrize("number", [0, 1], ids=["updates", "secure sums"])
def test_ten_faults_at_random_moments_cost_one_round_of_one_site_each_at_most(number, tmp_path):
    told = []
    found = session(plan_of(number), tmp_path / "session", told.append)
    faults = found["faults"]
    assert len(faults) == DRAWS, told
    assert {fault["site"] for fault in faults} <= {*SITES}
    assert [fault for fault in faults if fault["missed"] > 1 or fault["recovered"] is None] == [], told
    assert not any(run["fault"] for run in found["runs"]), told
    assert (found["left_processes"], found["left_files"]) == (0, 0)
