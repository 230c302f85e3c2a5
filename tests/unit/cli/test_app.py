import json
import re
import subprocess
import sys

import pytest
import typer
from typer.testing import CliRunner

from grandrounds import __version__
from grandrounds.cli import COMMANDS, GROUPS, build_app
from grandrounds.commands.jobs import describe
from grandrounds.deployment.jobs import job_names, load_job


def test_version_is_the_packages(run):
    result = run("--version")
    assert (result.exit_code, result.stdout.strip()) == (0, f"grandrounds {__version__}")


def test_help_is_in_groups_and_shows_no_markup(capsys):
    application = typer.main.get_command(build_app())

    def below(command, words=()):
        yield words
        for name, part in getattr(command, "commands", {}).items():
            yield from below(part, (*words, name))

    shown = {}
    for words in below(application):
        application.main([*words, "--help"], standalone_mode=False)
        shown[words] = capsys.readouterr().out
        assert "Usage: " in shown[words], words
        assert not re.search(r"\x08|\\b|\[/?bold\]|`", shown[words]), words
    groups = ("Experiments on this machine", "Results", "A federation", "A site and its data")
    assert all(f"─ {group} ─" in shown[()] for group in groups)
    assert "─ Sites and images ─" in shown["simulate",]
    assert "─ Division between sites ─" in shown["import",]


def test_the_command_line_is_built_without_torch_and_flare():
    code = (
        "import sys; from grandrounds.cli import build_app; build_app(); print({'torch', 'nvflare'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_one_command_starts_without_the_modules_of_the_others():
    code = "import sys; from grandrounds.cli import build_app; build_app('jobs'); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "grandrounds.commands.jobs" in done.stdout.split()
    assert "grandrounds.commands.simulate" not in done.stdout.split()


@pytest.mark.parametrize("name", [*COMMANDS, *GROUPS])
def test_every_command_starts_alone(name):
    done = CliRunner().invoke(build_app(name), [name, "--help"], prog_name="grandrounds")
    assert done.exit_code == 0
    assert f"Usage: grandrounds {name}" in done.output


def test_commands_import_no_more_than_they_need(sites_dir):
    """``simulate`` needs torch and FLARE, not what reports, tables and readers of mammograms need."""
    code = f"""
import sys
from contextlib import suppress
from grandrounds.cli import main
def heavy():
    return sorted({{"torch", "nvflare", "scipy", "sklearn", "pandas", "matplotlib", "monai", "aiohttp"}} & set(sys.modules))
for arguments in (["jobs"], ["doctor", "--sites-dir", {str(sites_dir(1))!r}]):
    sys.argv = ["grandrounds", *arguments]
    with suppress(SystemExit):
        main()
    print("heavy after", arguments[0], *heavy())
import grandrounds.api.running
print("heavy after simulate", *heavy())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    found = [line for line in done.stdout.splitlines() if line.startswith("heavy")]
    assert found == ["heavy after jobs", "heavy after doctor", "heavy after simulate nvflare torch"]


@pytest.mark.parametrize(
    "arguments",
    [["simulate"], ["simulate", "fedperl", "--rounds", "none"], ["simulate", "fedperl", "--sites", "0"], ["unknown"]],
)
def test_wrong_use_has_exit_status_two(run, arguments):
    assert run(*arguments).exit_code == 2


def test_jobs_lists_methods_and_presets(run):
    result = run("jobs")
    assert result.exit_code == 0
    assert re.search(r"fedperl .* pseudo-labels .* Bdair et al., MELBA 2022 .* paper, code", result.stdout)


def test_the_options_of_a_job_have_values_ranges_and_meanings(run):
    shown = run("jobs", "mdhfl", "--all").stdout
    assert re.search(r"controller\.rounds .* 7 .* number of rounds in all", shown)
    assert re.search(r"problem\.channels .* 3 .* 1 \(grey\) or 3 \(colour\)", shown)
    assert re.search(r"│ +rhfl: ccr +│", shown)
    assert run("jobs", "mdhlf").exit_code == 1


def test_jobs_as_json_has_the_options_by_part(run):

    jobs = {job["name"]: job for job in json.loads(run("jobs", "--json").stdout)}
    assert jobs["fedperl"]["options"]["controller"]["peers"] == 2
    assert jobs["fedperl"]["options"]["problem"]["dataset"] == "phantom"
    assert "problem" not in jobs["fedperl"]["options"]["controller"]


def test_presets_are_listed_with_what_they_set(run):
    shown = run("simulate", "mdhfl", "--preset", "list").stdout
    assert "--preset rhfl: controller.run_name=rhfl, controller.weighting=ccr" in shown


@pytest.mark.parametrize("name", job_names())
def test_every_job_says_what_it_does_and_where_it_is_published(name):
    about = describe(load_job(name))
    assert about["summary"]
    assert about["paper"] or name in ("local", "statistics")


@pytest.mark.parametrize("arguments", [["--version"], ["jobs"]])
def test_the_package_is_a_program(arguments):
    ended = subprocess.run(
        [sys.executable, "-m", "grandrounds", *arguments], capture_output=True, text=True, check=False
    )
    assert (ended.returncode, "fedavg" in ended.stdout or "grandrounds" in ended.stdout) == (0, True), ended.stderr
