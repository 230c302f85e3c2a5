"""Hospitals from startup kits solve a head by ridge regression, as they do in one process."""

import json

import pytest
import torch

from grandrounds.deployment.assignments import with_options
from grandrounds.deployment.jobs import load_job
from grandrounds.deployment.simulate import simulate
from grandrounds.deployment.submission import submit_and_watch, with_roster
from grandrounds.methods.ridge.executor import RidgeExecutor

pytestmark = pytest.mark.provisioned

HOSPITALS = ("hospital-a", "hospital-b")
MINIMUM = 2
RULES = [
    {"kind": "sufficient_statistics", "name": name, "treatment": "minimum_support", "minimum": MINIMUM}
    for name in ("class_counts", "sums")
]
OPTIONS = ["controller.round_timeout=120", "executor.device=cpu", "executor.cpu_threads=1"]


def allow(federation):
    """No policy of the package lets sums out."""
    for hospital in HOSPITALS:
        policy = federation.kits / hospital / "local" / "privacy.json"
        content = json.loads(policy.read_text())
        content["scopes"][0]["properties"]["grandrounds"]["releases"] += RULES
        policy.write_text(json.dumps(content))


@pytest.fixture(scope="module")
def federation(consortium):
    with consortium(HOSPITALS, change=allow) as made:
        yield made


def test_the_head_is_that_of_one_process_and_a_class_of_one_patient_is_in_no_sum(
    federation, tmp_path, shared_cache, monkeypatch
):
    job = with_roster(with_options(load_job("ridge"), OPTIONS), mandatory=HOSPITALS, min_sites=2)
    reported = []
    outcome = submit_and_watch(federation.kit(federation.researcher), job, tmp_path / "results", reported.append)
    assert outcome.finished, reported
    assert outcome.summary["rounds"][0]["ridge"]["class_counts"]["clustered"] == 0
    monkeypatch.setattr(RidgeExecutor, "minimum", lambda self, context: MINIMUM)  # a simulation has no gate
    alone = simulate(job, tmp_path / "alone", list(HOSPITALS))
    notes = [[entry["ridge"] for entry in one["rounds"]] for one in (outcome.summary, alone)]
    assert notes[0] == notes[1]
    for name in ("last.pt", "selected.pt"):
        here = torch.load(outcome.download / "workspace" / "results" / name, weights_only=True)
        there = torch.load(tmp_path / "alone" / "results" / name, weights_only=True)
        assert here.keys() == there.keys()
        assert all(torch.equal(here[entry], there[entry]) for entry in here)
