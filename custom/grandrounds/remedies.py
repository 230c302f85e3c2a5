"""What to type in place of what is refused, by kind of mistake; the words that people expect are in ``remedies.json``."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Any

from grandrounds.checks import did_you_mean

WORDS = json.loads(Path(__file__).with_name("remedies.json").read_text(encoding="utf-8"))
"""Commands (alone, and with more words, which stand for ``{}``), options, options of jobs, and those for a folder alone."""


OF_IMPORT = ("--validation", "--test")
"""Options of a division, which commands have that read images of one's own."""
MOST_BESIDE = 10_000
"""Names that a missing one is compared with."""


def add_remedy(error: Any) -> None:
    """Add to an exception of Typer for a wrong use of a command what to type instead; another is left as it is."""
    ctx, parameter, kind = getattr(error, "ctx", None), getattr(error, "param", None), type(error).__name__
    if ctx is None:
        return
    options = [
        name for known in ctx.command.params for name in (*known.opts, *known.secondary_opts) if name[:2] == "--"
    ]
    if kind == "NoSuchOption":
        error.message, error.possibilities = error.message + _in_place_of(error.option_name, options), ()
    elif parameter and kind == "MissingParameter" and (name := parameter.opts[0]) in options:
        error.message = f"add {name} {name.strip('-').replace('-', '_').upper()}"
    elif parameter and (found := re.match("Input should be a valid (integer|number)", error.message)):
        given = str(error.__cause__.errors()[0]["input"]) if hasattr(error.__cause__, "errors") else ""
        near = nearest_number(given, found[1])
        error.message = f"expected {found[1]}, got {given!r}" + (f"; type {parameter.opts[0]} {near}" if near else "")
    elif parameter and (found := re.fullmatch("Value error, ('(.*)' is not one of (.*))[.]", error.message)):
        error.message = found[1] + did_you_mean(found[2], re.findall("'(.*?)'", found[3]))
    elif extra := re.fullmatch(r"Got unexpected extra argument\S* \((.*)\)", error.message):
        error.message += f"; {_of_extra(extra[1], ctx, options)}"


def of_option(option: str, known: Iterable[str], job: str, form: str = "{}") -> str:
    """What to type in place of an option that a job does not have: the nearest one, else the command that lists them."""
    near = did_you_mean(WORDS["job options"].get(option, option), sorted(known), form)
    return near or f"; all its options: grandrounds jobs {job}"


def missing(path: Path, wanted: str) -> str:
    """That there is no such file or folder, the one beside it with the nearest name, and what is wanted."""
    return f"{path} does not exist{nearest_beside(path)}; name {wanted}"


def of_file(error: BaseException | None) -> str:
    """What to do about a file that an error of the operating system names; empty if nothing is known of it."""
    path = Path(os.fsdecode(getattr(error, "filename", None) or ""))
    return (
        nearest_beside(path) if isinstance(error, FileNotFoundError) else WORDS["files"].get(type(error).__name__, "")
    )


def nearest_beside(path: Path) -> str:
    """The hint that names the file or folder with the nearest name beside a path that is not there; else empty."""
    if path.exists():
        return ""
    beside: Sequence[str] = ()
    with suppress(OSError):  # a folder that others may not list
        beside = sorted(entry.name for entry in islice(path.parent.iterdir(), MOST_BESIDE))
    return did_you_mean(path.name, beside, str(Path(re.sub("[{}]", r"\g<0>\g<0>", str(path.parent)), "{}")))


def nearest_number(text: str, kind: str = "number") -> str:
    """The number that a text begins with; its decimal sign may be a comma: of 0,001 it is 0.001.

    It is 1 where it begins with none, and empty where a comma may as well part thousands.
    """
    if re.match(r"[1-9]\d{0,2}[.,]\d{3}(\D|$)", text):
        return ""
    found = re.match(r"\d+" if kind == "integer" else r"-?(?:\d+(?:[.,]\d+)?|[.,]\d+)(?:[eE][+-]?\d+)?", text.strip())
    return found[0].replace(",", ".") if found else "1"


def example_pattern(name: str) -> str:
    """An option with a pattern of patients that fits an image's name; empty if there is no number in it."""
    found = re.match(r"(\D*)\d+(\D)", PurePosixPath(name).stem)
    pattern = f"({re.escape(found[1])}[0-9]+){re.escape(found[2])}" if found else ""
    return f"; an example: --patient-pattern {shlex.quote(pattern)}" if found else ""


def _in_place_of(name: str, options: Sequence[str]) -> str:
    if name == "--images" and "--sites-dir" in options:
        return "; type grandrounds import FOLDER --out DIR, and then here --sites-dir DIR"
    expected = [remedy for remedy, names in WORDS["options"].items() if name in names and "--set" in options]
    if name in OF_IMPORT and "--label-map" not in options:
        expected = []
    return f"; {expected[0]}" if expected else did_you_mean(name, options)


def _of_extra(words: str, ctx: Any, options: Sequence[str]) -> str:
    option = WORDS["folders"].get(ctx.command.name, "--images")
    last = (ctx.params.get("assignments") or [""])[-1]
    if last and "=" not in last:
        return f"did you mean --set {last}={words}?"
    with suppress(OSError):  # too long for a name
        if option in options and Path(words).exists():
            return f"did you mean {option} {shlex.quote(words)}?"
    return "leave it out"
