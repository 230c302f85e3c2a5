"""Three hospitals from startup kits, each with its own network; one names its network in its own folder."""

import json
import os
import signal
import threading
import time

import pytest
import torch

from benchmarks.rehearsal.kit_processes import running_module
from grandrounds.data.partition.phantom_site import phantom_site
from grandrounds.deployment.jobs import load_job
from grandrounds.deployment.kit.overlay import Settings
from grandrounds.deployment.local_federation import await_clients
from grandrounds.deployment.presets import with_options
from grandrounds.deployment.simulate import simulate
from grandrounds.deployment.submission import submit_and_watch, with_roster
from grandrounds.federation.server.record import EVENTS, read_events

pytestmark = [pytest.mark.provisioned, pytest.mark.slow]

NETWORKS = {"hospital-a": "compact", "hospital-b": "shufflenet", "hospital-c": "resnet10"}
OWN_CHOICE = "hospital-c"
NAMED = {site: network for site, network in NETWORKS.items() if site != OWN_CHOICE}
ROUNDS, CLASSES = 3, 4
TINY = [
    f"controller.rounds={ROUNDS}",
    "controller.public_batch=32",
    "controller.per_round=64",
    "controller.round_timeout=240",
    "executor.pretrain_epochs=0.2",
    "executor.local_epochs=0.2",
    "executor.batch_size=8",
    "executor.device=cpu",
    "executor.cpu_threads=1",
]
LIMIT_SECONDS = 300


@pytest.fixture(scope="module")
def federation(consortium, tmp_path_factory):
    """Kits of which one site names its network itself."""
    folder = tmp_path_factory.mktemp("models")
    described = json.loads(phantom_site(OWN_CHOICE, folder).read_text())
    phantom_site("public", folder)
    locations = {"phantom": OWN_CHOICE, "public": "public"}
    own: dict = {
        name: {part: str(folder / drawn / place) for part, place in described["datasets"]["phantom"].items()}
        for name, drawn in locations.items()
    }
    own["public"]["public"] = True
    models = {"phantom": {"backbone": NETWORKS[OWN_CHOICE]}}
    (folder / "grandrounds.json").write_text(json.dumps({"datasets": own, "models": models}))
    with consortium(NETWORKS, {OWN_CHOICE: Settings(datasets=folder / "grandrounds.json")}) as made:
        yield made


def small(name, *assignments, networks=NAMED):
    job = with_options(load_job(name), [*TINY, f"executor.backbones={json.dumps(networks)}", *assignments])
    return with_roster(job, min_sites=2)


def finish(federation, job, out):
    """Submit a job, and give how it ended."""
    reported = []
    outcome = submit_and_watch(federation.kit(federation.researcher), job, out, reported.append)
    assert outcome.finished, reported
    return outcome


def contributors(summary):
    return [sorted(entry.get("contributors", ())) for entry in summary["rounds"]]


def test_hospitals_with_different_networks_learn_from_each_other_and_no_weight_leaves(
    federation, tmp_path, shared_cache
):
    job = with_roster(small("mdhfl"), mandatory=tuple(NETWORKS), min_sites=3)
    outcome = finish(federation, job, tmp_path / "results")
    summary = outcome.summary
    assert {site: entry["facts"]["backbone"] for site, entry in summary["registered"].items()} == NETWORKS
    assert [entry.get("contributors") for entry in summary["rounds"]] == [
        dict.fromkeys(NETWORKS, 1),
        dict.fromkeys(NETWORKS, 2),
        None,
    ]
    assert not list((outcome.download / "workspace" / "results").glob("*.pt"))
    for sent in summary["bytes"].values():
        assert set(sent) == {"up.soft_labels", "down.soft_labels"}
        assert sent["up.soft_labels"] == sent["down.soft_labels"]
        assert sent["up.soft_labels"] == (ROUNDS - 1) * 64 * CLASSES * 4
    alone = simulate(small("mdhfl", networks=NETWORKS), tmp_path / "alone", list(NETWORKS))
    for site, tested in alone["records"].items():
        for model, record in summary["records"][site].items():
            expected = {name: tested[model]["exact"][name] for name in record["exact"]}
            assert record["exact"] == pytest.approx(expected, rel=1e-6)
    for site, network in NETWORKS.items():
        kept = next((federation.kits / site).rglob("mdhfl/**/own_last.pt"))
        described = json.loads(kept.with_suffix(".json").read_text())
        assert described["model"]["backbone"] == network
        there = torch.load(next((tmp_path / "alone").glob(f"state/*/{site}/own_last.pt")), weights_only=True)
        here = torch.load(kept, weights_only=True)
        assert all(torch.equal(here[entry], there[entry]) for entry in there)


def record_of(federation, run_name):
    return federation.kits / federation.server / "grandrounds" / run_name / "server"


def content_of(server):
    """The server's last checkpoint."""
    return torch.load(max(server.glob("round_*.pt")), weights_only=True)["content"]


def soft_labels_at(server):
    """The last soft labels of each site, as the server keeps them."""
    return content_of(server)["method"]["soft_labels"]["values"]


def test_the_others_go_on_without_a_hospital_that_leaves_and_learn_from_it_when_it_is_back(federation, tmp_path):
    away = ("controller.run_name=away", "controller.validate_every=0")
    first = in_background(
        federation, small("mdhfl", *away, "controller.rounds=4", "controller.grace=20"), tmp_path / "1"
    )
    until(lambda: any(e["event"] == "round_start" and e["round"] == 2 for e in events(federation, "away")))
    # In this order: a parent that sees its job die ends the run for all.
    for module in ("client_train", "worker_process"):
        (process,) = running_module(federation.kits / OWN_CHOICE, module)
        os.kill(process, signal.SIGKILL)
    summary = first().summary
    assert contributors(summary)[2:] == [sorted(NAMED), []]
    assert OWN_CHOICE not in summary["records"]
    # FLARE starts it again, and lets it into the next job.
    await_clients(federation, NETWORKS)
    # Who has missed rounds twice is left out for two more.
    summary = finish(federation, small("mdhfl", *away, "controller.rounds=8"), tmp_path / "2").summary
    assert contributors(summary)[-2:] == [sorted(NETWORKS), []]
    assert learnt_from_others(federation, "away", 8) == set(NETWORKS)
    assert set(summary["records"]) == set(NETWORKS)


def in_background(federation, job, out):
    """Start a run; what is returned waits for its end."""
    found = []
    thread = threading.Thread(target=lambda: found.append(finish(federation, job, out)), daemon=True)
    thread.start()

    def end():
        thread.join(LIMIT_SECONDS)
        return found[0]

    return end


def events(federation, run_name):
    record = record_of(federation, run_name)
    return read_events(record) if (record / EVENTS).is_file() else []


def learnt_from_others(federation, run_name, number):
    """The sites that have reported how far they were from the others in a round."""
    return {
        event["site"]
        for event in events(federation, run_name)
        if event["event"] == "answer" and (event["round"], event["task"]) == (number, "train")
        if event["metrics"].get("alignment_loss", 0) > 0
    }


def until(condition):
    deadline = time.monotonic() + LIMIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)
