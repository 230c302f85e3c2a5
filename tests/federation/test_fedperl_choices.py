"""Which peers a site gets, and what travels for them."""

import shutil
from functools import cache

import pytest
import torch

from grandrounds.data.datasets.phantom import PHANTOM_CLASSES
from grandrounds.data.partition.phantom_site import phantom_site
from grandrounds.data.site import load_site_data, read_site_config
from grandrounds.errors import ConfigurationError
from grandrounds.federation.server.record import read_events
from grandrounds.methods.fedperl.model_store import PeerDelivery, received_peers
from grandrounds.methods.fedperl.peer_selection import noise_image
from grandrounds.models.registry import build_model
from grandrounds.ordering import natural_sorted
from grandrounds.protocol.problem import ModelSpec, Problem
from grandrounds.seeding import numpy_generator

FOUR = ["site-1", "site-2", "site-3", "site-4"]
EVERY_ROUND = ["controller.rounds=4", "controller.warm_up=1", "executor.steps=1"]


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


def saved_model(found, site, round_number):
    """What a site had trained last, from the server's checkpoints."""
    return torch.load(found.record / "parts" / f"{site}@{round_number:05d}.pt", weights_only=True)


def accuracy_at_the_server(state, folder):
    """By hand, on the validation pictures that the server draws."""
    location = read_site_config(phantom_site("server", folder))["phantom"]
    data = load_site_data(location, Problem("phantom", PHANTOM_CLASSES, 32), folder / "cache")
    rows = [row for row, split in enumerate(data.split) if split == "val"]
    network = build_model(ModelSpec("small", classes=4), seed=0).eval()
    network.load_state_dict(state)
    with torch.no_grad():
        images = torch.from_numpy(data.images[rows].copy()).permute(0, 3, 1, 2).float() / 255
        predicted = network(images).argmax(1)
    return float((predicted == torch.from_numpy(data.labels[rows])).double().mean())


@pytest.fixture(scope="module")
def ssfl(tiny, run, tmp_path_factory):
    """The run without peers."""
    return run(tiny("ssfl", EVERY_ROUND[0], EVERY_ROUND[2]), tmp_path_factory.mktemp("ssfl"), FOUR)


@pytest.fixture(scope="module")
def made(tiny, run, tmp_path_factory):
    """FedPerl with further options, run once for each choice of them."""

    @cache
    def go(*options):
        return run(tiny("fedperl", *EVERY_ROUND, *options), tmp_path_factory.mktemp("made"), FOUR)

    return go


@pytest.fixture(scope="module")
def open_peers(made):
    """Two of four sites train in a round; peers travel as they are."""
    return made("controller.rounds=8", "controller.sites_per_round=2", "controller.anonymise=false")


@pytest.mark.parametrize(
    "options",
    [
        ["controller.policy=gated_validation", "controller.gate=1.0"],
        ["controller.policy=gated_similarity", "controller.gate=1.0"],
        ["controller.warm_up=4"],
        ["controller.peer_interval=5"],
    ],
)
def test_where_no_peer_passes_training_is_ssfl_and_no_peer_travels(made, identical, ssfl, options):
    found = made(*options)
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
    for site in FOUR:
        by_hand = accuracy_at_the_server(saved_model(found, site, 4), tmp_path / "server")
        assert rounds[4]["peer_validation"][site] == pytest.approx(by_hand)


def test_the_similarity_gate_keeps_the_peers_above_it(made):
    options = ["controller.policy=gated_similarity", "controller.gate=0.5", "controller.anonymise=false"]
    found = made("controller.peers=3", *options)
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
def test_other_choices_of_peers_are_repeatable_and_never_the_site_itself(
    made, tiny, run, assert_same_run, tmp_path, choice
):
    found = made(f"controller.peer_choice={choice}")
    for entry in found.summary["rounds"][1:]:
        for site, peers in entry["peers"].items():
            assert len(set(peers)) == 2
            assert site not in peers
    assert_same_run(found, run(tiny("fedperl", *EVERY_ROUND, f"controller.peer_choice={choice}"), tmp_path, FOUR))


