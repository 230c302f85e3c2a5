"""Counts of a checkout's text: lines of Python by folder, branches, job files and words."""

from __future__ import annotations

import ast
import io
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path

SILENT = frozenset({
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING, tokenize.ENDMARKER,
})  # fmt: skip
BRANCHES = (ast.If, ast.For, ast.While, ast.ExceptHandler, ast.IfExp, ast.match_case, ast.comprehension)
PACKAGE = "custom/grandrounds"
OTHERS = ("benchmarks", "examples", "provisioning", "poc", "docs", "tests", ".ci")
"""Folders beside the package whose Python is counted; tests of the package are not a part of it."""


def python_files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*.py") if not {"__pycache__", ".venv"} & set(path.parts))


def counted(text: str) -> Counter[str]:
    """Lines, code lines (no blanks, comments and docstrings) and lines of imports; functions of over 10 and 15 branches."""
    tree = ast.parse(text)
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in SILENT:
            code.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            code.difference_update(_lines(node))
    imported = {
        line for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom) for line in _lines(node)
    }
    branches = [_branches(node) for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return Counter(
        files=1,
        lines=len(text.splitlines()),
        code=len(code),
        imports=len(imported & code),
        functions=len(branches),
        over_10_branches=sum(count > 10 for count in branches),
        over_15_branches=sum(count > 15 for count in branches),
    )


def _lines(node: ast.stmt) -> range:
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)


def _branches(function: ast.AST) -> int:
    nodes = list(ast.walk(function))
    joined = sum(len(node.values) - 1 for node in nodes if isinstance(node, ast.BoolOp))
    tests = sum(len(node.ifs) for node in nodes if isinstance(node, ast.comprehension))
    return sum(isinstance(node, BRANCHES) for node in nodes) + joined + tests


def rows_of(root: Path) -> dict[str, Counter[str]]:
    """A row for each folder of the package, one for the package, and one for each folder beside it."""
    rows: dict[str, Counter[str]] = defaultdict(Counter)
    package = root / PACKAGE
    for path in python_files(package):
        parts = path.relative_to(package).parts
        row = counted(path.read_text(encoding="utf-8"))
        rows[parts[0] if len(parts) > 1 else "(modules of the package itself)"].update(row)
    rows["package"] = sum(rows.values(), Counter())
    for name in OTHERS:
        for path in python_files(root / name):
            rows[f"{name}/"].update(counted(path.read_text(encoding="utf-8")))
    return {name: row for name, row in rows.items() if row}


def words_of(root: Path) -> dict[str, int]:
    """Words of the pages in Markdown: those of readers, and those of benchmarks and examples."""
    pages = [root / "README.md", *sorted((root / "docs").rglob("*.md"))]
    others = [*(root / "benchmarks").rglob("*.md"), *(root / "examples").rglob("*.md")]
    return {"README and docs": _words(pages), "benchmarks and examples": _words(others)}


def _words(pages: Iterable[Path]) -> int:
    return sum(len(page.read_text(encoding="utf-8").split()) for page in pages)


def job_lines(root: Path) -> int:
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in (root / "jobs").rglob("*.json"))
