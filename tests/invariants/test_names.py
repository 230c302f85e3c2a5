"""Names: one meaning each in the whole package.

A public name is a class or function at the top of a module without an underscore.
"""

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

import grandrounds

PACKAGE = Path(grandrounds.__file__).parent
SAME_MEANING: Mapping[str, str] = {
    "main": "where a program begins",
    "figures": "the hook by which a method draws its own events",
}
"""Functions of one name that mean the same on purpose, and why there are two."""


@cache
def trees() -> dict[str, ast.Module]:
    """The syntax tree of every module of the package, by its path."""
    return {
        path.relative_to(PACKAGE).as_posix(): ast.parse(path.read_text(encoding="utf-8"))
        for path in sorted(PACKAGE.rglob("*.py"))
    }


def constants(tree: ast.Module) -> Iterator[str]:
    """The upper-case names that a module binds."""
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        for target in targets:
            for name in target.elts if isinstance(target, ast.Tuple) else [target]:
                if isinstance(name, ast.Name) and name.id.isupper() and not name.id.startswith("_"):
                    yield name.id


def imported_names() -> set[tuple[str, str]]:
    """Module and name of what one module of the package imports from another."""
    nodes = (node for tree in trees().values() for node in ast.walk(tree) if isinstance(node, ast.ImportFrom))
    return {(node.module or "", alias.name) for node in nodes for alias in node.names}


def definitions(tree: ast.Module, *kinds: type[ast.stmt]) -> list[str]:
    """The public classes or functions at the top of a module."""
    return [node.name for node in tree.body if isinstance(node, kinds) and not node.name.startswith("_")]


def twice(names: Mapping[str, list[str]]) -> dict[str, list[str]]:
    """The names that several modules have, and these modules."""
    found = defaultdict(list)
    for module, own in names.items():
        for name in dict.fromkeys(own):
            found[name].append(module)
    return {name: modules for name, modules in found.items() if len(modules) > 1}


def test_no_constant_that_others_import_is_bound_in_two_modules():
    shared = imported_names()
    own = {
        module: [name for name in constants(tree) if (f"grandrounds.{module[:-3].replace('/', '.')}", name) in shared]
        for module, tree in trees().items()
    }
    assert twice(own) == {}


def test_no_class_name_exists_twice():
    assert twice({module: definitions(tree, ast.ClassDef) for module, tree in trees().items()}) == {}


def test_functions_of_one_name_mean_the_same():
    """A command of ``commands/`` has the name by which it is typed, which is that of what it calls."""
    found = twice({m: definitions(t, ast.FunctionDef) for m, t in trees().items() if not m.startswith("commands/")})
    assert {name: modules for name, modules in found.items() if name not in SAME_MEANING} == {}
    assert set(SAME_MEANING) <= set(found)


@pytest.mark.parametrize(
    ("code", "found"),
    [
        (
            "A = B = 1\nC, D = 1, 2\n_E = F1 = x = 1\nG: int = 1\nfor H in (): pass",
            ["A", "B", "C", "D", "F1", "G", "H"],
        ),
        ("def f():\n    A = 1\nclass C:\n    B = 1", []),
    ],
)
def test_constants_are_found(code, found):
    assert list(constants(ast.parse(code))) == found


def test_names_of_two_modules_are_found_and_those_of_one_are_not():
    assert twice({"a": ["x", "x", "y"], "b": ["y", "z"]}) == {"y": ["a", "b"]}
