"""A changed, cut, exchanged or half-written file is noticed, and a failed write leaves no trace."""

import errno
import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from grandrounds.errors import ConfigurationError, DataError
from grandrounds.privacy.ledger import chain
from grandrounds.privacy.ledger.chain import ChainedFile


@pytest.fixture
def file(tmp_path):
    """A file of an opening and four lines."""
    chained = ChainedFile(tmp_path / "ledger.jsonl")
    chained.create({"kind": "opening", "id": "x"})
    for number in range(4):
        append(chained, {"number": number, "epsilon": 0.5})
    return chained


def append(chained: ChainedFile, content: dict) -> None:
    with chained.extending() as extension:
        extension.append(content)


def numbers(chained: ChainedFile) -> list[int]:
    return [line["number"] for line in chained.read().lines[1:]]


def edit(chained: ChainedFile, change) -> None:
    lines = chained.path.read_bytes().splitlines(keepends=True)
    chained.path.write_bytes(b"".join(change(lines)))


def test_lines_are_read_in_order_and_each_knows_the_one_before(file):
    lines = file.read().lines
    assert numbers(file) == [0, 1, 2, 3]
    assert [line["previous"] for line in lines[1:]] == [line["hash"] for line in lines[:-1]]
    assert file.read().head == lines[-1]["hash"]


def test_a_head_can_be_compared_with_no_guess_of_the_line(tmp_path):
    """The same line after the same lines has another head at each site: what it says cannot be tried out."""
    heads = set()
    for name in ("a", "b"):
        chained = ChainedFile(tmp_path / name / "ledger.jsonl")
        chained.create({"n": 0})
        heads.add(chained.read().head)
    assert len(heads) == 2


def test_the_hash_is_sha_256_of_the_line_without_it(file):
    import hashlib

    line = json.loads(file.path.read_text().splitlines()[2])
    claimed = line.pop("hash")
    text = json.dumps(line, sort_keys=True, separators=(",", ":"))
    assert hashlib.sha256(text.encode()).hexdigest() == claimed


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda lines: [*lines[:2], lines[2].replace(b"0.5", b"0.1"), *lines[3:]], "line 3 is damaged or out of place"),
        (lambda lines: [*lines[:2], b"garbage\n", *lines[3:]], "line 3 is damaged"),
        (lambda lines: [*lines[:2], b"[1]\n", *lines[3:]], "line 3 is damaged"),
        (lambda lines: [*lines[:2], b"\xff\n", *lines[3:]], "line 3 is damaged"),
        (lambda lines: [*lines[:2], lines[2].replace(b"{", b'{"epsilon":0.1,', 1), *lines[3:]], "line 3 is damaged"),
        (lambda lines: [*lines[:2], lines[2].replace(b":", b": ", 1), *lines[3:]], "line 3 is damaged"),
        (lambda lines: [*lines[:2], *lines[3:]], "line 3 is damaged or out of place"),
        (lambda lines: [lines[0], lines[2], lines[1], *lines[3:]], "line 2 is damaged or out of place"),
        (lambda lines: [*lines, lines[-1]], "line 6 is damaged or out of place"),
        (lambda lines: lines[:-1], "has 4 lines, but 5 were written: it was truncated; nothing may be released"),
        (lambda lines: [*lines[:-1], lines[-1][:-1]], "has 4 lines, but 5 were written"),
        (lambda lines: [*lines[:-1], lines[-1][:20]], "has 4 lines, but 5 were written"),
        (lambda lines: [], "has 0 lines, but 5 were written"),
    ],
)
def test_what_was_altered_or_cut_is_neither_read_nor_extended(file, change, message):
    edit(file, change)
    with pytest.raises(DataError, match=message):
        file.read()
    with pytest.raises(DataError, match=message):
        append(file, {"number": 9})


def test_a_file_that_was_written_anew_does_not_fit_its_head(file, tmp_path):
    other = ChainedFile(tmp_path / "other" / "ledger.jsonl")
    other.create({"kind": "opening", "id": "y"})
    for number in range(4):
        append(other, {"number": number, "epsilon": 0.1})
    file.path.write_bytes(other.path.read_bytes())
    with pytest.raises(DataError, match=r"line 5.*ledger\.head\.json"):
        file.read()


@pytest.mark.parametrize("content", ["", "{}", '{"lines": "x", "hash": ""}', "[]", '{"lines": 0, "hash": ""}'])
def test_a_damaged_head_is_refused(file, content):
    file.head_path.write_text(content)
    with pytest.raises(DataError, match=r"ledger\.head\.json|line 0 is not the one"):
        file.read()


def test_a_missing_head_or_file_is_refused(file):
    head = file.head_path.read_bytes()
    file.head_path.unlink()
    with pytest.raises(DataError, match=r"ledger\.head\.json.*detected"):
        file.read()
    file.head_path.write_bytes(head)
    file.path.unlink()
    with pytest.raises(DataError, match=r"ledger\.jsonl.*ledger\.head\.json"):
        file.create({"kind": "opening"})
    with pytest.raises(ConfigurationError, match="there is no ledger"):
        append(file, {"number": 9})


