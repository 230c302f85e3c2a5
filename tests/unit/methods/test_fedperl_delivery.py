"""Server and site keep one account of which models the site has; a changed or lost one travels again."""

import re

import pytest
import torch

from grandrounds.federation.site.context import StateCache
from grandrounds.methods.fedperl.delivery import PeerDelivery, received_peers
from grandrounds.protocol.messages import Payload


def model(value):
    return {"w": torch.tensor([float(value)])}


MODELS = {"hospital-a": (3, model(1)), "hospital-b": (2, model(2)), "hospital-c": (3, model(3))}


@pytest.fixture
def cache(tmp_path):
    return StateCache(tmp_path / "received")


def prepared(delivery, site, peers, models):
    rounds = {name: round_number for name, (round_number, _) in models.items()}
    return delivery.prepare(site, peers, rounds, lambda name: models[name][1])


def values_of(peers):
    return {name: state["w"].item() for name, state in peers.items()}


def kept(cache):
    return sorted(path.stem for path in cache._folder.glob("*"))


def test_an_unchanged_model_is_sent_once_and_a_changed_one_again():
    delivery = PeerDelivery()
    parts, values = prepared(delivery, "site", ["hospital-a", "hospital-b"], MODELS)
    assert values_of(parts) == {"peer-1": 1, "peer-2": 2}
    delivery.confirm("site")
    parts, again = prepared(delivery, "site", ["hospital-b", "hospital-a"], MODELS)
    assert parts == {}
    assert again["peers"] == values["peers"][::-1]
    delivery.confirm("site")
    parts, changed = prepared(delivery, "site", ["hospital-b", "hospital-a"], MODELS | {"hospital-a": (4, model(9))})
    assert values_of(parts) == {"peer-2": 9}, "the part has the rank of the peer that changed"
    assert changed["peers"][0] == again["peers"][0]
    assert changed["peers"][1] != again["peers"][1]


def test_what_was_not_answered_to_counts_as_not_there():
    delivery = PeerDelivery()
    prepared(delivery, "site", ["hospital-a"], MODELS)
    assert prepared(delivery, "site", ["hospital-a"], MODELS)[0], "not confirmed"
    delivery.confirm("site")
    delivery.forget("site")
    assert values_of(prepared(delivery, "site", ["hospital-a"], MODELS)[0]) == {"peer-1": 1}
    delivery.forget("stranger")
    delivery.confirm("stranger")


def test_sites_have_accounts_of_their_own():
    delivery = PeerDelivery()
    prepared(delivery, "first", ["hospital-a"], MODELS)
    delivery.confirm("first")
    assert prepared(delivery, "second", ["hospital-a"], MODELS)[0]


def test_a_site_is_to_keep_what_is_current_and_nothing_older():
    delivery = PeerDelivery()
    _, first = prepared(delivery, "site", ["hospital-a", "hospital-b"], MODELS)
    delivery.confirm("site")
    now = MODELS | {"hospital-a": (4, model(9))}
    _, second = prepared(delivery, "site", ["hospital-c"], now)
    assert second["keep"] == sorted([first["peers"][1], *second["peers"]]), "b is current though not wanted, a is not"
    delivery.confirm("site")
    _, third = prepared(delivery, "site", [], now)
    assert third == {"peers": [], "keep": second["keep"]}


def test_keys_tell_nothing_of_a_peer_and_are_of_one_receiver_peer_round_and_process():
    delivery = PeerDelivery()
    keys = prepared(delivery, "site", list(MODELS), MODELS)[1]["peers"]
    assert all(re.fullmatch(r"[0-9a-f]{16}", key) for key in keys)
    assert prepared(delivery, "site", list(MODELS), MODELS)[1]["peers"] == keys
    later = {name: (9, state) for name, (_, state) in MODELS.items()}
    others = [
        prepared(delivery, "other", list(MODELS), MODELS)[1]["peers"],
        prepared(delivery, "site", list(later), later)[1]["peers"],
        prepared(PeerDelivery(), "site", list(MODELS), MODELS)[1]["peers"],
    ]
    assert len({*keys, *(key for found in others for key in found)}) == 12


def test_a_site_has_its_peers_by_rank_from_the_message_or_from_before(cache):
    sent = Payload(1, {"peers": ["a-1", "b-1"], "keep": ["a-1", "b-1"]}, {"peer-1": model(1), "peer-2": model(2)})
    assert values_of(received_peers(sent, cache)[0]) == {"peer-1": 1, "peer-2": 2}
    turned = Payload(2, {"peers": ["c-2", "b-1", "a-1"], "keep": ["a-1", "b-1", "c-2"]}, {"peer-1": model(3)})
    found, lost = received_peers(turned, cache)
    assert lost == 0
    assert list(found.items()) == [("peer-1", model(3)), ("peer-2", model(2)), ("peer-3", model(1))]


def test_a_site_keeps_what_the_server_says_and_no_more(cache):
    received_peers(
        Payload(1, {"peers": ["a-1", "b-1"], "keep": ["a-1", "b-1"]}, {"peer-1": model(1), "peer-2": model(2)}), cache
    )
    assert kept(cache) == ["a-1", "b-1"]
    received_peers(Payload(2, {"peers": [], "keep": ["b-1"]}, {}), cache)
    assert kept(cache) == ["b-1"]


def test_a_round_goes_on_without_a_peer_that_is_neither_sent_nor_there(cache):
    keys = ["a-1", "b-1", "c-1"]
    payload = Payload(2, {"peers": keys, "keep": keys}, {"peer-1": model(1), "peer-3": model(3)})
    found, lost = received_peers(payload, cache)
    assert values_of(found) == {"peer-1": 1, "peer-3": 3}
    assert lost == 1
    assert kept(cache) == ["a-1", "c-1"]
    assert received_peers(Payload(3, {"peers": keys, "keep": keys}, {}), StateCache(cache._folder / "empty")) == ({}, 3)


def test_an_anonymised_peer_is_in_the_message_alone_and_is_not_kept(cache):
    payload = Payload(2, {"run_id": "x"}, {"global": model(0), "peer-1": model(5)})
    found, lost = received_peers(payload, cache)
    assert (values_of(found), lost) == ({"peer-1": 5}, 0)
    assert received_peers(Payload(2, {}, {"global": model(0)}), cache) == ({}, 0)
    assert kept(cache) == []


def test_server_and_site_agree_over_many_rounds(cache):
    """Whatever is chosen, the site ends up with the models of the chosen peers, and keeps what the server counts on."""
    delivery, models, sent = PeerDelivery(), dict(MODELS), 0
    wanted = [
        ["hospital-a", "hospital-b"],
        ["hospital-b"],
        [],
        ["hospital-c", "hospital-a"],
        ["hospital-a", "hospital-b"],
    ]
    for number, peers in enumerate(wanted, 4):
        parts, values = prepared(delivery, "site", peers, models)
        found, lost = received_peers(Payload(number, values, parts), cache)
        assert [state["w"] for state in found.values()] == [models[peer][1]["w"] for peer in peers]
        assert (kept(cache), lost) == (values["keep"], 0)
        delivery.confirm("site")
        sent += len(parts)
        if number == 6:
            models["hospital-a"] = (number, model(10))
    assert sent == 4, "a, b, then c and the changed a"
