"""The page begins with the main result, needs no network, and has no data of a patient."""

import base64
import hashlib
import io
import json
import re
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from types import SimpleNamespace

import pytest

from grandrounds.evaluation.history import validation_curves
from grandrounds.plotting import Drawing, new_figure
from grandrounds.reporting import page as report_page
from grandrounds.reporting.figures.runs import learning_figure
from grandrounds.reporting.model import report_on
from grandrounds.reporting.page import _last_validation, render_page, svg_of
from grandrounds.reporting.run import Spent
from grandrounds.reporting.runs import read_run
from grandrounds.reporting.tables import PageFigure

from .conftest import SITES, configured, events, without_probabilities

VOID = {"img", "meta", "br"}


class Checker(HTMLParser):
    """Collects what a page links to, and checks that elements are closed in order."""

    def __init__(self):
        super().__init__()
        self.open, self.links, self.images, self.text, self.policy = [], [], [], [], ""

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        self.links += [values[name] for name in ("src", "href", "action", "data", "srcset") if name in values]
        self.images += [values] if tag == "img" else []
        if values.get("http-equiv") == "Content-Security-Policy":
            self.policy = values["content"]
        self.open += [] if tag in VOID else [tag]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def written(runs, out, **options):
    page = report_page.write_report(report_on(runs, **options), out).read_text()
    checker = Checker()
    checker.feed(page)
    assert checker.open == []
    return page, checker


@pytest.fixture
def unillustrated(monkeypatch):
    """Pages without figures, which take most of the time."""
    monkeypatch.setattr(report_page, "comparison_drawings", lambda report: [])
    monkeypatch.setattr(report_page, "run_drawings", lambda report, run: [])


def words(checker):
    return " ".join(" ".join(checker.text).split())


@pytest.fixture
def run(make_run):
    return read_run(make_run(recorded=events({"site-2": 2})), "FedPerl <b>")


def test_the_first_screen_has_task_sites_score_reference_cost_and_caveats(run, tmp_path, unillustrated):
    page, _ = written([run], tmp_path / "out")
    first = page[: page.index('<nav aria-label="Contents"')]
    for expected in (
        "skin", "nevus, melanoma, other", "3 of 3 rounds, finished", "3 sites", "tested on 120 images", "0.80 [",
        "balanced accuracy, all test images together", "mean over sites 0.79* [", "0.33 by guessing", "no guarantee",
        "accuracy 0.80 [0.72, 0.86], 0.50 by always predicting nevus", "macro AUROC 0.", "16.5 MB", "What to distrust",
        "No usable answer in a round in which the site was asked: site-2 (round 2).", "This is one run with one seed (1)",
    ):  # fmt: skip
        assert expected in first, expected
    assert "FedPerl &lt;b&gt;" in page
    assert "FedPerl <b>" not in page


def test_the_report_loads_no_external_file_names_no_person_and_describes_every_image(run, tmp_path):
    page, checker = written([run], tmp_path / "out")
    assert all(link.startswith(("data:image/svg+xml;base64,", "#")) for link in checker.links)
    assert "default-src 'none'" in checker.policy
    script = re.search(r"<script>(.*)</script>", page, re.DOTALL)[1]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in checker.policy
    assert page.count("<script") == 1
    assert not re.search(r"url\(|@import", page)
    assert len(checker.images) == 8
    assert all(len(image["alt"]) > 20 for image in checker.images)
    pictures = sorted(path.name for path in (tmp_path / "out" / "figures").iterdir())
    names = (
        "communication", "confusion", "learning", "precision_recall", "reliability", "risk_coverage", "roc", "sites",
    )  # fmt: skip
    assert pictures == [f"{name}.svg" for name in names]
    files = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert {path.suffix for path in files} == {".html", ".json", ".csv", ".svg"}
    for path in files:
        assert b"secret" not in path.read_bytes(), path
        assert b"patient-7" not in path.read_bytes(), path


