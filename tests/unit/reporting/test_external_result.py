"""The scores of a place are those of scikit-learn, and a result that is written is read again."""

import json
from dataclasses import replace

import numpy as np
import pytest
import sklearn.metrics

from grandrounds.errors import DataError
from grandrounds.evaluation.clinical.adaptation import LabelOffsets
from grandrounds.evaluation.clinical.thresholds import FixedPoint
from grandrounds.evaluation.clinical.validation import Request
from grandrounds.evaluation.external import ImagePredictions
from grandrounds.evaluation.grouping import grouping_of
from grandrounds.evaluation.score import Score
from grandrounds.files import write_json
from grandrounds.plain import to_plain
from grandrounds.reporting.external.prediction import Labels, Place, adapt_place, positive_group
from grandrounds.reporting.external.result import (
    Appearance,
    ExternalResult,
    Overlap,
    _beside,
    external_result,
    plain_scores,
    run_at,
)
from grandrounds.reporting.external.section import _against_chance
from grandrounds.reporting.run import RunScores
from grandrounds.reporting.runs import read_run
from grandrounds.seeding import numpy_generator

CLASSES = ("nevus", "melanoma", "other")
GROUPING = grouping_of({"bad": ["melanoma", "other"], "good": ["nevus"]}, CLASSES)


def predictions(name, samples, classes=3):
    generator = numpy_generator("external", name)
    names = tuple(f"{name}/{number}" for number in range(samples))
    labels, probabilities = generator.integers(0, classes, size=samples), generator.dirichlet(np.ones(3), size=samples)
    return ImagePredictions(names, labels, probabilities, probabilities)


@pytest.fixture
def scored(make_run):
    """A place with these predictions: its plain scores and its result."""

    def score(sites, by_group=False, grouping=GROUPING, point=None, **asked):
        run = read_run(make_run(), "run")
        positive = positive_group(("bad",) if by_group else ("melanoma",), CLASSES, grouping, by_group)
        labels = Labels(grouping.names if by_group else CLASSES, grouping, by_group, positive)
        place = Place("clinic", sites, {}, {"model": "00"}, 0, Overlap(0, (), ()), Appearance())
        tested = run_at(run, place, labels)
        result = external_result(run, tested, place, labels, Request(point, **asked), "evaluate")
        return plain_scores(tested, place, labels), result

    return score


def test_scores_of_sites_classes_and_all_images_are_those_of_scikit_learn(scored):
    sites = {"one": predictions("one", 60), "two": predictions("two", 40)}
    found, _ = scored(sites)
    truth, values = (
        np.concatenate([getattr(one, name) for one in sites.values()]) for name in ("labels", "probabilities")
    )
    called = values.argmax(axis=1)
    accuracies = [np.mean(one.probabilities.argmax(axis=1) == one.labels) for one in sites.values()]
    assert [found["sites"][name]["accuracy"] for name in sites] == pytest.approx(accuracies)
    assert found["mean"]["accuracy"] == pytest.approx(np.mean(accuracies))
    pooled = found["pooled"]
    assert pooled["accuracy"] == pytest.approx(sklearn.metrics.accuracy_score(truth, called))
    assert pooled["balanced_accuracy"] == pytest.approx(sklearn.metrics.balanced_accuracy_score(truth, called))
    assert pooled["f1_weighted"] == pytest.approx(sklearn.metrics.f1_score(truth, called, average="weighted"))
    assert found["mean"]["n"] == pooled["n"] == 100
    of_class = zip(*sklearn.metrics.precision_recall_fscore_support(truth, called), strict=True)
    for number, (name, (precision, recall, f1, images)) in enumerate(zip(CLASSES, of_class, strict=True)):
        one = found["classes"][name]
        assert (one["n"], one["sites"]) == (images, 2)
        scores = [one["pooled"][key] for key in ("precision", "sensitivity", "f1")]
        assert scores == pytest.approx([precision, recall, f1])
        assert one["pooled"]["auroc"] == pytest.approx(
            sklearn.metrics.roc_auc_score(truth == number, values[:, number])
        )


