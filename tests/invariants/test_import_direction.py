"""Imports go one way: from upper layers to lower ones, without circles of files or of folders.

Imports are read from the syntax trees, so that one inside a function also counts.
"""

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import grandrounds

PACKAGE = Path(grandrounds.__file__).parent
LAYERS = (
    {"cli", "commands", "__init__", "__main__", "testing"},
    {"api"},
    {"console"},
    {"deployment", "reporting"},
    {"methods"},
    {"federation"},
    {"privacy"},
    {"evaluation"},
    {"models", "data"},
    {"protocol"},
    {
        *(
            "checks",
            "csv_files",
            "errors",
            "files",
            "folders",
            "json_files",
            "logs",
            "option_annotations",
            "option_keys",
            "options",
        ),
        *("ordering", "plain", "plotting", "plugins", "rounds_figure", "seal", "seeding"),
    },
)
"""From the top to the bottom; a module imports its own layer and those below."""
SHARED_METHODS = {"supervised", "fixmatch"}
BORROWED = {("feddf", "mutual"), ("baselines", "mutual")}
"""A method may import these methods beside the shared ones."""
MATHS = {
    "loss", "relation", "schedule", "similarity", "soft_labels", "uncertainty",
}  # fmt: skip
"""Modules of methods that need torch, numpy, the standard library and each other only."""
SHARED_MATHS = {("models", "norm"), ("protocol", "task"), ("protocol", "tasks")}
MATHS_LIBRARIES = {"torch", "numpy"}
STANDARD = {
    "__future__", "abc", "bisect", "collections", "contextlib", "copy", "dataclasses", "enum", "functools", "itertools",
    "math", "typing",
}  # fmt: skip

Module = tuple[str, ...]


def module_of(file: Path, package: Path) -> Module:
    """``methods/fedperl/loss.py`` as ``("methods", "fedperl", "loss")``; a folder's ``__init__`` is the folder."""
    parts = file.relative_to(package).with_suffix("").parts
    return parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts


