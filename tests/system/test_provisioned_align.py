"""Hospitals from startup kits align their encoders with one exchange in many iterations, as they do in one process."""

import pytest
import torch

from grandrounds.deployment.jobs import load_job
from grandrounds.deployment.presets import with_options
from grandrounds.deployment.simulate import simulate
from grandrounds.deployment.submission import submit_and_watch, with_roster

pytestmark = [pytest.mark.provisioned, pytest.mark.slow]

HOSPITALS = ("hospital-a", "hospital-b")
ITERATIONS, PACE, ROUNDS = 4, 2, 4
LAYERS = ["layers.0.weight", "layers.0.bias", "layers.2.weight", "layers.2.bias"]
RULES = [
    {"kind": "embeddings", "name": "bank", "treatment": "unmodified", "entries": ["embeddings"]},
    {"kind": "discriminator", "name": "discriminator", "treatment": "unmodified", "entries": LAYERS},
]
SMALL = [
    f"controller.rounds={ROUNDS}",
    "controller.round_timeout=120",
    f"executor.iterations={ITERATIONS}",
    f"executor.pace={PACE}",
    "executor.warm_up=0",
    "executor.noise_source=seeded",
    "executor.device=cpu",
    "executor.cpu_threads=1",
]


@pytest.fixture(scope="module")
def federation(consortium, allowing):
    with consortium(HOSPITALS, change=allowing(HOSPITALS, RULES)) as made:  # embeddings do not leave without permission
        yield made


def test_alignment_between_processes_takes_one_exchange_for_every_stretch_of_iterations(
    federation, tmp_path, shared_cache
):
    job = with_roster(with_options(load_job("fed_align_cl"), SMALL), mandatory=HOSPITALS, min_sites=2)
    reported = []
    outcome = submit_and_watch(federation.kit(federation.researcher), job, tmp_path / "results", reported.append)
    assert outcome.finished, reported
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