def test_groups_are_read_in_two_ways(scored):
    (one,) = (sites := {"one": predictions("one", 60)}).values()
    found, _ = scored(sites)
    true, bad, top = one.labels != 0, one.probabilities[:, 1:].sum(axis=1) >= 0.5, one.probabilities.argmax(axis=1) != 0
    assert found["groups"]["summed"]["bad"]["f1"] == pytest.approx(sklearn.metrics.f1_score(true, bad))
    assert found["groups"]["argmax"]["bad"]["precision"] == pytest.approx(sklearn.metrics.precision_score(true, top))
    assert found["groups"]["argmax"]["bad"]["n"] == true.sum()


def test_labels_that_are_groups_are_the_vocabulary(scored):
    (one,) = (sites := {"one": predictions("one", 60, classes=2)}).values()
    found, result = scored(sites, by_group=True)
    assert (found["labels"], result.tested.noun) == ("groups", "group")
    assert list(found["classes"]) == ["bad", "good"]
    right = (one.probabilities[:, 1:].sum(axis=1) >= 0.5) == (one.labels == 0)
    assert found["pooled"]["accuracy"] == pytest.approx(right.mean())
    assert result.group.auroc.value == pytest.approx(
        sklearn.metrics.roc_auc_score(one.labels == 0, one.probabilities[:, 1:].sum(axis=1))
    )


def test_a_result_that_is_written_is_read_again(scored, tmp_path):
    _, result = scored({"one": predictions("one", 90), "two": predictions("two", 60)}, share=0.4, minimum=10)
    write_json(tmp_path / "a.json", result.to_json())
    again = ExternalResult.read(tmp_path / "a.json")
    assert again.to_json() == result.to_json()
    assert again.group.calibration.slope == result.group.calibration.slope
    assert again.scores.pooled.best("accuracy") == result.scores.pooled.best("accuracy")
    assert to_plain(again.group.roc) == to_plain(result.group.roc)


def shifted(ranked, samples=40):
    """Melanoma has the highest probability of melanoma, but never the highest of an image, if images are ranked."""
    labels = np.arange(samples) % 2
    melanoma = 0.1 + 0.2 * (labels if ranked else np.arange(samples) // 2 % 2) + 0.001 * np.arange(samples)
    names = tuple(str(number) for number in range(samples))
    probabilities = np.stack([1 - melanoma, melanoma, 0 * melanoma], axis=1)
    return ImagePredictions(names, labels, probabilities, probabilities)


@pytest.mark.parametrize("ranked", [True, False])
def test_a_class_that_is_ranked_well_and_missed_has_another_threshold_here(scored, ranked):
    _, result = scored({"one": shifted(ranked)}, point=FixedPoint(0.34, "test"))
    found = [line for line in result.caveats if line.startswith("Ranks well")]
    whole = (
        "Ranks well, thresholds do not transfer: melanoma (AUROC 1.00, sensitivity 0.00), melanoma at its operating point "
        "(AUROC 1.00, sensitivity 0.00)."
    )
    assert found == [whole] * ranked


@pytest.mark.parametrize(("ranked", "few"), [(True, True), (False, False)])
def test_an_area_of_few_cases_is_no_proof_that_nothing_is_separated(scored, ranked, few):
    """Ranked without an error, an area of two positive images has an interval as wide as chance."""
    _, result = scored({"one": shifted(ranked, 4 if few else 40)}, point=FixedPoint(0.34, "test"))
    found = [line.partition(" melanoma")[0] for line in result.caveats if "separate" in line]
    assert found == ["Too few cases to know whether it separates" if few else "Does not separate"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "other"}, "no external evaluation"),
        ({"minimum": "ten"}, r"is damaged \(minimum: expected int, got 'ten'\)"),
        ({"scores": {"pooled": {"images": 3}}}, r"is damaged \(scores.pooled: .*missing"),
    ],
)
def test_a_damaged_result_is_refused_by_its_field(scored, tmp_path, change, message):
    _, result = scored({"one": predictions("one", 30)})
    (tmp_path / "a.json").write_text(json.dumps({**result.to_json(), **change}))
    with pytest.raises(DataError, match=message):
        ExternalResult.read(tmp_path / "a.json")


