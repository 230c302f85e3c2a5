"""Which extra brings a library, and what is said where it is not installed."""

from importlib import import_module
from importlib.metadata import PackageNotFoundError
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from grandrounds import cli, extras
from grandrounds.errors import ConfigurationError
from grandrounds.extras import extra_of, optional_requirements, require_extra


@pytest.fixture
def bare(monkeypatch):
    """An installation whose metadata are known, and in which only numpy is installed."""
    lines = ["numpy>=1", 'pandas>=2; extra == "study"', 'scikit-learn>=1; extra == "study"', 'pandas; extra == "dev"']
    lines.append('jinja2>=3; python_version > "3" and extra == "server"')

    def version(name):
        if name != "numpy":
            raise PackageNotFoundError(name)
        return "2"

    monkeypatch.setattr(extras, "requires", lambda name: lines)
    monkeypatch.setattr(extras, "version", version)


def test_extras_are_read_from_the_installed_metadata(bare):
    assert [(extra, needed.name) for extra, needed in optional_requirements()] == [
        ("study", "pandas"), ("study", "scikit-learn"), ("dev", "pandas"), ("server", "jinja2"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("module", "extra"),
    [
        ("pandas", "study"),
        ("pandas.core", "study"),
        ("sklearn.metrics", "study"),
        ("jinja2", "server"),
        ("numpy", ""),
        ("json", ""),
    ],
)
def test_the_extra_of_a_module(bare, module, extra):
    assert extra_of(module) == extra


def test_a_missing_extra_is_refused_with_its_command(bare):
    with pytest.raises(ConfigurationError, match=r"pandas, scikit-learn: .*grandrounds\[study\]"):
        require_extra("study", "a simulation")
    require_extra("unknown", "nothing")


def test_the_extras_of_this_project_are_installed_for_its_tests():
    require_extra("study", "the tests")
    for module in ("matplotlib", "pandas", "sklearn", "monai"):
        assert extra_of(module) == "study"
        import_module(module)


def test_without_an_installation_there_are_no_extras(monkeypatch):
    def none(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(extras, "requires", none)
    assert extra_of("pandas") == ""


@pytest.mark.parametrize(("module", "status"), [("pandas", 1), ("nowhere", 1)])
def test_a_command_without_its_library_names_the_extra(bare, monkeypatch, module, status):
    def jobs():
        raise ModuleNotFoundError(f"No module named {module!r}", name=module)

    monkeypatch.setattr(cli, "_module", lambda name: SimpleNamespace(jobs=jobs))
    result = CliRunner().invoke(cli.build_app("jobs"), ["jobs"])
    assert result.exit_code == status
    named = "grandrounds[study]" in result.output
    assert named == (module == "pandas")
    assert isinstance(result.exception, SystemExit if named else ModuleNotFoundError)
