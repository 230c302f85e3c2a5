"""The pages about protection are short, and name the test of each claim."""

import re
from functools import cache

import pytest

from tests.documentation.pages import ROOT, text_of

OFFICER = "docs/data-protection.md"
PAGES = (
    "docs/privacy.md", "docs/security.md", "docs/security/flare.md", "docs/hospital.md",
    "docs/what-you-install.md", "docs/what-a-hospital-runs.md", OFFICER,
)  # fmt: skip
OF_PROSE = {"docs/hospital.md", "docs/security/flare.md", "docs/what-a-hospital-runs.md"}
"""Pages of steps, and of a list, whose tests stand in the text."""
NAMED = re.compile(r"`((?:\w+\.py::)?test_\w+(?:\.py)?)`")


@cache
def known_tests():
    """The names of all tests, and of their files."""
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    functions = [re.findall(r"^(?:    )?def (test_\w+)", path.read_text(), re.MULTILINE) for path in files]
    return {name for names in functions for name in names} | {path.name for path in files}


def tables(text):
    """The heading and the rows of each table of a page, as lists of cells."""
    for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        heading, _, *rows = (
            [cell.strip() for cell in line.strip().strip("|").split("|")] for line in table.splitlines()
        )
        yield heading, rows


@pytest.mark.parametrize("page", PAGES)
def test_a_page_names_tests_that_there_are_and_each_row_of_claims_has_one(page):
    text = text_of(page)
    named = NAMED.findall(text)
    assert named
    assert not set(named) - known_tests()
    claims = [row for heading, rows in tables(text) if heading[-1] == "test" for row in rows]
    assert claims or page in OF_PROSE
    assert not [row for row in claims if not NAMED.search(row[-1])]


def test_the_pages_have_together_at_most_10000_words():
    assert sum(len(text_of(page).split()) for page in PAGES) <= 10_000


def test_the_officers_page_has_at_most_900_words():
    assert len(text_of(OFFICER).split()) <= 900