def not_read():
    pytest.fail("offsets from labels need neither other images nor features")


@pytest.fixture
def adapted(make_run):
    """A place whose model was adapted with this many labels, and its result."""

    def adapt(sites, images, minimum=10):
        run = read_run(make_run(), "run")
        labels = Labels(CLASSES, None, False, None)
        place = Place("clinic", sites, {}, {"model": "00"}, 0, Overlap(0, (), ()), Appearance())
        found = adapt_place(LabelOffsets(images), run, place, labels, not_read, not_read)
        request = Request(None, minimum=minimum)
        return found, external_result(run, run_at(run, place, labels), place, labels, request, "evaluate", found)

    return adapt


def test_an_adapted_model_is_scored_on_the_images_whose_labels_were_not_used(adapted):
    sites = {"one": shifted(True), "two": shifted(True, 60)}
    sites["two"] = replace(sites["two"], groups=tuple(str(number // 2) for number in range(60)))
    found, result = adapted(sites, 20)
    rest = found.after.tests.sites
    assert 20 <= found.images == 100 - sum(one.images for one in rest.values()) <= 21
    assert sum(one.images - one.cases for one in rest.values()) * 2 == rest["two"].images
    assert result.adapted.before.scores["accuracy"].value == pytest.approx(0.5, abs=0.1)
    assert result.adapted.after.scores["accuracy"].value > result.adapted.before.scores["accuracy"].value
    offsets = found.by_class["offset"]
    assert offsets["melanoma"] > 0 > offsets["nevus"]
    assert found.plain()["after"]["classes"]["melanoma"]["sensitivity"]["value"] > 0


def test_no_score_of_an_adaptation_from_labels_leaves(adapted):
    """With two classes the scores before and after gave the number of labels of each that were fitted."""
    _, result = adapted({"one": shifted(True, 100)}, 20)
    assert result.adapted.fitted == 20
    assert result.to_json()["adapted"] is None


def test_an_adaptation_that_does_not_help_is_named(adapted):
    _, result = adapted({"one": predictions("one", 90)}, 10)
    better = (
        result.adapted.after.best("balanced_accuracy").value > result.adapted.before.best("balanced_accuracy").value
    )
    assert any(line.startswith("Adapting made the model no better") for line in result.caveats) is not better


def test_a_score_of_few_cases_goes_with_their_number(scored):
    sites = {"one": predictions("one", 60)}
    few = replace(sites["one"], labels=np.where(np.arange(60) < 4, 1, 0))
    _, result = scored({"one": few}, minimum=10)
    assert result.tested.classes["melanoma"] is None
    assert (result.group.auroc.known, result.group.auroc.reason) == (False, "fewer than 10 cases")
    assert result.group.calibration is None


def test_many_images_of_few_patients_are_not_counted(scored):
    one = predictions("one", 90)
    patients = tuple(str(number if label != 1 else 0) for number, label in enumerate(one.labels))
    assert (one.labels == 1).sum() > 20
    _, shown = scored({"one": one}, minimum=10)
    _, result = scored({"one": replace(one, groups=patients)}, minimum=10)
    assert None not in shown.tested.classes.values()
    assert result.tested.classes["melanoma"] is None


def test_a_place_stands_beside_what_was_expected_of_a_hospital():
    one, two = Score(0.8, 0.7, 0.9, 40), Score(0.6, 0.5, 0.7, 40)
    assert _beside(RunScores(mean={"auc_macro": one, "balanced_accuracy": two})) == (
        "; here AUROC 0.800, balanced accuracy 0.600"
    )
    assert _beside(RunScores()) == ""


@pytest.mark.parametrize(
    ("high", "told"),
    [(0.4, "is below 0.5: the model is worse than chance"), (0.6, "includes 0.5"), (0.9, "is above 0.5")],
)
def test_a_model_that_is_worse_than_chance_is_called_so(high, told):
    assert told in _against_chance(Score(high - 0.1, high - 0.2, high, 40))
