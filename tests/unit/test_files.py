"""Nobody sees half a file, and two jobs cannot write one run."""

import errno
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys

import pytest

from grandrounds.csv_files import write_csv
from grandrounds.errors import ConfigurationError
from grandrounds.files import FICLONE, append_line, copy_file, exclusive, read_json_object, replacing, write_json
from grandrounds.folders import put_in_place


def test_an_error_while_writing_leaves_only_the_old_file(tmp_path):
    path = tmp_path / "state"
    path.write_bytes(b"old")

    def fail() -> None:
        with replacing(path) as stream:
            stream.write(b"half of the n")
            stream.flush()
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        fail()
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["state"]


def test_the_old_file_is_seen_until_the_new_one_is_complete(tmp_path):
    path = tmp_path / "deep" / "state"
    with replacing(path) as stream:
        stream.write(b"one")
        assert not path.exists()
    with replacing(path) as stream:
        stream.write(b"two")
        assert path.read_bytes() == b"one"
    assert path.read_bytes() == b"two"


def test_a_table_has_quotes_only_where_needed_and_comes_with_its_hash(tmp_path):
    digest = write_csv(
        tmp_path / "deep" / "t.csv", ["image", "note"], iter([("a,b", 'said "no"'), ("é", None), (1, 2)])
    )
    written = (tmp_path / "deep" / "t.csv").read_bytes()
    assert written == 'image,note\n"a,b","said ""no"""\né,\n1,2\n'.encode()
    assert digest == hashlib.sha256(written).hexdigest()


def test_a_replaced_file_is_as_readable_as_any_other(tmp_path):
    (tmp_path / "usual").touch()
    with replacing(tmp_path / "state") as stream:
        stream.write(b"x")
    assert (tmp_path / "state").stat().st_mode == (tmp_path / "usual").stat().st_mode


@pytest.mark.parametrize("may_link", [False, True])
def test_a_copy_shares_blocks_where_the_file_system_can(tmp_path, monkeypatch, may_link):
    def clone(target, request, source):
        assert request == FICLONE == 0x40049409
        os.sendfile(target, source, 0, 1000)

    (tmp_path / "model.pt").write_bytes(b"numbers")
    monkeypatch.setattr(fcntl, "ioctl", clone)
    monkeypatch.setattr(shutil, "copyfileobj", None)
    monkeypatch.setattr(os, "link", None)
    copy_file(tmp_path / "model.pt", tmp_path / "results" / "model.pt", may_link)
    assert (tmp_path / "results" / "model.pt").read_bytes() == b"numbers"


@pytest.mark.parametrize("may_link", [False, True])
def test_without_shared_blocks_a_copy_is_a_link_only_where_that_is_allowed(tmp_path, monkeypatch, may_link):
    source, target = tmp_path / "model.pt", tmp_path / "results" / "model.pt"
    monkeypatch.setattr(fcntl, "ioctl", refuse)
    for content in (b"first", b"second"):
        with replacing(source) as stream:
            stream.write(content)
        for _ in range(2):
            copy_file(source, target, may_link)
        assert target.read_bytes() == content
        assert target.samefile(source) is may_link
    assert [path.name for path in target.parent.iterdir()] == ["model.pt"]


def test_a_file_system_without_links_gets_a_copy(tmp_path, monkeypatch):
    (tmp_path / "model.pt").write_bytes(b"numbers")
    monkeypatch.setattr(fcntl, "ioctl", refuse)
    monkeypatch.setattr(os, "link", refuse)
    copy_file(tmp_path / "model.pt", tmp_path / "copy.pt", may_link=True)
    assert (tmp_path / "copy.pt").read_bytes() == b"numbers"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copy.pt", "model.pt"]


def refuse(*arguments):
    raise OSError(errno.EOPNOTSUPP, "this file system cannot")


@pytest.mark.parametrize("private", [False, True])
def test_a_copy_is_as_private_as_its_source(tmp_path, private):
    with replacing(tmp_path / "model.pt", private) as stream:
        stream.write(b"numbers")
    copy_file(tmp_path / "model.pt", tmp_path / "copy.pt")
    assert (tmp_path / "copy.pt").stat().st_mode == (tmp_path / "model.pt").stat().st_mode


