"""Every block and every command of the documentation fits the software, and what can run here does run."""

import json
import re
import runpy
from collections import defaultdict
from statistics import fmean

import pytest

from tests.documentation import world
from tests.documentation.pages import FENCE, PAGES, ROOT, blocks, commands, text_of
from tests.documentation.parsing import application, check_command, check_mention, check_option
from tests.documentation.running import ELSEWHERE, PageRunner

GENERATED = "docs/reference/command-line.md"
LANGUAGES = {"bash", "json", "python", "text"}
RUNNABLE = [
    page
    for page in PAGES
    if page not in ELSEWHERE and any(block.language in ("bash", "python") for block in blocks(page))
]
SLOW = {
    "docs/how-to/pretrained-networks.md",
    "docs/how-to/seeds.md",
    "docs/methods/mutual.md",
    "examples/own_networks/README.md",
}
"""Pages that take more than ten seconds; they are run by `pytest -m documentation`."""
SITES = "grandrounds partition ham10000 --root DIR --sites 4 --labelled 1 --out runs/ham/sites\n"
FEDAVG = "grandrounds simulate fedavg --sites-dir runs/ham/sites --workspace "
OTHER = "--scheme external --dataset-name skin --root IMAGES"
MAKERS = defaultdict(
    lambda: world.ham10000,
    {
        "README.md": world.readme,
        "docs/how-to/excel-sheet.md": world.clinicians_sheet,
        "docs/how-to/multi-label.md": world.findings,
        "docs/how-to/own-images.md": world.site_of_hospital,
        "docs/how-to/pretrained-networks.md": world.own_weights,
        "docs/how-to/python.md": world.clinic,
        "docs/how-to/unseen-hospital.md": world.clinic,
        "docs/how-to/which-method.md": world.own_images,
        "docs/methods/fed_align_cl.md": world.own_images,
        "docs/methods/mutual.md": world.blood_cells,
        "examples/own_data/README.md": world.named_images,
    },
)
"""The images of a page."""
PRESUMED = {
    "docs/how-to/python.md": "grandrounds partition ham10000 --root DIR --out runs/the-same/sites\n"
    "grandrounds simulate fedavg --sites-dir runs/the-same/sites --workspace runs/ham/fedavg\n"
    f"grandrounds import clinic.csv {OTHER} --out runs/clinic",
    "examples/paper/README.md": "\n".join(
        [
            *(f"grandrounds simulate fedperl --seed {n} --workspace runs/fedperl-{n}" for n in (1, 2, 3)),
            "grandrounds simulate local --workspace runs/local",
        ]
    ),
    "docs/how-to/results.md": f"{SITES}{FEDAVG} WORKSPACE\n{FEDAVG} OTHER-WORKSPACE --seed 2",
    "docs/how-to/unseen-hospital.md": f"{SITES}{FEDAVG} WORKSPACE\ngrandrounds import groups.csv {OTHER} --out OTHER",
    "docs/methods/fed_align_cl.md": "grandrounds import FOLDER --out runs/breast/sites",
    "docs/methods/statistics.md": SITES,
}
"""What a page takes for granted."""


OF_NO_MESSAGE = {
    "* rests on fewer than 10 cases",
    "grandrounds: command not found",
    "A dash in place of a score",
    "A site was dropped",
    "FAIL in a line of the doctor",
    "The results are bad",
    "Out of memory, or too slow",
}
"""Headings of the page about errors that are no message of the package."""


@pytest.mark.parametrize("page", PAGES)
def test_every_block_has_a_language_and_json_can_be_read(page):
    for block in blocks(page):
        assert block.language in LANGUAGES, (
            f"{block}: the language {block.language!r} is not one of {sorted(LANGUAGES)}"
        )
        rest = block.text.strip() if block.language == "json" else ""
        while rest:
            _, end = json.JSONDecoder().raw_decode(rest)
            rest = rest[end:].lstrip(" ,\n")


@pytest.mark.parametrize("page", PAGES)
def test_every_table_has_a_heading(page):
    lines = ["", *FENCE.sub("", text_of(page)).splitlines(), ""]
    for before, line, after in zip(lines, lines[1:], lines[2:], strict=False):
        if line.startswith("|") and not before.startswith("|"):
            assert re.match(r"\|[-| :]+\|$", after), f"{page}: a blank line cuts the table before {line}"


@pytest.mark.parametrize("page", [page for page in PAGES if any(block.language == "bash" for block in blocks(page))])
def test_every_command_of_a_block_parses_and_its_options_exist(page, examples):
    for block in blocks(page):
        for command in commands(block.text if block.language == "bash" else "", {}):
            try:
                check_command(command.words)
            except AssertionError as error:
                raise AssertionError(f"{block}: {' '.join(command.words)}: {error}") from error


def test_the_generated_pages_are_current():
    for name, text in runpy.run_path(str(ROOT / "docs" / "generate.py"))["pages"]().items():
        assert text_of(f"docs/reference/{name}") == text, "run: python docs/generate.py"


