"""Which peers a site gets, and what travels for them."""

import shutil

import pytest
import torch

from grandrounds.federation.record import read_events
from grandrounds.methods.fedperl.delivery import PeerDelivery, received_peers
from grandrounds.ordering import natural_sorted

FOUR = ["site-1", "site-2", "site-3", "site-4"]
EVERY_ROUND = ["controller.rounds=4", "controller.warm_up=1"]


def rounds_of(found):
    return {entry["round"]: entry for entry in found.summary["rounds"]}


def peer_bytes(found):
    """Bytes of peers sent down, over all sites."""
    return sum(
        size
        for parts in found.summary["bytes"].values()
        for name, size in parts.items()
        if name.startswith("down.peer")
    )


@pytest.fixture(scope="module")
def ssfl(tiny, run, tmp_path_factory):
    """The run without peers."""
    return run(tiny("ssfl", *EVERY_ROUND[:1]), tmp_path_factory.mktemp("ssfl"), FOUR)


@pytest.fixture(scope="module")
def open_peers(tiny, run, tmp_path_factory):
    """Two of four sites train in a round; peers travel as they are."""
    options = [*EVERY_ROUND, "controller.rounds=8", "controller.sites_per_round=2", "controller.anonymise=false"]
    return run(tiny("fedperl", *options), tmp_path_factory.mktemp("open"), FOUR)


@pytest.mark.parametrize(
    "options",
    [
        ["controller.policy=gated_validation", "controller.gate=1.0"],
        ["controller.policy=gated_similarity", "controller.gate=1.0"],
        ["controller.pa_min_peers=3"],
        ["controller.warm_up=4"],
        ["controller.peer_interval=5"],
    ],
)
def test_where_no_peer_passes_training_is_ssfl_and_no_peer_travels(tiny, run, identical, ssfl, tmp_path, options):
    found = run(tiny("fedperl", *EVERY_ROUND, *options), tmp_path, FOUR)
    assert identical(found.models, ssfl.models)
    assert peer_bytes(found) == 0
    if options[0].startswith("controller.policy"):
        assert all(len(entry["candidates"]["site-1"]) == 2 for entry in found.summary["rounds"][1:])
        assert not any(peers for entry in found.summary["rounds"] for peers in entry["peers"].values())


def test_the_validation_policy_keeps_peers_that_are_at_least_as_accurate(tiny, run, tmp_path):
    options = [*EVERY_ROUND, "controller.policy=validation", "controller.anonymise=false", "controller.peers=3"]
    found = run(tiny("fedperl", *options), tmp_path, FOUR)
    asked = kept = 0
    rounds = rounds_of(found)
    for number in range(2, 5):
        # The scores that a round notes are those after it; choices are made from the state at its start.
        accuracy = rounds[number - 1]["peer_validation"]
        assert set(accuracy) == set(FOUR)
        for site, peers in rounds[number]["peers"].items():
            candidates = rounds[number]["candidates"][site]
            assert peers == [peer for peer in candidates if accuracy[peer] >= accuracy[site]]
            asked, kept = asked + len(candidates), kept + len(peers)
    assert 0 < kept < asked


def test_the_similarity_gate_keeps_the_peers_above_it(tiny, run, tmp_path):
    options = ["controller.policy=gated_similarity", "controller.gate=0.5", "controller.anonymise=false"]
    found = run(tiny("fedperl", *EVERY_ROUND, "controller.peers=3", *options), tmp_path, FOUR)
    matrices = {event["round"]: event for event in read_events(found.results) if event["event"] == "similarity"}
    rounds = rounds_of(found)
    asked = kept = 0
    for number in range(2, 5):
        event = matrices[number - 1]
        for site, peers in rounds[number]["peers"].items():
            row = dict(zip(event["sites"], event["matrix"][event["sites"].index(site)], strict=True))
            candidates = rounds[number]["candidates"][site]
            assert peers == [peer for peer in candidates if row[peer] >= 0.5]
            asked, kept = asked + len(candidates), kept + len(peers)
    assert 0 < kept < asked


@pytest.mark.parametrize("choice", ["random", "fedmatch", "fedmatch_released"])
def test_other_choices_of_peers_are_repeatable_and_never_the_site_itself(tiny, run, same_run, tmp_path, choice):
    options = [*EVERY_ROUND, f"controller.peer_choice={choice}"]
    found = run(tiny("fedperl", *options), tmp_path / "first", FOUR)
    for entry in found.summary["rounds"][1:]:
        for site, peers in entry["peers"].items():
            assert len(set(peers)) == 2
            assert site not in peers
    same_run(found, run(tiny("fedperl", *options), tmp_path / "second", FOUR))


def test_a_released_fedmatch_represents_the_first_participant_by_the_global_model(tiny, run, tmp_path):
    found = {
        choice: run(tiny("fedperl", *EVERY_ROUND, f"controller.peer_choice={choice}"), tmp_path / choice, FOUR)
        for choice in ("fedmatch", "fedmatch_released")
    }
    vectors = {}
    for choice, outcome in found.items():
        saved = torch.load(outcome.record / "round_00004.pt", weights_only=True)
        vectors[choice] = saved["content"]["method"]["described"]["embeddings"]
    assert set(vectors["fedmatch"]) == set(FOUR)
    assert all(float(values.sum()) == pytest.approx(1, abs=1e-5) for values in vectors["fedmatch"].values())
    assert any(abs(float(values.sum()) - 1) > 1e-3 for values in vectors["fedmatch_released"].values())


