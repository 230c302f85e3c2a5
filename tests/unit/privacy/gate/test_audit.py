"""A line of the trail is short, on disk before anything leaves, and missed when it cannot be written."""

import json
import os
import stat
from pathlib import Path

import pytest

from grandrounds.privacy.gate.audit import AUDIT_NAME, MAX_TEXT_LENGTH, Reason, Refused, write_audit
from grandrounds.privacy.gate.questions import OpenTraining, count_question
from grandrounds.privacy.ledger.ledger import Ledger
from grandrounds.privacy.ledger.lines import DatasetIdentity


def test_lines_follow_each_other_and_long_texts_are_cut(tmp_path):
    write_audit(tmp_path / "new", "refused", {"reason": "no", "detail": "x" * 10_000})
    write_audit(tmp_path / "new", "released", {"round": 3})
    first, second = (json.loads(line) for line in (tmp_path / "new" / AUDIT_NAME).read_text().splitlines())
    assert (first["outcome"], first["reason"], len(first["detail"])) == ("refused", "no", MAX_TEXT_LENGTH)
    assert (second["outcome"], second["round"]) == ("released", 3)


def test_a_line_is_on_disk_when_writing_returns(tmp_path, monkeypatch):
    on_disk = []

    def synced(descriptor):
        on_disk.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).read_text())

    monkeypatch.setattr(os, "fsync", synced)
    write_audit(tmp_path, "released", {"round": 3})
    assert on_disk == [(tmp_path / AUDIT_NAME).read_text()]


def test_a_trail_that_cannot_be_written_is_a_refusal(tmp_path):
    (tmp_path / AUDIT_NAME).mkdir()
    with pytest.raises(Refused) as caught:
        write_audit(tmp_path, "released", {})
    assert caught.value.reason is Reason.AUDIT


def test_trail_ledger_and_counts_are_for_their_owner_alone_whatever_the_umask(tmp_path):
    folder = tmp_path / "local" / "privacy"
    before = os.umask(0o022)
    try:
        Ledger.create(folder, "site-1")
        write_audit(folder, "released", {})
        count_question(folder, "job")
        OpenTraining(folder, DatasetIdentity("skin", "a"), [], 1e-5)
    finally:
        os.umask(before)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    files = [path for path in folder.iterdir() if path.is_file()]
    assert {path.name for path in files} >= {"ledger.jsonl", "audit.jsonl"}
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}
    write_audit(tmp_path / "first", "released", {})
    assert stat.S_IMODE((tmp_path / "first").stat().st_mode) == 0o700
