"""Nothing that a report writes on patients of real hospitals counts fewer than ten of them."""

import csv
import json
import re

import pytest

from grandrounds.reporting.model import report_on
from grandrounds.reporting.page import write_report
from grandrounds.reporting.population import population_json, population_tables
from grandrounds.reporting.runs import read_run

from .conftest import records

COUNTS = {"nevus": 40, "melanoma": 13, "other": 2}


def written(make_run, folder, simulated):
    workspace = make_run(counts=COUNTS)
    provenance = workspace / "results" / "provenance.json"
    if not simulated:
        provenance.unlink()
    run = read_run(workspace, "x")
    write_report(report_on([run]), folder)
    return run


@pytest.fixture
def real(make_run, tmp_path):
    """The folder of a report on a run that was not simulated here."""
    written(make_run, tmp_path / "report", simulated=False)
    return tmp_path / "report"


def test_nothing_that_a_report_writes_has_a_small_count(real, small_counts):
    assert small_counts(real) == []
    assert "fewer than 10 cases" in (real / "report.html").read_text()


def test_the_search_finds_the_small_counts_of_a_simulation(make_run, tmp_path, small_counts):
    written(make_run, tmp_path / "report", simulated=True)
    found = small_counts(tmp_path / "report")
    for part in ("report.html", "classes.csv", "report.json", "confusion.svg"):
        assert any(one.startswith(part) for one in found), (part, found)


def test_a_hidden_class_does_not_follow_from_the_others_of_its_site(real):
    with (real / "tables" / "classes.csv").open() as stream:
        rows = [row for row in csv.DictReader(stream) if row["score"] == "sensitivity" and row["kind"] == "site"]
    by_site = {}
    for row in rows:
        by_site.setdefault(row["group"], []).append(row["cases"] == "")
    for hidden in by_site.values():
        assert sum(hidden) != 1


def test_a_simulation_shows_its_counts(make_run, tmp_path):
    run = written(make_run, tmp_path / "report", simulated=True)
    assert run.origin.minimum == 1
    with (tmp_path / "report" / "tables" / "classes.csv").open() as stream:
        assert "2" in {row["cases"] for row in csv.DictReader(stream)}


def test_a_population_has_every_part_class_and_site_and_how_it_was_divided(make_run):
    workspace = make_run(counts=COUNTS)
    part = {"nevus": 30, "melanoma": 12, "other": 3}
    sites = ("site-1", "site-2", "site-10")
    data = {
        "classes": list(part),
        "division": {"scheme": "sites", "seed": 4},
        "sites": {
            site: {"training": {**part, "": 0}, **dict.fromkeys(("labelled", "validation", "test"), part)}
            for site in sites
        },
        "patients": dict.fromkeys(sites, 45),
        "sha256": dict.fromkeys(sites, "ab" * 32),
    }
    content = {"simulated": True, "command": "grandrounds simulate fedavg", "data": data}
    (workspace / "results" / "provenance.json").write_text(json.dumps(content))
    run = read_run(workspace, "x")
    by_site, by_class, both, settings = population_tables(run)
    assert by_site.rows[-1] == ["all sites", "", "135", "135", "135", "135", "135"]
    assert by_class.rows[1] == ["melanoma", "36", "36", "36", "36", "26.7%"]
    assert both.rows[0][3] == "3 / 3 / 3 / 3"
    named = {row[0]: row[1] for row in settings.rows}
    assert named["division of the images"] == "scheme sites, seed 4"
    assert named["command"] == "grandrounds simulate fedavg"
    assert population_json(run)["images"]["labelled"]["site-1"]["other"] == 3
    content["simulated"] = False
    (workspace / "results" / "provenance.json").write_text(json.dumps(content))
    hidden = population_json(read_run(workspace, "x"))["images"]["labelled"]["site-1"]
    assert hidden == {"nevus": 30, "melanoma": None, "other": None}


def test_numbers_that_sites_have_reported_are_hidden_when_they_are_small(make_run, tmp_path):
    workspace = make_run()
    results = workspace / "results"
    (results / "provenance.json").unlink()
    for path in results.glob("*/predictions_*.csv"):
        path.unlink()
    summary = json.loads((results / "summary.json").read_text())
    summary["records"] = records({
        "site-1": {"common.n": 7, "common.accuracy": 0.5},
        "site-2": {"common.n": 60, "common.accuracy": 0.7},
    })  # fmt: skip
    (results / "summary.json").write_text(json.dumps(summary))
    run = read_run(workspace, "x")
    page = write_report(report_on([run]), tmp_path / "report").read_text()
    assert "fewer than 10" in page
    assert not re.search(r">7<", page)
    assert not re.search(r">60<", page)  # the only other site