def test_several_runs_are_compared_on_the_first_screen(make_run, tmp_path, unillustrated):
    worse = dict(zip(SITES, (0.4, 0.5, 0.75), strict=True))
    local = make_run("local", right=worse, model="own", bytes={}, configuration=configured(method="LocalController"))
    _, checker = written([read_run(make_run(), "FedPerl"), read_run(local, "local")], tmp_path / "out")
    first = words(checker)[: words(checker).index("Comparison")]
    assert "FedPerl minus local, of fixed models, not of seeds, on 120 cases" in first
    assert "none in local" in first
    assert "fewer than 3 seeds" in first
    rows = (tmp_path / "out" / "tables" / "comparison.csv").read_text().splitlines()
    assert rows[1].startswith("FedPerl,local,0.2")


@pytest.mark.parametrize(("count", "shown"), [(4, False), (5, True)])
def test_a_page_of_many_runs_names_what_it_leaves_out(make_run, tmp_path, unillustrated, count, shown):
    runs = [read_run(make_run(f"run-{number}"), f"run-{number}") for number in range(count)]
    _, checker = written(runs, tmp_path / "out")
    assert ("With more than 4 runs each of them has only its main figures" in words(checker)) == shown


def test_reported_scores_of_one_seed_have_a_difference_without_interval(make_run, tmp_path, unillustrated):
    runs = [
        read_run(make_run(name, sites=(), test={"site-1": {"common.n": 40.0, "common.balanced_accuracy": score}}), name)
        for name, score in (("a", 0.75), ("b", 0.5))
    ]
    _, checker = written(runs, tmp_path / "out")
    assert "b minus a, paired by 1 seed no interval: fewer than 3 seeds" in words(checker)


def test_the_last_validation_without_a_mean_over_sites_is_named_by_what_the_models_were_compared_by():
    event = {"event": "score", "round": 3, "metric": "accuracy", "by": "log_likelihood", "score": -0.5}
    assert _last_validation(SimpleNamespace(events=[event])) == "validation log-likelihood -0.50 after round 3"
    assert "accuracy 0.70 after" in _last_validation(SimpleNamespace(events=[{**event, "mean": 0.7}]))


def test_a_tested_run_without_the_score_says_why_and_not_that_there_was_no_test(make_run, tmp_path, unillustrated):
    path = make_run(sites=(), test={"site-1": {"common.n": 40.0, "common.accuracy": 0.2}})
    _, checker = written([read_run(path, "withheld")], tmp_path / "out")
    assert "after round 2 no test balanced accuracy: the site keeps its counts" in words(checker)


def test_the_page_of_a_killed_run_reports_that_it_was_killed(make_run, tmp_path, unillustrated):
    run = read_run(make_run(sites=(), status="running", rounds_done=2, test={}), "killed")
    _, checker = written([run], tmp_path / "out")
    assert "not known" in words(checker)
    assert "validation balanced accuracy 0.30 after round 2 no test" in words(checker)
    assert "There are no test predictions" in words(checker)


def test_a_site_that_dropped_out_is_named_with_its_rounds(make_run, tmp_path, unillustrated):
    _, checker = written([read_run(make_run(recorded=events({"site-2": 2})), "x")], tmp_path / "out")
    assert "a site dropped out" in words(checker)
    assert "No usable answer in a round in which the site was asked: site-2 (round 2)." in words(checker)
    assert re.search(r"site-2 update 3 2 3\.5 MB", words(checker))


def test_means_that_sites_have_sent_are_shown_where_predictions_stayed(make_run, tmp_path, unillustrated):
    _, checker = written([read_run(make_run(sites=()), "x")], tmp_path / "out")
    assert "their predictions stayed there" in words(checker)
    assert "site-10 40 0.80" in words(checker)


def test_a_class_that_is_missing_everywhere_has_no_number(make_run, tmp_path, unillustrated):
    _, checker = written([read_run(make_run(counts={"nevus": 20, "melanoma": 12}), "x")], tmp_path / "out")
    assert re.search(r"other 0 0 0\.00 no case", words(checker))
    numbers = json.loads((tmp_path / "out" / "report.json").read_text())
    assert numbers["runs"][0]["scores"]["pooled"]["classes"]["other"]["sensitivity"] == {
        "value": None, "low": None, "high": None, "cases": 0, "reason": "no case",
    }  # fmt: skip


