"""The reference of all options is generated, and the committed page is the current one."""

import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from grandrounds.deployment.jobs import (
    JOB_PARTS,
    OPTIONS,
    class_of,
    job_names,
    listed_options,
    load_job,
    options_of,
    read_job,
)
from grandrounds.option_keys import option_types

DOCS = Path(__file__).parents[3] / "docs"
GENERATE = runpy.run_path(str(DOCS / "generate.py"))


def test_the_committed_page_and_table_are_current():
    page = (DOCS / "reference" / "options.md").read_text(encoding="utf-8")
    assert page == GENERATE["option_reference"](), "run: python docs/generate.py"
    assert json.loads(OPTIONS.read_text()) == json.loads(json.dumps(GENERATE["stated"]())), (
        "run: python docs/generate.py"
    )


def test_the_table_has_what_the_classes_have():
    for part in JOB_PARTS:
        shown = [(entry.name, entry.meaning, entry.tier) for entry in listed_options(load_job("fedperl"), part)]
        assert shown == [(entry.name, entry.meaning, entry.tier) for entry in options_of(load_job("fedperl"), part)]
    assert {entry.name for entry in listed_options(read_job("ridge"), "problem")} > {"image_size", "backbone"}


def test_the_options_of_a_job_are_shown_without_torch():
    program = (
        "import sys; from grandrounds.cli import build_app; build_app('jobs')(['jobs', 'ridge'], standalone_mode=False)"
    )
    script = f"{program}; print('torch' in sys.modules, 'nvflare' in sys.modules)"
    shown = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=600, check=True
    ).stdout
    assert "controller.penalties" in shown
    assert shown.splitlines()[-1] == "False False"


@pytest.mark.parametrize("name", job_names())
def test_every_option_of_a_job_has_a_meaning(name):
    job = load_job(name)
    for part, entry in (("controller", job.controller), ("executor", job.executor)):
        described = {option.name: option.meaning for option in options_of(job, part)}
        assert set(described) == set(option_types(class_of(entry["path"]))) - {"problem"}
        assert all(described.values()), part


def test_the_options_of_a_job_are_in_the_order_of_its_file():
    job = load_job("mdhfl")
    assert [option.name for option in options_of(job, "executor")] == list(job.options("executor"))
