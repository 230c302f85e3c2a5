"""Tables of scores that are added up: the record of their sum is that of all images together."""

import numpy as np
import pytest

from grandrounds.evaluation.auc import macro_auc
from grandrounds.evaluation.bootstrap import questions_of
from grandrounds.evaluation.counts import IMAGES, PATIENTS
from grandrounds.evaluation.metrics import site_metrics
from grandrounds.evaluation.record import EvalRecord, pooled, record_of_sum
from grandrounds.evaluation.score_sums import HISTOGRAMS, TOTALS, score_shapes
from grandrounds.evaluation.tables_of_cases import histogram_areas, site_counts, summable_scores
from grandrounds.protocol.tasks import FINDINGS, SINGLE
from grandrounds.seeding import numpy_generator

NAMES = ("a", "b", "c")


def site(number, images, task=SINGLE, unit="patient"):
    """A site's record as it makes it, with its predictions."""
    generator = numpy_generator("sums", number)
    if task is SINGLE:
        labels = generator.integers(0, 3, images)
        probabilities = generator.dirichlet(np.ones(3), images)
    else:
        labels = generator.integers(-1, 2, (images, 3))
        probabilities = generator.uniform(0, 1, (images, 3))
    questions = questions_of(task, labels, probabilities, [f"p{row // 2}" for row in range(images)])
    exact = site_metrics(task, labels, probabilities)
    counts = (site_counts(questions),) if images else ()
    return EvalRecord(task, NAMES, images, exact, counts, unit=unit), questions, (labels, probabilities)


def added(sites):
    tables = [summable_scores(record, questions) for record, questions, _ in sites]
    return {name: sum(table[name].astype(np.float64) for table in tables) for name in tables[0]}


@pytest.mark.parametrize("task", [SINGLE, FINDINGS], ids=lambda task: task.name)
def test_the_record_of_a_sum_has_the_scores_of_all_images(task):
    sites = [site(number, images, task) for number, images in enumerate((40, 0, 60))]
    together = record_of_sum(task, NAMES, added(sites))
    expected = pooled([record for record, *_ in sites if record.images])
    assert (together.images, together.cases, together.unit) == (100, expected.cases, "patient")
    for name, score in expected.scores.items():
        if score.known and name != "auc_macro":
            assert tuple(together.score(name)[:3]) == pytest.approx(tuple(score[:3]), nan_ok=True), name
    assert "log_likelihood" in together.exact
    again = EvalRecord.from_json(task, NAMES, together.to_json())
    assert again.to_json() == together.to_json()


def test_the_area_of_histograms_is_that_of_the_probabilities():
    sites = [site(number, 300) for number in range(3)]
    labels, probabilities = (np.concatenate(parts) for parts in zip(*(known for *_, known in sites), strict=True))
    found = record_of_sum(SINGLE, NAMES, added(sites)).exact["auc_macro"]
    assert found == pytest.approx(macro_auc(labels, probabilities), abs=2e-3)


def test_an_area_without_images_of_a_class_is_not_known():
    assert np.isnan(histogram_areas(np.array([[[0, 0], [1, 2]]]))).all()
    record, questions, _ = site(0, 30)
    table = summable_scores(record, questions)
    table[HISTOGRAMS][0, 0] = 0
    assert "auc_macro" not in record_of_sum(SINGLE, NAMES, table).exact


def test_units_of_sites_stand_beside_each_other():
    assert record_of_sum(SINGLE, NAMES, added([site(0, 30), site(1, 30, unit="image")])).unit == "image or patient"


def test_what_is_no_sum_of_tables_is_refused():
    record, questions, _ = site(0, 30)
    table = summable_scores(record, questions)
    with pytest.raises(ValueError, match="shapes"):
        record_of_sum(SINGLE, NAMES, {**table, TOTALS: table[TOTALS][:2]})
    with pytest.raises(ValueError, match="counts"):
        record_of_sum(SINGLE, NAMES, {**table, IMAGES: -table[IMAGES]})
    with pytest.raises(ValueError, match="counts"):
        record_of_sum(SINGLE, NAMES, {**table, PATIENTS: table[IMAGES] + 1})
    assert {name: value.shape for name, value in table.items()} == score_shapes(SINGLE, 3)
