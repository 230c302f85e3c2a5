"""A run's scores by site, community, class and together, with the cases behind each."""

import json
from dataclasses import replace

import numpy as np
import pytest
from sklearn.metrics import balanced_accuracy_score, roc_auc_score

from grandrounds.api.running import _frame
from grandrounds.evaluation.bootstrap import cases_from_confusion, joined
from grandrounds.evaluation.counts import HIDDEN, SiteCounts, counts_to_json
from grandrounds.evaluation.tables_of_cases import site_counts
from grandrounds.plain import to_plain
from grandrounds.reporting.run import expectation, scores_of, table_rows
from grandrounds.reporting.runs import read_run

from .conftest import CLASSES, without_probabilities

RIGHT = {"site-1": 0.5, "site-2": 0.75, "site-10": 1.0}


@pytest.fixture
def run(make_run):
    found = read_run(make_run(right=RIGHT), "x")
    communities = {"site-1": "camera", "site-2": "camera", "site-10": "scanner"}
    return replace(found, origin=replace(found.origin, communities=communities))


def test_scores_are_scikit_learns_of_the_same_images(run):
    scores = scores_of(run)
    for site, cases in run.tests.predictions.items():
        expected = balanced_accuracy_score(cases.labels, cases.predicted)
        assert scores.sites[site].scores["balanced_accuracy"].value == pytest.approx(expected)
    assert scores.mean["accuracy"].value == pytest.approx(sum(RIGHT.values()) / 3)
    together = joined(list(run.tests.predictions.values()))
    assert scores.pooled.images == 120
    expected = roc_auc_score(together.labels == 1, together.probabilities[:, 1])
    assert scores.pooled.classes[CLASSES[1]]["auroc"].value == pytest.approx(expected)
    assert scores.pooled.classes[CLASSES[1]]["auroc"].cases == 36


def test_communities_are_their_sites_together(run):
    scores = scores_of(run)
    assert {name: group.images for name, group in scores.communities.items()} == {"camera": 80, "scanner": 40}
    assert scores.communities["scanner"].scores["accuracy"].value == 1
    assert scores.communities["camera"].scores["accuracy"].value == pytest.approx(0.625)


def test_eight_cases_are_marked_as_few_at_a_site_and_are_enough_together(run):
    scores = scores_of(run)
    found = scores.sites["site-1"].classes["other"]["sensitivity"]
    assert (found.value, found.cases, found.few) == (0.5, 8, True)
    assert scores.pooled.classes[CLASSES[2]]["sensitivity"].enough


def test_a_site_with_one_class_has_its_sensitivity_and_nothing_that_needs_others(make_run):
    workspace = make_run(right=RIGHT)
    place = workspace / "results" / "site-2" / "predictions_common.csv"
    header, *lines = place.read_text().splitlines()
    place.write_text("\n".join([header, *(line for line in lines if line.split(",")[1] == "nevus")]) + "\n")
    scores = scores_of(read_run(workspace, "x"))
    alone = scores.sites["site-2"]
    assert (alone.cases, alone.scores["accuracy"].value) == (20, 0.75)
    assert alone.scores["balanced_accuracy"].value == 0.75  # of the one class that occurs, as scikit-learn's
    assert alone.majority == "nevus"
    nevus, melanoma, _ = alone.classes.values()
    assert (nevus["sensitivity"].value, nevus["sensitivity"].cases) == (0.75, 20)
    assert (nevus["specificity"].cases, melanoma["sensitivity"].cases) == (0, 0)
    assert not nevus["specificity"].known
    assert scores.mean["balanced_accuracy"].value == pytest.approx((0.5 + 0.75 + 1) / 3)


def test_the_same_run_gives_the_same_intervals(run):
    assert to_plain(scores_of(run)) == to_plain(scores_of(run))


def test_a_run_without_predictions_has_no_scores(make_run):
    scores = scores_of(read_run(make_run(sites=(), test={}), "x"))
    assert (scores.sites, scores.pooled, scores.mean) == ({}, None, {})


def test_counts_alone_have_no_areas_and_no_calibration(run):
    scores = scores_of(without_probabilities(run))
    assert "auroc" not in scores.pooled.classes[CLASSES[0]]
    assert scores.pooled.confidence == {}
    assert scores.pooled.scores["accuracy"].value == pytest.approx(0.75)


