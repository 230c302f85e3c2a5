"""A run that was interrupted anywhere ends as if it had not been."""

import json
import os
import shutil
from multiprocessing import get_context

import pytest

from grandrounds.console.progress import RunProgress
from grandrounds.deployment.jobs import write_job
from grandrounds.deployment.simulate import simulate
from grandrounds.errors import GrandRoundsError
from grandrounds.federation.checkpoints import CheckpointFolder
from grandrounds.federation.engine import run_in_process
from grandrounds.federation.server import controller
from grandrounds.federation.server.record import RunRecord, read_events
from grandrounds.files import exclusive
from grandrounds.reporting.runs import read_run
from tests.federations import as_between_kits

SITES = ["site-1", "site-2", "site-3"]
OPTIONS = {
    "fedperl": ["controller.sites_per_round=2", "controller.warm_up=1", "controller.rounds=4"],
    "local": ["controller.rounds=3"],
}


@pytest.fixture(scope="module")
def whole(tiny, run, tmp_path_factory):
    """The runs that nothing interrupted, by job."""
    return {name: run(tiny(name, *options), tmp_path_factory.mktemp(name)) for name, options in OPTIONS.items()}


def interrupted(job, event, round_number, party="server", hard=False):
    """The job with a power cut."""
    arguments = {"event": event, "round_number": round_number, "party": party, "hard": hard}
    configuration = job.server if party == "server" else job.client
    configuration["components"].append({"id": "cut", "path": "faulty.Interrupt", "args": arguments})
    return job


CUTS = [
    ("fedperl", "_round_done", 1, "server"),
    ("fedperl", "_round_started", 2, "server"),
    ("fedperl", "_round_done", 3, "server"),
    ("fedperl", "_round_started", 4, "server"),
    ("fedperl", "_before_task_execution", 2, "site-2"),
    ("fedperl", "_after_task_execution", 3, "site-2"),
    ("fedperl", "_before_task_execution", 5, "site-3"),
    ("local", "_round_done", 1, "server"),
    ("local", "_round_started", 3, "server"),
    ("local", "_after_task_execution", 2, "site-2"),
    ("local", "_after_task_execution", 3, "site-3"),
    ("local", "_after_task_execution", 4, "site-2"),
]


@pytest.mark.parametrize(("name", "event", "round_number", "party"), CUTS)
def test_a_run_cut_at_any_moment_ends_like_one_that_was_not(
    tiny, run, whole, assert_same_run, tmp_path, name, event, round_number, party
):
    """One round more than there are is the scoring and testing at the end."""
    cut = interrupted(tiny(name, *OPTIONS[name]), event, round_number, party)
    with pytest.raises(KeyboardInterrupt):
        simulate(cut, tmp_path, SITES)
    assert_same_run(run(tiny(name, *OPTIONS[name]), tmp_path), whole[name])


@pytest.mark.parametrize("moment", [2, 3, 5, 7])
def test_a_run_cut_while_a_checkpoint_is_written_ends_like_one_that_was_not(
    tiny, run, whole, assert_same_run, tmp_path, monkeypatch, moment
):
    """Each checkpoint is several files; the cut comes before the ``moment``-th of them gets its name."""
    renamed = []
    original = os.replace

    def replace(source, target):
        if "server" in str(target) and str(target).endswith(".pt"):
            renamed.append(target)
            if len(renamed) == moment:
                raise KeyboardInterrupt
        original(source, target)

    job = tiny("fedperl", *OPTIONS["fedperl"])
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", replace)
        with pytest.raises(KeyboardInterrupt):
            simulate(job, tmp_path, SITES)
    assert_same_run(run(job, tmp_path), whole["fedperl"])


def test_a_process_that_is_killed_leaves_a_run_that_can_go_on(tiny, run, whole, assert_same_run, tmp_path):
    job = interrupted(tiny("fedperl", *OPTIONS["fedperl"]), "_after_task_execution", 3, "site-1", hard=True)
    process = get_context("fork").Process(target=simulate, args=(job, tmp_path / "run", SITES))
    process.start()
    process.join(timeout=600)
    assert process.exitcode == 9
    assert_same_run(run(tiny("fedperl", *OPTIONS["fedperl"]), tmp_path / "run"), whole["fedperl"])


def test_events_of_rounds_that_were_done_again_are_void(tiny, run, tmp_path):
    job = tiny("ssfl", "controller.rounds=2")
    with pytest.raises(KeyboardInterrupt):
        simulate(interrupted(tiny("ssfl", "controller.rounds=2"), "_round_done", 2), tmp_path, SITES)
    found = run(job, tmp_path)
    ends = [event["round"] for event in read_events(found.record) if event["event"] == "round_end"]
    assert ends == [1, 2]
    raw = (found.record / "events.jsonl").read_text()
    assert raw.count('"round_end"') == 3


