"""The selected model is the best one over the same sites, on all their images together where counts allow it."""

import json

import numpy as np
import pytest
import torch

from grandrounds.errors import ConfigurationError
from grandrounds.evaluation.bootstrap import cases_from_confusion
from grandrounds.evaluation.confusion import confusion_scores
from grandrounds.evaluation.counts import UNITS, SiteCounts
from grandrounds.evaluation.estimates import counts_of, score_estimates
from grandrounds.evaluation.metrics import FROM_CONFUSION, OF_CLASSES
from grandrounds.evaluation.tables_of_cases import site_counts
from grandrounds.federation.server.options import RunOptions
from grandrounds.federation.server.selection import ModelSelection
from grandrounds.protocol.problem import Problem

CLASSES = ("nevus", "melanoma")


def selecting(metric, task="single"):
    return ModelSelection(metric, Problem(dataset="skin", classes=CLASSES, task=task))


def metrics_of(matrix):
    matrix = np.array(matrix)
    return {"n": int(matrix.sum()), **{name: float(confusion_scores(matrix)[name]) for name in FROM_CONFUSION}}


def scores(**sites):
    return {site: {"validation.n": 10, "validation.f1": value} for site, value in sites.items()}


def model(value):
    return {"w": torch.tensor([value])}


def test_the_best_mean_over_sites_is_kept():
    selection = selecting("f1")
    assert selection.offer(1, scores(a=0.2, b=0.4), model(1.0))["mean"] == pytest.approx(0.3)
    selection.offer(2, scores(a=0.6, b=0.4), model(2.0))
    selection.offer(3, scores(a=0.1, b=0.8), model(3.0))
    assert selection.choice == {
        "round": 2, "metric": "f1", "score": 0.5, "basis": "mean over sites",
        "note": "f1 is not known from counts of predictions: mean over sites",
    }  # fmt: skip
    assert selection.model == model(2.0)


def test_a_tie_selects_the_later_model():
    selection = selecting("f1")
    for number in (1, 2):
        selection.offer(number, scores(a=0.5), model(float(number)))
    assert selection.choice["round"] == 2


def test_a_round_does_not_win_because_a_hard_site_missed_it():
    selection = selecting("f1")
    selection.offer(1, scores(easy=0.8, hard=0.2), model(1.0))
    # Without the hard site the mean would be 0.7, above 0.5.
    assert selection.offer(2, scores(easy=0.7), model(2.0))["score"] == pytest.approx(0.45)
    assert selection.choice["round"] == 1


def test_sites_without_validation_images_do_not_count():
    selection = selecting("f1")
    assert selection.offer(1, {"a": {"validation.n": 0}, "b": {"loss": 1.0}}, model(1.0)) is None
    assert selection.choice == {}
    assert selection.offer(2, {**scores(c=0.5), "a": {"validation.n": 0}}, model(2.0))["score"] == 0.5


def test_a_metric_that_a_site_does_not_send_is_named_with_those_it_does():
    with pytest.raises(ConfigurationError, match=r"selection_metric 'auc' is not among the metrics of a: f1$"):
        selecting("auc").offer(1, scores(a=0.5), model(1.0))


def test_a_site_that_does_not_send_the_metric_is_left_out_and_named():
    selection = selecting("f1")
    selection.offer(1, scores(a=0.4, b=0.6), model(1.0))
    lacking = {"validation.n": 4.0}
    found = selection.offer(2, {**scores(a=0.8), "b": lacking, "c": lacking}, model(2.0))
    assert (found["score"], selection.choice["round"]) == (pytest.approx(0.7), 2)
    assert found["note"].endswith("not compared, because f1 is not among their metrics: b, c")
    # Nobody has scored this model.
    assert selection.offer(3, {"b": lacking}, model(3.0)) is None
    assert "not compared" not in selection.offer(4, scores(a=0.8, b=0.7), model(4.0)).get("note", "")


def test_a_selection_goes_on_from_its_state():
    before = selecting("f1")
    before.offer(1, scores(easy=0.8, hard=0.2), model(1.0))
    state = before.state_dict()
    after = selecting("f1")
    after.load_state_dict({**json.loads(json.dumps({**state, "model": None})), "model": state["model"]})
    assert after.offer(2, scores(easy=0.7), model(2.0)) == before.offer(2, scores(easy=0.7), model(2.0))
    assert after.choice == before.choice
    assert after.model == model(1.0)


def test_a_site_that_scores_for_the_first_time_begins_the_comparison_anew():
    selection = selecting("f1")
    selection.offer(1, scores(a=0.9), model(1.0))
    selection.offer(2, scores(a=0.95, b=0.5), model(2.0))
    assert selection.choice["round"] == 2
    selection.offer(3, scores(a=0.9, b=0.5), model(3.0))
    assert selection.choice["round"] == 2


