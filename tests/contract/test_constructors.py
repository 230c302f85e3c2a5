"""Each job has a constructor with its options as arguments, of which notebooks and type checkers know the same."""

import inspect
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import grandrounds as gr
from grandrounds import CONSTRUCTORS
from grandrounds.deployment.code_digest import PACKAGE
from grandrounds.deployment.jobs import JOBS, load_job

STUB = PACKAGE / "__init__.pyi"
EXAMPLE = """import grandrounds as gr

gr.FedPerl(peers=2, preset="recommended", learning_rate=1, classes=["a", "b"])
gr.FedPerl(peers="two")  # an integer
gr.FedPerl(pears=2)  # no such option
gr.FedIRM(relation_source="weights")  # one of two words
"""


def test_every_job_of_the_package_has_one():
    assert sorted(CONSTRUCTORS.values()) == sorted(path.parent.name for path in JOBS.glob("*/meta.json"))


@pytest.mark.parametrize("name", CONSTRUCTORS)
def test_it_tells_the_values_of_the_job_and_takes_them(name, tmp_path):
    job = load_job(CONSTRUCTORS[name])
    constructor = getattr(gr, name)
    preset, *parameters = inspect.signature(constructor).parameters.values()
    assert preset.name == "preset"
    made = constructor(**{option.name: option.default for option in parameters})
    assert made.values == {key: job.value(*key) for key in map(job.key_of, (option.name for option in parameters))}
    gr.recipe(made).export(str(tmp_path))
    assert load_job(tmp_path / job.name).executor["args"] == job.executor["args"]
    for option in parameters:
        assert f"    {option.name}: " in constructor.__doc__


def test_options_of_two_parts_need_the_part():
    assert "min_support" not in inspect.signature(gr.FedIRM).parameters
    assert gr.FedIRM(**{"executor.min_support": 2}).values == {("executor", "min_support"): 2}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"peers": "two"}, "FedPerl: peers must be an integer"),
        ({"peers": -1}, "FedPerl: peers must be at least 0"),
        ({"pears": 2}, "did you mean peers"),
        ({"preset": "papers"}, "did you mean paper"),
    ],
)
def test_a_wrong_value_is_refused_at_once(options, message):
    with pytest.raises(gr.ConfigurationError, match=message):
        gr.FedPerl(**options)


def test_later_options_win(tmp_path):
    gr.recipe(gr.FedPerl(peers=3, rounds=4, preset="paper"), rounds=5).export(str(tmp_path))
    job = load_job(tmp_path / "fedperl-paper")
    assert (job.value("controller", "peers"), job.value("controller", "rounds")) == (3, 5)


def test_the_stub_is_what_would_be_generated():
    made = runpy.run_path(str(Path(__file__).parents[2] / "docs" / "generate.py"))["stub"]()
    assert STUB.read_text(encoding="utf-8") == made, "run: python docs/generate.py"


def test_a_type_checker_takes_right_options_and_names_wrong_ones(tmp_path):
    pytest.importorskip("mypy")
    example = tmp_path / "example.py"
    example.write_text(EXAMPLE)
    quick = ["--config-file=", "--follow-imports=skip", "--no-incremental", "--strict"]
    command = [sys.executable, "-m", "mypy", *quick, str(example), str(STUB)]
    found = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    errors = [line.partition(": error")[0] for line in found.stdout.splitlines() if ": error: " in line]
    assert errors == ["example.py:4", "example.py:5", "example.py:6"], found.stdout + found.stderr
