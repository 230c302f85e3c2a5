"""Areas within sites: hand-computed sums, scikit-learn on each site, and the same from predictions and from masked sums."""

import math
from dataclasses import replace

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from grandrounds.evaluation.bootstrap import Cases, cases_from_confusion, questions_of
from grandrounds.evaluation.estimates import auc_estimates
from grandrounds.evaluation.metrics import site_metrics
from grandrounds.evaluation.record import EvalRecord, pooled, record_of_sum
from grandrounds.evaluation.score import Score
from grandrounds.evaluation.tables_of_cases import summable_scores
from grandrounds.evaluation.within import ACROSS, WITHIN, confounding, within_sites, within_sums
from grandrounds.protocol.tasks import FINDINGS, SINGLE
from grandrounds.seeding import numpy_generator

NAMES = ("a", "b", "c")
SHARES = ((0.8, 0.1, 0.1), (0.1, 0.8, 0.1), (0.2, 0.2, 0.6), (1.0, 0.0, 0.0))
"""Of the classes at each site; the last has no image that is not a."""


def by_hand(labels, scores, groups=None):
    """A site of two classes, whose second has these scores."""
    probabilities = np.stack([1 - np.array(scores), np.array(scores)], axis=1)
    groups = np.arange(len(labels)) if groups is None else np.array(groups)
    return [Cases(np.array(labels), probabilities.argmax(axis=1), groups, probabilities, 2)]


def site(number, images=120, task=SINGLE):
    """Predictions of a model that knows the site's shares and little else; two images of a patient."""
    generator, shares = numpy_generator("within", number), np.array(SHARES[number])
    groups = [f"p{row // 2}" for row in range(images)]
    if task is FINDINGS:
        labels = generator.integers(-1, 2, (images, 3))
        probabilities = 0.5 * generator.uniform(0, 1, (images, 3)) + 0.1 * number + 0.1 * (labels == 1)
    else:
        labels = generator.choice(3, images, p=shares)
        probabilities = generator.dirichlet(np.ones(3), images) + 2 * shares + 0.3 * np.eye(3)[labels]
        probabilities /= probabilities.sum(axis=1, keepdims=True)
    return labels, probabilities, questions_of(task, labels, probabilities, groups)


def record_of(found, task=SINGLE):
    labels, probabilities, questions = found
    return EvalRecord.of(task, NAMES, questions, exact=site_metrics(task, labels, probabilities), unit="patient")


def test_the_sums_of_two_sites_are_those_computed_by_hand():
    # Site 1: positives .9 and .4, negatives .5, .3, .1: 5 of 6 pairs. Placements of positives 1 and 2/3, of negatives
    # 1/2, 1 and 1: DeLong's variance is (1/18) / 2 + (1/12) / 3 = 1/18.
    first = by_hand([1, 1, 0, 0, 0], [0.9, 0.4, 0.5, 0.3, 0.1])
    assert within_sums(first)[1] == pytest.approx([2, 5 / 3, 4 / 18, 1, 0])
    # Site 2: one positive between two negatives: the spread of one positive is taken as that of a proportion, 1/4.
    second = by_hand([1, 0, 0], [0.5, 0.2, 0.8])
    assert within_sums(second)[1] == pytest.approx([1, 0.5, 0.25 + 0.5 / 2, 1, 0])
    # Two images of the only patient with the class, or without it, say nothing of the spread either.
    for labels, groups in (([1, 1, 0, 0], [0, 0, 1, 2]), ([0, 0, 1, 1], [0, 0, 1, 2])):
        alone = by_hand(labels, [0.5, 0.6, 0.2, 0.8], groups)
        cases, weighted, spread = within_sums(alone)[1][:3]
        assert (weighted / cases, spread / cases**2) == pytest.approx((0.5, 0.25 + 0.5 / 2))
    # Site 3 has positives alone, two images of one patient: a case is lost.
    third = by_hand([1, 1], [0.2, 0.1], [0, 0])
    assert within_sums(third).tolist() == [[0, 0, 0, 0, 0], [0, 0, 0, 0, 1]]
    together = within_sites([first, second, third])
    assert together.sums[1] == pytest.approx([3, 5 / 3 + 0.5, 4 / 18 + 0.5, 2, 1])
    # Pooled, the same three positives against all five negatives: 5, 3 and, with a tie, 3.5 of 15 pairs.
    assert together.across[1] == pytest.approx((5 + 3 + 3.5) / 15)
    assert together.sites == 3
    assert together.classes(["x", "y"]) == {}, "fewer than ten cases are not shown"


