"""Commands and Python in the documentation fit the software: every command parses, and every name of the library exists."""

import ast
import re
import textwrap
from pathlib import Path

import pytest
import typer

import grandrounds as gr
from grandrounds.cli import build_app

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "examples").rglob("README.md"))]
NAMES = [page.relative_to(ROOT).as_posix() for page in PAGES if "reference" not in page.parts]
PLUGINS = ("fedala", "named_images")
"""Jobs and data sets of examples, which this process has not loaded."""


def blocks(name, language=""):
    """The fenced blocks of a page that are in this language, or in none."""
    found = re.findall(r"^ *```(\w*)\n(.*?)^ *```", (ROOT / name).read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    return [textwrap.dedent(text) for label, text in found if label == language]


def commands(name):
    """The ``grandrounds`` commands of a page, as lists of words."""
    text = "\n".join(blocks(name)).replace("\\\n", " ")
    for line in text.splitlines():
        for part in re.split(r"&&|\|\||;", line):
            words = re.sub(r"(^|\s)#.*|[\"']", " ", part).split()
            words = words[words.index("grandrounds") :] if "grandrounds" in words[:4] else []
            if words[1:] and not words[1].startswith("-"):
                yield words[1:]


@pytest.fixture(scope="module")
def application():
    return typer.main.get_command(build_app())


@pytest.mark.parametrize("name", [name for name in NAMES if list(commands(name))])
def test_every_command_has_these_arguments_and_options(name, application):
    for words in commands(name):
        command, rest = application, list(words)
        while hasattr(command, "commands") and rest and rest[0] in command.commands:
            command = command.commands[rest.pop(0)]
        if hasattr(command, "commands"):
            assert rest[0] in PLUGINS, f"{name}: there is no command {' '.join(words)}"
            continue
        known = {option for parameter in command.params for option in parameter.opts} | {"--help"}
        given = [word.partition("=")[0] for word in rest if re.match(r"--?[a-z]", word)]
        assert set(given) <= known, f"{name}: {' '.join(words)}"


@pytest.mark.parametrize("name", [name for name in NAMES if blocks(name, "python")])
def test_every_block_of_python_is_python_and_its_names_exist(name):
    for block in blocks(name, "python"):
        tree = ast.parse(block)
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "gr":
                assert hasattr(gr, node.attr), f"{name}: gr.{node.attr}"
