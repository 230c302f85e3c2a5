import subprocess
import sys

import pytest

from grandrounds import __version__
from grandrounds.commands.simulate import EngineChoice


def test_version_is_the_packages(run):
    result = run("--version")
    assert (result.exit_code, result.stdout.strip()) == (0, f"grandrounds {__version__}")


@pytest.mark.parametrize("command", ["partition", "simulate", "evaluate", "figures", "build", "doctor", "jobs"])
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


def test_jobs_lists_methods_and_options(run):
    result = run("jobs")
    assert result.exit_code == 0
    assert "fedperl: FedPerlController with FedPerlExecutor" in result.stdout
    assert "peers=2" in result.stdout


def test_jobs_as_json_has_the_options_by_part(run):
    import json

    jobs = {job["name"]: job for job in json.loads(run("jobs", "--json").stdout)}
    assert jobs["fedperl"]["options"]["controller"]["peers"] == 2
    assert jobs["fedperl"]["options"]["problem"]["dataset"] == "phantom"
    assert "problem" not in jobs["fedperl"]["options"]["controller"]