def test_a_class_is_the_mean_of_scikit_learn_over_sites_weighted_by_positive_cases():
    sites = [site(number) for number in range(4)]
    together = pooled([record_of(one) for one in sites])
    for number, name in enumerate(NAMES):
        both = [(labels, p, q[0]) for labels, p, q in sites if 0 < (labels == number).sum() < len(labels)]
        areas = [roc_auc_score(labels == number, p[:, number]) for labels, p, _ in both]
        weights = [cases.positives()[number] for *_, cases in both]
        found = together.within[name]
        assert found.score.value == pytest.approx(np.average(areas, weights=weights), abs=1e-12)
        assert (found.score.cases, found.sites) == (sum(weights), 3)
        assert found.score.low < found.score.value < found.score.high
        kept = [(labels, p) for labels, p, _ in sites if not (labels == number).all()]
        labels, p = (np.concatenate(parts) for parts in zip(*kept, strict=True))
        assert found.across == pytest.approx(roc_auc_score(labels == number, p[:, number]), abs=1e-12)
    assert together.within["a"].lost == 60
    assert together.scores[WITHIN].value == pytest.approx(
        np.mean([one.score.value for one in together.within.values()])
    )
    gap = together.scores[ACROSS].value - together.scores[WITHIN].value
    assert gap > 0.05
    assert "sign of confounding" in confounding(together.scores[WITHIN], together.scores[ACROSS])


@pytest.mark.parametrize("task", [SINGLE, FINDINGS], ids=lambda task: task.name)
def test_a_masked_sum_has_the_same_areas_as_the_predictions(task):
    sites = [site(number, task=task) for number in range(4)]
    records = [record_of(one, task) for one in sites]
    tables = [summable_scores(record, one[2]) for record, one in zip(records, sites, strict=True)]
    summed = record_of_sum(
        task, NAMES, {name: sum(table[name].astype(float) for table in tables) for name in tables[0]}
    )
    here = pooled(records)
    assert summed.within.keys() == here.within.keys() == set(NAMES)
    for name, one in here.within.items():
        assert tuple(summed.within[name].score)[:4] == pytest.approx(tuple(one.score)[:4], abs=1e-9)
        assert summed.within[name][2:] == one[2:]
        assert summed.within[name].across == pytest.approx(one.across, abs=3e-3), "from histograms"
    again = EvalRecord.from_json(task, NAMES, summed.to_json())
    assert again.within == summed.within
    assert again.sheet.scores[WITHIN] == summed.sheet.scores[WITHIN]


def test_a_rare_class_is_left_out_and_the_mean_says_of_how_many():
    labels, probabilities, _ = site(0)
    rare = np.where(np.arange(len(labels)) == 0, 2, np.where(labels == 2, 0, labels))
    sites = [(rare, probabilities, questions_of(SINGLE, rare, probabilities)) for _ in range(2)]
    sheet = pooled([record_of(one) for one in sites]).sheet
    assert set(sheet.within) == {"a", "b"}
    assert WITHIN not in sheet.scores or not sheet.scores[WITHIN].known
    assert sheet.best(WITHIN).of == "2 of 3 classes"
    assert sheet.best(ACROSS).of == "2 of 3 classes"


def test_hidden_classes_and_small_losses_are_not_shown():
    together = pooled([record_of(site(number)) for number in range(4)])
    assert set(together.without([False, True, False]).within) == {"a", "c"}
    few = [site(0), site(1), site(3, images=6)]
    guarded = EvalRecord.of(SINGLE, NAMES, few[0][2]).within
    assert guarded == {}, "one site has no area within sites"
    shown = replace(pooled([record_of(one) for one in few]), minimum=10).within["a"]
    assert (shown.lost, shown.score.cases) == (None, None)


def test_without_probabilities_there_is_no_area_within_sites():
    counts = [EvalRecord.of(SINGLE, ("a", "b"), [cases_from_confusion(np.array([[20, 5], [5, 20]]))])] * 2
    assert pooled(counts).within == {}


def test_one_site_in_a_sum_has_the_area_and_interval_of_its_classes():
    _, _, questions = site(2)
    row, expected = within_sums(questions), auc_estimates(questions[0])
    for number in range(3):
        assert row[number][1] / row[number][0] == pytest.approx(expected[number]["auroc"].value)


def test_small_differences_are_no_sign_of_confounding():
    near = confounding(Score(0.89, 0.8, 0.9, 40), Score(0.9, 0.8, 0.9, 40))
    assert near == "AUROC 0.890 within sites, 0.900 pooled"
    assert confounding(Score(math.nan, 0, 1, 0), Score(0.9, 0, 1, 0)) == ""
