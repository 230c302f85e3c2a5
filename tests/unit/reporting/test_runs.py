"""A run is found and read in whatever state it is, and what is none is refused with its reason."""

import json
import shutil
from pathlib import Path

import pytest

from grandrounds.errors import ConfigurationError, DataError
from grandrounds.evaluation.curves.binned import write_curves
from grandrounds.evaluation.tables_of_cases import site_curves
from grandrounds.privacy.ledger.ledger import Ledger
from grandrounds.reporting.external.prediction import trained_model
from grandrounds.reporting.figures.runs import run_drawings
from grandrounds.reporting.model import report_on
from grandrounds.reporting.runs import named_runs, read_history, read_run, split_argument


def test_a_finished_run(make_run):
    run = read_run(make_run(), "mine")
    assert (run.name, run.log.method, run.log.seed, run.tests.model, run.log.rounds) == (
        "mine",
        "FedPerl",
        1,
        "common",
        3,
    )
    assert run.log.sites == ("site-1", "site-2", "site-10")  # in natural order
    assert {site: cases.count for site, cases in run.tests.predictions.items()} == dict.fromkeys(run.log.sites, 40)
    assert run.log.complete
    assert run.tests.unit == "image"
    assert run.origin.notes == ()


def test_the_results_folder_itself_is_a_run_too(make_run):
    assert read_run(make_run() / "results", "x").log.sites == ("site-1", "site-2", "site-10")


def test_a_run_that_was_killed_is_found_in_the_servers_state(make_run, tmp_path):
    workspace = make_run(sites=(), status="running", rounds_done=2, test={})
    server = workspace / "state" / "fedperl" / "server"
    server.parent.mkdir(parents=True)
    shutil.move(workspace / "results", server)
    run = read_run(workspace, "killed")
    assert (run.log.status, run.log.rounds_done, run.tests.predictions) == ("running", 2, {})
    shutil.copytree(server, workspace / "state" / "other" / "server")
    with pytest.raises(ConfigurationError, match="has several runs"):
        read_run(workspace, "killed")


@pytest.fixture
def events(make_run):
    """The file of a run's events."""
    return make_run() / "results" / "events.jsonl"


@pytest.mark.parametrize(
    ("change", "lost", "noted"),
    [
        (lambda text: text[:-20], 1, "an event was cut off"),
        (lambda text: text.replace('"round": 2', '"round": ', 2), 2, "2 events were cut off"),
    ],
)
def test_events_that_were_cut_off_are_left_out_and_counted(events, change, lost, noted):
    workspace = events.parents[1]
    whole = read_run(workspace, "x").log.events
    events.write_text(change(events.read_text()))
    run = read_run(workspace, "x")
    assert len(run.log.events) == len(whole) - lost
    assert all(event in whole for event in run.log.events)
    assert run.origin.notes == (f"{noted}: the process ended while it wrote",)


def test_an_invalid_event_is_refused(events):
    events.write_text(events.read_text() + "[1]\n")
    with pytest.raises(DataError, match=r"events\.jsonl"):
        read_run(events.parents[1], "x")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text[: len(text) // 2], r"summary\.json is not valid JSON .*it was cut or altered"),
        (lambda text: "[]", "expected an object, got list"),
        (lambda text: "{}", "has format 1, this version of grandrounds reads format 2"),
        (lambda text: text.replace('"status": "finished", ', ""), "status must be text, got None"),
        (lambda text: text.replace('"rounds_done": 3', '"rounds_done": "3"'), "rounds_done must be an integer"),
        (lambda text: text.replace('"dataset": "skin", ', ""), "must have a data set and classes"),
    ],
)
def test_an_invalid_summary_is_refused(make_run, change, message):
    workspace = make_run()
    path = workspace / "results" / "summary.json"
    path.write_text(change(path.read_text()))
    with pytest.raises(DataError, match=message):
        read_run(workspace, "x")


def test_a_folder_that_is_not_a_run_is_refused(tmp_path):
    with pytest.raises(ConfigurationError, match=r"there.*summary\.json"):
        read_run(tmp_path, "x")
    with pytest.raises(ConfigurationError, match="does not exist"):
        read_run(tmp_path / "nowhere", "x")


@pytest.mark.parametrize("place", ["server/simulate_job", "workspace"])
def test_what_flares_simulator_or_a_download_gives_is_a_run(make_run, tmp_path, place):
    expected = read_run(make_run(), "x")
    folder = tmp_path / "flare" / "fedavg"
    (folder / place).mkdir(parents=True)
    (tmp_path / "run" / "results").rename(folder / place / "results")
    (folder / place / "results" / "selected.pt").touch()
    assert read_run(folder, "x").tests.sites.keys() == expected.tests.sites.keys()
    assert read_history(folder)
    assert trained_model(folder).networks[0].path == folder / place / "results" / "selected.pt"
    with pytest.raises(ConfigurationError, match=rf"its subfolders are, name {folder.parent}/\* or one"):
        read_run(folder.parent, "x")