def test_the_picture_of_sites_alone_and_together_shows_the_committed_results():
    picture = runpy.run_path(str(ROOT / "docs" / "picture.py"))
    score, settings = picture["balanced_accuracy"], picture["SETTINGS"]
    shown = {
        method: [f"{fmean(score(setting, method)):.3f}".lstrip("0") for setting in settings]
        for method in picture["METHODS"]
    }
    for number in (*shown["local"], *shown["ridge"]):
        assert f">{number}<" in text_of("docs/alone-and-together.svg"), "run: python docs/picture.py"
    page = " ".join(text_of("docs/how-to/which-method.md").split())
    assert "a balanced accuracy of {} on skin lesions and {} on blood cells".format(*shown["local"]) in page
    assert "reaches {} and {} ".format(*shown["ridge"]) in page


def test_the_readme_has_at_most_700_words_and_the_scores_and_times_of_the_committed_results():
    readme = text_of("README.md")
    assert len(readme.split()) <= 700
    cells = json.loads(text_of("benchmarks/first_steps/cells.json"))["cases"][0]
    shown = {name: f"{cells[name]:.3f}".lstrip("0") for name in ("accuracy", "balanced_accuracy", "majority")}
    assert f"| ridge | {shown['accuracy']} | {shown['balanced_accuracy']} |" in readme
    assert f"class | {shown['majority']} | .125 |" in readme
    words = " ".join(readme.split())
    assert f"for all {cells['images']:,} test images together" in words
    assert f"took {cells['cpu_seconds']:.0f} seconds of CPU, {cells['seconds']:.0f} seconds on two cores" in words


def test_the_messages_that_are_headings_are_those_of_the_package():
    code = "".join(path.read_text() for path in sorted((ROOT / "custom").rglob("*.py")))
    code = re.sub(r'"\s+f?"', "", code)
    for heading in re.findall(r"^## (.*[a-z].*)$", text_of("docs/when-something-goes-wrong.md"), re.MULTILINE):
        if heading in OF_NO_MESSAGE:
            continue
        for part in filter(None, (one.strip(" '[].") for one in re.split("…|is not installed: pip install", heading))):
            assert part in code or part.removeprefix("* ") in code, f"no message has {part!r}"


def helps(command):
    """The text of a command's help, and of those below it."""
    yield command.help or ""
    for below in getattr(command, "commands", {}).values():
        yield from helps(below)


def test_every_example_of_the_help_parses_and_its_options_exist(examples):
    shown = "\n".join(helps(application()))
    examples_shown = {line.strip() for line in re.findall(r"^ *(grandrounds .*)$", shown, re.MULTILINE)}
    assert len(examples_shown) > 50
    for line in examples_shown - {"grandrounds COMMAND --help"}:
        for command in commands(line, {}):
            try:
                check_command(command.words)
            except AssertionError as error:
                raise AssertionError(f"{line}: {error}") from error


@pytest.mark.parametrize("page", [page for page in PAGES if page != GENERATED])
def test_commands_and_options_in_the_text_exist(page, examples):
    spans = re.findall(r"(?<!`)`([^`]+)`(?!`)", text_of(page))
    for span in spans:
        if re.match(r"grandrounds [a-z]+( |$)", span):
            check_mention(span)
        for part, option, value in re.findall(
            r"\b(controller|executor|problem)\.([a-z_]+)\b(?!\.)(?:=(\{.*?\}|[^\s'|]+))?", span
        ):
            if option != "py":
                check_option(part, option, value or None)


def run_page(page, place, patch, processes):
    """Run a page in the place; every command has an outcome."""
    MAKERS[page](place)
    runner = PageRunner(patch, processes)
    runner.run(page, PRESUMED.get(page, ""))
    in_blocks = [command for block in blocks(page) if block.language == "bash" for command in commands(block.text, {})]
    outcomes = [outcome for where, outcome in runner.outcomes.items() if not where.startswith("before")]
    assert len(outcomes) == len(in_blocks)
    return outcomes


@pytest.mark.parametrize("page", [page for page in RUNNABLE if page not in {"README.md", *SLOW}])
def test_a_page_runs(page, place, monkeypatch):
    run_page(page, place, monkeypatch, processes=False)


def test_the_readme_gives_a_newcomer_a_table_by_site_and_a_report(place, monkeypatch, capsys):
    run_page("README.md", place, monkeypatch, processes=False)
    shown = capsys.readouterr()
    assert re.search(r"^Leeds +\d", shown.out, re.MULTILINE)  # of the lines of Python
    assert re.search(r"│ York +│", shown.out)  # of the command
    assert shown.err.count("patients are unknown") == 1  # of the blood cells, which name none
    assert (place / "runs" / "mine" / "report" / "report.html").is_file()
    assert ",Leeds/P003," in (place / "runs" / "first" / "sites" / "Leeds" / "manifest.csv").read_text()


@pytest.mark.documentation
@pytest.mark.parametrize("page", RUNNABLE)
def test_a_page_runs_with_the_commands_that_start_processes(page, place, monkeypatch):
    outcomes = run_page(page, place, monkeypatch, processes=True)
    assert "it starts processes" not in outcomes
