"""A rehearsal of a few minutes with a consortium's kits: faults are recovered from, and nothing is left or changed."""

import pytest

from benchmarks.rehearsal import copies, rehearse
from grandrounds.deployment.kit.overlay import apply_overlay
from grandrounds.deployment.kit.read import processes_of
from tests.federations import provisioned_elsewhere

pytestmark = pytest.mark.faults
SITES = ("hospital-a", "hospital-b", "hospital-c")


@pytest.fixture(scope="module")
def kits(tmp_path_factory):
    """As ``grandrounds provision`` writes them, with the overlay."""
    made = provisioned_elsewhere(tmp_path_factory.mktemp("consortium"), SITES)
    for kit in copies.kits_in(made):
        if kit.kind != "person":
            apply_overlay(kit)
    return made


def test_a_rehearsal_ends_with_usable_models_and_leaves_nothing(kits, tmp_path):
    told = []
    plan = rehearse.Rehearsal(hours=0.05, rounds=6, every=2)
    found = rehearse.rehearse(kits, tmp_path / "out", plan, told.append)
    assert rehearse.passed(found), (found, told)
    assert found["faults"], told
    assert all(fault["recovered"] is not None for fault in found["faults"]), found["faults"]
    assert found["undisturbed"]["missed"] == 0
    assert found["largest_difference"] <= 0.1
    assert processes_of(tmp_path) == []
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        *("home", "logs", "rehearsal.json"),
        *("results", "temporary"),
    ]
