"""Methods are compared by seed, or as fixed models by test case, on the sites that both have."""

import math
from dataclasses import replace

import pytest
from scipy import stats
from sklearn.metrics import balanced_accuracy_score

from grandrounds.errors import ConfigurationError
from grandrounds.evaluation.bootstrap import joined
from grandrounds.evaluation.comparisons import holm
from grandrounds.evaluation.score import Score
from grandrounds.reporting.comparison import (
    _values,
    also_unlike,
    compare,
    methods_of,
    relative_improvement,
    require_one_vocabulary,
    unlike,
)
from grandrounds.reporting.model import report_on
from grandrounds.reporting.run import scores_of
from grandrounds.reporting.runs import read_run

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
    return compare(methods, {run.name: scores_of(run).headline("balanced_accuracy") for run in runs}, reference)


def test_one_seed_is_compared_on_the_same_test_cases(pair):
    found = compared(pair, "local")
    difference = found.differences["better"]
    together = [joined(list(run.tests.predictions.values())) for run in pair]
    ours, theirs = (balanced_accuracy_score(cases.labels, cases.predicted) for cases in together)
    assert (difference.unit, difference.n) == ("case", 120)
    assert difference.mean == pytest.approx(ours - theirs)
    assert difference.low < difference.mean < difference.high
    assert difference.p_value < 0.01 < difference.detectable
    assert found.adjusted["better"] == difference.p_value  # one comparison
    assert found.relative["better"] == pytest.approx(100 * (ours - theirs) / theirs)
    assert any("says nothing about other seeds" in caveat for caveat in report_on(pair).caveats)


def test_a_model_differs_from_itself_by_nothing(pair, make_run):
    same = read_run(make_run("same", right=BETTER, configuration=configured(peers=5)), "same")
    difference = compared([pair[0], same], "better").differences["same"]
    assert (difference.mean, difference.low, difference.high, difference.p_value) == (0, 0, 0, 1)


def test_several_comparisons_are_corrected_by_holms_method(pair, make_run):
    third = read_run(make_run("third", right=0.65, configuration=configured(peers=5)), "third")
    found = compared([*pair, third], "local")
    assert found.adjusted == holm({method: one.p_value for method, one in found.differences.items()})
    alone = compared(pair, "local").differences["better"]
    assert found.differences["better"].detectable > alone.detectable  # at half the level


def test_methods_are_compared_on_the_sites_that_both_have(pair, make_run):
    partly = read_run(make_run("partly", right=BETTER, sites=("site-1", "site-2")), "partly")
    assert compared([pair[1], partly], "local").differences["partly"].n == 80


def test_a_model_of_another_site_is_named_and_not_compared(pair, make_run):
    pooled = read_run(make_run("pooled", sites=("everywhere",), test={}), "pooled")
    assert compared([*pair, pooled], "local").left_out == ("pooled",)
    assert compared([pair[0], pooled], "better") is None


def test_three_seeds_are_paired_by_seed_and_sites_are_no_repetitions(make_run):
    runs = [
        read_run(make_run(f"{name}_{seed}", right=share - seed * step, configuration=configured(seed=seed, peers=peers)),
                 f"{name}_{seed}")
        for name, share, step, peers in (("a", 0.9, 0.05, 1), ("b", 0.6, 0.1, 2)) for seed in (1, 2, 3)
    ]  # fmt: skip
    report = report_on(runs)
    assert {name: len(method.runs) for name, method in report.methods.items()} == {"a": 3, "b": 3}
    difference = report.comparison.differences["b"]
    values = [report.runs[run.name].scores.pooled.scores["balanced_accuracy"].value for run in runs]
    assert (difference.unit, difference.n) == ("seed", 3)
    assert difference.p_value == pytest.approx(stats.ttest_rel(values[3:], values[:3]).pvalue)
    assert not any("fewer than 3 seeds" in caveat for caveat in report.caveats)


def test_the_reference_is_local_training_unless_it_is_named(pair):
    assert report_on(pair).comparison.reference == "local"
    assert report_on(pair, reference="better").comparison.reference == "better"
    with pytest.raises(ConfigurationError, match="method 'mine'"):
        report_on(pair, reference="mine")


