"""The record lists the events of a run, and a resumed run repeats none."""

import json
import os

import pytest

from grandrounds import __version__
from grandrounds.errors import CheckpointError, InUseError
from grandrounds.federation.server.record import FORMAT, RunRecord, absences, read_events, versions
from grandrounds.protocol.problem import Problem


def entry(number, answered, dropped=None):
    return {"round": number, "asked": ["a", "b"], "answered": answered, "dropped": dropped or {}}


def summary(folder):
    return json.loads((folder / "summary.json").read_text())


def test_the_summary_counts_rounds_contributions_and_bytes(tmp_path):
    record = RunRecord(tmp_path, {"rounds": 3, "seed": 1})
    record.close_round(entry(1, ["a", "b"]))
    record.close_round(entry(2, ["b"], {"a": "no answer"}))
    record.count_bytes("a", "down", {"global": 10, "peer-1": 4})
    record.count_bytes("a", "down", {"global": 10})
    record.count_bytes("a", "up", {"update": 7})
    metrics = {"a": {"own.round": 2.0, "own.n": 4, "own.accuracy": 0.5, "own.unit": 2.0}}
    record.note_tests(Problem(dataset="x", classes=("p", "q")), metrics, {})
    record.write("failed", "too few sites")
    found = summary(tmp_path)
    assert found["rounds_done"] == 2
    assert found["contributions"] == {"a": 1, "b": 2}
    assert found["bytes"] == {"a": {"down.global": 20, "down.peer-1": 4, "up.update": 7}}
    assert (found["status"], found["reason"]) == ("failed", "too few sites")
    assert found["rounds"][1]["dropped"] == {"a": "no answer"}
    assert found["configuration"] == {"rounds": 3, "seed": 1}
    assert found["records"] == {"a": {"own": {"images": 4, "unit": "patient", "exact": {"accuracy": 0.5}}}}
    assert (found["own_rounds"], found["format"]) == ({"a": 2}, FORMAT)
    assert found["versions"]["grandrounds"] == __version__


def test_a_job_that_waits_for_another_one_is_not_final_because_the_run_once_was(tmp_path):
    record = RunRecord(tmp_path / "run", {})
    record.close_round(entry(1, ["a", "b"]))
    record.final = True
    record.write("failed", "two of two sites refuse")
    record.refuse(InUseError("another job is using this run"), tmp_path / "job")
    found = summary(tmp_path / "job")
    assert (found["status"], found["in_use"], found["final"]) == ("refused", True, False)
    assert summary(tmp_path / "run")["final"]


def test_a_test_whose_number_of_images_a_policy_withholds_keeps_its_scores(tmp_path):
    record = RunRecord(tmp_path, {})
    metrics = {"a": {"common.accuracy": 0.75, "privacy.epsilon": 1.0, "loss": 2.0}}
    record.note_tests(Problem(dataset="x", classes=("p", "q")), metrics, {})
    assert list(record.tests["a"]) == ["common"]
    assert (record.tests["a"]["common"].images, record.tests["a"]["common"].score("accuracy").value) == (0, 0.75)


@pytest.mark.parametrize(
    ("connected", "test", "lost", "silent"),
    [
        (["a", "b"], {}, {}, {"a": 2}),
        (["a", "b"], {"a": {}}, {}, {}),  # back for the test
        (["a"], {}, {"b": 2}, {"a": 2}),
        ([], {}, {"a": 1, "b": 2}, {}),
        ([], {"a": {}, "b": {}}, {}, {}),
    ],
)
def test_lost_sites_are_not_connected_and_silent_ones_are(tmp_path, connected, test, lost, silent):
    record = RunRecord(tmp_path, {})
    record.close_round(entry(1, ["a", "b"]))
    record.close_round({**entry(2, ["b"], {"a": "no answer", "c": "its task failed"}), "silent": ["a"]})
    record.connected, record.tests = connected, test
    record.write("finished")
    assert (summary(tmp_path)["lost"], summary(tmp_path)["silent"]) == (lost, silent)


