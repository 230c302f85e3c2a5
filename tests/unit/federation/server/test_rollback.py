"""A model that nobody can train costs one checkpoint; who has harmed it is no witness that it is sound."""

from types import SimpleNamespace

import pytest

from grandrounds.federation.server.rollback import Rollback, UnusableModel

SITES = ["a", "b", "c"]


def answers(failed, bounded):
    """The checkpoints that are good after a round in which some sites have failed, and before which some were bounded."""
    checkpoints = SimpleNamespace(kept=[1, 2, 3])
    checkpoints.rounds = lambda: checkpoints.kept
    checkpoints.mark_bad = lambda: [checkpoints.kept.pop()]
    record = SimpleNamespace(rounds=[{"round": 3, "bounded": {site: {} for site in bounded}}])
    outcome = SimpleNamespace(failed=failed, dropped=dict.fromkeys(failed, "diverged"))
    Rollback(checkpoints, record).answers_in(4, SITES, outcome)
    return checkpoints.kept


@pytest.mark.parametrize(
    ("failed", "bounded", "who"),
    [
        (SITES, [], "all 3 sites failed"),
        (["a", "b"], ["c"], "all 2 sites that were not bounded before failed"),
        (SITES, SITES, "all 3 sites failed"),
    ],
)
def test_the_next_start_goes_back_where_every_witness_has_failed(failed, bounded, who):
    with pytest.raises(UnusableModel, match=f"^round 4: {who} .* the next start goes on after round 2"):
        answers(failed, bounded)


@pytest.mark.parametrize(("failed", "bounded"), [(["a", "b"], []), (["a"], ["c"]), (["a", "b"], SITES), ([], ["c"])])
def test_the_model_stays_where_a_witness_has_trained_it(failed, bounded):
    assert answers(failed, bounded) == [1, 2, 3]