SMALL = [[88, 2], [0, 2]]  # one melanoma more or less is 0.25 of this site's balanced accuracy
LARGE = [[80, 20], [10, 30]]


def answers(log_likelihood=-0.5, keeping=(), **matrices):
    """Metrics and counts of sites with these confusion matrices; those in ``keeping`` keep their counts."""
    metrics, counts = {}, {}
    for site, rows in matrices.items():
        matrix = np.array(rows)
        found = {**metrics_of(matrix), "log_likelihood": log_likelihood}
        kept = OF_CLASSES if site in keeping else ()
        metrics[site] = {f"validation.{name}": value for name, value in found.items() if name not in kept}
        if site not in keeping:
            counts[site] = site_counts([cases_from_confusion(matrix)])
    return metrics, counts


def offered(selection, number, metrics, counts):
    return selection.offer(number, metrics, model(float(number)), counts)


@pytest.mark.parametrize("metric", ["balanced_accuracy", "f1_macro", "f1_weighted", "accuracy"])
def test_sites_are_pooled_by_their_counts_and_not_averaged(metric):
    found = offered(selecting(metric), 1, *answers(a=SMALL, b=LARGE))
    pooled = metrics_of(np.array(SMALL) + np.array(LARGE))
    assert (found["metric"], found["basis"]) == (metric, "pooled")
    assert found["score"] == pytest.approx(pooled[metric])
    together = cases_from_confusion(np.array(SMALL) + np.array(LARGE))
    expected = score_estimates(counts_of(together))[metric]
    assert (found["low"], found["high"]) == (pytest.approx(expected.low), pytest.approx(expected.high))
    means = [metrics_of(matrix)[metric] for matrix in (SMALL, LARGE)]
    assert found["mean"] == pytest.approx(sum(means) / 2)


def test_two_images_of_a_small_site_do_not_select_the_model():
    selection = selecting("balanced_accuracy")
    first = offered(selection, 1, *answers(a=[[88, 2], [1, 1]], b=[[85, 15], [8, 32]]))
    later = offered(selection, 2, *answers(a=SMALL, b=LARGE))
    assert later["mean"] > first["mean"]  # by the mean over sites the later model would win
    assert later["score"] < first["score"]
    assert selection.choice["round"] == 1
    assert selection.choice["support"] == {"nevus": 190, "melanoma": 42}


def test_with_too_few_cases_of_a_class_the_log_likelihood_selects_and_the_record_has_the_reason():
    selection = selecting("balanced_accuracy")
    offered(selection, 1, *answers(-0.4, a=SMALL, b=[[50, 10], [3, 2]]))
    offered(selection, 2, *answers(-0.9, a=SMALL, b=[[50, 10], [0, 5]]))  # a better balanced accuracy
    assert {key: selection.choice[key] for key in ("round", "metric", "score")} == {
        "round": 1, "metric": "log_likelihood", "score": pytest.approx(-0.4),
    }  # fmt: skip
    assert selection.choice["note"] == (
        "fewer than 10 validation cases of melanoma (7) in the sites' counts: log-likelihood of all images instead of "
        "balanced_accuracy"
    )


def test_the_reason_has_the_counts_that_decided_and_says_that_patients_may_count_twice():
    """Other predictions of the same images: nine patients of melanoma count as 9 first, as 11 then."""
    selection = selecting("balanced_accuracy")
    for number, (one, other) in enumerate([([0, 9], [50, 10]), ([4, 7], [45, 4])], 1):
        metrics, counts = answers(a=[other, one])
        metrics["a"]["validation.unit"] = UNITS.index("patient")
        found = offered(selection, number, metrics, counts)
        assert found["note"].startswith("fewer than 10 validation cases of melanoma (at most 9) in the sites' counts")
        assert found["support"] == {"nevus": 60, "melanoma": 9}


def test_whether_a_class_has_enough_cases_is_decided_once_as_cases_count_once_for_each_prediction():
    """A patient whose images are all predicted alike in the second round counts once less there."""
    selection = selecting("balanced_accuracy")
    assert offered(selection, 1, *answers(-0.4, a=LARGE, b=[[50, 10], [5, 5]]))["basis"] == "pooled"
    few = answers(-0.4, a=[[80, 20], [0, 2]], b=[[50, 10], [0, 7]])
    after = selecting("balanced_accuracy")
    after.load_state_dict(selection.state_dict())
    for each in (selection, after):
        later = offered(each, 2, *few)
        assert (later["metric"], later["support"]["melanoma"]) == ("balanced_accuracy", 50)
    new = offered(selection, 3, *answers(-0.4, a=[[80, 20], [0, 2]], b=[[50, 10], [0, 1]], c=[[9, 0], [0, 1]]))
    assert new["metric"] == "log_likelihood"  # with another site the comparison begins anew