def test_a_released_fedmatch_represents_the_first_participant_by_the_global_model(made):
    for choice in ("fedmatch", "fedmatch_released"):
        found = made(f"controller.peer_choice={choice}")
        method = torch.load(found.record / "round_00004.pt", weights_only=True)["content"]["method"]
        image = noise_image(choice, 3, 32, numpy_generator(1, "noise image"))
        network = build_model(ModelSpec("small", classes=4), seed=0).eval()
        for site in FOUR:
            shown = saved_model(found, site, 4)
            if choice == "fedmatch_released" and site == "site-1":
                shown = method["global"]
            network.load_state_dict(shown)
            with torch.no_grad():
                logits = network(image)[0]
            expected = logits if choice == "fedmatch_released" else logits.softmax(0)
            assert torch.allclose(method["described"]["embeddings"][site], expected, atol=1e-5), (choice, site)


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
def test_the_ledger_has_the_models_that_table_2_counts_per_client_round(made, peers, anonymise, models):
    """All sites train in every round, so every peer is new in every round."""
    found = made(f"controller.peers={peers}", f"controller.anonymise={str(anonymise).lower()}")
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


def test_no_model_of_another_hospital_stays_at_a_site(open_peers):
    """And none at all when the run is over."""
    for site in FOUR:
        assert not list((open_peers.record.parent / site / "received").glob("*"))


def test_a_site_that_has_lost_a_model_goes_on_without_it_and_gets_it_again(tiny, run, tmp_path, monkeypatch):
    lost = []

    def forgetful(payload, cache):
        wanted, parts = payload.values.get("peers", []), payload.parts
        if not lost and any(f"peer-{rank}" not in parts for rank in range(1, len(wanted) + 1)):
            lost.append(payload.round_number)
            shutil.rmtree(cache._folder)
        return received_peers(payload, cache)

    monkeypatch.setattr("grandrounds.methods.fedperl.executor.received_peers", forgetful)
    options = [*EVERY_ROUND, "controller.rounds=10", "controller.sites_per_round=2", "controller.anonymise=false"]
    found = run(tiny("fedperl", *options), tmp_path, FOUR)
    assert lost, "the test needs a model that is not sent again"
    reported = [
        event["round"]
        for event in read_events(found.results)
        if event["event"] == "answer" and event["metrics"].get("peers_lost")
    ]
    assert reported == lost
    assert [entry["dropped"] for entry in found.summary["rounds"]] == [{}] * 10


def test_the_ledger_counts_every_model_that_a_site_did_not_have(open_peers):
    """Two of four sites in a round: what is sent is each version of each peer once to each site."""
    versions = {
        (site, peer, entry["round"] - age)
        for entry in open_peers.summary["rounds"]
        for site, peers in entry["peers"].items()
        for peer, age in zip(peers, entry["peer_ages"][site], strict=True)
    }
    chosen = sum(len(peers) for entry in open_peers.summary["rounds"] for peers in entry["peers"].values())
    model = sum(tensor.numel() * tensor.element_size() for tensor in open_peers.models["last"].values())
    assert peer_bytes(open_peers) == len(versions) * model
    assert len(versions) < chosen, "the test needs a peer that is chosen again unchanged"


def test_keys_of_models_reveal_nothing_to_a_site(tiny, run, tmp_path, monkeypatch):
    """Not which models are of one peer, and not to two sites that they have the same."""
    keys = []
    original = PeerDelivery.prepare

    def watched(self, site, peers, rounds, model_of):
        parts, values = original(self, site, peers, rounds, model_of)
        keys.extend((site, peer, rounds[peer], key) for peer, key in zip(peers, values["peers"], strict=True))
        return parts, values

    monkeypatch.setattr(PeerDelivery, "prepare", watched)
    run(tiny("fedperl", *EVERY_ROUND, "controller.anonymise=false"), tmp_path, FOUR)
    assert len({key for *_, key in keys}) == len({tuple(what) for *what, _ in keys}) == len(keys) > 20


