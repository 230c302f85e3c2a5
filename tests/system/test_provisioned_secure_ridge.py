"""Hospitals from startup kits as shipped: the server sees sums alone, and no single answer."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from grandrounds.data.site import LABELLED_NAME
from grandrounds.deployment.jobs import load_job
from grandrounds.deployment.presets import with_options
from grandrounds.deployment.simulate import simulate
from grandrounds.federation.server.record import read_events
from grandrounds.files import file_digest
from grandrounds.protocol.refusal import Reason

pytestmark = [pytest.mark.provisioned, pytest.mark.slow]

HOSPITALS = ("hospital-a", "hospital-b", "hospital-c")
OPTIONS = ["controller.round_timeout=300", "executor.device=cpu", "executor.cpu_threads=1"]


@pytest.fixture(scope="module")
def federation(consortium):
    """As shipped: no policy, no data set and no option of the test's own."""
    with consortium(HOSPITALS, shipped=True) as made:
        yield made


def command(place, *words):
    """The output of a command; what it keeps for later is below a folder."""
    call = [sys.executable, "-m", "grandrounds", *map(str, words)]
    environment = {**os.environ, "MPLCONFIGDIR": str(place)}
    ended = subprocess.run(call, capture_output=True, text=True, timeout=900, check=False, env=environment)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.fixture(scope="module")
def submitted(federation, tmp_path_factory):
    """What the researcher's command says who submits no method and no option but of time and threads."""
    given = [argument for option in OPTIONS for argument in ("--set", option)]
    place = tmp_path_factory.mktemp("submitted")
    return json.loads(command(place, "poc", "submit", federation.folder, "--json", *given))


def test_a_job_without_options_gives_the_bits_of_a_simulation_and_a_table_a_report_and_an_export(
    federation, submitted, tmp_path, shared_cache
):
    outcome, download = submitted, Path(submitted["download"]) / "workspace"
    job = with_options(
        load_job("ridge"), [*OPTIONS, f"problem.dataset={LABELLED_NAME}", "controller.aggregation=secure"]
    )
    alone = simulate(job, tmp_path / "alone", list(HOSPITALS))
    for name in ("last.pt", "selected.pt"):
        here, there = (
            torch.load(folder / "results" / name, weights_only=True) for folder in (download, tmp_path / "alone")
        )
        assert here.keys() == there.keys()
        assert all(torch.equal(here[entry], value) for entry, value in there.items())
    summary = outcome["summary"]
    assert summary["summed"] == alone["summed"]
    assert [remark for remark in summary["remarks"] if "against a curious server only" in remark]
    assert [entry["ridge"] for entry in summary["rounds"]] == [entry["ridge"] for entry in alone["rounds"]]
    answers = [event for event in read_events(download / "results") if event["event"] == "answer"]
    assert {part["kind"] for event in answers for part in event.get("released", {}).values()} == {"masked_sum"}
    assert not any(event["metrics"] for event in answers)
    command(tmp_path, "report", download, "--out", tmp_path / "report")
    assert "tested on 360 images together" in (tmp_path / "report" / "report.html").read_text()
    command(tmp_path, "export", download, "--out", tmp_path / "export")
    assert (tmp_path / "export" / "model.safetensors").is_file()
    for site in HOSPITALS:
        shown = command(tmp_path, "status", "--kit", federation.kits / site, "--no-network")
        assert "test images of this site" in shown


def test_federated_averaging_starts_from_the_head_at_the_server_and_trains_and_selects_by_sums(
    federation, submitted, tmp_path, shared_cache
):
    same = [f"problem.dataset={LABELLED_NAME}", "problem.head=depths", "problem.trainable=head"]
    options = [*OPTIONS, *same, "controller.rounds=2", "executor.steps=2", "executor.batch_size=8"]
    given = [argument for option in options for argument in ("--set", option)]
    head = Path(submitted["download"])
    words = ("poc", "submit", federation.folder, "fedavg", "--json", "--start", head, *given)
    outcome = json.loads(command(tmp_path, *words))
    selected = head / "workspace" / "results" / "selected.pt"
    assert outcome["summary"]["configuration"]["start"] == file_digest(selected)
    events = read_events(Path(outcome["download"]) / "workspace" / "results")
    assert next(event["round"] for event in events if event["event"] == "score") == 0, "the head is scored first"
    answers = [event for event in events if event["event"] == "answer"]
    assert {part["kind"] for event in answers for part in event.get("released", {}).values()} == {"masked_sum"}
    assert not any(event["metrics"] for event in answers)
    assert {event["quantity"].split()[0] for event in events if event["event"] == "sum"} >= {"update", "scores_common"}
    assert [entry["answered"] for entry in outcome["summary"]["rounds"]] == [list(HOSPITALS)] * 2
    assert outcome["summary"]["selected"]["basis"] == "pooled"


@pytest.mark.parametrize(
    ("option", "reason"),
    [
        ((), "peers are single sites' models: leave that out, or have the sites take the policy open"),
        (("--set", "controller.aggregation=mean"), "out in a secure sum only, and the task asks for none"),
    ],
    ids=["by_the_server", "by_the_sites"],
)
def test_a_method_that_needs_single_answers_is_refused_once_and_before_it_starts(federation, option, reason):
    words = ["poc", "submit", federation.folder, "fedperl", "--resume", "auto", "--attempts", "3", *option]
    call = [sys.executable, "-m", "grandrounds", *map(str, words)]
    ended = subprocess.run(call, capture_output=True, text=True, timeout=900, check=False)
    assert ended.returncode == 1
    assert "attempt 2" not in ended.stderr
    assert reason in " ".join(ended.stdout.split())
    if option:
        assert all(f"{site}: " in ended.stdout for site in HOSPITALS)
        assert "shipped policies under which the job runs: open, strict" in ended.stdout
        kit = federation.kits / HOSPITALS[0]
        asked = [sys.executable, "-m", "grandrounds", "status", "--kit", str(kit), "--no-network", "--json"]
        shown = subprocess.run(asked, capture_output=True, text=True, timeout=300, check=False)
        assert shown.returncode == 1, "a refusal is a warning"
        assert json.loads(shown.stdout)["refused"]["reason"].startswith(Reason.SUM)