def test_means_that_sites_have_sent_have_a_mean_and_no_interval(make_run):
    test = {
        "site-1": {"common.n": 40.0, "common.balanced_accuracy": 0.5},
        "site-2": {"common.n": 20.0, "common.balanced_accuracy": 0.75, "common.f1_macro": 0.5},
        "site-10": {"common.n": 3.0, "common.balanced_accuracy": 1.0},
    }
    scores = scores_of(read_run(make_run(sites=(), test=test), "x"))
    mean = scores.headline("balanced_accuracy")
    assert (mean.value, str(mean.low)) == (0.75, "nan")
    assert scores.by_site("auc_macro") == {}


def released(make_run, counts, images):
    """A run of which the server has only what sites released: counts, and numbers of images."""
    workspace = make_run(sites=(), test={site: {"common.n": float(count)} for site, count in images.items()})
    place = workspace / "results" / "summary.json"
    content = json.loads(place.read_text())
    for site, found in counts.items():
        content["records"][site]["common"]["counts"] = counts_to_json(found)
    place.write_text(json.dumps(content))
    return read_run(workspace, "x")


def test_a_site_that_hides_all_its_counts_is_masked_when_it_is_small(make_run):
    hidden = SiteCounts(*np.full((2, 1, 3, 3), HIDDEN))
    shown = site_counts([cases_from_confusion(np.array([[30, 12, 11], [15, 30, 10], [12, 11, 30]]))])
    run = released(
        make_run,
        {"site-1": hidden, "site-2": shown, "site-10": shown},
        {"site-1": 6, "site-2": 161, "site-10": 161},
    )
    scores = scores_of(run, minimum=10)
    assert scores.sites["site-1"].images is None
    assert [sheet.images for sheet in scores.sites.values()].count(None) == 2, "one alone is the sum's difference"
    assert scores.pooled.cases is None


def test_a_frame_has_a_mean_over_some_classes_under_its_own_name(make_run):
    hides = np.array([[30, 12, 11], [15, 30, 10], [HIDDEN] * 3])
    counts = {site: SiteCounts(hides[None], hides[None]) for site in ("site-1", "site-2")}
    run = released(make_run, counts, dict.fromkeys(counts, 150))
    frame = _frame(run)
    assert frame["balanced_accuracy"].drop("chance").isna().all()
    assert frame.loc["pooled", "balanced_accuracy_of_2_classes"] == pytest.approx((30 / 42 + 15 / 45) / 2)
    expected = scores_of(run).pooled.best("balanced_accuracy").value
    assert frame.loc["pooled", "balanced_accuracy_of_2_classes"] == expected


def test_a_site_that_keeps_its_number_of_images_has_its_scores_and_is_in_no_sum(run):
    """A policy may name single scores and not the number of images."""
    tested = run.tests.sites.items()
    sites = {site: replace(one, questions=(), counts=(), exact={"accuracy": RIGHT[site]}) for site, one in tested}
    sites["site-2"] = replace(sites["site-2"], images=0)
    found = replace(run, tests=replace(run.tests, sites=sites))
    scores = scores_of(found)
    assert scores.sites["site-2"].score("accuracy").value == 0.75
    assert scores.sites["site-2"].images is None
    assert scores.sites["site-2"].score("balanced_accuracy").reason == "the site keeps its counts"
    assert scores.pooled.images == 80
    assert scores.pooled.scores["accuracy_of_2_sites"].of == "2 of 3 sites"
    assert scores.mean["accuracy"].value == pytest.approx(sum(RIGHT.values()) / 3)
    assert [(row.name, row.images) for row in table_rows(found)][:4] == [
        ("site-1", 40), ("site-2", None), ("site-10", 40), ("mean", None)
    ]  # fmt: skip


def test_an_interval_over_hospitals_ends_where_the_score_does():
    at = {"exact": {"auc_macro": 0.99, "log_loss": 0.1}}, {"exact": {"auc_macro": 0.6, "log_loss": 1.9}}
    records = {f"site-{number}": {"common": at[0], "elsewhere": at[number == 4]} for number in range(5)}
    (sentence,) = expectation({"records": records})
    assert "AUROC 0.912 [0.695, 1.000] (with it 0.990)" in sentence
    assert "log loss 0.460 [0.000, 1.460] (with it 0.100)" in sentence