def test_a_comparison_of_the_common_model_with_own_choices_has_a_caveat(pair):
    assert any("may explain a part of their difference" in caveat for caveat in report_on(pair).caveats)


def test_rows_of_another_side_or_other_labels_are_named_and_not_compared(pair, make_run):
    problem = {**configured()["problem"], "image_size": 64}
    larger = read_run(make_run("larger", right=BETTER, configuration=configured(problem=problem)), "larger")
    divisions = [{"data": {"sha256": {"site-1": digest}}} for digest in ("aa", "bb")]
    first, second = (
        replace(run, origin=replace(run.origin, provenance=one)) for run, one in zip(pair, divisions, strict=True)
    )
    report = report_on([larger, *pair], reference="local")
    assert (list(report.comparison.differences), report.comparison.left_out) == (["better"], ("larger",))
    assert {"larger", "local"} <= set(report.caveats[0].replace(":", "").split())
    assert f"side of images (64 against {configured()['problem']['image_size']})" in report.caveats[0]
    assert unlike([(first, second)]) == ["division or labels"]
    assert unlike([(first, first)]) == []
    bare = {name: value for name, value in configured()["problem"].items() if name != "task"}
    assert unlike([(read_run(make_run("bare", configuration=configured(problem=bare)), "bare"), first)]) == []


def test_seeds_that_gave_one_model_count_as_one(make_run):
    """A closed form has no seeds; its interval is that of its cases, not of no width."""

    def seeds(name, right, **changes):
        names = {seed: f"{name}_{seed}" for seed in (1, 2, 3)}
        options = {seed: configured(seed=seed, **changes) for seed in names}
        return [read_run(make_run(one, right=right, configuration=options[seed]), one) for seed, one in names.items()]

    report = report_on([*seeds("first", BETTER), *seeds("second", WORSE, peers=7)], reference="second")
    difference = report.comparison.differences["first"]
    assert (difference.unit, difference.n) == ("case", 120)
    assert difference.low < difference.mean < difference.high
    score = report.methods["first"].score
    assert score == report.runs["first_1"].scores.pooled.scores["balanced_accuracy"]
    assert score.low < score.value < score.high


def test_runs_that_differ_in_their_seed_alone_are_one_method(make_run):
    paths = {
        f"fedperl_seed_{seed}": make_run(
            f"run-{seed}", configuration={**configured(seed=seed), "frozen": f"digest {seed}"}
        )
        for seed in (1, 2)
    }
    paths["other"] = make_run("other", configuration=configured(peers=3, seed=3))
    runs = [read_run(path, name) for name, path in paths.items()]
    found = methods_of(runs)
    assert {method: [run.log.seed for run in members] for method, members in found.items()} == {
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


def test_a_worse_score_is_a_negative_improvement():
    assert relative_improvement(0.5, 1.0) == -50


def test_there_is_no_improvement_over_nothing():
    assert math.isnan(relative_improvement(0.5, 0))


def test_scores_over_different_parts_of_the_classes_are_not_compared(make_run):
    pair = tuple(read_run(make_run(name, sites=()), name) for name in ("one", "two"))
    whole, part = Score(0.7, 0.6, 0.8, 40), Score(0.6, 0.5, 0.7, 40, of="2 of 3 classes")
    assert _values(pair, {"one": whole, "two": whole}, "accuracy") == (0.7, 0.7)
    assert _values(pair, {"one": whole, "two": part}, "accuracy") is None


def test_runs_of_another_network_code_or_processor_say_so(pair):
    better, local = pair
    made = {"versions": {"grandrounds": "9.9"}, "machine": {"processor": "arm64", "graphics": ["H200"]}}
    other = replace(better, log=replace(better.log, **made))
    assert also_unlike([(better.log, local.log)]) == []
    known = replace(local, log=replace(local.log, versions={"grandrounds": "9.8"}, machine={"processor": "x86_64"}))
    words = ["code (9.9 against 9.8)", "processor (arm64, H200 against x86_64)"]
    assert also_unlike([(other.log, known.log)]) == words
    told = f"better and local also differ in {', '.join(words)}: a part of their difference may come from it."
    assert told in report_on([other, known]).caveats
