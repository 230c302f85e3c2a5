"""Hospitals from startup kits align their encoders with one exchange in many iterations, as they do in one process."""

import json
import socket

import pytest
import torch

from grandrounds.deployment.jobs import load_job, with_options
from grandrounds.deployment.kit import processes_of
from grandrounds.deployment.local_federation import prepare, start, stop
from grandrounds.deployment.simulate import simulate
from grandrounds.deployment.submission import submit_and_watch, with_roster

pytestmark = pytest.mark.provisioned

HOSPITALS = ("hospital-a", "hospital-b")
ITERATIONS, PACE, ROUNDS = 4, 2, 4
LAYERS = ["layers.0.weight", "layers.0.bias", "layers.2.weight", "layers.2.bias"]
RULES = [
    {"kind": "embeddings", "name": "bank", "treatment": "as_it_is", "entries": ["embeddings"]},
    {"kind": "discriminator", "name": "discriminator", "treatment": "as_it_is", "entries": LAYERS},
]
SMALL = [
    f"controller.rounds={ROUNDS}",
    "controller.round_timeout=120",
    f"executor.iterations={ITERATIONS}",
    f"executor.pace={PACE}",
    "executor.warm_up=0",
    "executor.embedding_noise_source=seeded",
    "executor.device=cpu",
    "executor.cpu_threads=1",
]


def allow(policy):
    """Embeddings do not leave a hospital unless it says so."""
    content = json.loads(policy.read_text())
    content["scopes"][0]["properties"]["grandrounds"]["releases"] += RULES
    policy.write_text(json.dumps(content))


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    """Server and hospitals, up; afterwards nothing of them runs."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        port = probe.getsockname()[1]
    made = prepare(tmp_path_factory.mktemp("aligned") / "federation", HOSPITALS, port)
    for hospital in HOSPITALS:
        allow(made.kits / hospital / "local" / "privacy.json")
    try:
        start(made)
        yield made
    finally:
        stop(made)
    assert processes_of(made.folder) == []


def test_alignment_between_processes_takes_one_exchange_for_every_stretch_of_iterations(
    federation, tmp_path, shared_cache
):
    job = with_roster(with_options(load_job("fed_align_cl"), SMALL), mandatory=HOSPITALS, least=2)
    told = []
    outcome = submit_and_watch(federation.kit(federation.researcher), job, tmp_path / "results", told.append)
    assert outcome.finished, told
    summary = outcome.summary
    assert [entry["banks_from"] for entry in summary["rounds"]] == [list(HOSPITALS)] * ROUNDS
    alone = simulate(job, tmp_path / "alone", list(HOSPITALS))
    assert summary["bytes"] == alone["bytes"]
    for name in ("last.pt", "selected.pt"):
        here = torch.load(outcome.download / "workspace" / "results" / name, weights_only=True)
        there = torch.load(tmp_path / "alone" / "results" / name, weights_only=True)
        assert here.keys() == there.keys()
        assert all(torch.equal(here[entry], there[entry]) for entry in here)
    state = tmp_path / "alone" / "state" / "fed_align_cl" / "hospital-a" / "state" / f"round_{ROUNDS:05}.pt"
    steps = torch.load(state, weights_only=True)["content"]["optimizer.classification"]["state"][0]["step"]
    assert (int(steps), summary["contributions"]["hospital-a"]) == (ROUNDS * PACE, ROUNDS)