def test_columns_without_a_number_are_left_out(make_run, tmp_path, unillustrated):
    run = read_run(make_run(), "x")
    for one, shown in ((run, True), (without_probabilities(run), False)):
        _, checker = written([one], tmp_path / str(shown))
        assert ("site ECE MCE AURC coverage at risk 0.05 coverage at risk 0.1" in words(checker)) == shown
        assert ("is of it. A model may decide for another class" in words(checker)) == shown
        assert ("F1 AUROC average precision" in words(checker)) == shown


def test_runs_without_a_ledger_are_named_beside_those_that_have_one(make_run, tmp_path, unillustrated):
    runs = [read_run(make_run(name), name) for name in ("open", "bounded")]
    spent = (Spent("site-1", "record", 3.2, 1e-5),)
    runs[1] = replace(runs[1], origin=replace(runs[1].origin, spent=spent))
    _, checker = written(runs, tmp_path / "out")
    assert "no guarantee in open" in words(checker)


def test_a_budget_is_shown_with_its_unit_and_an_infinite_one_is_no_guarantee(run, tmp_path, unillustrated):
    spent = (
        Spent("site-1", "patient", 3.2, 1e-5, ((1, 1.5), (2, 3.2))),
        Spent("site-2", "image", 1.0, 1e-5, ((1, 1.0),)),
    )
    _, checker = written([replace(run, origin=replace(run.origin, spent=spent))], tmp_path / "a")
    assert "epsilon 3.20" in words(checker)
    assert "per patient, added or removed, at site-1: the largest of 2 ledgers" in words(checker)
    endless = (*spent, Spent("site-10", "patient", None, 1e-5))
    _, checker = written([replace(run, origin=replace(run.origin, spent=endless))], tmp_path / "b")
    assert "unbounded" in words(checker)


def test_a_digest_among_the_options_is_cut_on_the_page_alone(make_run, tmp_path, unillustrated):
    digest = "0123456789abcdef" * 4
    page, _ = written([read_run(make_run(configuration=configured(frozen=digest)), "x")], tmp_path / "out")
    assert "frozen 0123456789ab..." in page
    assert digest not in page
    assert digest in (tmp_path / "out" / "report.json").read_text()


def test_the_same_runs_give_the_same_bytes(run, tmp_path, unillustrated):
    pages = [written([run], tmp_path / name)[0] for name in ("a", "b")]
    assert pages[0] == pages[1]
    curves = validation_curves(run.log.events, run.log.sites, "balanced_accuracy")
    pictures = [svg_of(Drawing("x", learning_figure(curves, SITES, "balanced_accuracy"), "", "")) for _ in range(2)]
    assert pictures[0] == pictures[1]


def test_text_is_escaped_and_figures_are_not(run):
    figure = PageFigure("data:image/svg+xml;base64,AAAA", 461, 'a "quoted" <alt>', "x < y")
    page = render_page(report_on([replace(run, name="<script>")], title="a & b"), [], {"<script>": [figure]})
    assert page.count("<script") == 1
    assert "<h1>a &amp; b</h1>" in page
    assert 'src="data:image/svg+xml;base64,AAAA" alt="a &#34;quoted&#34; &lt;alt&gt;" style="width:461px"' in page
    assert "<figcaption>x &lt; y</figcaption>" in page


def test_a_report_needs_neither_torch_nor_flare(make_run, tmp_path):
    """They take longer to import than a report of two small runs takes to write."""
    code = f"""
import atexit, sys, grandrounds.cli
sys.argv = {["grandrounds", "report", str(make_run()), "--out", str(tmp_path / "report")]}
atexit.register(lambda: print(*sys.modules))
grandrounds.cli.main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"torch", "nvflare", "sklearn", "scipy", "pandas"} & set(done.stdout.split())
    assert (tmp_path / "report" / "report.html").exists()


def test_a_name_with_dollar_signs_is_drawn_as_it_is():
    """As mathematics it would be an error, and the report of all would end."""
    figure = new_figure(2, 2)
    axes = figure.subplots()
    axes.set_title(r"$\undefined{$")
    axes.set_xticks([0, 1], [r"$\undefined{$", "b"])
    figure.savefig(io.BytesIO(), format="png")
    assert svg_of(Drawing("a", figure, "", "")).count(rb"$\undefined{$") == 2
