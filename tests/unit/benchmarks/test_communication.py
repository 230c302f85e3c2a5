"""The paper's numbers for gain and cost, and the same cost from measured bytes."""

import pytest

from benchmarks.fedperl_ham10000.communication import additional_communication, measured_communication

MODEL = 16


def summary(peers_by_round):
    """A run of two sites with a model of 16 bytes; each round sends so many peers to each site."""
    down = sum(peers_by_round) * MODEL
    part = {"down.global": len(peers_by_round) * MODEL, "up.update": len(peers_by_round) * (MODEL - 2)}
    sizes = {site: {**part, "down.peer-1": down} for site in ("site-1", "site-2")}
    return {"bytes": sizes, "rounds": [{"asked": ["site-1", "site-2"]} for _ in peers_by_round]}


def test_three_peers_cost_three_models_and_an_anonymised_one_costs_one():
    assert additional_communication(3) == 300
    assert additional_communication(1) == 100
    assert additional_communication(0, 30) == 0
    assert additional_communication(45, 30) == 150


def test_measured_bytes_give_the_same_without_warm_up_and_less_with_it():
    assert measured_communication(summary([1, 1]), MODEL) == 100
    assert measured_communication(summary([0, 0, 2, 2]), MODEL) == 100
    assert measured_communication(summary([0, 3, 3]), MODEL) == 200
    assert measured_communication(summary([0, 0]), MODEL) == 0


def test_a_round_counts_with_the_sites_that_were_asked():
    run = summary([1, 1])
    run["rounds"] = [{"asked": ["site-1"]}, {"asked": ["site-2"]}]
    assert measured_communication(run, MODEL) == 200


def test_what_makes_no_sense_is_refused():
    with pytest.raises(ValueError, match="extra_models must be at least 0, got -1"):
        additional_communication(-1)
    with pytest.raises(ValueError, match="client_rounds must be at least 1, got 0"):
        measured_communication({"bytes": {}, "rounds": []}, MODEL)
    with pytest.raises(ValueError, match="model_bytes must be at least 1, got 0"):
        measured_communication(summary([1]), 0)
