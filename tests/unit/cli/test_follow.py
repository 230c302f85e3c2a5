import json

from grandrounds.commands.progress import EventTail, Follower


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
    with Follower(path, shown.append):
        append(path, 1, 2, 3)
    assert numbers(shown) == [1, 2, 3]


def test_a_file_below_something_that_is_no_folder_has_no_events(tmp_path):
    (tmp_path / "run").write_text("a file")
    assert EventTail(tmp_path / "run" / "events.jsonl").read() == []