def test_a_site_without_counts_makes_it_the_mean_over_sites_for_the_rest_of_the_run():
    selection = selecting("balanced_accuracy")
    metrics, counts = answers(a=LARGE, b=LARGE)
    assert offered(selection, 1, metrics, counts)["basis"] == "pooled"
    assert offered(selection, 2, metrics, {"a": counts["a"]})["note"] == "no counts from b: mean over sites"
    again = offered(selection, 3, metrics, counts)
    assert (again["basis"], again["note"]) == ("mean over sites", "the counts of an earlier round were not enough")


def test_where_a_site_keeps_its_counts_the_log_likelihood_selects_for_the_rest_of_the_run():
    """0.775 would be the balanced accuracy of the large site alone."""
    selection = selecting("balanced_accuracy")
    found = offered(selection, 1, *answers(keeping=("a",), a=SMALL, b=LARGE))
    assert (found["metric"], found["score"], found["basis"]) == ("log_likelihood", -0.5, "pooled")
    assert found["note"] == "no counts from a: log-likelihood of all images instead of balanced_accuracy"
    worse = [[95, 5], [4, 36]]  # of the large site, while the small one has become worse
    later = offered(selection, 2, *answers(-0.8, a=[[45, 45], [2, 0]], b=worse))
    assert (later["metric"], later["note"]) == ("log_likelihood", "the counts of an earlier round were not enough")
    assert selection.choice["round"] == 1


def hiding(metrics, *names):
    return {name: value for name, value in metrics.items() if name.removeprefix("validation.") not in names}


@pytest.mark.parametrize("counted", [(), ("b",)])
def test_without_any_score_of_all_sites_the_error_names_what_each_withholds_and_the_remedy(counted):
    metrics, counts = answers(keeping=("a",), a=SMALL, b=LARGE)
    metrics["b"] = hiding(metrics["b"], "log_likelihood")
    with pytest.raises(ConfigurationError) as caught:
        offered(selecting("balanced_accuracy"), 1, metrics, {site: counts[site] for site in counted})
    assert str(caught.value) == (
        "no score of all sites selects a model by balanced_accuracy: a withholds balanced_accuracy, b withholds "
        "log_likelihood; their privacy policies must allow validation.log_likelihood"
    )


def test_a_negative_number_of_images_is_none():
    sites = {"a": {"validation.n": -4, "validation.f1": 0.9}, **scores(b=0.5)}
    assert selecting("f1").offer(1, sites, model(1.0))["score"] == 0.5


def test_what_a_case_is_may_not_end_the_run():
    (site,) = scores(a=0.5).values()
    assert selecting("f1").offer(1, {"a": {**site, "validation.unit": 9}}, model(1.0))["score"] == 0.5


def test_the_pooled_state_survives_a_checkpoint():
    before = selecting("balanced_accuracy")
    offered(before, 1, *answers(a=SMALL, b=LARGE))
    after = selecting("balanced_accuracy")
    after.load_state_dict({**json.loads(json.dumps({**before.state_dict(), "model": None})), "model": before.model})
    only = answers(b=[[70, 30], [5, 35]])  # the other site counts with its last counts
    assert offered(after, 2, *only) == offered(before, 2, *only)


def finding_scores(n=10, **metrics):
    return {f"validation.{name}": value for name, value in {"n": n, "log_likelihood": -0.7, **metrics}.items()}


def test_models_of_findings_are_compared_over_the_sites_with_enough_images():
    selection = selecting("auc_macro", "multi")
    sites = {"a": finding_scores(auc_macro=0.6), "b": finding_scores(auc_macro=0.8), "few": finding_scores()}
    assert selection.offer(1, sites, model(1.0))["score"] == pytest.approx(0.7)
    selection.offer(2, {**sites, "a": finding_scores(auc_macro=0.5)}, model(2.0))
    assert selection.choice == {
        "round": 1, "metric": "auc_macro", "score": pytest.approx(0.7), "basis": "mean over sites",
    }  # fmt: skip