def test_a_folder_of_runs_says_that_they_are_inside(make_run):
    folder = make_run().parent
    with pytest.raises(ConfigurationError, match=rf"{folder} is no run: its subfolders are, name {folder}/\* or one"):
        read_run(folder, "x")


def test_a_run_without_a_complete_round_is_reported(tmp_path):
    (tmp_path / "events.jsonl").write_text('{"event": "start", "rounds": 3, "sites": ["a"]}\n')
    with pytest.raises(ConfigurationError, match="stopped before its first round was complete"):
        read_run(tmp_path, "x")


def test_messages_of_sites_about_their_images_are_not_in_the_reason(make_run):
    reason = "round 2: 1 of 3 sites gave a valid result (site-1: patient-7.png (line 3) is broken); fix the sites"
    run = read_run(make_run(status="failed", reason=reason), "x")
    assert run.log.reason == "round 2: 1 of 3 sites gave a valid result; fix the sites"


def test_without_a_common_model_the_sites_own_are_scored(make_run):
    workspace = make_run(model="own", test={"site-1": {"own.n": 40.0, "own.accuracy": 0.8}}, configuration={
        "method": "LocalController", "problem": {"dataset": "skin", "classes": ["nevus", "melanoma", "other"]}})  # fmt: skip
    run = read_run(workspace, "x")
    assert run.tests.model == "own"
    assert run.log.is_local
    assert dict(run.tests.sites["site-1"].exact) == {"accuracy": 0.8}


def test_an_empty_ledger_reports_no_spending(make_run):
    workspace = make_run()
    Ledger.create(workspace / "state" / "run" / "site-1" / "privacy", "site-1")
    assert read_run(workspace, "x").origin.spent == ()


def test_options_of_the_executors_are_those_of_the_record(make_run):
    workspace = make_run()
    assert read_run(workspace, "x").origin.options == {}
    summary = json.loads((workspace / "results" / "summary.json").read_text())
    summary["configuration"]["executor"] = {"steps": 7}
    (workspace / "results" / "summary.json").write_text(json.dumps(summary))
    run = read_run(workspace, "x")
    assert run.origin.options == {"steps": 7}
    assert "executor" not in run.log.configuration


def test_the_wanted_model_is_scored_where_a_run_has_it(make_run):
    test = {site: {"common.n": 40, "own.n": 40} for site in ("site-1", "site-2", "site-10")}
    make_run(model="own", right=0.5)
    workspace = make_run(right=1.0, test=test)
    for model, right in ((None, 120), ("common", 120), ("own", 60)):
        run = read_run(workspace, "x", model=model)
        assert run.tests.model == (model or "common")
        assert sum(cases.confusion().trace() for cases in run.tests.predictions.values()) == right
    assert read_run(make_run("other"), "x", model="own").tests.model == "common"


def test_where_predictions_stayed_curves_are_of_the_counts_that_sites_let_out(make_run):
    workspace = make_run(right=0.5)
    read = read_run(workspace, "x")
    assert read.tests.curves == {}
    for site in ("site-1", "site-2"):
        counts = site_curves([read.tests.predictions[site]], read.classes)
        write_curves(workspace / "results" / site / "curves_common.json", counts, read.classes)
    for path in workspace.rglob("predictions_common.csv"):
        path.unlink()
    run = read_run(workspace, "x")
    assert list(run.tests.curves) == ["site-1", "site-2"]
    report = report_on([run])
    drawn = {drawing.name: drawing for drawing in run_drawings(report, report.first)}
    assert {"roc", "precision_recall", "risk_coverage", "reliability"} <= set(drawn)
    assert "Counts of site-1, site-2" in drawn["roc"].caption
    lines = {line.get_label() for line in drawn["roc"].figure.axes[0].lines}
    # Eight cases of the third class are too few, and with the second reported they could be had by subtraction.
    assert lines & set(run.classes) == {"nevus"}
    expected = "curves are of counts of several patients each and without site-10"
    assert any(expected in caveat for caveat in report.first.caveats)


def test_a_name_in_front_of_the_path():
    assert split_argument("two peers=runs/a") == ("two peers", Path("runs/a"))
    assert split_argument("runs/a") == (None, Path("runs/a"))
    assert split_argument("=runs/a") == (None, Path("=runs/a"))


def test_two_runs_of_one_name_are_refused():
    with pytest.raises(ConfigurationError, match=r"'x'.*NAME=RUN"):
        named_runs([("x", Path("a")), ("x", Path("b"))])
