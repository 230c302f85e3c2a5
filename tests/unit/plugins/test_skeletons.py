"""`grandrounds new` writes packages whose own tests pass."""

import subprocess
import sys
import tomllib
from importlib import import_module

import pytest
from typer.testing import CliRunner

from grandrounds import plugins
from grandrounds.cli import build_app
from grandrounds.data.families import OWN_DATASETS
from grandrounds.data.images.augmentation import OWN_VIEWS
from grandrounds.federation.own_methods import OWN_METHODS
from grandrounds.federation.server.robust import OWN_RULES
from grandrounds.methods.supervised.loss import OWN_LOSSES
from grandrounds.models.backbones.own import OWN_BACKBONES


@pytest.mark.parametrize("kind", ["aggregator", "backbone", "dataset", "loss", "method", "view"])
def test_a_skeleton_passes_its_own_test(kind, tmp_path, monkeypatch):
    for registry in (OWN_BACKBONES, OWN_DATASETS, OWN_LOSSES, OWN_METHODS, OWN_RULES, OWN_VIEWS):
        monkeypatch.setattr(registry, "entries", dict(registry.entries))
    monkeypatch.setattr(plugins, "_registering", {})
    folder, name = tmp_path / "plugin", f"my_{kind}"
    result = CliRunner().invoke(build_app(), ["new", kind, name, "--out", str(folder)])
    assert result.exit_code == 0, result.output
    project = tomllib.loads((folder / "pyproject.toml").read_text())
    assert project["project"]["entry-points"]["grandrounds"] == {name: name}
    monkeypatch.syspath_prepend(str(folder))
    for module in (name, f"test_{name}"):  # later tests do not find the modules of this one
        monkeypatch.setitem(sys.modules, module, None)
        del sys.modules[module]
    tests = [test for found, test in vars(import_module(f"test_{name}")).items() if found.startswith("test_")]
    for test in tests:
        test(**({"tmp_path": tmp_path} if test.__code__.co_argcount else {}))
    assert tests
    rules = ["--isolated", "--select", "E,F,W", "--line-length", "120"]
    assert subprocess.run([sys.executable, "-m", "ruff", "check", *rules, str(folder)]).returncode == 0


@pytest.mark.parametrize(
    "arguments",
    [
        *(["method", "My-Part"], ["robot", "part"], ["method", "class"], ["dataset", "numpy"]),
        *(["method", "fedperl"], ["backbone", "compact"], ["dataset", "pbc"], ["view", "mild"]),
    ],
)
def test_a_wrong_kind_or_name_is_refused(arguments, tmp_path):
    assert CliRunner().invoke(build_app(), ["new", *arguments, "--out", str(tmp_path / "x")]).exit_code != 0
    assert not (tmp_path / "x").exists()


def test_an_existing_folder_is_not_touched(tmp_path):
    result = CliRunner().invoke(build_app(), ["new", "method", "part", "--out", str(tmp_path)])
    assert result.exit_code == 1
    assert "exists; choose another folder" in result.output
