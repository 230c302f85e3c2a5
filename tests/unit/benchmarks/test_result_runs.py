"""A benchmark's result is a run of counts; what is none is refused."""

import json
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import ttest_rel

from benchmarks.result_runs import read_result
from grandrounds.errors import DataError
from grandrounds.methods import method_figures
from grandrounds.methods.fedirm.figures import relation_rounds
from grandrounds.reporting.comparison import METRIC, methods_of
from grandrounds.reporting.figures.runs import comparison_drawings
from grandrounds.reporting.model import report_on
from grandrounds.reporting.run import scores_of

RESULT = {
    "method": "fedperl",
    "seed": 3,
    "classes": ["a", "b"],
    "test": {"site-2": {"common.n": 10}, "site-1": {"common.n": 10}},
    "predictions": {"common": {"site-1": {"ece": 0.1, "confusion": [[4, 1], [2, 3]]}}},
    "bytes": {"site-1": {"down.global": 10, "up.update": 5}},
    "selected": {"round": 1, "metric": "accuracy", "score": 0.5},
    "devices": {"site-1": "camera", "site-2": "scanner"},
    "peers": {"2": {"site-1": ["site-2"]}},
    "similarity": {"1": {"sites": ["site-1", "site-2"], "matrix": [[1, 0.5], [0.5, 1]]}},
    "options": {"controller": {"rounds": 4, "problem": {"dataset": "skin", "classes": ["a", "b"]}}},
}


# As FedIRM's benchmark commits: scores of all images together, and matrices in which an unknown row is null.
RELATIONS = {
    "setting": "lesion",
    "method": "fedirm",
    "seed": 1,
    "classes": ["a", "b"],
    "sites": ["site-1", "site-2"],
    "scores": {
        "selected": {"n": 40, "balanced_accuracy": 0.75, "auc_macro": 0.9, "one_vs_rest": {}, "threshold": None}
    },
    "relations": {"5": {"labelled": [[0.9, 0.1], None], "support": [3, 0], "unlabelled": [None, [0.5, 0.5]]}},
    "bytes": {"site-1": {"down.global": 10}},
    "selected": {"round": 1},
    "options": {"controller": {"rounds": 4, "problem": {"dataset": "skin", "weights": "/home/me/start.pt"}}},
}


@pytest.fixture
def file(tmp_path):
    def write(content):
        path = tmp_path / "fedperl_3.json"
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return path

    return write


def test_counts_communities_and_events(file):
    run = read_result(file(RESULT), "x")
    assert run.tests.predictions["site-1"].confusion().tolist() == [[4, 1], [2, 3]]
    assert run.tests.predictions["site-1"].probabilities is None
    assert (run.log.seed, run.log.rounds, run.log.sites) == (3, 4, ("site-1", "site-2"))
    assert run.log.untested == ("site-2",)
    assert run.origin.communities == {"site-1": "camera", "site-2": "scanner"}
    assert [event["event"] for event in run.log.events] == ["start", "similarity", "round_end"]
    assert run.log.events[2]["peers"] == {"site-1": ["site-2"]}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (json.dumps(RESULT)[:-30], "is not valid JSON .*it was cut or altered"),
        ({**RESULT, "predictions": {}}, "is damaged or of another format"),
        ({**RESULT, "predictions": {"common": {"site-1": {"confusion": [[1, 2, 3]]}}}}, "damaged or of another format"),
        ({"accuracy": 0.5}, "is no result that can be reported: method is missing"),
        ([1], "is no result that can be reported: method is missing"),
        (
            {key: value for key, value in RESULT.items() if key != "predictions"},
            "it needs one of predictions, confusion, scores, models",
        ),
        ({**RELATIONS, "scores": {}}, "is damaged or of another format"),
    ],
)
def test_an_invalid_result_is_refused(file, content, message):
    with pytest.raises(DataError, match=message):
        read_result(file(content), "x")


