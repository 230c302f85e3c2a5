"""Scores of a record whose counts are hidden in part: over all classes only where that is known, and never of few cases."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from grandrounds.evaluation.bootstrap import cases_from_confusion
from grandrounds.evaluation.confusion import confusion_scores
from grandrounds.evaluation.counts import HIDDEN, SiteCounts
from grandrounds.evaluation.estimates import counts_of, pooled_counts, reference_scores, score_estimates
from grandrounds.evaluation.metrics import OF_CLASSES, site_metrics
from grandrounds.evaluation.record import EvalRecord, pooled
from grandrounds.evaluation.tables_of_cases import site_counts
from grandrounds.federation.site.scoring import released
from grandrounds.methods.mutual import executor as mutual
from grandrounds.methods.mutual.executor import OwnModelExecutor
from grandrounds.methods.mutual.options import FinalTestOptions
from grandrounds.protocol.tasks import SINGLE

NAMES = ("nv", "mel", "bcc", "df")
CONFUSION = np.array([[60, 10, 12, 0], [12, 40, 1, 0], [4, 4, 9, 0], [1, 2, 0, 3]])
EXACT = {name: float(value) for name, value in confusion_scores(CONFUSION).items()}


def record(exact=EXACT, hidden=(False,) * 4, confusion=CONFUSION):
    counts = (site_counts([cases_from_confusion(confusion)]),)
    found = EvalRecord(SINGLE, NAMES, int(confusion.sum()), exact, counts)
    return found.without(hidden) if any(hidden) else found


SOME = (False, False, True, True)


def test_a_table_with_a_small_count_stays_whole_and_scores_of_single_classes_with_it():
    stays, leaves = record().suppressed(10), record(confusion=np.diag([20, 10, 0, 0])).suppressed(10)
    assert not stays.counts
    assert stays.exact.keys() == EXACT.keys() - OF_CLASSES
    assert leaves.counts
    assert leaves.exact == EXACT


def test_beside_a_hidden_class_no_score_over_all_classes_is_computed_from_the_shown_ones():
    found = record(exact={}, hidden=SOME)
    assert found.hidden.any()
    assert found.score("accuracy").reason.startswith("of few cases and hidden")
    plain = [name for name, score in found.scores.items() if score.known and not score.of]
    assert plain == []
    assert found.best("balanced_accuracy").of == "2 of 4 classes"


def test_an_exact_accuracy_determines_that_of_yes_or_no_questions_and_no_other_score():
    found = record(exact={"accuracy": EXACT["accuracy"]}, hidden=SOME)
    assert found.score("accuracy").value == EXACT["accuracy"]
    assert found.score("accuracy_one_vs_rest").value == pytest.approx(EXACT["accuracy_one_vs_rest"])
    assert not found.score("recall_weighted").known


def test_images_of_one_class_have_no_area_and_means_over_sites_leave_it_out():
    labels, probabilities = np.zeros(20, np.int64), np.random.default_rng(0).dirichlet(np.ones(4), 20)
    exact = site_metrics(SINGLE, labels, probabilities)
    assert "auc_macro" not in exact
    assert exact["accuracy"] == pytest.approx((probabilities.argmax(axis=1) == 0).mean())
    alone = record(exact=exact, confusion=np.diag([20, 0, 0, 0]))
    assert alone.score("auc_macro").reason == "no image of a class"
    assert "validation.auc_macro" not in released("validation", alone, 0).metrics
    assert replace(alone, exact={}).score("auc_macro").reason == "no image of a class"
    assert record(exact={"auc_macro": 0.7}).score("auc_macro").value == 0.7


@pytest.mark.parametrize("cases", [6, 9])
def test_a_site_that_hides_everything_has_no_score_of_few_images(cases):
    hidden = SiteCounts(*np.full((2, 1, 4, 3), HIDDEN))
    small = EvalRecord(SINGLE, NAMES, cases, {"accuracy": 0.5}, (hidden,), minimum=10)
    assert small.score("accuracy").reason == "fewer than 10 cases"
    large = replace(small, images=60)
    assert (large.score("accuracy").value, large.score("accuracy").cases) == (0.5, 60)
    counts = pooled_counts([hidden], 0, (0, 1, 2, 3), 60, 30)
    assert score_estimates(counts)["accuracy"].low == pytest.approx(0.377, abs=1e-3)  # Wilson's of 30 of 60


@pytest.mark.parametrize("changes", [{"masked": True}, {}])
def test_references_beside_hidden_numbers_do_not_depend_on_how_common_the_classes_are(changes):
    found = replace(record() if changes else record(hidden=SOME), **changes)
    assert found.references == {
        "chance": {
            "accuracy": 0.25,
            "accuracy_one_vs_rest": 0.625,
            "balanced_accuracy": 0.25,
            "recall_weighted": 0.25,
            "auc_macro": 0.5,
        }
    }
    assert "always nv" in record().references


def test_a_class_that_some_sites_hide_is_masked_as_the_others_are():
    shown = SiteCounts(*np.tile([[[12, 3, 2], [30, 2, 3]]], (2, 1, 1, 1)))
    hidden = SiteCounts(*np.full((2, 1, 2, 3), HIDDEN))
    found = EvalRecord(SINGLE, ("a", "b"), 94, {"accuracy": 0.9}, (shown, hidden), sites=2)
    assert (found.classes[0]["sensitivity"].value, found.classes[0]["sensitivity"].cases) == (12 / 15, 15)
    assert found.classes[0]["sensitivity"].of == "1 of 2 sites"
    assert replace(found, masked=True).classes[0]["sensitivity"].cases is None
    few = replace(found, minimum=20).classes[0]["sensitivity"]
    assert (few.known, few.reason, few.of) == (False, "fewer than 20 cases", "")


def test_a_masked_record_has_no_calibration():
    generator = np.random.default_rng(0)
    one = cases_from_confusion(CONFUSION)
    cases = replace(one, probabilities=generator.dirichlet(np.ones(4), len(one.labels)))
    seen = EvalRecord.of(SINGLE, NAMES, [cases])
    assert seen.confidence
    assert replace(seen, masked=True).confidence == {}


def test_always_the_most_frequent_class_has_accuracies_alone_where_a_class_is_hidden():
    known = counts_of(cases_from_confusion(CONFUSION))
    unknown = np.array([False, False, True, True])
    part = replace(
        known, correct=np.where(unknown, np.nan, known.correct), missed=np.where(unknown, np.nan, known.missed)
    )
    assert reference_scores(part, NAMES)["always nv"] == {
        "accuracy": pytest.approx(82 / 158),
        "accuracy_one_vs_rest": pytest.approx(1 - 2 * (76 / 158) / 4),
    }


def test_sums_of_records_with_a_hidden_class_hide_it_too():
    found = pooled([record(exact={}, hidden=SOME), record(exact={})])
    assert not found.score("accuracy").known


@pytest.mark.parametrize(("minimum", "leaves"), [(0, True), (10, False)])
def test_scores_of_the_last_rounds_are_those_that_may_stand_beside_the_sites_counts(monkeypatch, minimum, leaves):
    site = SimpleNamespace(testing=FinalTestOptions(test_rounds=1))
    data = SimpleNamespace(min_support=minimum, rows=lambda part: np.arange(2))
    context = SimpleNamespace(round_number=3, data=data)
    monkeypatch.setattr(mutual, "score", lambda *given: (record(), torch.zeros(0)))
    found = OwnModelExecutor.scores_of_round(site, torch.nn.Identity(), context, 3)
    assert found["test.accuracy"] == EXACT["accuracy"]
    assert bool({f"test.{name}" for name in OF_CLASSES} & found.keys()) is leaves
    assert (found == {f"test.{name}": value for name, value in EXACT.items()}) is leaves
