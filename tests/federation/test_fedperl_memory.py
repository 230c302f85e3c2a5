"""Where the server keeps the sites' models changes nothing else: not the peers, not a bit of a model, not a resumed run."""

import pytest

from grandrounds.deployment.simulate import simulate
from grandrounds.methods.fedperl.model_store import ModelStore

FOUR = ["site-1", "site-2", "site-3", "site-4"]
OPTIONS = ["controller.rounds=4", "controller.warm_up=1", "controller.sites_per_round=3", "executor.steps=1"]
ON_DISK = "controller.peer_memory_mib=0"


@pytest.fixture(scope="module")
def whole(tiny, run, tmp_path_factory):
    """Runs with all models in memory, by whether peers are anonymised."""
    return {
        word: run(tiny("fedperl", *OPTIONS, f"controller.anonymise={word}"), tmp_path_factory.mktemp(word), FOUR)
        for word in ("true", "false")
    }


@pytest.fixture
def in_memory(monkeypatch):
    """How many models were kept in memory after each round."""
    counts = []
    original = ModelStore.commit

    def watched(self, saved):
        sites = original(self, saved)
        counts.append(sum(state is not None for _, state in self.snapshots().values()))
        return sites

    monkeypatch.setattr(ModelStore, "commit", watched)
    return counts


@pytest.mark.parametrize("anonymise", ["true", "false"])
def test_a_server_without_room_for_a_model_makes_the_same_run(
    tiny, run, whole, assert_same_run, in_memory, tmp_path, anonymise
):
    options = [*OPTIONS, f"controller.anonymise={anonymise}", "controller.checkpoint_every=2"]
    found = run(tiny("fedperl", *options, ON_DISK), tmp_path, FOUR)
    assert_same_run(found, whole[anonymise])
    assert any(peers for entry in found.summary["rounds"] for peers in entry["peers"].values())
    assert in_memory == [0, 0, 0, 0]
    parts = sorted(path.name for path in (found.record / "parts").glob("*.pt"))
    trained = {site: [e["round"] for e in found.summary["rounds"] if site in e["answered"]] for site in FOUR}
    last = {
        (site, at): max((number for number in trained[site] if number <= at), default=0)
        for site in FOUR
        for at in (2, 4)
    }
    needed = {(site, number) for (site, _), number in last.items() if number}
    assert parts == sorted(f"{site}@{number:05d}.pt" for site, number in needed), "what checkpoints need, and no more"


@pytest.mark.parametrize("round_number", [2, 4])
def test_an_interrupted_run_goes_on_from_the_files(tiny, run, whole, assert_same_run, tmp_path, round_number):
    job = tiny("fedperl", *OPTIONS, ON_DISK)
    cut = {"event": "_round_done", "round_number": round_number, "party": "server", "hard": False}
    job.server["components"].append({"id": "cut", "path": "faulty.Interrupt", "args": cut})
    with pytest.raises(KeyboardInterrupt):
        simulate(job, tmp_path, FOUR)
    assert_same_run(run(tiny("fedperl", *OPTIONS, ON_DISK), tmp_path, FOUR), whole["true"])
