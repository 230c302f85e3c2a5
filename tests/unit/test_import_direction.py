"""Imports go one way: methods know the seam, the data and the maths; none of those knows a method.

The rules are read from the syntax trees, so that an import inside a function counts as well.
"""

import ast
from pathlib import Path

import pytest

import grandrounds

PACKAGE = Path(grandrounds.__file__).parent
FREE = {"deployment", "cli", "commands"}
MATHS = {
    "contributions", "distillation", "fresh_adam", "leave_one_out", "loss", "peer_selection", "relation", "rows",
    "schedule", "similarity", "teacher", "uncertainty", "weights", "wire",
}  # fmt: skip
COMMON = {"checks", "errors", "files", "options", "ordering", "seeding", "__init__"}
ALLOWED = {
    "methods": {"methods", "federation", "privacy", "data", "models", "evaluation"},
    "federation": {"federation", "privacy", "data", "models", "evaluation"},
    "privacy": {"privacy", "federation", "data", "models", "evaluation"},
    "reporting": {"reporting", "federation", "privacy", "evaluation", "data", "models"},
    "evaluation": {"evaluation", "data", "models"},
    "data": {"data"},
    "models": {"models"},
}
SHARED_MATHS = {("models", "batch_statistics"), ("models", "precision")}
"""Areas' modules that are maths, too: torch and nothing else."""
SHARED_METHODS = {"supervised", "fixmatch"}
MATHS_LIBRARIES = {"torch", "numpy"}
STANDARD = {
    "__future__", "abc", "bisect", "collections", "contextlib", "copy", "dataclasses", "enum",
    "functools", "itertools", "math", "typing",
}  # fmt: skip


def module_of(file: Path, package: Path) -> tuple[str, ...]:
    """``methods/fedperl/loss.py`` as ``("methods", "fedperl", "loss")``."""
    return file.relative_to(package).with_suffix("").parts


def imported(file: Path, package: Path) -> list[tuple[int, tuple[str, ...]]]:
    """Line and full name of everything that a file imports, wherever in the file."""
    found = []
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [(node.lineno, tuple(alias.name.split("."))) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = ("grandrounds", *module_of(file, package))[: -node.level] if node.level else ()
            base = (*above, *(node.module.split(".") if node.module else ()))
            found += [(node.lineno, (*base, alias.name)) for alias in node.names]
    return found


def may_import_flare(module: tuple[str, ...]) -> bool:
    """Only the seam, the deployment, the site's filters and the methods' shells know FLARE."""
    if module[0] in {"federation", *FREE}:
        return True
    return module == ("privacy", "filters") or (module[0] == "methods" and module[-1] in ("executor", "controller"))


def is_maths(module: tuple[str, ...]) -> bool:
    """Whether a module is a method's maths."""
    return module[0] == "methods" and module[-1] in MATHS


def problem_with(module: tuple[str, ...], name: tuple[str, ...]) -> str | None:
    """Why this module must not import this name; None when it may."""
    if name[0] == "nvflare" and not may_import_flare(module):
        return "does not know FLARE"
    if is_maths(module) and name[0] not in {*MATHS_LIBRARIES, *STANDARD, "grandrounds"}:
        return "is maths, which needs torch, numpy and the standard library only"
    if name[0] != "grandrounds" or len(name) == 1 or module[0] in FREE:
        return None
    area = name[1]
    if area in COMMON or area.startswith("__"):
        return None
    if module[0] in COMMON:
        return "is common to all areas and knows none of them"
    if is_maths(module) and not is_maths(name[1:4]) and name[1:3] not in SHARED_MATHS:
        return "is maths, which knows no other part than maths"
    if area not in ALLOWED.get(module[0], set()):
        return f"may import {', '.join(sorted(ALLOWED.get(module[0], set())))} only"
    if area == module[0] == "methods" and name[2] != module[1] and name[2] not in SHARED_METHODS:
        return f"is a method of its own; methods share {', '.join(sorted(SHARED_METHODS))} only"
    return None


def violations(package: Path) -> list[str]:
    """All imports against the rules, as ``file:line: module name``."""
    found = []
    for file in sorted(package.rglob("*.py")):
        for line, name in imported(file, package):
            problem = problem_with(module_of(file, package), name)
            if problem:
                found.append(f"{file.relative_to(package)}:{line}: imports {'.'.join(name)}, but {problem}")
    return found


def test_imports_go_one_way():
    assert violations(PACKAGE) == []


def test_all_of_the_package_is_looked_at():
    files = {module_of(file, PACKAGE)[0] for file in PACKAGE.rglob("*.py")}
    assert files - {"privacy"} >= set(ALLOWED) - {"privacy"}
    assert files <= {*ALLOWED, *FREE, *COMMON}, "a new area needs a rule"


@pytest.mark.parametrize(
    ("file", "code", "problem"),
    [
        ("federation/exchange.py", "from grandrounds.methods.fedperl import loss", "may import data, evaluation"),
        ("federation/exchange.py", "import grandrounds.methods.fedperl.loss", "may import data, evaluation"),
        ("data/site.py", "def f():\n    from grandrounds.federation import places", "may import data only"),
        ("data/site.py", "from ..federation import places", "may import data only"),
        ("models/compact.py", "import grandrounds.evaluation.metrics", "may import models only"),
        ("evaluation/predict.py", "from grandrounds.protocol.messages import State", "may import data, evaluation"),
        ("privacy/gate.py", "import nvflare", "does not know FLARE"),
        ("privacy/filters.py", "from grandrounds.methods.fedperl.loss import x", "may import data, evaluation"),
        ("methods/fedperl/training.py", "from nvflare.apis.dxo import DXO", "does not know FLARE"),
        ("methods/fedirm/executor.py", "from grandrounds.methods.fedperl.loss import x", "is a method of its own"),
        ("methods/fixmatch/executor.py", "from grandrounds.deployment import jobs", "may import data, evaluation"),
        ("methods/fedperl/loss.py", "from grandrounds.protocol.messages import State", "knows no other part than"),
        ("methods/fedperl/loss.py", "from grandrounds.methods.fedperl.executor import x", "knows no other part than"),
        ("methods/fedperl/peer_selection.py", "import sklearn", "needs torch, numpy and the standard library only"),
        ("seeding.py", "from grandrounds.data import site", "is common to all areas"),
    ],
)
def test_a_planted_violation_is_found(tmp_path, file, code, problem):
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).write_text(f"import torch\n{code}\n")
    (found,) = violations(tmp_path)
    assert found.startswith(f"{file}:{2 + code.count(chr(10))}: imports")
    assert problem in found


@pytest.mark.parametrize(
    ("file", "code"),
    [
        ("methods/fedirm/executor.py", "from grandrounds.methods.fixmatch.training import PseudoLabeler"),
        ("methods/fedirm/controller.py", "from nvflare.apis.signal import Signal"),
        ("methods/fedperl/similarity.py", "from grandrounds.methods.fedperl.loss import x"),
        ("methods/fedperl/loss.py", "from . import similarity"),
        ("privacy/filters.py", "from nvflare.apis.filter import Filter"),
        ("deployment/jobs.py", "from grandrounds.methods.fedperl.executor import FedPerlExecutor"),
        ("cli.py", "from grandrounds.data import doctor"),
        ("federation/executor.py", "from grandrounds.privacy.mechanisms.clipping import clip"),
    ],
)
def test_what_is_allowed_is_not_a_violation(tmp_path, file, code):
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).write_text(code)
    assert violations(tmp_path) == []
