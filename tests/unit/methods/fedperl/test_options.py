"""FedPerl's options are checked before a run starts."""

import math

import pytest

from grandrounds.errors import ConfigurationError
from grandrounds.methods.fedperl.executor import FedPerlExecutor
from grandrounds.methods.fedperl.options import PeerOptions


def test_the_defaults_are_two_anonymous_peers_from_round_eleven_on():
    options = PeerOptions()
    assert (options.peers, options.anonymise, options.pa_min_peers, options.policy) == (2, True, 2, "none")
    assert [number for number in range(1, 14) if options.sends_in(number)] == [11, 12, 13]


def test_peers_are_sent_in_every_interval_after_the_warm_up():
    options = PeerOptions(warm_up=12, peer_interval=10)
    assert [number for number in range(1, 45) if options.sends_in(number)] == [20, 30, 40]
    assert [number for number in range(1, 4) if PeerOptions(warm_up=0).sends_in(number)] == [1, 2, 3]


@pytest.mark.parametrize(
    ("given", "needed_by"),
    [
        ({}, ""),
        ({"policy": "gated_similarity", "gate": 0.5}, ""),
        ({"policy": "validation"}, "controller.policy=validation"),
        ({"policy": "gated_validation", "gate": 0.5}, "controller.policy=gated_validation"),
        ({"validation_features": True}, "controller.validation_features"),
        ({"policy": "gated_similarity", "gate": 0.5, "validation_features": True}, "controller.validation_features"),
    ],
)
def test_what_needs_images_at_the_server_is_named(given, needed_by):
    assert PeerOptions(**given).needs_validation == needed_by


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"peers": -1}, "peers must be at least 0, got -1"),
        ({"peers": 2.0}, "peers must be an integer, got 2.0"),
        ({"pa_min_peers": -1}, "pa_min_peers must be at least 0, got -1"),
        ({"warm_up": -1}, "warm_up must be at least 0, got -1"),
        ({"peer_interval": 0}, "peer_interval must be at least 1, got 0"),
        ({"gate": 1.5}, "gate must be between 0 and 1, got 1.5"),
        ({"gate": -0.5}, "gate must be between 0 and 1, got -0.5"),
        ({"gate": math.nan}, "gate must be finite, got nan"),
        (
            {"policy": "gated_similarity"},
            "gate is 0.0 with policy 'gated_similarity': only a gated policy has a gate, and it must be above 0",
        ),
        (
            {"policy": "validation", "gate": 0.5},
            "gate is 0.5 with policy 'validation': only a gated policy has a gate, and it must be above 0",
        ),
        (
            {"peers": 1},
            "peers is 1, but an anonymised peer needs pa_min_peers = 2: none would ever be sent; ask for more peers, "
            "or set anonymise to false",
        ),
        (
            {"peer_choice": "near"},
            "peer_choice must be similar, random, fedmatch or fedmatch_released, got 'near'",
        ),
        ({"policy": "gate"}, "policy must be none, validation, gated_validation or gated_similarity, got 'gate'"),
        ({"gate_scale": "best"}, "gate_scale must be absolute or relative, got 'best'"),
        ({"newcomers": "all"}, "newcomers must be none or random, got 'all'"),
        ({"features": "bias"}, "features must be parameters_and_buffers, parameters or weights, got 'bias'"),
        ({"feature_scaling": "z"}, "feature_scaling must be minmax or none, got 'z'"),
    ],
)
def test_an_option_that_does_not_fit_is_named(given, message):
    with pytest.raises(ConfigurationError, match=f"^{message}$"):
        PeerOptions(**given)


@pytest.mark.parametrize("given", [{"peers": 0}, {"peers": 1, "anonymise": False}, {"peers": 1, "pa_min_peers": 1}])
def test_fewer_peers_than_anonymity_needs_are_accepted_without_anonymisation(given):
    assert PeerOptions(**given).peers == given["peers"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"consistency_weight": math.nan}, "consistency_weight must be finite, got nan"),
        ({"consistency_reduction": "max"}, "consistency_reduction must be mean or sum, got 'max'"),
        ({"peer_agreement": "sum"}, "peer_agreement must be mean, unanimous or vote, got 'sum'"),
        ({"strong_levels": [2, 3, 4]}, r"strong_levels must be a minimum and a maximum strength, got \[2, 3, 4\]"),
    ],
)
def test_an_option_of_the_site_that_does_not_fit_is_named(given, message):
    with pytest.raises(ConfigurationError, match=f"^{message}$"):
        FedPerlExecutor(**given)
