"""Where the server keeps models, and which of them a site holds as peers."""

import re

import pytest
import torch

from grandrounds.errors import ConfigurationError
from grandrounds.federation.checkpoints import PARTS_FOLDER, CheckpointFolder, TensorFileStore
from grandrounds.federation.site.context import StateCache
from grandrounds.methods.fedperl.model_store import ModelStore, PeerDelivery, received_peers
from grandrounds.methods.fedperl.options import StoreOptions
from grandrounds.protocol.messages import Payload

MODEL_BYTES = 4 * 3 + 8


def model(value):
    return {"w": torch.full((3,), float(value)), "counter": torch.tensor(int(value))}


def round_of(store, number, saved=0, **values):
    """Take in a round's models, by site."""
    for site, value in values.items():
        store.receive(site, number, model(value))
    return store.commit(saved)


def value_of(state):
    assert {name: value.dtype for name, value in state.items()} == {"w": torch.float32, "counter": torch.int64}
    assert state["w"].unique().item() == state["counter"].item()
    return state["counter"].item()


@pytest.fixture
def make(tmp_path):
    """Make a store that has room for so many models."""
    return lambda models: ModelStore(TensorFileStore(tmp_path / PARTS_FOLDER), models * MODEL_BYTES)


@pytest.fixture
def files(tmp_path):
    return lambda: sorted(path.name for path in (tmp_path / PARTS_FOLDER).glob("*"))


@pytest.mark.parametrize(("room", "on_disk"), [(3, 0), (2, 1), (0, 3)])
def test_what_there_is_no_room_for_is_in_a_file_and_comes_back_the_same(make, files, room, on_disk):
    store = make(room)
    assert round_of(store, 4, c=3, a=1, b=2) == ["a", "b", "c"]
    assert len(files()) == on_disk
    assert {site: value_of(store.get(site)) for site in "abc"} == {"a": 1, "b": 2, "c": 3}
    assert store.rounds == {"a": 4, "b": 4, "c": 4}
    assert sum(state is None for _, state in store.snapshots().values()) == on_disk


def test_a_model_counts_only_when_its_round_is_closed(make):
    store = make(0)
    round_of(store, 1, a=1)
    store.receive("a", 2, model(2))
    assert (store.rounds, value_of(store.get("a"))) == ({"a": 1}, 1)
    store.commit(saved=0)
    assert (store.rounds, value_of(store.get("a"))) == ({"a": 2}, 2)


@pytest.mark.parametrize("room", [0, 2])
def test_a_discarded_model_leaves_no_file_and_takes_no_room(make, files, room):
    store = make(room)
    store.receive("a", 1, model(1))
    store.discard("a")
    store.discard("stranger")
    assert store.commit(saved=0) == []
    assert (store.rounds, files()) == ({}, [])
    round_of(store, 2, b=1, c=2)
    assert len(files()) == 2 - room


def test_a_successor_takes_the_place_of_the_older_model_in_memory(make, files):
    store = make(2)
    round_of(store, 1, a=1)
    round_of(store, 2, a=2)
    round_of(store, 3, a=3, b=1)
    assert files() == ["b@00003.pt"], "there is room for two, the older a is one of them until the round is closed"
    round_of(store, 4, saved=3, b=2)
    assert files() == ["b@00003.pt"], "now there is room, and the file is the checkpoint's"
    assert value_of(store.get("b")) == 2


@pytest.mark.parametrize(("saved", "left"), [(1, ["a@00003.pt"]), (2, ["a@00002.pt", "a@00003.pt"])])
def test_an_unreferenced_file_is_deleted_with_its_model(make, files, saved, left):
    store = make(0)
    round_of(store, 2, saved=1, a=2)
    mapped = store.get("a")
    round_of(store, 3, saved=saved, a=3)
    assert files() == left
    assert value_of(mapped) == 2, "what is in a message that has not left yet stays as it was"


@pytest.mark.parametrize("room", [0, 1, 5])
def test_a_checkpoint_has_the_models_wherever_they_were_and_gives_them_back(make, tmp_path, room):
    store, folder = make(room), CheckpointFolder(tmp_path, {})
    round_of(store, 1, a=1, b=2)
    folder.save(1, {}, store.snapshots())
    round_of(store, 2, saved=1, b=3)
    folder.save(2, {}, store.snapshots())
    round_of(store, 3, saved=2, a=9, b=9)
    folder.discard_from(3)
    restored = make(room)
    for site, (number, state) in folder.load().parts.items():
        restored.restore(site, number, state)
    assert restored.rounds == {"a": 1, "b": 2}
    assert [value_of(restored.get(site)) for site in "ab"] == [1, 3]
    assert sum(state is not None for _, state in restored.snapshots().values()) == min(room, 2)