def test_a_first_line_without_a_head_may_be_what_is_left_of_many(file):
    edit(file, lambda lines: lines[:1])
    file.head_path.unlink()
    for use in (file.read, lambda: append(file, {"number": 9})):
        with pytest.raises(DataError, match="is missing, so missing lines cannot be detected"):
            use()


def test_a_creation_that_died_before_its_head_is_completed(tmp_path):
    chained = ChainedFile(tmp_path / "ledger.jsonl")
    chained.create({"kind": "opening"})
    written = chained.path.read_bytes()
    chained.head_path.unlink()
    chained.create({"kind": "another opening"})
    assert chained.path.read_bytes() == written
    append(chained, {"number": 1})
    assert numbers(chained) == [1]


def test_a_noted_head_detects_an_older_file(file):
    older, older_head = file.path.read_bytes(), file.head_path.read_bytes()
    append(file, {"number": 4})
    noted = file.read().head
    append(file, {"number": 5})
    file.read().require_head(noted)
    file.path.write_bytes(older)
    file.head_path.write_bytes(older_head)
    with pytest.raises(
        DataError, match=f"no line has the noted hash {noted}: another or an older file is in its place"
    ):
        file.read().require_head(noted)


def test_half_a_line_beyond_the_head_is_left_out_and_then_replaced(file):
    with file.path.open("ab") as stream:
        stream.write(b'{"number":4,"eps')
    assert numbers(file) == [0, 1, 2, 3]
    assert file.read().interrupted
    append(file, {"number": 5})
    assert numbers(file) == [0, 1, 2, 3, 5]
    assert not file.read().interrupted


def test_a_line_beyond_the_head_counts(file):
    head = file.head_path.read_bytes()
    append(file, {"number": 4})
    file.head_path.write_bytes(head)
    assert numbers(file) == [0, 1, 2, 3, 4]
    append(file, {"number": 5})
    assert numbers(file) == [0, 1, 2, 3, 4, 5]


def test_an_interrupted_creation_is_completed(tmp_path):
    chained = ChainedFile(tmp_path / "ledger.jsonl")
    chained.path.write_bytes(b'{"kind":"open')
    with pytest.raises(DataError, match="is empty"):
        chained.read()
    chained.create({"kind": "opening"})
    assert [line["kind"] for line in chained.read().lines] == ["opening"]


def test_a_full_disk_is_an_error_and_leaves_the_file_as_it_was(file, monkeypatch):
    before = file.path.read_bytes()
    write = os.pwrite
    calls = []

    def half_then_full(descriptor, data, offset):
        calls.append(len(data))
        if len(calls) > 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, data[: len(data) // 2], offset)

    monkeypatch.setattr(os, "pwrite", half_then_full)
    with pytest.raises(DataError, match=r"ledger\.jsonl.*written:"):
        append(file, {"number": 4})
    assert len(calls) == 2
    assert file.path.read_bytes() == before


def test_a_file_size_limit_of_the_operating_system_is_an_error(file):
    before = file.path.read_bytes()
    code = (
        "import resource, sys; from pathlib import Path; from grandrounds.privacy.ledger.chain import ChainedFile\n"
        "file = ChainedFile(Path(sys.argv[1])); limit = file.path.stat().st_size + 10\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))\n"
        "with file.extending() as extension: extension.append({'number': 4})"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(file.path)],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": ":".join(sys.path)},
        check=False,
    )
    assert "DataError" in done.stderr
    assert "File too large; nothing may be released" in done.stderr
    assert file.path.read_bytes() == before


def test_a_head_that_cannot_be_written_is_an_error_and_the_line_counts(file, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(chain, "write_json", full)
        with pytest.raises(DataError, match="No space left on device; nothing may be released"):
            append(file, {"number": 4})
    assert numbers(file) == [0, 1, 2, 3, 4]


def test_the_line_is_on_disk_before_the_head_takes_its_place(file, monkeypatch):
    happened = []
    sync, replace = os.fsync, os.replace

    def synced(descriptor):
        happened.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        sync(descriptor)

    def replaced(source, target):
        happened.append(f"now {Path(target).name}")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", replaced)
    append(file, {"number": 4})
    first, _, head, folder = happened
    assert (first, head, folder) == ("ledger.jsonl", "now ledger.head.json", file.path.parent.name)


def test_a_file_that_another_process_holds_is_waited_for_and_then_reported(file, monkeypatch):
    monkeypatch.setattr(chain, "LOCK_SECONDS", 0.05)
    with file.path.open("rb") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        with pytest.raises(ConfigurationError, match="another process has locked the file for"):
            append(file, {"number": 4})
    append(file, {"number": 4})
    assert numbers(file)[-1] == 4


def test_each_head_is_in_the_system_log_and_tells_an_older_copy(file, monkeypatch):
    logged = []
    monkeypatch.setattr(chain.syslog, "syslog", lambda _, text: logged.append(text))
    old = file.path.read_bytes(), file.head_path.read_bytes()
    append(file, {"number": 4})
    (line,) = logged
    head = line.rpartition(" ")[2]
    assert line == f"grandrounds ledger: {file.path}: line 6, head {head}"
    file.read().require_head(head)
    file.path.write_bytes(old[0])
    file.head_path.write_bytes(old[1])
    with pytest.raises(DataError, match="an older file is in its place"):
        file.read().require_head(head)