def test_a_pausing_site_continues_to_pause(tiny, run, tmp_path):
    def job():
        made = tiny("fedperl", "controller.rounds=4")
        entry = made.client["executors"][0]["executor"]
        entry["path"] = "faulty.FaultyExecutor"
        entry["args"] |= {"at": "site-2", "rounds": [2, 3], "how": "nan"}
        return made

    with pytest.raises(KeyboardInterrupt):
        simulate(interrupted(job(), "_round_started", 4), tmp_path, SITES)
    rounds = run(job(), tmp_path).summary["rounds"]
    assert [entry["asked"] for entry in rounds] == [SITES, SITES, SITES, ["site-1", "site-3"]]


def test_more_rounds_go_on_from_where_it_ended(tiny, run, tmp_path, identical):
    run(tiny("ssfl", "controller.rounds=2"), tmp_path / "a")
    longer = run(tiny("ssfl", "controller.rounds=3"), tmp_path / "a")
    at_once = run(tiny("ssfl", "controller.rounds=3"), tmp_path / "b")
    assert identical(longer.models, at_once.models)
    assert longer.summary["rounds_done"] == 3
    assert longer.summary["selected"] == at_once.summary["selected"]


def test_fewer_rounds_than_are_done_are_refused(tiny, run, tmp_path):
    run(tiny("fedavg", "controller.rounds=3"), tmp_path)
    with pytest.raises(GrandRoundsError, match=r"'fedavg'.*done 3"):
        simulate(tiny("fedavg", "controller.rounds=2"), tmp_path, SITES)


def test_a_completed_run_does_not_train_again(tiny, run, tmp_path, assert_same_run):
    job = tiny("ssfl", "controller.rounds=2")
    first = run(job, tmp_path)
    trained = [event for event in read_events(first.record) if event.get("task") == "train"]
    again = run(job, tmp_path)
    assert first.summary["rounds"] == again.summary["rounds"]
    after = [event for event in read_events(again.record) if event.get("task") == "train"]
    assert len(after) == len(trained)
    assert_same_run(first, again)


def test_a_finished_run_is_not_written_again(tiny, run, tmp_path, monkeypatch):
    first = run(tiny("ssfl", "controller.rounds=1"), tmp_path)
    before = {path.name: path.read_bytes() for path in first.record.iterdir() if path.is_file()}
    monkeypatch.setenv("GRANDROUNDS_STATE", str(tmp_path / "state"))
    monkeypatch.setattr(controller, "in_kit", lambda fl_ctx: True)
    run_in_process(write_job(tiny("ssfl", "controller.rounds=1"), tmp_path / "again"), tmp_path / "flare-again", SITES)
    assert {path.name: path.read_bytes() for path in first.record.iterdir() if path.is_file()} == before
    (download,) = (tmp_path / "flare-again").rglob("results/summary.json")
    copy = json.loads(download.read_text())
    assert copy["models"] == first.summary["models"]
    assert (download.parent / "selected.pt").read_bytes() == before["selected.pt"]
    assert len(copy["remarks"]) == len(first.summary["remarks"]) + 1


@pytest.mark.parametrize("rounds", [1, 2])
def test_a_finished_run_is_refused_with_other_options_of_the_sites(tiny, run, tmp_path, monkeypatch, rounds):
    first = run(tiny("ssfl", "controller.rounds=1"), tmp_path)
    job = tiny("ssfl", f"controller.rounds={rounds}", "executor.learning_rate=0.5")
    rate = first.summary["configuration"]["executor"]["learning_rate"]
    error, download, record = in_process(job, tmp_path, monkeypatch)
    assert f"executor.learning_rate was {rate}, is 0.5" in error
    assert record == first.summary
    assert download["status"] == "refused"
    assert not [path for path in first.record.iterdir() if path.suffix == ".bad"]


def test_options_of_a_machine_may_change(tiny, run, tmp_path, monkeypatch):
    run(tiny("ssfl", "controller.rounds=1"), tmp_path)
    monkeypatch.setenv("GRANDROUNDS_STATE", str(tmp_path / "state"))
    job = tiny("ssfl", "controller.rounds=2", "executor.cpu_threads=1", "executor.prefetch=off")
    run_in_process(write_job(job, tmp_path / "again"), tmp_path / "flare-again", SITES)
    (download,) = (tmp_path / "flare-again").rglob("results/summary.json")
    assert json.loads(download.read_text())["rounds_done"] == 2


