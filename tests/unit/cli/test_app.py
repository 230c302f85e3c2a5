import re
import subprocess
import sys

import pytest

from grandrounds import __version__
from grandrounds.commands.simulate import EngineChoice


def test_version_is_the_packages(run):
    result = run("--version")
    assert (result.exit_code, result.stdout.strip()) == (0, f"grandrounds {__version__}")


@pytest.mark.parametrize(
    "command", ["partition", "simulate", "evaluate", "figures", "build", "doctor", "jobs", "submit"]
)
def test_every_command_has_help_with_examples(run, command):
    result = run(command, "--help")
    assert result.exit_code == 0
    assert "Examples" in result.stdout
    assert f"grandrounds {command}" in result.stdout


def test_the_command_line_is_built_without_torch_and_flare():
    code = (
        "import sys; from grandrounds.cli import build_app; build_app(); print({'torch', 'nvflare'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_the_engines_of_the_command_are_those_of_the_package():
    from typing import get_args

    from grandrounds.deployment.simulate import Engine

    assert tuple(EngineChoice) == get_args(Engine)


@pytest.mark.parametrize(
    "arguments",
    [["simulate"], ["simulate", "fedperl", "--rounds", "none"], ["simulate", "fedperl", "--sites", "0"], ["unknown"]],
)
def test_wrong_use_has_exit_status_two(run, arguments):
    assert run(*arguments).exit_code == 2


def test_jobs_lists_methods_and_presets(run):
    result = run("jobs")
    assert result.exit_code == 0
    assert re.search(r"mdhfl .* MutualController .* MutualExecutor .* paper, code, .*rhfl_plus", result.stdout)


def test_the_options_of_a_job_have_values_ranges_and_meanings(run):
    shown = run("jobs", "mdhfl").stdout
    assert re.search(r"controller\.rounds .* 7 .* an integer, at least 1 .* ", shown)
    assert re.search(r"problem\.channels .* 3 .* 1 or 3 .* 1 \(grey\) or 3 \(colour\)", shown)
    assert "--preset rhfl: controller.run_name=rhfl, controller.weighting=ccr" in shown
    assert run("jobs", "mdhlf").exit_code == 1


def test_jobs_as_json_has_the_options_by_part(run):
    import json

    jobs = {job["name"]: job for job in json.loads(run("jobs", "--json").stdout)}
    assert jobs["fedperl"]["options"]["controller"]["peers"] == 2
    assert jobs["fedperl"]["options"]["problem"]["dataset"] == "phantom"
    assert "problem" not in jobs["fedperl"]["options"]["controller"]