def test_an_area_of_classes_is_a_mean_over_the_sites_that_have_it_also_where_all_release_counts():
    table = np.array([[[20, 1, 0], [18, 3, 0]]])
    counts = {site: SiteCounts(table, table) for site in "ab"}
    selection = selecting("auc_macro")
    sites = {"a": finding_scores(auc_macro=0.6), "b": finding_scores(auc_macro=0.8), "one class": finding_scores()}
    found = selection.offer(1, sites, model(1.0), counts)
    assert (found["metric"], found["score"], found["basis"]) == ("auc_macro", pytest.approx(0.7), "mean over sites")
    # More likely, but a smaller area: the first round stays.
    worse = {"a": finding_scores(auc_macro=0.5, log_likelihood=-0.1), "b": finding_scores(auc_macro=0.8)}
    selection.offer(2, worse, model(2.0), counts)
    assert selection.choice["round"] == 1


def test_an_area_that_no_site_has_is_named_and_the_likelihood_selects():
    found = selecting("auc_macro").offer(1, {"a": finding_scores(), "b": finding_scores()}, model(1.0))
    assert found["metric"] == "log_likelihood"
    assert "auc_macro" in found["note"]


def test_without_enough_images_of_a_finding_the_likelihood_of_all_images_selects():
    selection = selecting("auc_macro", "multi")
    found = selection.offer(1, {"a": finding_scores(30), "b": finding_scores(10, log_likelihood=-0.3)}, model(1.0))
    assert (found["metric"], found["score"]) == ("log_likelihood", pytest.approx(-0.6))
    assert found["note"].startswith("no finding has enough validation images with it and without at a site")


def test_findings_without_a_log_likelihood_are_compared_by_the_mean():
    sites = {"a": hiding(finding_scores(auc_macro=0.6), "log_likelihood"), "b": finding_scores(auc_macro=0.8)}
    assert selecting("auc_macro", "multi").offer(1, sites, model(1.0))["score"] == pytest.approx(0.7)


def test_when_a_site_has_a_metric_of_findings_no_more_all_rounds_are_compared_by_the_likelihood_for_good():
    selection = selecting("auc_macro", "multi")
    weak, strong = finding_scores(auc_macro=0.5), finding_scores(auc_macro=0.9)
    selection.offer(1, {"a": weak, "b": strong}, model(1.0))
    # The mean over the other site alone would be 0.9, above 0.7.
    found = selection.offer(2, {"a": finding_scores(log_likelihood=-0.9), "b": strong}, model(2.0))
    assert (found["metric"], found["score"]) == ("log_likelihood", pytest.approx(-0.8))
    assert found["note"].startswith("a had auc_macro in an earlier round")
    assert selection.choice["round"] == 1
    state = {**json.loads(json.dumps({**selection.state_dict(), "model": None})), "model": selection.model}
    selection = selecting("auc_macro", "multi")
    selection.load_state_dict(state)
    found = selection.offer(3, {"a": strong, "b": strong}, model(3.0))
    assert (found["metric"], found["mean"]) == ("log_likelihood", pytest.approx(0.9))
    assert found["note"].startswith("a site had no auc_macro in an earlier round")
    selection.offer(4, {"a": finding_scores(log_likelihood=-0.2), "b": strong}, model(4.0))
    assert (selection.choice["round"], selection.choice["score"]) == (4, pytest.approx(-0.45))


def test_a_site_stays_in_the_mean_of_findings_where_its_patients_are_predicted_alike():
    """Nine patients of whom some have right and wrong predictions are up to eighteen in the counts."""

    def counted(missed):
        table = np.array([[[30, 0, 0], [9, missed, 0]]] * 2)
        return SiteCounts(table, table)

    selection = selecting("auc_macro", "multi")
    sites = {"a": finding_scores(auc_macro=0.6), "b": finding_scores(auc_macro=0.8)}
    selection.offer(1, sites, model(1.0), {"a": counted(4)})
    found = selection.offer(2, sites, model(2.0), {"a": counted(0)})
    assert (found["basis"], found["score"]) == ("mean over sites", pytest.approx(0.7))


def test_the_reason_for_the_likelihood_of_findings_names_the_sites_that_keep_their_counts():
    found = selecting("balanced_accuracy", "multi").offer(1, {"a": finding_scores()}, model(1.0))
    assert "(a keeps its counts)" in found["note"]
    assert "mean" not in found


@pytest.mark.parametrize(("task", "chosen"), [("single", "balanced_accuracy"), ("multi", "auc_macro")])
def test_the_metric_that_selects_follows_from_the_task(task, chosen):
    assert RunOptions(problem={"task": task}, rounds=1).metric == chosen
    assert RunOptions(problem={"task": task}, rounds=1, selection_metric="f1_macro").metric == "f1_macro"


def test_findings_have_no_accuracy_to_select_by():
    with pytest.raises(ConfigurationError, match=r"selection_metric of findings must be"):
        RunOptions(problem={"task": "multi"}, rounds=1, selection_metric="accuracy")