def test_a_site_is_silent_from_the_first_of_the_rounds_that_it_missed_until_it_replies(tmp_path):
    record = RunRecord(tmp_path, {})
    record.connected = ["a", "b"]
    for number, silent in ((1, []), (2, ["a"]), (3, ["a"]), (4, [])):
        record.close_round({**entry(number, ["b"], dict.fromkeys("a", "x")), "silent": silent})
        assert record.absent()["silent"] == ({"a": 2} if silent else {})


def test_a_paused_site_is_told_with_the_round_in_which_it_is_asked_again(tmp_path):
    record = RunRecord(tmp_path, {})
    record.connected, record.paused = ["a", "b"], {"b": 7, "c": 9}
    assert record.absent() == {"lost": {}, "silent": {}, "paused": {"b": 7}}
    assert absences({**record.absent(), "refused": {"d": "no images"}}) == {
        "d": "refused: no images",
        "b": "paused: asked again in round 7",
    }


def test_a_site_that_is_gone_after_a_resumption_is_lost(tmp_path):
    record = RunRecord(tmp_path, {})
    record.close_round(entry(1, ["a", "b"]))
    record.close_round({"round": 2, "asked": ["a"], "answered": ["a"], "dropped": {}})
    record.connected, record.tests = ["a"], {"a": {}}
    record.write("finished")
    assert summary(tmp_path)["lost"] == {"b": 1}


def rounds_with_a_late_site(record):
    for number, silent in ((1, []), (2, ["c"]), (3, []), (4, ["c"])):
        for site, samples in (("a", 60.0), ("b", 10.0), ("c", 30.0)):
            if site not in silent:
                record.event("answer", round=number, site=site, task="train", metrics={"samples": samples})
                record.note_training(site, number, {"samples": samples})
        answered = [site for site in "abc" if site not in silent]
        record.close_round({**entry(number, answered, dict.fromkeys(silent, "no answer")), "silent": silent})


def test_a_site_that_was_dropped_by_time_twice_is_named_with_its_share_of_the_images(tmp_path):
    record = RunRecord(tmp_path, {})
    rounds_with_a_late_site(record)
    told = (
        "c, with 30% of the training images that sites have reported, was dropped by time in rounds 2, 4: the result "
        "depends on deadlines"
    )
    assert record.remarks == [told]
    assert [event["text"] for event in read_events(tmp_path) if event["event"] == "remark"] == [told]
    resumed = RunRecord(tmp_path, {})
    resumed.load_state_dict(record.state_dict())
    assert resumed.remarks == [told]


@pytest.mark.parametrize(
    ("losses", "diverged"),
    [
        ((0.7, 0.6, 9.9), False),
        ((0.7, 0.6, 10.1), True),
        ((3, 29), False),
        ((50, 20, 5, 1), False),
        ((3.7, 36.5), False),
        ((3e7, 5e6), True),
    ],
)
def test_a_loss_that_explodes_is_called_diverged_once(tmp_path, losses, diverged):
    record = RunRecord(tmp_path, {})
    for number, loss in enumerate((*losses, losses[-1]), 1):
        for site, value in (("a", loss - 0.1), ("b", loss + 0.1)):
            record.note_training(site, number, {"loss": value})
        record.close_round(entry(number, ["a", "b"]))
    assert len(record.remarks) <= 1
    assert [remark.startswith("the training has diverged") for remark in record.remarks] == [True] * diverged


def test_the_summary_names_configuration_and_models_by_their_digests(tmp_path):
    """As sha256sum prints them: of the text {"a": 1, "b": [2]} and of the file's five bytes."""
    record = RunRecord(tmp_path, {"b": [2], "a": 1})
    (tmp_path / "last.pt").write_bytes(b"model")
    record.note_models(["last.pt"])
    record.write("finished")
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["configuration_sha256"] == "ae8a9a50524642753023cd4de34447191a8651989979c60bbcc5b0eeebb6e1dc"
    assert summary["models"] == {"last.pt": "9372c470eeadd5ecd9c3c74c2b3cb633f8e2f2fad799250a0f70d652b6b825e4"}


