"""Every command has a help with its panel, refuses an unknown option, and is described where it is imported from."""

import re

import pytest
from typer.testing import CliRunner

from grandrounds.cli import COMMANDS, GROUPS, build_app


@pytest.fixture(scope="module")
def app():
    return build_app()


@pytest.mark.parametrize("name", [*COMMANDS, *GROUPS])
def test_a_command_has_a_help_without_markup_and_refuses_what_it_does_not_know(name, app):
    shown = CliRunner().invoke(app, [name, "--help"])
    assert shown.exit_code == 0
    assert f"grandrounds {name}" in shown.stdout or f"Usage: root {name}" in shown.stdout
    assert not re.search(r"\x08|\\b|\[/?bold\]|`", shown.stdout)
    refused = CliRunner().invoke(app, [name, "--no-such-option"])
    assert refused.exit_code == 2
    assert "no-such-option" in refused.output


@pytest.mark.parametrize("name", COMMANDS)
def test_a_commands_help_has_examples(name, app):
    shown = CliRunner().invoke(app, [name, "--help"]).stdout
    assert f"grandrounds {name}" in shown.partition("Examples")[2]
