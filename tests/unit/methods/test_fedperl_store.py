"""The server keeps the sites' last models in memory up to a limit, and the others in the files of its checkpoints."""

import pytest
import torch

from grandrounds.errors import ConfigurationError
from grandrounds.federation.server.checkpoint import CheckpointFolder
from grandrounds.federation.server.tensor_files import PARTS, TensorFileStore
from grandrounds.methods.fedperl.options import StoreOptions
from grandrounds.methods.fedperl.store import ModelStore

MODEL_BYTES = 4 * 3 + 8


def model(value):
    return {"w": torch.full((3,), float(value)), "counter": torch.tensor(int(value))}


def round_of(store, number, saved=0, **values):
    """Take in a round's models, by site."""
    for site, value in values.items():
        store.receive(site, number, model(value))
    return store.settle(saved)


def value_of(state):
    assert {name: value.dtype for name, value in state.items()} == {"w": torch.float32, "counter": torch.int64}
    assert state["w"].unique().item() == state["counter"].item()
    return state["counter"].item()


@pytest.fixture
def make(tmp_path):
    """Make a store that has room for so many models."""
    return lambda models: ModelStore(TensorFileStore(tmp_path / PARTS), models * MODEL_BYTES)


@pytest.fixture
def files(tmp_path):
    return lambda: sorted(path.name for path in (tmp_path / PARTS).glob("*"))


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
    store.settle(saved=0)
    assert (store.rounds, value_of(store.get("a"))) == ({"a": 2}, 2)


@pytest.mark.parametrize("room", [0, 2])
def test_what_is_given_up_leaves_no_file_and_takes_no_room(make, files, room):
    store = make(room)
    store.receive("a", 1, model(1))
    store.give_up("a")
    store.give_up("stranger")
    assert store.settle(saved=0) == []
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
def test_a_file_that_no_checkpoint_refers_to_goes_with_its_model(make, files, saved, left):
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
    store.settle(saved=0)
    assert store.for_message(made[2]) is made[2]
    assert value_of(store.for_message(made[3])) == 3
    assert files() == []


@pytest.mark.parametrize("wrong", [-1, 0.5, "much"])
def test_a_limit_that_is_none_is_refused(wrong):
    with pytest.raises(ConfigurationError, match="peer_memory_mib must be"):
        StoreOptions(peer_memory_mib=wrong)