def test_the_relative_gate_is_a_share_of_the_best(made):
    options = ["controller.policy=gated_validation", "controller.gate=1.0", "controller.gate_scale=relative"]
    rounds = rounds_of(made(*options, "controller.anonymise=false", "controller.peers=3"))
    for number in range(2, 5):
        accuracy = rounds[number - 1]["peer_validation"]
        best = {site for site, value in accuracy.items() if value == max(accuracy.values())}
        assert all(set(peers) == best - {site} for site, peers in rounds[number]["peers"].items())


def test_peers_are_sent_in_every_so_manieth_round(made):
    rounds = rounds_of(made("controller.rounds=5", "controller.peer_interval=2"))
    assert [number for number, entry in rounds.items() if any(entry["peers"].values())] == [2, 4]


def test_a_newcomers_random_peers_pass_the_policy_too(tiny, run, tmp_path):
    options = ["controller.rounds=2", "controller.warm_up=0", "controller.sites_per_round=2", "controller.peers=1"]
    options += ["controller.anonymise=false", "controller.seed=3", "controller.newcomers=random"]
    for policy in (["gated_validation", "controller.gate=1.0"], ["validation"]):
        found = run(
            tiny("fedperl", *options, f"controller.policy={policy[0]}", *policy[1:]), tmp_path / policy[0], FOUR
        )
        known = set(found.summary["rounds"][0]["asked"])
        new = set(found.summary["rounds"][1]["asked"]) - known
        assert all(found.summary["rounds"][1]["candidates"][site] for site in new)
        assert not any(found.summary["rounds"][1]["peers"][site] for site in new)


def test_images_of_the_server_that_would_select_nothing_are_refused(tiny):
    job = tiny("fedperl", "controller.selection_images=server", "controller.validate_every=0")
    with pytest.raises(ConfigurationError, match=r"validate_every.*least 1"):
        job.checked()


def test_more_peers_than_there_are_models_is_noted_and_fewer_are_sent(made):
    found = made("controller.peers=9", "controller.anonymise=false")
    notes = [event for event in read_events(found.results) if event["event"] == "few_peers"]
    assert [(note["round"], note["asked"], note["known"]) for note in notes] == [(2, 9, 3), (3, 9, 3), (4, 9, 3)]
    assert all(len(peers) == 3 for peers in found.summary["rounds"][-1]["peers"].values())


def test_every_round_reports_the_similarity_of_models_without_scaling(open_peers):
    events = [event for event in read_events(open_peers.results) if event["event"] == "similarity"]
    assert [event["round"] for event in events] == list(range(1, 9))
    for event in events:
        low, high = event["raw_cosines"]
        assert 0.9 < low <= high <= 1, "models from one start are alike"
        assert event["sites"] == natural_sorted(event["sites"])


def test_peers_may_vote_as_in_fedmatch(made, identical):
    mean = made("executor.consistency_weight=1.0")
    vote = made("executor.consistency_weight=1.0", "executor.peer_agreement=vote")
    assert not identical(mean.models, vote.models)
    assert vote.summary["status"] == "finished"


def test_a_run_without_peers_says_so_before_it_trains(made):
    found = made("controller.pa_min_peers=4", "controller.peers=4")
    events = [event for event in read_events(found.results) if event["event"] in ("remark", "answer")]
    assert events[0]["event"] == "remark"
    assert events[0]["text"] == found.summary["remarks"][0]
    assert "at least 4 other sites, and the run has 4 in all" in events[0]["text"]
    assert not any(any(entry["peers"].values()) for entry in found.summary["rounds"])
