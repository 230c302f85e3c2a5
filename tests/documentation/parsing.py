"""Checks of commands and options in the documentation by the parsers that would read them."""

import json
import re
import sys
from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from importlib.metadata import metadata
from importlib.util import find_spec
from typing import Any
from unittest import mock

import typer
from nvflare import cli as flare

from grandrounds.cli import build_app
from grandrounds.commands.data import values_of
from grandrounds.commands.options import JobArguments
from grandrounds.data.families import DATASETS
from grandrounds.deployment.jobs import JOB_PARTS, class_of, job_names, load_job
from grandrounds.errors import ConfigurationError
from grandrounds.option_keys import option_types
from grandrounds.options import annotations_of, require_type
from grandrounds.protocol.problem import Problem
from tests.documentation.pages import ROOT

PROGRAMS = frozenset(
    {
        ".ci/lowest",
        ".ci/run",
        ".venv/bin/pytest",
        "cd",
        "echo",
        "export",
        "ls",
        "mkdir",
        "mv",
        "python3",
        "rm",
        "sed",
        "sha256sum",
        "sudo",
        "tail",
        "tar",
        ".",
    }
)
"""Other programs that pages call; nothing is known of their arguments."""
STARTERS = frozenset({"kubectl", "sbatch", "srun"})
"""Programs that start another, perhaps ours, elsewhere."""
USAGE_ERROR: Any = typer.BadParameter.__base__
PLACEHOLDER = re.compile(r"[A-Z][A-Z-]*")


def check_command(words: list[str]) -> None:
    """Check the arguments and options of a command; an AssertionError has the reason."""
    program, *rest = words
    if rest == ["--version"]:
        return
    if program == "grandrounds":
        check_grandrounds(rest)
    elif program == "nvflare":
        check_flare(rest)
    elif program == "make":
        assert re.search(rf"^{rest[0]}:", (ROOT / "Makefile").read_text(), re.MULTILINE), f"no target {rest[0]}"
    elif program == "python":
        file = rest[1].replace(".", "/") + ".py" if rest[0] == "-m" else rest[0]
        ours = any((ROOT / folder / file).is_file() for folder in (".", "custom"))
        assert ours or (rest[0] == "-m" and find_spec(rest[1])), f"no program {file}"
    elif program.endswith("pip"):
        extras = re.findall(r"grandrounds\[(\w+)\]", " ".join(rest))
        assert not extras or set(extras) <= set(metadata("grandrounds").get_all("Provides-Extra")), f"no extra {extras}"
    elif program in STARTERS:
        ours = [place for place, word in enumerate(rest) if word == "grandrounds" or word.endswith("/bin/grandrounds")]
        if ours:
            check_grandrounds(rest[ours[0] + 1 :])
    else:
        assert program in PROGRAMS, f"{program} is not a program that these tests know"


def check_grandrounds(words: list[str]) -> None:
    """Parse the words as the command line does, and set the options in them in the job."""
    command, rest = descend(words)
    assert not hasattr(command, "commands") or not rest or rest[0].startswith("-"), f"there is no command {rest[0]}"
    try:
        context = command.make_context(command.name, rest)
    except (USAGE_ERROR, ConfigurationError) as error:
        raise AssertionError(str(error)) from error
    given = context.params
    if command.name == "partition" and given["name"] in DATASETS:
        values_of(annotations_of(DATASETS[given["name"]]), given["assignments"] or ())
    job = given.get("job") or (given.get("name") if command.name == "jobs" else None)
    if job is None or "/" in job:
        return
    names = [field.name for field in fields(JobArguments) if field.name in given]
    arguments = JobArguments(**{name: given[name] for name in names} | {"job": job})
    arguments.configured({}).checked()


def descend(words: list[str]) -> tuple[Any, list[str]]:
    """The last command or group that the words name, and the words after its name."""
    command: Any = application()
    rest = list(words)
    while rest and hasattr(command, "commands") and (found := command.get_command(typer.Context(command), rest[0])):
        command, rest = found, rest[1:]
    return command, rest


def check_flare(words: list[str]) -> None:
    """Parse the words as FLARE's command does."""
    with mock.patch.object(sys, "argv", ["nvflare", *words]):
        try:
            flare.parse_args("nvflare")
        except SystemExit as error:
            raise AssertionError(f"nvflare does not understand {' '.join(words)}") from error


def check_mention(text: str) -> None:
    """Check a command in the running text: it and its options exist. Some words may be left out or stand for others."""
    command, words = descend(re.sub(r"[\"'\\]", "", text).split()[1:])
    group = hasattr(command, "commands")
    open_place = not words or words[0].startswith("-") or words[0] == "..." or PLACEHOLDER.fullmatch(words[0])
    assert not group or open_place, f"there is no command {words[0]} in {command.name}"
    below = [command, *(command.commands.values() if group else ())]
    known = {option for one in below for parameter in one.params for option in parameter.opts} | {"--help"}
    given = {word.partition("=")[0] for word in words if re.match(r"--[a-z]", word)}
    assert given <= known, f"{text}: there is no option {', '.join(sorted(given - known))}"


def check_option(part: str, option: str, value: str | None) -> None:
    """Check that a job has this option, and that one of the jobs that have it takes the value."""
    types = known_options().get(f"{part}.{option}")
    assert types, f"no job has the option {part}.{option}"
    if value is None or PLACEHOLDER.fullmatch(value):
        return None
    try:
        content = json.loads(value)
    except json.JSONDecodeError:
        content = value
    reasons = []
    for one in types:
        try:
            return require_type(content, one, f"{part}.{option}")
        except ConfigurationError as error:
            reasons.append(str(error))
    raise AssertionError("; ".join(reasons))


@cache
def application() -> Any:
    """The command line."""
    return typer.main.get_command(build_app())


@cache
def known_options() -> Mapping[str, list[Any]]:
    """The types of every option of a job, by ``part.option``."""
    known: dict[str, list[Any]] = {}
    for job in map(load_job, job_names()):
        for part in JOB_PARTS:
            entry = job.executor if part == "executor" else job.controller
            problem = {name: found.type for name, found in annotations_of(Problem).items()}
            types = problem if part == "problem" else option_types(class_of(entry["path"]))
            for option, one in types.items():
                found = known.setdefault(f"{part}.{option}", [])
                found += [one] if one not in found else []
    return known