def test_scores_of_all_images_together_have_no_sites_and_no_intervals(file):
    run = read_result(file(RELATIONS), "x")
    assert run.tests.predictions == {}
    found = scores_of(run)
    assert (found.sites, found.pooled.images) == ({}, 40)
    assert {name: score.value for name, score in found.pooled.scores.items()} == {
        "balanced_accuracy": 0.75,
        "auc_macro": 0.9,
    }
    assert np.isnan(found.pooled.scores["balanced_accuracy"].low)
    assert run.log.problem["weights"] == "start.pt"  # where it lay names a person


def test_relation_matrices_of_a_benchmark_result_are_drawn_with_unknown_rows_empty(file):
    run = read_result(file(RELATIONS), "x")
    (entry,) = relation_rounds(run.log.events, 2)
    np.testing.assert_array_equal(entry.labelled, [[0.9, 0.1], [np.nan, np.nan]])
    np.testing.assert_array_equal(entry.unlabelled, [[np.nan, np.nan], [0.5, 0.5]])
    assert [drawing.name for drawing in method_figures(run.history)] == ["relation"]


def test_confusion_matrices_of_the_sites_own_models_and_the_entropy_of_their_labels(file):
    content = {key: value for key, value in RESULT.items() if key not in ("predictions", "peers", "similarity")}
    run = read_result(
        file({**content, "confusion": {"site-2": [[5, 0], [1, 4]]}, "soft_label_entropy": {"1": 0.5, "2": 0.25}}), "x"
    )
    assert (run.tests.model, list(run.tests.predictions), run.log.untested) == ("own", ["site-2"], ("site-1",))
    (drawing,) = method_figures(run.history)
    assert drawing.name == "soft_labels"
    (line, uniform) = drawing.figure.axes[0].lines
    assert line.get_xydata().tolist() == [[1, 0.5], [2, 0.25]]
    assert uniform.get_ydata()[0] == pytest.approx(np.log(2))


def test_settings_of_a_benchmark_are_no_seeds_of_one_method(file, tmp_path):
    runs = [
        read_result(file({**RELATIONS, "setting": setting, "seed": seed}), f"{setting}_{seed}")
        for setting in ("lesion", "image")
        for seed in (1, 2)
    ]
    assert list(methods_of(runs)) == ["lesion", "image"]


def test_methods_with_scores_of_all_images_alone_are_paired_by_seed(file):
    scores = {"fedavg": (0.5, 0.6, 0.7), "fedirm": (0.6, 0.8, 0.7), "unfinished": (0.9,)}
    runs = []
    for name, values in scores.items():
        for seed, value in enumerate(values, start=1):
            content = {**RELATIONS, "method": name, "seed": seed, "scores": {"selected": {"n": 40, METRIC: value}}}
            runs.append(read_result(file(content), f"{name}_{seed}"))
    found = report_on(runs).comparison
    assert found.seeds == {"fedavg": 3, "fedirm": 3, "unfinished_1": 1}  # a method of one run has the name of the run
    difference, single = found.differences["fedirm"], found.differences["unfinished_1"]
    assert (difference.mean, difference.n, difference.unit) == (pytest.approx(0.1), 3, "seed")
    assert difference.p_value == pytest.approx(ttest_rel(scores["fedavg"], scores["fedirm"]).pvalue)
    assert found.adjusted["fedirm"] == difference.p_value  # the other has no test
    assert (single.mean, single.n, np.isnan(single.low)) == (pytest.approx(0.4), 1, True)


def areas(roc, site):
    sites = {name: {"roc": roc, "precision_recall": 0.25, "images": 20, "malignant": 5} for name in site}
    return {"last": {"sites": sites}, "selected": {"sites": {}}}


def one_model(seed=1):
    """As Fed-Align-CL's benchmark commits: areas by site of one model for all."""
    return {
        "method": "fed", "seed": seed, "sites": ["site-1", "site-2"],
        "models": {"federation": {"scores": areas(0.75, ["site-1", "site-2"]), "bytes": {"site-1": {"up.update": 3}}}},
        "options": {"problem": {"dataset": "skin", "classes": ["benign", "malignant"]}, "controller": {"rounds": 9}},
    }  # fmt: skip