def test_registrations_are_in_the_order_of_the_sites_and_not_of_their_answers(tmp_path):
    record = RunRecord(tmp_path, {"rounds": 1})
    record.registered = {"site-10": {}, "site-2": {}, "site-1": {}}
    record.write("finished", "")
    assert list(summary(tmp_path)["registered"]) == ["site-1", "site-2", "site-10"]


def test_versions_name_what_computes_the_result():
    assert set(versions()) == {"grandrounds", "python", "torch", "nvflare", "numpy"}
    assert "unknown" not in versions().values()


def test_events_are_read_in_order(tmp_path):
    record = RunRecord(tmp_path, {})
    record.event("start", rounds=2)
    record.event("answer", round=1, site="a")
    record.close_round(entry(1, ["a"]))
    events = read_events(tmp_path)
    assert [event["event"] for event in events] == ["start", "answer", "round_end"]
    assert events[1]["site"] == "a"
    assert all(event["seconds"] >= 0 for event in events)


def test_a_resume_voids_what_was_written_about_later_rounds(tmp_path):
    record = RunRecord(tmp_path, {})
    record.event("start")
    for number in (1, 2, 3):
        record.event("answer", round=number, attempt=1)
    RunRecord(tmp_path, {}).event("resume", after_round=1)
    record.event("answer", round=2, attempt=2)
    RunRecord(tmp_path, {}).event("resume", after_round=2)
    record.event("answer", round=3, attempt=3)
    found = [(event["event"], event.get("round"), event.get("attempt")) for event in read_events(tmp_path)]
    assert found == [
        ("start", None, None),
        ("answer", 1, 1),
        ("resume", None, None),
        ("answer", 2, 2),
        ("resume", None, None),
        ("answer", 3, 3),
    ]


def test_a_fresh_start_forgets_the_events_of_another(tmp_path):
    record = RunRecord(tmp_path, {})
    record.restart()
    record.event("start")
    record.restart()
    record.event("start")
    assert len(read_events(tmp_path)) == 1


def test_a_record_goes_on_where_a_checkpoint_ends(tmp_path):
    record = RunRecord(tmp_path, {})
    record.close_round(entry(1, ["a", "b"]))
    record.count_bytes("a", "up", {"update": 7})
    saved = json.loads(json.dumps(record.state_dict()))
    record.close_round(entry(2, ["a"]))
    resumed = RunRecord(tmp_path, {})
    resumed.load_state_dict(saved)
    resumed.count_bytes("a", "up", {"update": 7})
    resumed.count_bytes("b", "up", {"update": 1})
    resumed.close_round(entry(2, ["b"]))
    resumed.write("finished")
    found = summary(tmp_path)
    assert found["contributions"] == {"a": 1, "b": 2}
    assert found["bytes"] == {"a": {"up.update": 14}, "b": {"up.update": 1}}


@pytest.mark.parametrize(("status", "lines"), [("running", 1), ("finished", 30)])
def test_a_summary_is_laid_out_for_people_when_the_run_has_ended(tmp_path, status, lines):
    record = RunRecord(tmp_path, {"rounds": 3})
    record.close_round(entry(1, ["a"]))
    record.write(status)
    assert summary(tmp_path)["rounds_done"] == 1
    found = (tmp_path / "summary.json").read_text().count("\n")
    assert found == 1 if lines == 1 else found >= lines


def test_what_a_round_writes_does_not_grow_with_their_number(tmp_path):
    record, sizes, states = RunRecord(tmp_path, {}), [], []
    for number in range(1, 101):
        record.close_round(entry(number, ["a", "b"]))
        record.note_score(number, "accuracy", {"metric": "accuracy", "score": 0.5, "mean": 0.5})
        record.write("running")
        sizes.append((tmp_path / "summary.json").stat().st_size)
        states.append(len(json.dumps(record.state_dict())))
    assert max(sizes[10:]) - min(sizes[10:]) < 60  # digits
    assert max(states) - min(states) < 20
    assert summary(tmp_path)["rounds_done"] == 100
    record.write("finished")
    assert [found["round"] for found in summary(tmp_path)["rounds"]] == list(range(1, 101))


