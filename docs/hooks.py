"""Hooks of the documentation site: pages of the repository outside ``docs``, and links to them.

A page of a benchmark, an example or the provisioning is shown under ``repository/``. A link to a file that is no page, such
as a module, becomes its name.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
PAGES = (
    "examples/*/README.md",
    "benchmarks/*/README.md",
    "benchmarks/README.md",
    "provisioning/README.md",
    "poc/README.md",
)
MORE = ("CONTRIBUTING.md", "CHANGELOG.md")
PICTURES = (".png", ".svg", ".jpg")
PREFIX = "repository/"
LINK = re.compile(r"(!?)\[([^\]\n]*)\]\(([^)\s]+)\)")


def on_files(files: Files, config: Any, **_: Any) -> Files:
    """Add the README as first page, the other pages of the repository, and the pictures beside them."""
    files.append(File.generated(config, "index.md", content=(ROOT / "README.md").read_text(encoding="utf-8")))
    found = [path for pattern in PAGES for path in sorted(ROOT.glob(pattern))] + [ROOT / name for name in MORE]
    for path in found:
        name = PREFIX + path.relative_to(ROOT).as_posix()
        files.append(File.generated(config, name, content=path.read_text(encoding="utf-8")))
        for picture in path.parent.rglob("*") if path.parent != ROOT else ():
            if picture.suffix in PICTURES:
                name = PREFIX + picture.relative_to(ROOT).as_posix()
                files.append(File.generated(config, name, abs_src_path=str(picture)))
    return files


def on_page_markdown(markdown: str, page: Any, files: Files, **_: Any) -> str:
    """Let links lead to the pages of the site."""
    here = page.file.src_uri

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
    return "".join(part if part.startswith("```") else LINK.sub(link, part) for part in parts)


def _source(page: str) -> str:
    """The path in the repository of what a page was made from."""
    if page == "index.md":
        return "README.md"
    return page.removeprefix(PREFIX) if page.startswith(PREFIX) else f"docs/{page}"


def _in_repository(path: str) -> str:
    """The page that is made from a path of the repository."""
    path = posixpath.normpath(path)
    if path == "README.md":
        return "index.md"
    return path.removeprefix("docs/") if path.startswith("docs/") else PREFIX + path
