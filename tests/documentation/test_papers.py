"""What benchmarks/papers/README.md names exists, and its figures are those of the committed results."""

import argparse
import json
import re
import shlex
import statistics
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from benchmarks.experiment import BENCHMARKS, Experiment, experiment_class
from benchmarks.origins import numbers
from benchmarks.run import seconds_of
from tests.documentation.pages import ROOT, text_of
from tests.documentation.test_claims import TABLES

TEXT = TABLES.sub("", text_of("benchmarks/papers/README.md"))
NONE = "none"
SCORE = re.compile(r"^(?:[A-Za-z][\w ]* )?(-?\.\d{3}) \((\d+) seeds?(?:, `([^`]+)`)?\)")
WORDS = ("not run: ", "cannot run here: ", "no job: ", "drawn by ", "on [its page]")
COMMAND = re.compile(r"^not run: `([^`]+)`, (?:(\d+) rows?, )?(.+)$")
RUNNER = "python benchmarks/run.py "
PACE = re.compile(r"^(\d+\.\d+) h at the pace of `([^`]+)`")
NO_PACE = "no row of its kind has a time"


@cache
def experiment_of(benchmark: str) -> Experiment:
    """The committed benchmark of this name."""
    return experiment_class(benchmark)(benchmark, results=BENCHMARKS / benchmark / "results")


class Item(NamedTuple):
    """A line of a paper's table."""

    item: str
    job: str
    row: str
    here: str

    def __str__(self) -> str:
        return self.item


class Row(NamedTuple):
    """A benchmark and the name of a row, as the page writes them."""

    benchmark: str
    name: str

    def results(self) -> list[Path]:
        """The row's committed results, one for each seed."""
        experiment = experiment_of(self.benchmark)
        rows = [row for row in experiment.rows() if experiment.row_name(row) == self.name]
        assert rows, f"{self.benchmark} has no row {self.name}"
        return [path for row in rows if (path := experiment.result(row)).is_file()]


def lines_of(header: str) -> list[list[str]]:
    """The cells of all tables with this header."""
    tables = re.findall(rf"^\| {re.escape(header)} \|\n\|[-|]+\|\n((?:\|.*\n)+)", TEXT, re.MULTILINE)
    assert tables, f"there is no table with the header {header}"
    return [[cell.strip() for cell in line.strip("|").split("|")] for table in tables for line in table.splitlines()]


ITEMS = [Item(*cells) for cells in lines_of("in the paper | job | row | here")]
FIGURES = lines_of("row | figure | in the file | over seeds")
SCORED = [item for item in ITEMS if SCORE.match(item.here)]
NOT_RUN = [item for item in ITEMS if item.here.startswith("not run: ")]


def row_of(item: Item) -> Row:
    benchmark, _, name = item.row.strip("`").partition("/")
    return Row(benchmark, name)


def score(row: Row, part: str | None) -> float:
    """The row's figure: of the part of its files, or of the parts in the page's list."""
    full = f"{row.benchmark}/{row.name}"
    listed = next(cells for cells in FIGURES if fnmatchcase(full, cells[0].strip("`")))
    parts, over = ([part], "mean") if part else (re.findall("`([^`]+)`", listed[2]), listed[3])
    values = []
    for path in row.results():
        content = json.loads(path.read_text())
        values.append(statistics.mean(number for one in parts for number in numbers(content, one)))
    return {"mean": statistics.mean, "median": statistics.median}[over](values)


@pytest.mark.parametrize("item", ITEMS, ids=str)
def test_an_item_has_a_job_a_row_and_a_figure_or_the_reason_why_not(item):
    assert all(item), f"{item} has an empty cell"
    assert SCORE.match(item.here) or item.here.startswith(WORDS), f"{item}: {item.here} is neither figure nor reason"
    if item.job != NONE:
        name, _, presets = re.match("`([^`]+)`", item.job)[1].partition(" --preset ")
        folder = next((one for one in (ROOT / "jobs" / name, ROOT / "examples" / name / "job") if one.is_dir()), None)
        assert folder, f"{item}: there is no job {name}"
        known = json.loads((folder / "presets.json").read_text()) if presets else {}
        assert set(presets.split(",")) <= {*known, ""}, f"{item}: {name} has only the presets {', '.join(known)}"
    if item.row == NONE:
        assert not item.here.startswith("on [its page]"), f"{item} has a page and no row"
        assert not SCORE.match(item.here), f"{item} has a figure and no row"
    else:
        row = row_of(item)
        assert row.results(), f"{item}: {item.row} has no result"
        content = json.loads(row.results()[0].read_text())
        job = experiment_of(row.benchmark).configuration["methods"][content["method"]]["job"]
        job = job.removeprefix("examples/").removesuffix("/job")
        assert item.job.startswith((f"`{job}`", f"`{job} ")), f"{item}: {item.row} is a row of the job {job}"


@pytest.mark.parametrize("item", SCORED, ids=str)
def test_a_figure_is_that_of_the_committed_results(item):
    shown, seeds, part = SCORE.match(item.here).groups()
    row = row_of(item)
    found = f"{score(row, part):.3f}".replace("0.", ".", 1)
    assert (shown, int(seeds)) == (found, len(row.results())), f"{item}: {item.row} has {found} ({len(row.results())})"


def test_every_figure_with_three_digits_is_checked():
    rest = TEXT
    for item in SCORED:
        rest = rest.replace(SCORE.match(item.here)[0], "")
    assert not re.findall(r"\.\d{3}\b", rest)


@pytest.mark.parametrize("item", NOT_RUN, ids=str)
def test_what_was_not_run_has_its_command_and_its_time(item, tmp_path):
    parsed = COMMAND.match(item.here)
    assert parsed, f"{item}: no command, number of rows and time in: {item.here}"
    command, number, time = parsed.groups()
    if command.startswith(RUNNER):
        parser = argparse.ArgumentParser(exit_on_error=False)
        parser.add_argument("name")
        for option in ("--only", "--set"):
            parser.add_argument(option, nargs="+", default=[])
        given = parser.parse_args(shlex.split(command.removeprefix(RUNNER)))
        experiment = experiment_of(given.name)
        rows = [row for row in experiment.rows(given.only) if given.set or not experiment.result(row).is_file()]
        assert len(rows) == int(number), f"{item}: {len(rows)} rows are not run"
        if given.set:
            (tmp_path / "start.pt").touch()
            trial = experiment_class(given.name)(given.name, workspace=tmp_path, assignments=given.set)
            assert trial.job(rows[0], {"dataset": "skin"}), f"{item}: the job has no such options"
    if pace := PACE.match(time):
        seconds = [seconds_of(json.loads(path.read_text())) for path in Row(*pace[2].split("/", 1)).results()]
        hours = int(number) * statistics.median(seconds) / 3600
        assert float(pace[1]) == pytest.approx(hours, rel=0.2, abs=0.05), (
            f"{item}: {hours:.1f} h at the pace of {pace[2]}"
        )
    else:
        assert time.startswith(NO_PACE), f"{item}: {time} is no time"
