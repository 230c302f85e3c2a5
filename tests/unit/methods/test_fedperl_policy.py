"""A policy keeps those of the most similar peers that are worth learning from; it never adds one."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grandrounds.methods.fedperl.peer_selection import passing_peers
from grandrounds.methods.fedperl.peers import similar_peers
from grandrounds.methods.fedperl.similarity import similarity_matrix

ACCURACY = {"0": 0.7, "1": 0.7, "2": 0.69}
FOUR = torch.tensor([[9.0, 2.0, 1.0], [12.0, 1.0, 2.0], [10.0, 4.0, 1.0], [9.0, 4.0, 1.0]])
NAMES = ["X0", "X1", "X2", "X3"]


def similar_to_the_first(scaling, gate):
    likeness = similarity_matrix(FOUR, scaling)
    values = dict(zip(NAMES[1:], likeness[0, 1:].tolist(), strict=True))
    best = similar_peers("X0", NAMES, likeness, top=2)
    return passing_peers(best, "gated_similarity", gate=gate, target="X0", similarity=values)


def test_validation_keeps_who_is_at_least_as_accurate_as_the_site_itself():
    assert passing_peers(["1", "2"], "validation", target="0", accuracy=ACCURACY) == ["1"]
    assert passing_peers(["0", "1"], "validation", target="2", accuracy=ACCURACY) == ["0", "1"]


def test_a_gate_above_every_accuracy_keeps_nobody_and_one_that_is_met_is_open():
    assert passing_peers(["1", "2"], "gated_validation", gate=0.75, accuracy=ACCURACY) == []
    assert passing_peers(["1", "2"], "gated_validation", gate=0.7, accuracy=ACCURACY) == ["1"]
    assert passing_peers(["1", "2"], "gated_validation", gate=0.69, accuracy=ACCURACY) == ["1", "2"]


def test_a_relative_gate_is_a_share_of_the_best_accuracy_of_all_models():
    # 0.75 * 0.9 = 0.675: the best model is the target's own.
    accuracy = {"0": 0.9, "1": 0.68, "2": 0.67}
    assert passing_peers(["1", "2"], "gated_validation", gate=0.75, scale="relative", accuracy=accuracy) == ["1"]
    assert passing_peers(["1", "2"], "gated_validation", gate=0.0, scale="relative", accuracy=accuracy) == ["1", "2"]


def test_the_gate_on_raw_cosines_keeps_all_and_on_scaled_ones_only_the_most_similar():
    assert similar_to_the_first("none", gate=0.95) == ["X1", "X2"]
    assert similar_to_the_first("minmax", gate=0.95) == ["X3"]
    assert similar_to_the_first("minmax", gate=0.85) == ["X3", "X2"]


def test_a_relative_similarity_gate_is_a_share_of_the_targets_best():
    # 0.9 * 0.5 = 0.45
    likeness = {"1": 0.5, "2": 0.46, "3": 0.44}
    kept = passing_peers(["1", "2", "3"], "gated_similarity", gate=0.9, scale="relative", similarity=likeness)
    assert kept == ["1", "2"]


def test_similarity_does_not_decide_a_validation_gate_nor_accuracy_a_similarity_gate():
    values = {"accuracy": {"1": 0.9, "2": 0.1}, "similarity": {"1": 0.1, "2": 0.9}}
    assert passing_peers(["1", "2"], "gated_validation", gate=0.5, **values) == ["1"]
    assert passing_peers(["1", "2"], "gated_similarity", gate=0.5, **values) == ["2"]


def test_without_a_policy_all_pass_whatever_is_known():
    peers = ["2", "1"]
    kept = passing_peers(peers, "none", gate=1.0)
    assert kept == peers
    assert kept is not peers


@given(
    values=st.lists(st.floats(0, 1), min_size=4, max_size=4),
    gate=st.floats(0, 1),
    policy=st.sampled_from(["validation", "gated_validation", "gated_similarity"]),
    scale=st.sampled_from(["absolute", "relative"]),
)
def test_who_passes_keeps_the_order_and_a_relative_gate_is_never_the_stricter(values, gate, policy, scale):
    known = dict(zip("dabc", values, strict=True))
    found = {
        chosen: passing_peers(
            ["c", "a", "b"], policy, gate=gate, scale=chosen, target="d", accuracy=known, similarity=known
        )
        for chosen in ("absolute", "relative")
    }
    assert found[scale] == [peer for peer in ("c", "a", "b") if peer in found[scale]]
    assert set(found["absolute"]) <= set(found["relative"])


@pytest.mark.parametrize("policy", ["validation", "gated_validation", "gated_similarity"])
def test_of_no_peers_none_pass(policy):
    assert passing_peers([], policy, gate=0.5, scale="relative", target="0", accuracy=ACCURACY, similarity={}) == []


@pytest.mark.parametrize("gate", [-0.01, 1.01, math.nan])
@pytest.mark.parametrize("policy", ["none", "gated_similarity"])
def test_a_gate_outside_zero_to_one_is_refused(policy, gate):
    with pytest.raises(ValueError, match="gate must be between 0 and 1, got"):
        passing_peers([], policy, gate=gate, similarity={})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"policy": "best"}, "policy must be one of none, validation, gated_validation, gated_similarity, got 'best'"),
        ({"policy": "none", "scale": "local"}, "scale must be absolute or relative, got 'local'"),
        ({"policy": "validation", "similarity": ACCURACY}, "policy validation needs accuracy"),
        ({"policy": "gated_similarity", "accuracy": ACCURACY}, "policy gated_similarity needs similarity"),
        (
            {"policy": "gated_validation", "accuracy": {"1": 0.5}},
            "policy gated_validation has no value for '2', only for 1",
        ),
        (
            {"policy": "validation", "target": "9", "accuracy": ACCURACY},
            "policy validation has no value for '9', only for 0, 1, 2",
        ),
    ],
)
def test_what_a_policy_cannot_work_with_is_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        passing_peers(["1", "2"], **arguments)
