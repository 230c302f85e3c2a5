"""Several seeds of a method are one number with an interval over seeds; the best single run is never the headline."""

import pytest
from scipy import stats

from grandrounds.evaluation.score import Score
from grandrounds.reporting.figures.runs import comparison_drawings
from grandrounds.reporting.model import report_on, seeds_score
from grandrounds.reporting.page import overview
from grandrounds.reporting.runs import read_run

from .conftest import SITES, configured


@pytest.fixture
def seeds(make_run):
    """Three seeds of a method, one run of another that is worse than each of them."""
    found = [
        read_run(make_run(f"fedperl_{seed}", right=right, configuration=configured(seed=seed)), f"fedperl_{seed}")
        for seed, right in enumerate((0.75, 0.8, 1.0), start=1)
    ]
    other = make_run("other", right=0.5, configuration=configured(seed=1, peers=9))
    return [*found, read_run(other, "other")]


def test_the_mean_of_three_seeds_has_students_interval():
    values = [0.5, 0.6, 0.75]
    found = seeds_score([Score(value, 0.1, 0.9, 30 + number) for number, value in enumerate(values)])
    expected = stats.t.interval(0.95, 2, loc=sum(values) / 3, scale=stats.sem(values))
    assert found.value == pytest.approx(sum(values) / 3)
    assert (found.low, found.high) == pytest.approx(expected)
    assert found.cases == 30


def test_two_seeds_have_a_mean_and_no_interval_and_one_has_its_own():
    one, small = Score(0.5, 0.4, 0.6, 30), Score(0.9, 0.8, 1.0, 3)
    assert seeds_score([small, None]) == small
    assert seeds_score([None]) is None
    two = seeds_score([one, Score(0.7, 0.4, 0.9, 30)])
    assert (two.value, str(two.low)) == (pytest.approx(0.6), "nan")
    assert seeds_score([one, one, one]) == one, "one model, however often it was made"


def test_seeds_whose_scores_are_over_different_classes_have_no_mean():
    part, whole = Score(0.5, 0.4, 0.6, 30, of="2 of 4 classes"), Score(0.7, 0.4, 0.9, 30)
    assert seeds_score([part, whole]).reason == "seeds have scores over different classes"
    assert seeds_score([part, part._replace(value=0.7)]).of == "2 of 4 classes"


def test_the_first_screen_has_the_methods_mean_and_not_its_best_seed(seeds):
    report = report_on(seeds)
    first = overview(report)
    fact = next(fact for fact in first.facts if fact.name == "Score")
    values = [report.runs[f"fedperl_{seed}"].scores.pooled.scores["balanced_accuracy"].value for seed in (1, 2, 3)]
    assert fact.value.startswith(f"{sum(values) / 3:.2f} [")
    assert "all test images together, mean of 3 seeds" in fact.lines[0]
    assert fact.lines[1] == "0.33 by guessing"
    assert fact.lines[-1] == "highest of 2 methods: fedperl"
    assert first.methods.rows[0][3] == f"{min(values):.2f} to {max(values):.2f}"
    assert report.methods["other"].score == report.runs["other"].scores.pooled.scores["balanced_accuracy"]
    assert report.to_json()["methods"]["fedperl"]["balanced_accuracy"]["value"] == pytest.approx(
        sum(values) / 3, abs=1e-6
    )


def test_a_model_beside_the_runs_has_the_mean_over_the_seeds_too(seeds):
    report = report_on(seeds)
    for number, value in zip((1, 2, 3), (0.3, 0.4, 0.5), strict=True):
        report.runs[f"fedperl_{number}"].scores.pooled.references["ridge"] = {"balanced_accuracy": value}
    row = next(row for row in overview(report).methods.rows if row[0] == "ridge")
    assert row[1:4] == ["", "0.40", "0.30 to 0.50"]


def test_figures_have_a_mark_for_each_method_and_not_for_each_seed(seeds):
    drawn = {drawing.name: drawing.figure for drawing in comparison_drawings(report_on(seeds))}
    assert set(drawn) == {"methods", "sites", "risk_coverage", "learning", "communication"}
    for name in ("methods", "communication"):
        assert [text.get_text() for text in drawn[name].axes[0].get_yticklabels()] == ["fedperl", "other"]
    marks = [line for line in drawn["sites"].axes[0].lines if line.get_marker() != "None" and line.get_xdata().size]
    assert len(marks) == 2 * len(SITES)
