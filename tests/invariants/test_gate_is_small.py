"""The privacy gate is so small that a hospital can read it: what it and the ledger import, imports in functions included."""

import ast
import io
import tokenize
from pathlib import Path

import grandrounds

PACKAGE = Path(grandrounds.__file__).parent
GATE = ("privacy/gate", "privacy/ledger")
MOST_LINES, MOST_MODULES = 6370, 80
NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def file_of(name):
    """The module of the package with this name; None for a name in a module, or of another package."""
    place = PACKAGE.joinpath(*name)
    return next((path for path in (place.with_suffix(".py"), place / "__init__.py") if path.is_file()), None)


def imports(file):
    """The modules of the package that a module needs: those that it imports and the folders of them and of itself."""
    names = [".".join(("grandrounds", *file.relative_to(PACKAGE).with_suffix("").parts))]
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    own = [name.split(".")[1:] for name in names if name.split(".")[0] == "grandrounds"]
    return {file_of(name[:depth]) for name in own for depth in range(len(name) + 1)} - {None}


def reached():
    """All modules that the gate and the ledger need."""
    found, new = set(), {file for folder in GATE for file in (PACKAGE / folder).glob("*.py")}
    while new:
        found |= new
        new = {other for file in new for other in imports(file)} - found
    return found


def code_lines(text):
    """The number of lines with code: not blank, not a comment, not a documentation of something."""
    documented = {
        line
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for line in range(node.lineno, node.end_lineno + 1)
    }
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    used = {line for token in tokens if token.type not in NO_CODE for line in range(token.start[0], token.end[0] + 1)}
    return len(used - documented)


def test_lines_of_code_are_counted():
    assert code_lines('"""What it is."""\n\n# why\nx = [  # what\n    1,\n]\n"""What x is."""\n') == 3


def test_the_gate_and_all_that_it_needs_can_be_read():
    files = reached()
    assert len(files) <= MOST_MODULES
    assert sum(code_lines(file.read_text(encoding="utf-8")) for file in files) <= MOST_LINES


def test_the_gate_builds_no_network_and_reads_no_image():
    folders = {file.relative_to(PACKAGE).parts[0] for file in reached()}
    assert not folders & {"data", "models", "federation", "methods", "deployment", "reporting"}