def test_newcomers_get_random_peers_if_asked_for(tiny, run, tmp_path):
    options = ["controller.rounds=2", "controller.warm_up=0", "controller.sites_per_round=2", "controller.peers=1"]
    options += ["controller.anonymise=false", "controller.seed=3"]
    without = run(tiny("fedperl", *options), tmp_path / "none", FOUR)
    with_peers = run(tiny("fedperl", *options, "controller.newcomers=random"), tmp_path / "random", FOUR)
    known = set(without.summary["rounds"][0]["asked"])
    new = set(without.summary["rounds"][1]["asked"]) - known
    assert new, "the test needs a newcomer in round 2"
    for site in new:
        assert without.summary["rounds"][1]["peers"][site] == []
        (peer,) = with_peers.summary["rounds"][1]["peers"][site]
        assert peer in known
    assert not any(with_peers.summary["rounds"][0]["peers"].values())


@pytest.mark.parametrize(("peers", "anonymise", "models"), [(3, False, 3), (1, False, 1), (3, True, 1), (0, True, 0)])
def test_the_ledger_has_the_models_that_table_2_counts_per_client_round(tiny, run, tmp_path, peers, anonymise, models):
    """All sites train in every round, so every peer is new in every round."""
    options = [f"controller.peers={peers}", f"controller.anonymise={str(anonymise).lower()}"]
    found = run(tiny("fedperl", *EVERY_ROUND, *options), tmp_path, FOUR)
    one_model = found.summary["bytes"]["site-1"]["down.global"] / (4 + 2)
    client_rounds_after_warm_up = 3 * len(FOUR)
    assert peer_bytes(found) == models * client_rounds_after_warm_up * one_model


def test_a_model_that_a_site_has_is_not_sent_again_and_training_is_the_same(
    tiny, run, identical, open_peers, tmp_path, monkeypatch
):
    monkeypatch.setattr(PeerDelivery, "confirm", lambda self, site: None)
    options = [*EVERY_ROUND, "controller.rounds=8", "controller.sites_per_round=2", "controller.anonymise=false"]
    always = run(tiny("fedperl", *options), tmp_path, FOUR)
    assert identical(always.models, open_peers.models)
    sent = sum(len(peers) for entry in always.summary["rounds"] for peers in entry["peers"].values())
    one_model = peer_bytes(always) / sent
    assert peer_bytes(open_peers) <= peer_bytes(always) - one_model


def test_a_site_keeps_no_model_of_a_peer_that_has_changed_since(open_peers):
    """A site can be asked only for models that are current; it has at most one for each other site."""
    for site in FOUR:
        kept = list((open_peers.record.parent / site / "received").glob("*.pt"))
        assert len(kept) <= 3
        assert not any(other in path.name for path in kept for other in FOUR), "names stay at the server"


def test_a_site_that_has_lost_a_model_misses_a_round_and_gets_it_again(tiny, run, tmp_path, monkeypatch):
    lost = []
    original = received_peers

    def forgetful(payload, cache):
        wanted, parts = payload.values.get("peers", []), payload.parts
        if not lost and any(f"peer-{rank}" not in parts for rank in range(1, len(wanted) + 1)):
            lost.append(payload.round_number)
            shutil.rmtree(cache._folder)
        return original(payload, cache)

    monkeypatch.setattr("grandrounds.methods.fedperl.executor.received_peers", forgetful)
    options = [*EVERY_ROUND, "controller.rounds=10", "controller.sites_per_round=2", "controller.anonymise=false"]
    found = run(tiny("fedperl", *options, "controller.min_sites=1"), tmp_path, FOUR)
    assert lost, "the test needs a model that is not sent again"
    (entry,) = [entry for entry in found.summary["rounds"] if entry["round"] == lost[0]]
    (reason,) = entry["dropped"].values()
    assert "does not have it any more" in reason
    assert [entry["dropped"] for entry in found.summary["rounds"] if entry["round"] > lost[0]] == [{}] * (10 - lost[0])


def test_more_peers_than_there_are_models_is_noted_and_fewer_are_sent(tiny, run, tmp_path):
    options = [*EVERY_ROUND, "controller.peers=9", "controller.anonymise=false"]
    found = run(tiny("fedperl", *options), tmp_path, FOUR)
    notes = [event for event in read_events(found.results) if event["event"] == "few_peers"]
    assert [(note["round"], note["asked"], note["known"]) for note in notes] == [(2, 9, 3), (3, 9, 3), (4, 9, 3)]
    assert all(len(peers) == 3 for peers in found.summary["rounds"][-1]["peers"].values())


def test_every_round_tells_how_alike_models_are_without_scaling(open_peers):
    events = [event for event in read_events(open_peers.results) if event["event"] == "similarity"]
    assert [event["round"] for event in events] == list(range(1, 9))
    for event in events:
        low, high = event["raw_cosines"]
        assert 0.9 < low <= high <= 1, "models from one start are alike"
        assert event["sites"] == natural_sorted(event["sites"])


def test_peers_may_vote_as_in_fedmatch(tiny, run, identical, tmp_path):
    options = [*EVERY_ROUND, "executor.consistency_weight=1.0"]
    mean = run(tiny("fedperl", *options), tmp_path / "mean", FOUR)
    vote = run(tiny("fedperl", *options, "executor.peer_agreement=vote"), tmp_path / "vote", FOUR)
    assert not identical(mean.models, vote.models)
    assert vote.summary["status"] == "finished"
