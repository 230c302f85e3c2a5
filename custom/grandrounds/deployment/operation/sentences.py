"""Free text reduced to what stands in public source code, so that nothing of a machine or a patient is left in it.

A message consists of words that a programmer has written and of values that were put between them. Here the words that
stand in the source of this package or of FLARE are kept, and of the rest only what has a form that is allowed. It is a list
of what may stay: a value that nobody has thought of goes.
"""

from __future__ import annotations

import ast
import builtins
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from grandrounds.deployment.jobs import PACKAGE
from grandrounds.federation.channels import is_job_id
from grandrounds.protocol.messages import ReleaseKind

REMOVED = "…"
"""Stands for what was taken out."""
UNSAID = (
    *("api", "commands", "console", "data/datasets", "data/partition", "deployment/skeletons.py", "evaluation"),
    *("methods", "reporting", "testing.py"),
)
"""Parts of this package in whose source names of classes stand, or whose words no operator needs."""
LEAST_WORDS = 2
"""Of a piece of source; one word alone may also be a name."""
HOLE = re.compile(r"%[-+ #0]*[\d.]*[a-zA-Z]|\{[^{}]*\}")
WORD = re.compile(r"\w+")
SMALL_NUMBER = re.compile(r"[-+]?\d{1,9}(\.\d+){0,3}%?")
PLAIN_WORDS = frozenset(
    {
        *(
            "GiB",
            "MiB",
            "GB",
            "MB",
            "s",
            "min",
            "h",
            "d",
            "days",
            "of",
            "in",
            "and",
            "to",
            "at",
            "is",
            "not",
            "none",
            "no",
        ),
        *(
            "complete",
            "unchanged",
            "releases",
            "bookings",
            "images",
            "reachable",
            "free",
            "missing",
            "damaged",
            "version",
        ),
        *("scope", "allows", "stopping", "stopped", "port", "names", "changed", "since", "libraries"),
        *(kind.value for kind in ReleaseKind),
    }
)
"""Words that stand alone between values, and say nothing of anybody."""
OF_KIT = frozenset(
    {
        *("KIT", "local", "startup", "privacy", "grandrounds", "storage"),
        *(
            "log.txt",
            "log.json",
            "error_log.txt",
            "console.txt",
            "audit.jsonl",
            "ledger.jsonl",
            "grandrounds.lock.json",
        ),
        *(
            "privacy.json",
            "grandrounds.json",
            "resources.json",
            "authorization.json",
            "signers.json",
            "roster.json",
            "log_config.json",
        ),
        *("client.crt", "server.crt", "rootCA.pem", "fed_client.json", "fed_server.json"),
    }
)
"""Names in a path of the kit that may stay."""
FRAME = re.compile(r'File "[^"]*?((?:nvflare|grandrounds|torch)/[\w/.]+\.py)", line (\d+), in (\w+)')
OF_ERRORS = ("Error", "Exception")
EDGES = "'\"()[]{}<>,;:.!?="


