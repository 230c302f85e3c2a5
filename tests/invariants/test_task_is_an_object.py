"""Outside of the tasks' own modules nobody asks which task it is: a third one needs no change of the package."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import grandrounds
from grandrounds.protocol.tasks import FINDINGS, SINGLE

PACKAGE = Path(grandrounds.__file__).parent
FLAGS = {"multi", "is_multi", "of_findings"}
OBJECTS = {"SINGLE", "FINDINGS"}
CLASSES = {"Task", *(type(task).__name__ for task in (SINGLE, FINDINGS))}
NAMES = {SINGLE.name, FINDINGS.name}


def names_of(node: ast.AST) -> Iterator[str]:
    """The names that a node itself binds, reads or passes."""
    for field in ("id", "attr", "arg", "name", "asname"):
        if isinstance(name := getattr(node, field, None), str):
            yield name


def violations(tree: ast.AST) -> list[int]:
    """Lines with a flag (of the task, too), a comparison with a task, a question for its class or for labels' dimensions."""
    found = []
    for node in ast.walk(tree):
        flagged = any(name.lstrip("_").lower() in FLAGS for name in names_of(node))
        flagged |= isinstance(node, ast.Attribute) and node.attr == "exclusive"
        operands = [node.left, *node.comparators] if isinstance(node, ast.Compare) else []
        compared = any(
            (isinstance(one, ast.Constant) and one.value in NAMES)
            or OBJECTS & set(names_of(one))
            or (isinstance(one, ast.Attribute) and one.attr == "ndim" and "labels" in names_of(one.value))
            for one in operands
        )
        asked = (
            isinstance(node, ast.Call)
            and "isinstance" in names_of(node.func)
            and any(CLASSES & set(names_of(one)) for one in ast.walk(node.args[1]))
        )
        if flagged or compared or asked:
            found.append(node.lineno)
    return sorted(set(found))


@pytest.mark.parametrize(
    "folder",
    sorted({path.relative_to(PACKAGE).parts[0] for path in PACKAGE.rglob("*.py")}),
)
def test_nobody_asks_which_task_it_is(folder):
    place = PACKAGE / folder
    files = [place] if place.is_file() else sorted(place.rglob("*.py"))
    own = [file for file in files if not (file.parent == PACKAGE / "protocol" and file.name.startswith("task"))]
    found = [f"{file.relative_to(PACKAGE)}:{line}" for file in own for line in violations(ast.parse(file.read_text()))]
    assert own
    assert found == []


@pytest.mark.parametrize(
    "code",
    [
        "def read(path, multi=False): pass",
        "read(path, multi=problem.kind)",
        "problem.multi",
        "x if problem.kind.exclusive else y",
        "self._multi = 1",
        "from grandrounds.protocol.problem import MULTI",
        "problem.task == 'multi'",
        "content.get('task') in ('single', x) or task is FINDINGS",
        "isinstance(problem.kind, MultiLabel)",
        "isinstance(x, (int, Task))",
        "data.labels.ndim > 1",
    ],
)
def test_each_way_of_asking_is_found(code):
    assert violations(ast.parse(code))


def test_naming_a_task_is_no_question():
    assert (
        violations(ast.parse("def read(task=SINGLE): return task.known(labels) if labels.ndim else FINDINGS.name"))
        == []
    )
