"""The costs of a program are those of all that it starts, and its lines those that its user writes."""

import sys

import pytest

from benchmarks.frameworks.run import ARMS, PROGRAMS, lines_of_code
from benchmarks.measure import output_of

PROGRAM = """
import subprocess, sys, time
print("end of round 1")
busy = "import time; block = bytearray(64 << 20); print(flush=True)\\nwhile time.process_time() < 1.5: pass"
subprocess.Popen([sys.executable, "-c", busy], start_new_session=True, stdout=subprocess.PIPE).stdout.readline()
time.sleep(1)
print("accuracy 0.25")
"""
RUN = """
import json, pathlib, sys
from benchmarks.frameworks import run
run.PROGRAMS, run.SECONDS_TO_END = pathlib.Path(sys.argv[1]), 300.0
run.become_reaper()
print(json.dumps(run.one_run("plain", "", run.PROGRAMS, 2, 1, 1)))
"""


def test_a_process_that_outlives_its_program_is_counted(tmp_path):
    (tmp_path / "plain_loop.py").write_text(PROGRAM)
    found = output_of([sys.executable, "-c", RUN, str(tmp_path)])
    assert found["cpu_seconds"] > 1.4
    assert found["peak_mib"] > 64
    assert found["accuracy"] == 0.25
    assert 0 < found["seconds_to_first_round"] < found["seconds"] - 0.5


def test_a_program_that_fails_ends_the_measurement(tmp_path):
    (tmp_path / "plain_loop.py").write_text("raise ValueError('no images')")
    with pytest.raises(SystemExit, match="no images"):
        output_of([sys.executable, "-c", RUN, str(tmp_path)])


def test_comments_docstrings_and_blank_lines_are_no_code():
    assert (
        lines_of_code('"""Says\n\nso."""\n\n# The word.\ndef say():\n    """Say."""\n    print(\n        "so")\n') == 3
    )


def test_every_file_of_the_programs_is_counted():
    assert {file for arm in ARMS.values() for file in arm.files} == {path.name for path in PROGRAMS.glob("*.py")}