def test_areas_by_site_are_compared_by_area(file):
    alone = {
        site: {"scores": areas(roc, ["site-1", "site-2"]), "bytes": {}}
        for site, roc in (("site-1", 0.5), ("site-2", 0.625))
    }
    fed, single = (
        read_result(file(content), content["method"])
        for content in (one_model(), {**one_model(), "method": "single", "models": alone})
    )
    assert (fed.tests.model, single.tests.model, fed.log.rounds) == ("common", "own", 9)
    assert fed.log.bytes == {"site-1": {"up.update": 3}}
    assert single.tests.sites["site-2"].exact == {"auroc": 0.625, "average_precision": 0.25, "n": 20, "malignant": 5}
    report = report_on([fed, single], reference="single")
    assert report.metric == "auroc"
    assert report.comparison.differences["fed"].mean == pytest.approx(0.75 - 0.5625)
    assert report.runs["single"].scores.mean["auroc"].value == pytest.approx(0.5625)
    assert any("Only scores of whole sites are known" in caveat for caveat in report.runs["fed"].caveats)


def under_a_budget(setting, method, accuracy, epsilon=None, unit="record", seed=1):
    """As the benchmark of utility and privacy commits: scores of all images together, and what ledgers say."""
    return {
        "method": method, "seed": seed, "setting": setting, "sites": 2, "delta": 1e-4,
        "budget": {"unit": unit, "epsilon": epsilon, "bound": 9.0, "releases": 3} if epsilon else None,
        "contributions": {"site-1": 3, "site-2": 2},
        "scores": {"n": 200, "balanced_accuracy": accuracy, "auc_macro": 0.75},
        "bytes": {"site-2": {"up.update": 5}, "site-1": {"up.update": 5}},
        "options": {"controller": {"problem": {"dataset": "skin", "classes": ["a", "b", "c", "d"]}, "rounds": 3}},
    }  # fmt: skip


@pytest.fixture
def budgets(tmp_path):
    contents = {
        "open": under_a_budget("infinite", "fedavg", 0.625),
        "eight": under_a_budget("eps8", "fedavg", 0.5, 7.99),
        "two": under_a_budget("eps2", "fedavg", 0.375, 2.0),
        "site": under_a_budget("eps8", "fedperl", 0.25, 8.0, "site"),
    }
    found = []
    for name, content in contents.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
        found.append(read_result(tmp_path / f"{name}.json", name))
    return report_on(found)


def test_a_result_with_a_budget_shows_it_for_all_sites(budgets):
    plain, eight = [one.run for one in budgets.runs.values()][:2]
    assert (eight.log.sites, eight.log.contributions) == (("site-1", "site-2"), {"site-1": 3, "site-2": 2})
    assert [(spent.unit, spent.epsilon, spent.delta) for spent in eight.origin.spent] == [("record", 7.99, 1e-4)]
    assert plain.origin.spent == ()
    assert budgets.runs["eight"].scores.pooled.scores["auc_macro"].value == 0.75


def test_utility_is_drawn_against_epsilon_by_method_and_unit(budgets):
    (drawing,) = [found for found in comparison_drawings(budgets) if found.name == "utility_privacy"]
    assert drawing.alt == (
        "balanced accuracy: fedavg 0.62 without a guarantee; fedavg 0.50 at epsilon 7.99 per record; fedavg 0.38 at epsilon "
        "2 per record; fedperl 0.25 at epsilon 8 per site"
    )
    assert "per record and per site are guarantees of different kinds" in drawing.caption
    axes = drawing.figure.axes[0]
    lines = {line.get_label(): line.get_xydata().tolist() for line in axes.lines}
    assert lines["fedavg, per record"] == [[2, 0.375], [7.99, 0.5]]
    assert lines["fedperl, per site"] == [[8, 0.25]]
    assert lines["fedavg, no guarantee"] == [[32, 0.625]]
    assert [point[1] for point in lines["a guess"]] == [0.25, 0.25]
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["2", "8", "none"]


def test_without_ledgers_there_is_no_utility_against_epsilon(budgets):
    plain = replace(budgets, methods={name: budgets.methods[name] for name in ("open",)})
    assert all(found.name != "utility_privacy" for found in comparison_drawings(plain))
