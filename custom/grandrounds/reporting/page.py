"""The page: one file that needs nothing else, on a screen, on a phone and on paper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from grandrounds import __version__
from grandrounds.reporting.details import comparison_section, glossary, run_section
from grandrounds.reporting.html import Html, tag
from grandrounds.reporting.model import Report
from grandrounds.reporting.overview import overview

STYLE = Path(__file__).with_name("page.css")
# Whatever a name in a report may contain: a browser loads nothing and runs nothing.
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


def page(report: Report, shared: Sequence[Html], of_runs: Mapping[str, Sequence[Html]]) -> str:
    """The page as text.

    Args:
        report: what to say.
        shared: figures of all runs together.
        of_runs: figures of each run, by its name.
    """
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=POLICY),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", report.title),
        tag("style", Html(STYLE.read_text(encoding="utf-8"))),
    )
    sections = [
        run_section(report, run, of_runs.get(run.name, ()), number) for number, run in enumerate(report.runs, start=1)
    ]
    body = tag(
        "body",
        tag("main", overview(report), _contents(report), comparison_section(report, shared), sections, glossary()),
        tag(
            "footer",
            f"Grand Rounds {__version__}. The page holds no image, no name of an image and no patient; it loads nothing. "
            "For research: it is no medical device.",
        ),
    )
    return f"<!doctype html>\n{tag('html', head, body, lang='en')}\n"


def _contents(report: Report) -> Html:
    entries = [("#comparison", "Comparison")] if report.several else []
    entries += [(f"#run-{number}", run.name) for number, run in enumerate(report.runs, start=1)]
    entries.append(("#words", "How to read this"))
    return tag("nav", [tag("a", name, href=place) for place, name in entries], aria_label="Contents")