def test_a_resumed_record_has_rounds_and_scores_of_before(tmp_path):
    record = RunRecord(tmp_path, {})
    for number in (1, 2, 3):
        record.close_round(entry(number, ["a"]))
        record.note_score(number, "accuracy", {"metric": "accuracy", "score": number / 10, "low": 0.1})
        if number == 2:
            saved = record.state_dict()
    resumed = RunRecord(tmp_path, {})
    resumed.load_state_dict(saved)
    assert resumed.rounds == record.rounds[:2]
    noted = {"metric": "accuracy", "by": "accuracy", "low": 0.1}
    assert resumed.scores == {1: {**noted, "score": 0.1}, 2: {**noted, "score": 0.2}}


def test_events_are_on_disk_before_a_checkpoint_relies_on_them(tmp_path, monkeypatch):
    record, synced = RunRecord(tmp_path, {}), []
    record.close_round(entry(1, ["a"]))
    monkeypatch.setattr(os, "fsync", lambda number: synced.append(os.fstat(number).st_ino))
    record.sync()
    assert synced == [(tmp_path / "events.jsonl").stat().st_ino]


def test_a_checkpoint_without_its_events_is_refused(tmp_path):
    record = RunRecord(tmp_path, {})
    record.close_round(entry(1, ["a"]))
    (tmp_path / "events.jsonl").unlink()
    with pytest.raises(CheckpointError, match="has 0 of the 1 rounds"):
        RunRecord(tmp_path, {}).load_state_dict(record.state_dict())


def test_a_round_whose_event_is_damaged_is_taken_from_the_summary_and_told(tmp_path):
    record = RunRecord(tmp_path, {})
    for number in (1, 2, 3):
        record.close_round({**entry(number, ["a"]), "round_seconds": 1.0})
    record.write("running")
    path = tmp_path / "events.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + b"\xff" + lines[1][1:] + lines[2])
    resumed = RunRecord(tmp_path, {})
    resumed.load_state_dict(record.state_dict())
    assert resumed.rounds == record.rounds
    told = "events of round 2 were damaged; its entry is that of the summary"
    assert resumed.remarks == [told]
    again = RunRecord(tmp_path, {})
    again.load_state_dict(record.state_dict())
    assert (again.rounds, again.remarks) == (record.rounds, [told])


def test_half_a_line_of_a_crash_is_left_out(tmp_path):
    record = RunRecord(tmp_path, {})
    record.event("start")
    with (tmp_path / "events.jsonl").open("a") as stream:
        stream.write('{"event": "answer", "rou\n')
    record.event("answer", round=1)
    assert [event["event"] for event in read_events(tmp_path)] == ["start", "answer"]


def test_a_record_without_events_can_be_published(tmp_path):
    record = RunRecord(tmp_path / "run", {})
    record.write("failed", "no site has the data set")
    record.publish(tmp_path / "results", [])
    assert json.loads((tmp_path / "results" / "summary.json").read_text())["reason"] == "no site has the data set"


@pytest.mark.parametrize("may_link", [False, True])
def test_publishing_copies_the_record_and_the_named_files(tmp_path, monkeypatch, may_link):
    monkeypatch.setattr("grandrounds.files.FICLONE", 0)  # no file system shares blocks by that
    record = RunRecord(tmp_path / "run", {})
    record.event("start")
    record.write("finished")
    (tmp_path / "run" / "last.pt").write_bytes(b"model")
    (tmp_path / "run" / "round_00001.pt").write_bytes(b"state")
    record.publish(tmp_path / "results", ["last.pt"], may_link)
    names = ("events.jsonl", "last.pt", "summary.json")
    linked = {name for name in names if (tmp_path / "results" / name).samefile(tmp_path / "run" / name)}
    assert linked == ({"last.pt"} if may_link else set())
    assert sorted(p.name for p in (tmp_path / "results").iterdir()) == ["events.jsonl", "last.pt", "summary.json"]
