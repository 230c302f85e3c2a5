"""FedPerl's options are checked before a run starts."""

import re

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
        ({"strong_levels": [2, 3, 4]}, r"strong_levels must be a minimum and a maximum strength, got \[2, 3, 4\]"),
    ],
)
def test_an_option_of_the_site_that_does_not_fit_is_named(given, message):
    with pytest.raises(ConfigurationError, match=f"^{message}$"):
        FedPerlExecutor(**given)


@pytest.mark.parametrize(
    ("given", "sites", "rounds", "reason"),
    [
        (
            {},
            2,
            20,
            r"at least 2 other sites, and the run has 2 in all; lower controller\.pa_min_peers or have more sites",
        ),
        ({}, 1, 20, "the run has 1 in all; have more sites"),
        ({"anonymise": False}, 1, 20, "at least 1 other"),
        ({}, 3, 10, r"warm_up is 10 and peer_interval 1 in a run of 10 rounds; lower controller\.warm_up"),
        ({}, 3, 11, "^$"),
        ({"pa_min_peers": 1}, 2, 11, "^$"),
        ({"peers": 0}, 1, 1, "^$"),
    ],
)
def test_a_run_in_which_no_site_gets_a_peer_says_why(given, sites, rounds, reason):
    assert re.search(reason, PeerOptions(**given).obstacle(sites, rounds))
