"""The fenced blocks of the documentation, and the commands in them."""

import re
import shlex
import string
import textwrap
from collections.abc import Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
OTHERS = ("README.md", "CONTRIBUTING.md", "provisioning/README.md", "poc/README.md")
FOLDERS = ("docs", "examples", "benchmarks")
PAGES = [
    *OTHERS,
    *sorted(path.relative_to(ROOT).as_posix() for name in FOLDERS for path in (ROOT / name).rglob("*.md")),
]
FENCE = re.compile(r'^ *```(\w*)(?: title="([^"]+)")?\n(.*?)^ *```$', re.DOTALL | re.MULTILINE)
SEPARATORS = set("&|;")


class Block(NamedTuple):
    """A fenced block: where it is, its language, its title (a file's name), and its text without indentation."""

    page: str
    line: int
    language: str
    title: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


class Command(NamedTuple):
    """A command of a shell, with the variables that are set for it alone."""

    variables: dict[str, str]
    words: list[str]


def text_of(page: str) -> str:
    """The text of a page."""
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(page: str) -> list[Block]:
    """All fenced blocks of a page, in order."""
    text = text_of(page)
    return [
        Block(page, text.count("\n", 0, found.start()) + 1, found[1], found[2] or "", textwrap.dedent(found[3]))
        for found in FENCE.finditer(text)
    ]


def commands(text: str, variables: Mapping[str, str]) -> Iterator[Command]:
    """The commands of a block of a shell, with ``$NAME`` replaced; ``variables`` are looked at when a command is reached."""
    for line in text.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars="&|;")
        lexer.whitespace_split = True
        for separates, group in groupby(lexer, lambda word: set(word) <= SEPARATORS):
            if separates:
                continue
            words = [string.Template(word).safe_substitute(variables) for word in group]
            own: dict[str, str] = {}
            while words and re.match(r"[A-Z_]+=", words[0]):
                name, _, value = words.pop(0).partition("=")
                own[name] = value
            if words:
                yield Command(own, words)