class Sentences:
    """The pieces of text in the source of some files.

    Args:
        files: Python files; one that cannot be read or parsed adds nothing.
    """

    def __init__(self, files: Iterable[Path]) -> None:
        pieces: dict[str, set[str]] = defaultdict(set)
        self._errors = {name for name in dir(builtins) if name.endswith(OF_ERRORS)}
        for file in files:
            with suppress(OSError, ValueError, SyntaxError):
                tree = ast.parse(file.read_text(encoding="utf-8"))
                classes = (node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
                self._errors |= {name for name in classes if name.endswith(OF_ERRORS)}
                for piece in _pieces(tree):
                    pieces[WORD.findall(piece)[0]].add(piece)
        self._pieces = {first: sorted(found, key=len, reverse=True) for first, found in pieces.items()}

    def reduced(self, text: str, names: Iterable[str] = (), numbers: bool = False) -> str:
        """What may stay of a text; an ellipsis stands for what was taken out.

        Args:
            text: with the kit's folder written as ``KIT``.
            names: words that may stay, such as the participant's name.
            numbers: whether numbers may.
        """
        allowed = {*names, *self._errors}
        return "\n".join(filter(None, (self._line(line, allowed, numbers) for line in text.splitlines())))

    def _line(self, line: str, names: set[str], numbers: bool) -> str:
        if frame := FRAME.search(line):
            return f"  File {frame[1]}, line {frame[2]}, in {frame[3]}"
        kept, position = list[str](), 0
        for word in WORD.finditer(line):
            if word.start() < position:
                continue
            piece = next((one for one in self._pieces.get(word[0], ()) if _stands(one, line, word.start())), "")
            if piece:
                kept += [_rest(line[position : word.start()], names, numbers), piece]
                position = word.start() + len(piece)
        kept.append(_rest(line[position:], names, numbers))
        return re.sub(rf"{REMOVED}(\s*{REMOVED})+", REMOVED, "".join(kept)).strip()


def sources(loggers: Iterable[str] = ()) -> list[Path]:
    """The files of this package whose words may stay, and those of FLARE that these loggers are named after."""
    own = [path for path in PACKAGE.rglob("*.py") if not _unsaid(path.relative_to(PACKAGE).as_posix())]
    flare = find_spec("nvflare")
    root = Path(flare.origin).parent if flare and flare.origin else None
    found = set[Path]()
    for name in set(loggers):
        parts = name.split(".")
        if root is not None and parts[0] == root.name and all(part.isidentifier() for part in parts):
            ends = (root.joinpath(*parts[1:end]).with_suffix(".py") for end in range(len(parts), 1, -1))
            found |= set([*filter(Path.is_file, ends)][:1])
    return [*sorted(own), *sorted(found)]


def _unsaid(path: str) -> bool:
    return any(path == part or path.startswith(f"{part}/") for part in UNSAID)


def _pieces(tree: ast.Module) -> Iterator[str]:
    """Texts of at least two words, cut where values are put in; documentation is none."""
    documented = {
        id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documented:
            for line in node.value.splitlines():
                for part in HOLE.split(line):
                    piece = re.sub(r"^\W+", "", part).rstrip()
                    if " " in piece and len(re.findall(r"[A-Za-z]{2,}", piece)) >= LEAST_WORDS:
                        yield piece


def _stands(piece: str, line: str, start: int) -> bool:
    """Whether a piece stands here, and neither begins nor ends inside a word or a path."""
    end = start + len(piece)
    inside = re.search(r"[\w/.-]$", line[:start]) or re.match(r"\w[\w/-]", line[end - 1 : end + 1])
    return line.startswith(piece, start) and not inside


def _rest(text: str, names: set[str], numbers: bool) -> str:
    """What stands between two pieces of source, word by word."""
    return re.sub(r"\S+", lambda found: _word(found[0], names, numbers), text)


def _word(word: str, names: set[str], numbers: bool) -> str:
    core = word.strip(EDGES)
    before, _, after = word.partition(core) if core else (word, "", "")
    return f"{before}{_value(core, names, numbers)}{after}"


def _value(core: str, names: set[str], numbers: bool) -> str:
    if not WORD.search(core) or core in names or is_job_id(core):
        return core
    if core.startswith(("KIT", "HOME", "/")):
        return _path(core)
    known = core in PLAIN_WORDS or (core in OF_KIT and "." in core) or (numbers and SMALL_NUMBER.fullmatch(core))
    return core if known else REMOVED


def _path(path: str) -> str:
    """A path of the kit as far as its names are known ones; of any other path the first part alone."""
    parts = path.split("/")
    if parts[0] == "KIT" and all(part in OF_KIT or is_job_id(part) for part in parts):
        return path
    return f"{parts[0] if parts[0] in ('KIT', 'HOME') else ''}/{REMOVED}"