def imported(file: Path, package: Path) -> list[tuple[int, Module]]:
    """Line and full name of everything that a file imports, wherever in the file."""
    found = []
    folder = ("grandrounds", *file.relative_to(package).parts[:-1])
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [(node.lineno, tuple(alias.name.split("."))) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = folder[: len(folder) + 1 - node.level] if node.level else ()
            base = (*above, *(node.module.split(".") if node.module else ()))
            found += [(node.lineno, (*base, alias.name)) for alias in node.names]
    return found


def layer_of(module: Module) -> int | None:
    """The place of a module's layer in ``LAYERS``; None if it has none."""
    prefixes = {".".join(module[:depth]) for depth in (1, 2)}
    return next((number for number, layer in enumerate(LAYERS) if layer & prefixes), None)


def may_import_flare(module: Module) -> bool:
    """Federation, deployment, messages, the site's filters and the methods' shells know FLARE."""
    if module[0] in {"federation", "deployment", "commands", "cli", "__main__"}:
        return True
    shells = ("executor", "controller")
    return module in (
        ("privacy", "gate", "filters"),
        ("protocol", "wire"),
        ("protocol", "paths"),
        ("protocol", "plain"),
        ("protocol", "precision"),
    ) or (module[0] == "methods" and module[-1] in shells)


def is_maths(module: Module) -> bool:
    """Whether a module is a method's maths."""
    return module[0] == "methods" and module[-1] in MATHS


def problem_with(module: Module, name: Module) -> str | None:
    """Why this module must not import this name; None when it may."""
    if name[0] == "nvflare" and not may_import_flare(module):
        return "does not know FLARE"
    if is_maths(module) and name[0] not in {*MATHS_LIBRARIES, *STANDARD, "grandrounds"}:
        return "is maths, which needs torch, numpy and the standard library only"
    if name[0] != "grandrounds" or len(name) == 1 or name[1].startswith("__"):
        return None
    own, other = layer_of(module), layer_of(name[1:])
    helpers = len(LAYERS) - 1
    if own is None or other is None:
        return "has no layer, or its import has none"
    if other < own:
        return f"is in a layer below {', '.join(sorted(LAYERS[other]))}"
    known = name[1:3] in SHARED_MATHS or is_maths(name[1:4]) or name[1:4] == (*module[:-1], "options")
    if is_maths(module) and other != helpers and not known:
        return "is maths, which knows no other part than maths"
    another = name[1] == module[0] == "methods" and name[2] != module[1]
    if another and name[2] not in SHARED_METHODS and (module[1], name[2]) not in BORROWED:
        return f"is a method of its own; methods share {', '.join(sorted(SHARED_METHODS))} only"
    return None


def read(package: Path) -> dict[Path, list[tuple[int, Module]]]:
    """What each file of a package imports."""
    return {file: imported(file, package) for file in sorted(package.rglob("*.py"))}


@pytest.fixture(scope="module")
def ours() -> dict[Path, list[tuple[int, Module]]]:
    """The imports of this package: each file is parsed once."""
    return read(PACKAGE)


def violations(imports: dict[Path, list[tuple[int, Module]]], package: Path) -> list[str]:
    """All imports against the rules, as ``file:line: imports name, but reason``."""
    found = []
    for file, names in imports.items():
        for line, name in names:
            problem = problem_with(module_of(file, package), name)
            if problem:
                found.append(f"{file.relative_to(package)}:{line}: imports {'.'.join(name)}, but {problem}")
    return found


def import_graph(imports: dict[Path, list[tuple[int, Module]]], package: Path) -> dict[Module, set[Module]]:
    """Which module of the package imports which."""
    files = {module_of(file, package): file for file in imports}
    graph: dict[Module, set[Module]] = {}
    for module, file in files.items():
        names = [name[1:] for _, name in imports[file] if name[0] == "grandrounds"]
        # What is imported from a module is a name in it, or a module of the folder.
        targets = {name if name in files else name[:-1] for name in names}
        graph[module] = (targets & files.keys()) - {module}
    return graph


def circle(graph: dict[Module, set[Module]]) -> str:
    """A circle of imports, as text; empty if there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return " -> ".join(".".join(module) for module in error.args[1])
    return ""


def folders(graph: dict[Module, set[Module]], package: Path) -> dict[Module, set[Module]]:
    """The graph of folders without the imports between a folder and those inside it."""
    is_folder = {module for module in graph if (package.joinpath(*module) / "__init__.py").exists()}

    def folder(module: Module) -> Module:
        return module if module in is_folder else module[:-1]

    joined: dict[Module, set[Module]] = {}
    for module, targets in graph.items():
        joined.setdefault(folder(module), set()).update(folder(target) for target in targets)
    return {
        one: {other for other in targets if one[: len(other)] != other and other[: len(one)] != one}
        for one, targets in joined.items()
    }


def test_imports_go_from_upper_layers_to_lower_ones(ours):
    assert violations(ours, PACKAGE) == []


def test_no_files_import_each_other(ours):
    assert circle(import_graph(ours, PACKAGE)) == ""


def test_no_folders_import_each_other(ours):
    assert circle(folders(import_graph(ours, PACKAGE), PACKAGE)) == ""


def test_every_module_has_a_layer_and_every_name_is_still_there():
    modules = {module_of(file, PACKAGE) for file in PACKAGE.rglob("*.py")}
    assert [".".join(m) for m in modules if layer_of(m) is None] == []
    names = {".".join(module[:depth]) for module in modules for depth in (1, 2)}
    assert set().union(*LAYERS) - names == set()
    assert MATHS - {module[-1] for module in modules if module[0] == "methods"} == set()
    assert modules >= SHARED_MATHS


@pytest.mark.parametrize(
    ("file", "code", "problem"),
    [
        ("federation/server/exchange.py", "from grandrounds.methods.fedperl import loss", "in a layer below methods"),
        ("federation/server/exchange.py", "import grandrounds.methods.fedperl.loss", "in a layer below methods"),
        ("protocol/paths.py", "from grandrounds.privacy.gate import gate", "in a layer below privacy"),
        ("data/site.py", "def f():\n    from grandrounds.federation import engine", "in a layer below federation"),
        ("data/site.py", "from ..federation import engine", "in a layer below federation"),
        ("protocol/problem.py", "from grandrounds.models import registry", "in a layer below data, models"),
        ("evaluation/predict.py", "from grandrounds.federation.engine import x", "in a layer below federation"),
        ("evaluation/predict.py", "from grandrounds.nowhere import x", "has no layer"),
        ("privacy/gate/gate.py", "import nvflare", "does not know FLARE"),
        ("privacy/gate/filters.py", "from grandrounds.federation.site.data import x", "in a layer below federation"),
        ("methods/fedperl/training.py", "from nvflare.apis.dxo import DXO", "does not know FLARE"),
        ("methods/fedirm/executor.py", "from grandrounds.methods.fedperl.loss import x", "is a method of its own"),
        ("methods/fixmatch/executor.py", "from grandrounds.deployment import jobs", "in a layer below deployment"),
        ("methods/fedperl/loss.py", "from grandrounds.protocol.messages import State", "knows no other part than"),
        ("methods/fedperl/loss.py", "from grandrounds.methods.fedperl.executor import x", "knows no other part than"),
        ("methods/fedperl/similarity.py", "import sklearn", "needs torch, numpy and the standard library only"),
        ("seeding.py", "from grandrounds.data import site", "in a layer below data, models"),
    ],
)
def test_a_planted_violation_is_found(tmp_path, file, code, problem):
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).write_text(f"import torch\n{code}\n")
    (found,) = violations(read(tmp_path), tmp_path)
    assert found.startswith(f"{file}:{2 + code.count(chr(10))}: imports")
    assert problem in found


@pytest.mark.parametrize(
    ("file", "code"),
    [
        ("methods/fedirm/executor.py", "from grandrounds.methods.fixmatch.training import x"),
        ("methods/fedirm/controller.py", "from nvflare.apis.signal import Signal"),
        ("methods/feddf/controller.py", "from grandrounds.methods.mutual.options import x"),
        ("methods/fedperl/similarity.py", "from grandrounds.methods.fedperl.loss import x"),
        ("methods/fedperl/loss.py", "from . import similarity"),
        ("methods/fedperl/loss.py", "from grandrounds.checks import require_fraction"),
        ("privacy/gate/filters.py", "from nvflare.apis.filter import Filter"),
        ("deployment/jobs.py", "from grandrounds.methods.fedperl.executor import FedPerlExecutor"),
        ("cli.py", "from grandrounds.data import doctor"),
        ("federation/site/executor.py", "from grandrounds.privacy.mechanisms.gaussian import clip"),
    ],
)
def test_an_allowed_import_is_not_a_violation(tmp_path, file, code):
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).write_text(code)
    assert violations(read(tmp_path), tmp_path) == []


def test_circles_are_found(tmp_path):
    for file, code in {
        "data/partition/a.py": "from grandrounds.data.images import b",
        "data/images/b.py": "def f():\n    from grandrounds.data.partition import c",
        "data/partition/c.py": "from grandrounds.data.images.d import x",
        "data/images/d.py": "import grandrounds.data",
        "data/e.py": "import grandrounds.data.images.d",
    }.items():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(code)
        (tmp_path / file).with_name("__init__.py").touch()
    assert circle(import_graph(read(tmp_path), tmp_path)) == ""
    assert circle(folders(import_graph(read(tmp_path), tmp_path), tmp_path)).count(" -> ") == 2
    (tmp_path / "data" / "images" / "d.py").write_text("import grandrounds.data.partition.a")
    assert circle(import_graph(read(tmp_path), tmp_path)).count(" -> ") == 4
