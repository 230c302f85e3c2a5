"""Several runs at once: all are done, and a failure is told."""

import sys

import pytest

from grandrounds.deployment.processes import machine, run_all
from grandrounds.errors import GrandRoundsError


def touching(path, status=0):
    return [sys.executable, "-c", f"open({str(path)!r}, 'w').close(); raise SystemExit({status})"]


def test_all_commands_run(tmp_path):
    run_all([touching(tmp_path / name) for name in "abc"], workers=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "c"]


def test_a_failure_is_told_when_the_others_are_done(tmp_path):
    commands = [touching(tmp_path / "a", status=3), touching(tmp_path / "b")]
    with pytest.raises(GrandRoundsError, match=r"1 runs failed: .*\(exit status 3\)"):
        run_all(commands, workers=1)
    assert (tmp_path / "b").exists()


def test_the_machine_has_a_processor_and_cores():
    found = machine()
    assert found["processor"]
    assert found["cores"] >= 1


def test_a_command_is_drawn_only_when_there_is_a_worker_for_it(tmp_path):
    done_before = []

    def commands():
        for name in "abc":
            done_before.append(len(list(tmp_path.iterdir())))
            yield touching(tmp_path / name)

    run_all(commands(), workers=1)
    assert done_before == [0, 1, 2]
