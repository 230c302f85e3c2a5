"""Hospitals from startup kits solve a head by ridge regression, as they do in one process."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from grandrounds.data.site import LABELLED_NAME
from grandrounds.deployment.jobs import load_job
from grandrounds.deployment.presets import with_options
from grandrounds.deployment.reference import submit_reference
from grandrounds.deployment.simulate import simulate
from grandrounds.deployment.submission import submit_and_watch, with_roster
from grandrounds.reporting.run import reference_sentences

pytestmark = [pytest.mark.provisioned, pytest.mark.slow]

HOSPITALS = ("hospital-a", "hospital-b", "hospital-c")
OPTIONS = ["controller.round_timeout=120", "executor.device=cpu", "executor.cpu_threads=1"]


@pytest.fixture(scope="module")
def federation(consortium):
    """With the policy ``open`` as it is shipped."""
    with consortium(HOSPITALS) as made:
        yield made


def test_the_first_job_of_an_open_federation_gives_the_head_of_one_process(federation, tmp_path, shared_cache):
    """``grandrounds poc submit FOLDER``, without a method or a data set."""
    given = [argument for option in OPTIONS for argument in ("--set", option)]
    command = [sys.executable, "-m", "grandrounds", "poc", "submit", str(federation.folder), "--json", *given]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    assert ended.returncode == 0, ended.stderr
    outcome = json.loads(ended.stdout)
    assert outcome["summary"]["contributions"].keys() == set(HOSPITALS)
    job = with_options(load_job("ridge"), [*OPTIONS, f"problem.dataset={LABELLED_NAME}"])
    alone = simulate(job, tmp_path / "alone", list(HOSPITALS))
    for kits, one in zip(outcome["summary"]["rounds"], alone["rounds"], strict=True):
        assert kits["ridge"].keys() == one["ridge"].keys()
        errors = [notes["ridge"].get("held_out_errors", {}) for notes in (kits, one)]
        assert errors[0] == pytest.approx(errors[1], rel=1e-9)
        assert all(kits["ridge"][name] == one["ridge"][name] for name in kits["ridge"] if name != "held_out_errors")
    for name in (
        "last.pt",
        "selected.pt",
    ):  # the sums are equal to the bit, a solve with another number of threads is not
        here = torch.load(Path(outcome["download"]) / "workspace" / "results" / name, weights_only=True)
        there = torch.load(tmp_path / "alone" / "results" / name, weights_only=True)
        assert here.keys() == there.keys()
        for entry in here:
            torch.testing.assert_close(here[entry], there[entry], rtol=1e-6, atol=1e-6)


def test_another_method_has_the_row_where_policies_let_sums_out(federation, tmp_path, shared_cache):
    """And says so where they do not: ``submit --reference`` is a job of its own, which each site's policy decides on."""
    kit, job = federation.kit(federation.researcher), trained("with-row")
    finished = submit_and_watch(kit, job, tmp_path / "results", print)
    entry = submit_reference(job, finished, kit, tmp_path / "results", print)
    assert entry["records"].keys() == set(HOSPITALS)
    shown = reference_sentences(json.loads((finished.download / "workspace" / "results" / "summary.json").read_text()))
    assert shown == [f"ridge: {entry['told']}"]
    assert "the run's network" in entry["told"]


def test_a_policy_without_a_rule_for_sums_is_the_reason_for_no_row(federation, tmp_path, shared_cache):
    for site in HOSPITALS:
        path = federation.kits / site / "local" / "privacy.json"
        allowed = path.read_text()
        content = json.loads(allowed)
        scope = content["scopes"][0]["properties"]["grandrounds"]
        scope["releases"] = [rule for rule in scope["releases"] if rule["kind"] != "sufficient_statistics"]
        path.write_text(json.dumps(content))
    kit, job = federation.kit(federation.researcher), trained("without-row")
    finished = submit_and_watch(kit, job, tmp_path / "results", print)
    entry = submit_reference(job, finished, kit, tmp_path / "results", print)
    assert entry["reason"].startswith("not computed: policy"), entry
    assert finished.finished


def trained(name):
    options = [f"controller.run_name={name}", "controller.rounds=1", "executor.steps=1", "executor.batch_size=4"]
    options.append(f"problem.dataset={LABELLED_NAME}")
    job = with_options(load_job("fedavg"), [*OPTIONS, *options])
    return with_roster(job, mandatory=HOSPITALS, min_sites=3).checked()
