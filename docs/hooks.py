"""Hooks of the documentation site: pages of the repository outside ``docs``, notebooks, links to them, and formulas.

A page of a benchmark, an example or the provisioning is shown under ``repository/``. A notebook becomes a page with the
outputs that it was committed with. A link to a file that is no page, such as a module, becomes its name. Formulas become
MathML, which browsers show without a script.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.structure.files import File, Files
from nbconvert import MarkdownExporter

ROOT = Path(__file__).parents[1]
PAGES = (
    "examples/*/README.md",
    "benchmarks/*/README.md",
    "benchmarks/README.md",
    "provisioning/README.md",
    "poc/README.md",
)
MORE = ("CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "CODE_OF_CONDUCT.md")
RECORDS = ("repository/benchmarks/", "repository/CHANGELOG.md")
"""Pages that the search shows below all others."""
PICTURES = (".png", ".svg", ".jpg")
NOTEBOOK = ".ipynb"
PREFIX = "repository/"
LINK = re.compile(r"(!?)\[([^\]\n]*)\]\(([^)\s]+)\)")
CODE = re.compile(r"(^ *```.*?^ *```$|`[^`\n]+`)", re.DOTALL | re.MULTILINE)
FORMULA = re.compile(r"\$\$(.+?)\$\$|(?<![\\$\w])\$(?!\s)([^$\n]+?)(?<!\s)\$(?![\w$])", re.DOTALL)
FRAME = re.compile(
    r"<style scoped>.*?</style>| border=\"1\" class=\"dataframe\"| style=\"text-align: right;\"", re.DOTALL
)
"""What pandas adds to a table, in whose place the theme's looks are taken."""


def on_files(files: Files, config: Any, **_: Any) -> Files:
    """Add the README as first page, the notebooks, the other pages of the repository, and the pictures beside them."""
    files.append(File.generated(config, "index.md", content=(ROOT / "README.md").read_text(encoding="utf-8")))
    found = [path for pattern in PAGES for path in sorted(ROOT.glob(pattern))] + [ROOT / name for name in MORE]
    for path in found:
        name = PREFIX + path.relative_to(ROOT).as_posix()
        files.append(File.generated(config, name, content=path.read_text(encoding="utf-8")))
        for picture in path.parent.rglob("*") if path.parent != ROOT else ():
            if picture.suffix in PICTURES:
                name = PREFIX + picture.relative_to(ROOT).as_posix()
                files.append(File.generated(config, name, abs_src_path=str(picture)))
    for notebook in [file for file in files if file.src_uri.endswith(NOTEBOOK)]:
        files.remove(notebook)
        for name, content in _notebook(notebook).items():
            files.append(File.generated(config, name, content=content))
    return files


def _notebook(file: File) -> dict[str, str | bytes]:
    """The page of a notebook and its figures, by path."""
    page = posixpath.splitext(file.src_uri)[0]
    figures = posixpath.basename(page)  # a folder beside the page
    text, more = MarkdownExporter().from_filename(file.abs_src_path, resources={"output_files_dir": figures})
    folder = posixpath.dirname(page)
    return {f"{page}.md": FRAME.sub("", text)} | {f"{folder}/{name}": found for name, found in more["outputs"].items()}


def on_page_markdown(markdown: str, page: Any, files: Files, **_: Any) -> str:
    """Let links lead to the pages of the site, show formulas, and rank records below the other pages in the search."""
    here = page.file.src_uri
    if here.startswith(RECORDS):
        page.meta["search"] = {"boost": 0.001}

    def link(match: re.Match[str]) -> str:
        mark, text, target = match.groups()
        path, _, anchor = target.partition("#")
        if not path or re.match(r"[a-z]+:", target):
            return match.group()
        place = _in_repository(posixpath.join(posixpath.dirname(_source(here)), path))
        if files.get_file_from_path(place) is None:
            return text
        relative = posixpath.relpath(place, posixpath.dirname(here) or ".")
        return f"{mark}[{text}]({relative}{'#' if anchor else ''}{anchor})"

    parts = re.split(r"(^```.*?^```$)", markdown, flags=re.DOTALL | re.MULTILINE)
    linked = "".join(part if part.startswith("```") else LINK.sub(link, part) for part in parts)
    return "".join(part if CODE.fullmatch(part) else FORMULA.sub(_mathml, part) for part in CODE.split(linked))


def _mathml(formula: re.Match[str]) -> str:
    """A formula as MathML; within a span, because Markdown takes an element ``math`` for a block."""
    shown, inline = formula.groups()
    return f"<span>{convert(shown or inline, display='block' if shown else 'inline')}</span>"


def _source(page: str) -> str:
    """The path in the repository of what a page was made from."""
    if page == "index.md":
        return "README.md"
    return page.removeprefix(PREFIX) if page.startswith(PREFIX) else f"docs/{page}"


def _in_repository(path: str) -> str:
    """The page that is made from a path of the repository."""
    path = re.sub(rf"{NOTEBOOK}$", ".md", posixpath.normpath(path))
    if path == "README.md":
        return "index.md"
    return path.removeprefix("docs/") if path.startswith("docs/") else PREFIX + path