def test_the_record_alone_has_the_options_of_the_sites(tiny, run, tmp_path):
    first = run(tiny("ssfl", "controller.rounds=1", "executor.learning_rate=0.002"), tmp_path / "run")
    shutil.copytree(first.record, tmp_path / "download")
    assert read_run(tmp_path / "download", "run").origin.options["learning_rate"] == 0.002


def test_never_starts_again(tiny, run, tmp_path, identical):
    first = run(tiny("fedperl", "controller.rounds=2", "controller.warm_up=1"), tmp_path)
    job = tiny("fedperl", "controller.rounds=2", "controller.warm_up=1", "controller.resume=never")
    again = run(job, tmp_path)
    assert first.summary["rounds"] != again.summary["rounds"], "their durations differ"
    assert identical(first.models, again.models)
    assert sum(event["event"] == "start" for event in read_events(again.record)) == 1


def test_a_new_start_with_another_seed_keeps_nothing_of_the_old_one(tiny, run, tmp_path, assert_same_run):
    """Not even what the old one had trained: it would come back when the new one is interrupted and resumed."""
    options = ["controller.rounds=3", "controller.warm_up=1", "controller.seed=5"]
    run(tiny("fedperl", *options[:2]), tmp_path / "a")
    fresh = tiny("fedperl", *options, "controller.resume=never")
    with pytest.raises(KeyboardInterrupt):
        simulate(interrupted(fresh, "_round_started", 2), tmp_path / "a", SITES)
    resumed = run(tiny("fedperl", *options), tmp_path / "a")
    assert_same_run(resumed, run(tiny("fedperl", *options), tmp_path / "b"))


def test_require_fails_without_a_checkpoint(tiny, tmp_path):
    with pytest.raises(GrandRoundsError, match=r"resume=require, but .*server has no checkpoint of 'ssfl'"):
        simulate(tiny("ssfl", "controller.resume=require"), tmp_path, SITES)
    summary = json.loads((tmp_path / "state" / "ssfl" / "server" / "summary.json").read_text())
    assert summary["status"] == "failed"
    assert summary["reason"].startswith("resume=require")


def test_require_goes_on_with_one(tiny, run, tmp_path):
    run(tiny("ssfl", "controller.rounds=1"), tmp_path)
    found = run(tiny("ssfl", "controller.rounds=2", "controller.resume=require"), tmp_path)
    assert found.summary["rounds_done"] == 2


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        ("controller.seed=2", "seed was 1, is 2"),
        ("problem.norm=group", "problem.norm was 'batch', is 'group'"),
        ("problem.channels=1", "problem.channels was 3, is 1"),
        ("controller.weighting=samples", "weighting was 'uniform', is 'samples'"),
    ],
)
def test_a_checkpoint_of_something_else_is_refused_in_one_line(tiny, run, tmp_path, change, difference):
    run(tiny("ssfl", "controller.rounds=1"), tmp_path)
    as_between_kits(tmp_path)
    with pytest.raises(GrandRoundsError) as refusal:
        simulate(tiny("ssfl", "controller.rounds=2", change), tmp_path, SITES)
    message = str(refusal.value)
    assert difference in message
    assert "use another run_name, or resume=never" in message
    assert "\n" not in message


def in_process(job, workspace, monkeypatch):
    """The error of a job that fails, its download's summary, and that of the server."""
    monkeypatch.setenv("GRANDROUNDS_STATE", str(workspace / "state"))
    with pytest.raises(GrandRoundsError) as error:
        run_in_process(write_job(job, workspace / "again"), workspace / "flare-again", SITES)
    (download,) = (workspace / "flare-again").rglob("results/summary.json")
    record = workspace / "state" / "ssfl" / "server" / "summary.json"
    return str(error.value), json.loads(download.read_text()), json.loads(record.read_text())


def test_a_finished_run_stays_as_it_is_where_another_job_is_refused(tiny, run, tmp_path, monkeypatch):
    first = run(tiny("ssfl", "controller.rounds=1"), tmp_path)
    job = tiny("ssfl", "controller.rounds=2", "controller.seed=2")
    error, download, record = in_process(job, tmp_path, monkeypatch)
    assert record == first.summary
    assert (download["status"], download["reason"], download["rounds_done"]) == ("refused", error, 1)


def test_a_run_that_cannot_go_on_is_closed_in_both_records_and_keeps_its_rounds(tiny, tmp_path, monkeypatch):
    """As after a crash of the server, the record says that it is running."""
    options = ["controller.rounds=13", "controller.validate_every=0"]
    with pytest.raises(KeyboardInterrupt):
        simulate(interrupted(tiny("ssfl", *options), "_round_started", 13), tmp_path, SITES)
    record = tmp_path / "state" / "ssfl" / "server"
    assert json.loads((record / "summary.json").read_text())["status"] == "running"
    for path in record.glob("round_*.pt"):
        cut_file(path)
    error, download, kept = in_process(tiny("ssfl", *options), tmp_path, monkeypatch)
    assert download == kept
    assert (kept["status"], kept["reason"], kept["rounds_done"]) == ("failed", error, 12)
    assert [entry["round"] for entry in kept["rounds"]] == list(range(1, 13))
    assert kept["contributions"] == dict.fromkeys(SITES, 12)


