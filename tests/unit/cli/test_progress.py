import io
import json
import math
import threading
from types import SimpleNamespace

import pytest
from rich.console import Console

from grandrounds.console.progress import EventTail, RunProgress, Steps, following, progress_on


def round_events(number, seconds, losses, score=None):
    yield {"event": "round_start", "round": number, "sites": list(losses)}
    for site, loss in losses.items():
        yield {"event": "answer", "round": number, "site": site, "task": "train", "metrics": {"loss": loss}}
    if score is not None:
        yield {
            "event": "score",
            "round": number - 1,
            "metric": "balanced_accuracy",
            "by": "balanced_accuracy",
            "score": score,
            "mean": 0.0,
        }
    sites = list(losses)
    yield {"event": "round_end", "round": number, "asked": sites, "answered": sites, "round_seconds": seconds}


def feed(progress, *groups):
    return [line for events in groups for event in events for line in progress.update(event)]


START = {"event": "start", "rounds": 10, "sites": ["site-1", "site-2"]}


def test_a_round_is_one_line_with_loss_score_and_time_left():
    lines = feed(RunProgress(), [START], round_events(1, 4.0, {"site-1": 1.0, "site-2": 2.0}, score=0.25))
    assert lines == [
        "10 rounds, 2 sites: site-1, site-2",
        "round 1/10: 2 of 2 sites, loss 1.500, validation balanced_accuracy 0.250 after round 0, 4.0 s, 36 s left",
    ]


def test_the_loss_is_of_the_current_round_only():
    progress = RunProgress()
    feed(progress, [START], round_events(1, 1.0, {"site-1": 9.0}), round_events(2, 1.0, {"site-1": 3.0}))
    assert progress.losses == [3.0]


def test_pace_and_time_left_are_those_of_the_last_rounds():
    progress = RunProgress()
    assert math.isnan(progress.pace)
    feed(
        progress, [START], *(round_events(number, 2.0 if number > 1 else 60.0, {"site-1": 1.0}) for number in (1, 2, 3))
    )
    assert progress.pace == 2.0
    assert progress.time_left == 14.0


def test_a_dropped_site_is_shown_with_its_reason():
    progress = RunProgress(rounds=2)
    event = {"event": "dropped", "round": 1, "site": "site-2", "reason": "[no] images"}
    assert progress.update(event) == ["round 1: site-2 is dropped: [no] images"]
    assert progress.update(event | {"round": 3}) == ["evaluation: site-2 is dropped: [no] images"]


def test_a_resumed_run_counts_on_from_its_checkpoint():
    progress = RunProgress()
    lines = feed(progress, [{"event": "resume", "after_round": 8}, START], round_events(9, 3.0, {"site-1": 1.0}))
    assert "after round 8" in lines[0]
    assert lines[-1].startswith("round 9/10:")
    assert lines[-1].endswith("3 s left")


def test_a_complete_run_is_reported_as_complete():
    lines = feed(RunProgress(), [{"event": "resume", "after_round": 10}, START])
    assert lines[-1] == "all 10 rounds were complete before; the selected model is tested again"


@pytest.mark.parametrize("terminal", [True, False])
def test_drops_are_printed_with_and_without_a_terminal(terminal):
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=terminal, width=120)
    with progress_on(console) as show:
        show(START)
        for event in round_events(1, 1.0, {"site-1": 1.0}):
            show(event)
        show({"event": "dropped", "round": 2, "site": "site-2", "reason": "[no] images"})
    assert "round 2: site-2 is dropped: [no] images" in stream.getvalue()
    assert ("round 1/10: 1 of 1 sites" in stream.getvalue()) is not terminal
    assert ("round 2/10" in stream.getvalue()) is terminal


def append(path, *numbers):
    with path.open("a") as stream:
        stream.writelines(json.dumps({"number": number}) + "\n" for number in numbers)


def numbers(events):
    return [event["number"] for event in events]


def test_only_what_is_appended_later_is_read(tmp_path):
    path = tmp_path / "events.jsonl"
    append(path, 1, 2)
    tail = EventTail(path)
    assert tail.read() == []
    append(path, 3)
    assert numbers(tail.read()) == [3]
    assert tail.read() == []


def test_a_file_that_appears_later_is_read_from_its_beginning(tmp_path):
    tail = EventTail(tmp_path / "events.jsonl")
    assert tail.read() == []
    append(tmp_path / "events.jsonl", 1)
    assert numbers(tail.read()) == [1]


def test_a_file_that_is_begun_again_is_read_from_its_beginning_whatever_its_length(tmp_path):
    path = tmp_path / "events.jsonl"
    append(path, 1, 2)
    tail = EventTail(path)
    path.unlink()
    append(path, 3, 4, 5)
    assert numbers(tail.read()) == [3, 4, 5]


def test_half_a_line_waits_for_its_other_half(tmp_path):
    path = tmp_path / "events.jsonl"
    tail = EventTail(path)
    path.write_text('{"num')
    assert tail.read() == []
    with path.open("a") as stream:
        stream.write('ber": 7}\n')
    assert numbers(tail.read()) == [7]


def test_the_last_events_before_the_end_are_shown(tmp_path):
    path, shown = tmp_path / "events.jsonl", []
    append(path, 0)
    with following(path, shown.append):
        append(path, 1, 2, 3)
    assert numbers(shown) == [1, 2, 3]


def test_a_file_below_something_that_is_no_folder_has_no_events(tmp_path):
    (tmp_path / "run").write_text("a file")
    assert EventTail(tmp_path / "run" / "events.jsonl").read() == []


def test_steps_are_silent_at_first_and_then_a_line_each_time_that_patience_ends(monkeypatch):
    stream, timers = io.StringIO(), []

    def timer(seconds, ring):
        timers.append((seconds, ring))
        return SimpleNamespace(start=lambda: None, cancel=lambda: None)

    monkeypatch.setattr("grandrounds.console.progress.threading", SimpleNamespace(Lock=threading.Lock, Timer=timer))
    steps = Steps(Console(file=stream), patience=5)
    steps.step("reading site-1")
    assert stream.getvalue() == ""
    ((seconds, ring),) = timers
    ring()
    assert (seconds, stream.getvalue()) == (5, "reading site-1\n")
    steps.step("reading site-2")
    assert stream.getvalue() == "reading site-1\n"
    timers[1][1]()
    timers[2][1]()
    assert stream.getvalue() == "reading site-1\nreading site-2\n"
    steps.step("reading site-3")
    steps.end()
    assert stream.getvalue().splitlines() == ["reading site-1", "reading site-2", "reading site-3"]


def test_steps_of_a_quick_command_are_not_shown():
    stream = io.StringIO()
    steps = Steps(Console(file=stream), patience=5)
    steps.step("reading site-1")
    steps.end()
    assert stream.getvalue() == ""
