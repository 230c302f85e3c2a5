"""Methods are compared on the sites that they share, by pairs, and chance is distinguished from difference."""

import numpy as np
import pytest
from scipy import stats

from grandrounds.errors import ConfigurationError
from grandrounds.reporting.comparison import compare, methods_of, relative_improvement, require_one_vocabulary
from grandrounds.reporting.model import report_on
from grandrounds.reporting.runs import read_run
from grandrounds.reporting.scores import scores_of

from .conftest import configured

BETTER = {"site-1": 0.75, "site-2": 1.0, "site-10": 0.75}
WORSE = {"site-1": 0.5, "site-2": 0.5, "site-10": 0.75}


@pytest.fixture
def pair(make_run):
    return [
        read_run(make_run("better", right=BETTER), "better"),
        read_run(make_run("local", right=WORSE, model="own", configuration=configured(method="LocalController")), "local"),
    ]  # fmt: skip


def compared(runs, reference):
    methods = {run.name: [run] for run in runs}
    return compare(methods, {run.name: scores_of(run) for run in runs}, reference)


def test_differences_are_the_paired_t_test_over_blocks(pair):
    found = compared(pair, "local")
    assert found.blocks == ("site-1", "site-2", "site-10")
    a, b = (np.array(found.values[name]) for name in ("better", "local"))
    difference = found.differences["better"]
    assert difference.paired.mean == pytest.approx((a - b).mean())
    assert difference.paired.p_value == pytest.approx(stats.ttest_rel(a, b).pvalue)
    assert difference.adjusted_p == pytest.approx(difference.paired.p_value)  # one comparison
    assert difference.relative == pytest.approx(100 * (a.mean() - b.mean()) / b.mean())
    assert found.wins["better", "local"] == (2, 1, 0)
    assert found.over_blocks is None  # with two methods there is only the paired test


def test_more_comparisons_make_a_p_value_larger(pair, make_run):
    third = read_run(make_run("third", right=BETTER, configuration=configured(peers=5)), "third")
    found = compared([*pair, third], "local")
    assert found.differences["better"].adjusted_p == pytest.approx(
        min(1, 2 * found.differences["better"].paired.p_value)
    )
    assert found.over_blocks.within == 4
    assert found.over_seeds is None


def test_only_sites_with_enough_cases_count(pair, make_run):
    small = read_run(make_run("small", sites=("site-1",), counts={"nevus": 9}), "small")
    found = compared([*pair, small], "local")
    assert found.left_out == ("small",)
    partly = read_run(make_run("partly", sites=("site-1", "site-2")), "partly")
    assert compared([*pair, partly], "local").blocks == ("site-1", "site-2")


def test_a_model_of_another_site_is_named_and_not_compared(pair, make_run):
    pooled = read_run(make_run("pooled", sites=("everywhere",), test={}), "pooled")
    assert compared([*pair, pooled], "local").left_out == ("pooled",)
    assert compared([pair[0], pooled], "better") is None


def test_three_seeds_of_two_methods_are_tested_as_repetitions(make_run):
    runs = [
        read_run(make_run(f"{name}_{seed}", right=share - seed / 40, configuration=configured(seed=seed, peers=peers)),
                 f"{name}_{seed}")
        for name, share, peers in (("a", 0.9, 1), ("b", 0.6, 2)) for seed in (1, 2, 3)
    ]  # fmt: skip
    report = report_on(runs)
    assert {method: len(members) for method, members in report.methods.items()} == {"a": 3, "b": 3}
    found = report.comparison.over_seeds
    assert found.p_value < 0.05
    assert not any("fewer than 3 seeds" in caveat for caveat in report.shared_caveats)


def test_the_reference_is_local_training_unless_it_is_named(pair):
    assert report_on(pair).comparison.reference == "local"
    assert report_on(pair, reference="better").comparison.reference == "better"
    with pytest.raises(ConfigurationError, match="there is no method 'mine'; there are better, local"):
        report_on(pair, reference="mine")


def test_a_comparison_of_the_common_model_with_own_choices_has_a_caveat(pair):
    assert any("explains a part of their difference" in caveat for caveat in report_on(pair).shared_caveats)


def test_runs_that_differ_in_their_seed_alone_are_one_method(make_run):
    paths = {f"fedperl_seed_{seed}": make_run(f"run-{seed}", configuration=configured(seed=seed)) for seed in (1, 2)}
    paths["other"] = make_run("other", configuration=configured(peers=3, seed=3))
    runs = [read_run(path, name) for name, path in paths.items()]
    found = methods_of(runs)
    assert {method: [run.seed for run in members] for method, members in found.items()} == {
        "fedperl": [1, 2],
        "other": [3],
    }


def test_the_same_seed_twice_is_no_repetition(make_run):
    runs = [read_run(make_run(name), name) for name in ("a", "b")]
    assert list(methods_of(runs)) == ["a", "b"]


def test_different_vocabularies_cannot_be_compared(make_run):
    problem = {"dataset": "skin", "classes": ["melanoma", "nevus", "other"]}
    runs = [
        read_run(make_run("a"), "a"),
        read_run(make_run("b", sites=(), configuration=configured(problem=problem)), "b"),
    ]
    with pytest.raises(ConfigurationError, match="a and b have different classes"):
        require_one_vocabulary(runs)


@pytest.mark.parametrize(("value", "percent"), [(0.747, 15.456), (0.749, 15.765), (0.734, 13.447), (0.773, 19.474)])
def test_relative_improvement_over_training_alone(value, percent):
    assert relative_improvement(value, 0.647) == pytest.approx(percent, abs=5e-4)


def test_what_gets_worse_has_a_negative_improvement():
    assert relative_improvement(0.5, 1.0) == -50


def test_an_improvement_over_nothing_is_refused():
    with pytest.raises(ValueError, match="reference must be above 0, got 0"):
        relative_improvement(0.5, 0)