def test_what_is_made_for_messages_is_mapped_where_there_is_no_room_until_the_round_is_closed(make, files):
    store, made = make(2), [model(number) for number in range(4)]
    round_of(store, 1, a=1)
    lent = [store.for_message(state) for state in made[:2]]
    assert [given is state for given, state in zip(lent, made, strict=False)] == [True, False]
    assert value_of(lent[1]) == 1
    store.commit(saved=0)
    assert store.for_message(made[2]) is made[2]
    assert value_of(store.for_message(made[3])) == 3
    assert files() == []


@pytest.mark.parametrize("wrong", [-1, 0.5, "much"])
def test_an_invalid_memory_limit_is_refused(wrong):
    with pytest.raises(ConfigurationError, match="peer_memory_mib must be"):
        StoreOptions(peer_memory_mib=wrong)


def weights(value):
    return {"w": torch.tensor([float(value)])}


MODELS = {"hospital-a": (3, weights(1)), "hospital-b": (2, weights(2)), "hospital-c": (3, weights(3))}


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
    parts, changed = prepared(delivery, "site", ["hospital-b", "hospital-a"], MODELS | {"hospital-a": (4, weights(9))})
    assert values_of(parts) == {"peer-2": 9}, "the part has the rank of the peer that changed"
    assert changed["peers"][0] == again["peers"][0]
    assert changed["peers"][1] != again["peers"][1]


def test_an_unconfirmed_delivery_counts_as_not_delivered():
    delivery = PeerDelivery()
    prepared(delivery, "site", ["hospital-a"], MODELS)
    assert prepared(delivery, "site", ["hospital-a"], MODELS)[0], "not confirmed"
    delivery.confirm("site")
    delivery.forget("site")
    assert values_of(prepared(delivery, "site", ["hospital-a"], MODELS)[0]) == {"peer-1": 1}
    delivery.forget("stranger")
    delivery.confirm("stranger")


def test_sites_have_separate_byte_counts():
    delivery = PeerDelivery()
    prepared(delivery, "first", ["hospital-a"], MODELS)
    delivery.confirm("first")
    assert prepared(delivery, "second", ["hospital-a"], MODELS)[0]


def test_a_site_is_to_keep_what_is_current_and_nothing_older():
    delivery = PeerDelivery()
    _, first = prepared(delivery, "site", ["hospital-a", "hospital-b"], MODELS)
    delivery.confirm("site")
    now = MODELS | {"hospital-a": (4, weights(9))}
    _, second = prepared(delivery, "site", ["hospital-c"], now)
    assert second["keep"] == sorted([first["peers"][1], *second["peers"]]), "b is current though not wanted, a is not"
    delivery.confirm("site")
    _, third = prepared(delivery, "site", [], now)
    assert third == {"peers": [], "keep": second["keep"]}


def test_keys_reveal_nothing_of_a_peer_and_depend_on_receiver_peer_round_and_process():
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
    sent = Payload(1, {"peers": ["a-1", "b-1"], "keep": ["a-1", "b-1"]}, {"peer-1": weights(1), "peer-2": weights(2)})
    assert values_of(received_peers(sent, cache)[0]) == {"peer-1": 1, "peer-2": 2}
    turned = Payload(2, {"peers": ["c-2", "b-1", "a-1"], "keep": ["a-1", "b-1", "c-2"]}, {"peer-1": weights(3)})
    found, lost = received_peers(turned, cache)
    assert lost == 0
    assert list(found.items()) == [("peer-1", weights(3)), ("peer-2", weights(2)), ("peer-3", weights(1))]


def test_a_site_keeps_only_the_peers_that_the_server_names(cache):
    received_peers(
        Payload(1, {"peers": ["a-1", "b-1"], "keep": ["a-1", "b-1"]}, {"peer-1": weights(1), "peer-2": weights(2)}),
        cache,
    )
    assert kept(cache) == ["a-1", "b-1"]
    received_peers(Payload(2, {"peers": [], "keep": ["b-1"]}, {}), cache)
    assert kept(cache) == ["b-1"]


def test_a_round_continues_without_a_peer_that_is_missing(cache):
    keys = ["a-1", "b-1", "c-1"]
    payload = Payload(2, {"peers": keys, "keep": keys}, {"peer-1": weights(1), "peer-3": weights(3)})
    found, lost = received_peers(payload, cache)
    assert values_of(found) == {"peer-1": 1, "peer-3": 3}
    assert lost == 1
    assert kept(cache) == ["a-1", "c-1"]
    assert received_peers(Payload(3, {"peers": keys, "keep": keys}, {}), StateCache(cache._folder / "empty")) == ({}, 3)


def test_an_anonymised_peer_is_in_the_message_alone_and_is_not_kept(cache):
    payload = Payload(2, {"run_id": "x"}, {"global": weights(0), "peer-1": weights(5)})
    found, lost = received_peers(payload, cache)
    assert (values_of(found), lost) == ({"peer-1": 5}, 0)
    assert received_peers(Payload(2, {}, {"global": weights(0)}), cache) == ({}, 0)
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
            models["hospital-a"] = (number, weights(10))
    assert sent == 4, "a, b, then c and the changed a"