def test_a_second_job_of_the_same_run_is_refused_and_leaves_the_record_alone(tiny, run, tmp_path, monkeypatch):
    first = run(tiny("ssfl", "controller.rounds=1"), tmp_path)
    before = [(first.record / name).read_text() for name in ("summary.json", "events.jsonl")]
    monkeypatch.setenv("GRANDROUNDS_STATE", str(tmp_path / "state"))
    job = write_job(tiny("ssfl", "controller.rounds=2"), tmp_path / "second")
    with exclusive(first.record), pytest.raises(GrandRoundsError, match="another job is using this run"):
        run_in_process(job, tmp_path / "flare", SITES)
    assert [(first.record / name).read_text() for name in ("summary.json", "events.jsonl")] == before


def test_the_checkpoint_holds_the_last_round(tiny, run, tmp_path):
    found = run(tiny("fedperl", "controller.rounds=3"), tmp_path)
    assert CheckpointFolder(found.record, {}).rounds() == [1, 2, 3]


@pytest.mark.parametrize(("name", "interval", "cut_in"), [("local", 4, 8), ("fedperl", 3, 6)])
def test_a_run_with_rare_checkpoints_goes_back_further_and_ends_the_same(
    tiny, run, assert_same_run, tmp_path, name, interval, cut_in
):
    """Sites keep their states of the checkpoint, however many rounds ago it was; the cut comes before the next one."""
    options = [
        *OPTIONS[name],
        f"controller.rounds={cut_in}",
        "executor.steps=1",
        f"controller.checkpoint_every={interval}",
    ]
    with pytest.raises(KeyboardInterrupt):
        simulate(interrupted(tiny(name, *options), "_round_done", cut_in), tmp_path / "cut", SITES)
    resumed = run(tiny(name, *options), tmp_path / "cut", SITES)
    assert_same_run(resumed, run(tiny(name, *options), tmp_path / "whole", SITES))
    (went_on,) = [event for event in read_events(resumed.record) if event["event"] == "resume"]
    assert went_on["after_round"] == cut_in - interval


def test_events_are_on_disk_before_a_checkpoint_relies_on_them(tiny, run, tmp_path, monkeypatch):
    order = []

    def noted(kind, name):
        original = getattr(kind, name)

        def called(self, *arguments, **options):
            if self.folder.name == "server":
                order.append(name)
            return original(self, *arguments, **options)

        monkeypatch.setattr(kind, name, called)

    noted(RunRecord, "sync")
    noted(CheckpointFolder, "save")
    run(tiny("fedavg", "controller.rounds=2", "controller.validate_every=0"), tmp_path, SITES[:2])
    assert order == ["sync", "save"] * 2


def cut_file(path):
    path.write_bytes(path.read_bytes()[:1000])


@pytest.mark.parametrize("damage", [cut_file, os.unlink])
def test_a_lost_newest_checkpoint_costs_one_round_and_is_told(tiny, run, whole, assert_same_run, tmp_path, damage):
    cut = interrupted(tiny("fedperl", *OPTIONS["fedperl"]), "_round_started", 4)
    with pytest.raises(KeyboardInterrupt):
        simulate(cut, tmp_path, SITES)
    damage(tmp_path / "state" / "fedperl" / "server" / "round_00003.pt")
    found = run(tiny("fedperl", *OPTIONS["fedperl"]), tmp_path)
    (remark,) = found.summary["remarks"]
    assert remark.startswith("the checkpoint after round 3 is ")
    assert remark.endswith("; the run goes on after round 2")
    events = read_events(found.record)
    assert [event["text"] for event in events if event["event"] == "remark"] == [remark]
    assert RunProgress().update(next(event for event in events if event["event"] == "remark")) == [remark]
    assert read_run(tmp_path, "fedperl").log.remarks == (remark,)
    assert_same_run(found, whole["fedperl"])


def test_a_run_whose_checkpoints_are_all_gone_says_that_it_starts_again(tiny, run, tmp_path):
    first = run(tiny("ssfl", "controller.rounds=2"), tmp_path)
    for path in first.record.glob("round_*.pt"):
        path.unlink()
    found = run(tiny("ssfl", "controller.rounds=2"), tmp_path)
    assert found.summary["remarks"] == ["the checkpoint after round 2 is missing; the run goes on after round 0"]
    assert found.summary["rounds_done"] == 2