def test_json_that_cannot_be_written_leaves_the_old_one(tmp_path):
    path = tmp_path / "summary.json"
    write_json(path, {"a": [1]})
    with pytest.raises(TypeError):
        write_json(path, {"a": object()})
    assert json.loads(path.read_text()) == {"a": [1]}
    write_json(path, {"a": object()}, default=lambda value: type(value).__name__)
    assert json.loads(path.read_text()) == {"a": "object"}


def test_lines_are_appended(tmp_path):
    for number in range(3):
        append_line(tmp_path / "new" / "events.jsonl", {"n": number})
    lines = (tmp_path / "new" / "events.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [{"n": 0}, {"n": 1}, {"n": 2}]


def test_half_a_line_of_a_crash_does_not_swallow_the_next_one(tmp_path):
    path = tmp_path / "events.jsonl"
    path.write_bytes(b'{"n": 0}\n{"event": "round_st')
    append_line(path, {"n": 1})
    append_line(path, {"n": 2})
    assert path.read_bytes() == b'{"n": 0}\n{"event": "round_st\n{"n": 1}\n{"n": 2}\n'


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read: No such file or directory"),
        (b'{\n "a": ,}', "is not valid JSON: line 2: Expecting value"),
        (b"\xff{}", "is not valid JSON: no UTF-8 text (invalid start byte)"),
        (b"[1]", "must be a JSON object, got list"),
        (b'{"x": {"root": "a", "bits": 12, "root": "b"}}', "is not valid JSON: 'root' is there twice"),
        (b'{"%s": 1, "%s": 2}' % (b"n" * 90, b"n" * 90), f"is not valid JSON: '{'n' * 40}' is there twice"),
    ],
)
def test_a_file_without_a_json_object_is_named(tmp_path, content, message):
    path = tmp_path / "site.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigurationError) as refused:
        read_json_object(path)
    assert str(refused.value) == f"{path} {message}"


def test_the_mark_that_editors_of_windows_put_before_a_text_is_no_part_of_it(tmp_path):
    (tmp_path / "site.json").write_bytes(b'\xef\xbb\xbf{"a": 1}')
    assert read_json_object(tmp_path / "site.json") == {"a": 1}


@pytest.mark.parametrize("content", [b'{"a": ' + b"9" * 5000 + b"}", b'{"a": ' + b"[" * 100_000], ids=["long", "deep"])
def test_a_foreign_file_that_no_reader_takes_is_named(tmp_path, content):
    """Python's reader has other errors for a number of 5,000 digits, and for lists in lists."""
    (tmp_path / "summary.json").write_bytes(content)
    with pytest.raises(ConfigurationError, match=r"summary\.json is not valid JSON"):
        read_json_object(tmp_path / "summary.json")


def test_a_json_object_is_read_as_it_was_written(tmp_path):
    path = tmp_path / "site.json"
    path.write_text('{"größe": [1, null]}', encoding="utf-8")
    assert read_json_object(path) == {"größe": [1, None]}


def test_a_second_process_is_refused_until_the_first_has_ended(tmp_path):
    code = (
        "import sys; from pathlib import Path; from grandrounds.files import exclusive\n"
        "with exclusive(Path(sys.argv[1])): print('held', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    other = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={"PYTHONPATH": ":".join(sys.path)},
    )
    try:
        assert other.stdout.readline() == "held\n"
        with pytest.raises(ConfigurationError, match="another job is using this run; choose another run_name"):
            exclusive(tmp_path).__enter__()
    finally:
        other.kill()
        other.communicate()
    with exclusive(tmp_path):
        pass


def test_the_same_process_is_refused_too(tmp_path):
    with exclusive(tmp_path), pytest.raises(ConfigurationError, match="another job"), exclusive(tmp_path):
        pytest.fail("held twice")


def test_an_interruption_between_two_renamings_costs_nothing(tmp_path, monkeypatch):
    folder, new, renamed = tmp_path / "result", tmp_path / "new", []
    for place, text in ((folder, "old"), (new, "new")):
        place.mkdir()
        (place / "file").write_text(text)

    def rename(source, target, real=os.rename):
        renamed.append(target)
        if len(renamed) == 2:
            raise KeyboardInterrupt
        real(source, target)

    monkeypatch.setattr(os, "rename", rename)
    with pytest.raises(KeyboardInterrupt):
        put_in_place(new, folder)
    assert (folder / "file").read_text() == "old"
