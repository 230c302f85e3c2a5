"""Caveats name an unfinished run, a dropped site, a missing class, shifts, and few seeds."""

import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest

from grandrounds.evaluation.score import Score, ScoreSheet
from grandrounds.evaluation.within import ACROSS, WITHIN
from grandrounds.files import exclusive
from grandrounds.reporting.caveats import _of_confounding, _of_missed
from grandrounds.reporting.model import report_on
from grandrounds.reporting.page import overview
from grandrounds.reporting.runs import read_run

from .conftest import CLASSES, SITES, configured, events, predictions


def caveats_of_run(path):
    run = read_run(path, "x")
    return report_on([run]).first.caveats


def one(found, words):
    (caveat,) = [caveat for caveat in found if words in caveat]
    return caveat


def test_a_run_that_was_killed_half_way(make_run):
    found = caveats_of_run(make_run(sites=(), status="running", rounds_done=2))
    assert one(found, "stopped").startswith("The run was stopped or is still running after 2 of 3 rounds")
    assert "has not been tested" in found[0]


def test_a_run_on_which_no_process_works_any_more_was_interrupted(make_run):
    path = make_run(sites=(), status="running", rounds_done=2)
    record = next(path.rglob("summary.json")).parent
    with exclusive(record):
        assert "is still running after 2 of 3 rounds" in caveats_of_run(path)[0]
    assert caveats_of_run(path)[0].startswith(
        "The run was interrupted after 2 of 3 rounds (no process works on it since"
    )


def test_what_the_server_has_remarked_is_said(make_run):
    path = make_run()
    summary = next(path.rglob("summary.json"))
    told = "the checkpoint after round 2 is missing; the run goes on after round 1"
    summary.write_text(json.dumps({**json.loads(summary.read_text()), "remarks": [told]}))
    assert "The checkpoint after round 2 is missing; the run goes on after round 1." in caveats_of_run(path)


def test_a_dropped_site_is_named_with_its_rounds_but_without_its_message(make_run):
    found = caveats_of_run(make_run(recorded=events({"site-2": 2})))
    assert one(found, "usable answer") == "No usable answer in a round in which the site was asked: site-2 (round 2)."
    assert not any("patient-7" in caveat for caveat in found)


def test_what_the_server_has_noted_of_contributions_is_said_with_site_and_round(make_run):
    ends = [event for event in events() if event["event"] == "round_end"]
    noted = {1: {"bounds_void": {"site-1": "one site"}}, 2: {"free_riders": {"site-2": "zero"}}}
    recorded = [
        {**event, **noted.get(event.get("round"), {})} if event["event"] == "round_end" else event for event in events()
    ]
    assert {1, 2} <= {event["round"] for event in ends}
    found = caveats_of_run(make_run(recorded=recorded))
    assert one(found, "Nothing bounded").endswith(": site-1 (round 1).")
    assert one(found, "come before").endswith(": site-2 (round 2).")
    assert not any("was made smaller" in caveat for caveat in found)


def test_a_site_that_never_contributed_and_one_that_was_not_tested(make_run):
    path = make_run(sites=SITES[:2], contributions={"site-1": 3, "site-2": 3})
    found = caveats_of_run(path)
    assert one(found, "Contributed") == "Contributed to no round: site-10."
    assert "site-10" in one(found, "Without a test")


def test_a_class_that_is_missing_everywhere(make_run):
    found = caveats_of_run(make_run(counts={"nevus": 20, "melanoma": 15}))
    assert one(found, "No test image") == (
        "No test image of other at any site: nothing is known about detecting it, and no mean includes it."
    )


def test_scores_of_models_with_the_statistics_of_each_site(make_run):
    assert not [caveat for caveat in caveats_of_run(make_run()) if "statistics" in caveat]
    problem = {**configured()["problem"], "norm": "site"}
    path = make_run(configuration=configured(problem=problem))
    caveat = one(caveats_of_run(path), "statistics of its own images")
    assert "no one model has all of them" in caveat
    assert "cost AUC on real ones" in caveat


def test_a_rare_class(make_run):
    found = caveats_of_run(make_run(counts={"nevus": 20, "melanoma": 12, "other": 2}))
    assert one(found, "Few test cases") == (
        "Few test cases (fewer than 10), so scores that rest on them are marked: other (6)."
    )


def test_small_sites(make_run):
    assert "site-1 (9), site-2 (9), site-10 (9)" in one(caveats_of_run(make_run(counts={"nevus": 9})), "few test cases")


def test_a_shift_between_sites_is_seen_and_equal_sites_are_left_alone(make_run):
    shifted = caveats_of_run(make_run("shifted", right={"site-1": 0.2, "site-2": 0.9, "site-10": 0.9}))
    assert "at site-1" in one(shifted, "not equally good at all sites")
    assert not [caveat for caveat in caveats_of_run(make_run("equal")) if "equally good" in caveat or "mixes" in caveat]


def test_sites_with_other_classes_are_not_compared(make_run):
    """With two classes instead of three, a useless model has 0.5 instead of 0.33."""
    path = make_run("run", right={"site-1": 0.2, "site-2": 0.9, "site-10": 0.9}, counts={"nevus": 40, "melanoma": 40})
    assert any("equally good" in caveat for caveat in caveats_of_run(path))
    own = path / "results" / "site-1" / "predictions_common.csv"
    own.write_text(predictions("site-1", 0.2, {"nevus": 40, "melanoma": 40, "other": 40}))
    assert not any("equally good" in caveat for caveat in caveats_of_run(path))


def test_different_mixes_of_classes(make_run):
    path = make_run(sites=SITES[:2])
    own = path / "results" / "site-2" / "predictions_common.csv"
    lines = own.read_text().splitlines(keepends=True)
    own.write_text("".join([lines[0], *(line for line in lines if ",melanoma," in line and "-melanoma-" in line)]))
    assert "different class distributions" in one(caveats_of_run(path), "distributions")


def test_unknown_patients_are_reported(make_run):
    assert "may be wider" in one(caveats_of_run(make_run()), "every image as an independent case")


@pytest.mark.parametrize(("right", "expected"), [(0.3, True), (0.9, False)])
def test_a_model_that_is_overconfident(make_run, right, expected):
    # The predictions' confidence is about 0.9.
    assert any("do not use them as risks" in caveat for caveat in caveats_of_run(make_run(right=right))) == expected


def test_a_single_seed_is_a_caveat_of_one_run_and_of_several(make_run):
    first, second = read_run(make_run("a"), "a"), read_run(make_run("b", right=0.5), "b")
    report = report_on([first, second])
    assert "fewer than 3 seeds" in report.caveats[0]
    assert any("could be chance" in caveat for caveat in report_on([first, read_run(make_run("c"), "c")]).caveats)


def test_two_methods_with_the_same_predictions_are_called_the_same_model(make_run):
    runs = [read_run(make_run(name, right=right), name) for name, right in (("a", 0.9), ("b", 0.9), ("c", 0.5))]
    report = report_on(runs)
    assert report.caveats[0] == (
        "a and b are the same model: they give the same predictions for every test image of every seed."
    )
    assert sum("same model" in caveat for caveat in report.caveats) == 1


def first_bullet(make_run, predicted, counts=None, **changes):
    """The first bullet of a run in which each site predicts ``predicted(label, number)`` for its images."""
    workspace = make_run(counts={"nevus": 40, "melanoma": 20, "other": 20}, **changes)
    of_site = counts or {key: {"nevus": 40, "melanoma": 20, "other": 20} for key in SITES}
    for site, images in of_site.items():
        lines = ["image,label,predicted," + ",".join(f"probability_{name}" for name in CLASSES) + ",case"]
        for label, count in images.items():
            for number in range(count):
                told = predicted(label, number)
                shares = ",".join("0.8" if name == told else "0.1" for name in CLASSES)
                lines.append(f"{site}-{label}-{number},{label},{told},{shares},{len(lines)}")
        (workspace / "results" / site / "predictions_common.csv").write_text("\n".join(lines) + "\n")
    report = report_on([read_run(workspace, "x")])
    bullets = overview(report).caveats
    assert len(bullets) <= 5
    return bullets[0]


def test_first_bullet_of_a_model_that_predicts_one_class(make_run):
    assert first_bullet(make_run, lambda label, number: "nevus") == (
        "The model predicts nevus for every image: no better than always predicting nevus (accuracy 0.50 against 0.50)."
    )


@pytest.mark.parametrize(
    ("ours", "ridge", "words"),
    [
        (0.5, 0.9, "Does not beat ridge"),
        (0.9, 0.9, "Does not beat ridge"),
        (0.9, 0.85, "Not clearly better than ridge"),
    ],
)
def test_the_first_bullet_says_that_a_method_does_not_beat_ridge(make_run, ours, ridge, words):
    path = make_run(right=dict.fromkeys(SITES, ours))
    beside(path, make_run("ridge", right=dict.fromkeys(SITES, ridge)))
    report = report_on([read_run(path, "x")])
    shown = report.first.scores.pooled
    expected = (
        f"{shown.score('balanced_accuracy').value:.2f} against {shown.references['ridge']['balanced_accuracy']:.2f}"
    )
    assert shown.references["ridge"]["accuracy"] == pytest.approx(ridge, abs=0.05)
    assert report.first.caveats[0].startswith(f"{words} (balanced accuracy {expected}). ridge: a head (12 CPU seconds)")
    (fact,) = [fact for fact in overview(report).facts if fact.name == "Compared to"]
    assert fact.value == f"{shown.references['ridge']['balanced_accuracy']:.2f} by ridge"


def test_a_method_that_beats_ridge_has_no_such_bullet(make_run):
    path = make_run(right=dict.fromkeys(SITES, 0.9))
    beside(path, make_run("ridge", right=dict.fromkeys(SITES, 0.5)))
    assert not [caveat for caveat in caveats_of_run(path) if "ridge" in caveat]


def beside(path, ridge):
    """Put the scores and predictions of another run beside a run's, as its reference row."""
    summary, other = (json.loads((run / "results" / "summary.json").read_text()) for run in (path, ridge))
    records = {site: tested["common"] for site, tested in other["records"].items()}
    summary["references"] = {"ridge": {"told": "a head", "cpu_seconds": 12.0, "records": records}}
    (path / "results" / "summary.json").write_text(json.dumps(summary))
    for site in SITES:
        written = (ridge / "results" / site / "predictions_common.csv").read_text()
        (path / "results" / site / "predictions_ridge.csv").write_text(written)


def test_first_bullet_of_random_predictions(make_run):
    generator = np.random.default_rng(1)
    found = first_bullet(make_run, lambda label, number: str(generator.choice(CLASSES)))
    assert re.fullmatch(
        r"No better than always predicting nevus \(accuracy 0\.\d\d against 0\.50\) and than guessing "
        r"\(balanced accuracy 0\.\d\d, 0\.33 by guessing\)\.",
        found,
    )


def test_first_bullet_of_a_perfect_model(make_run):
    assert first_bullet(make_run, lambda label, number: label).startswith(
        "Every test image is classified correctly: check"
    )


def mostly(label, number):
    return label if number % 5 else CLASSES[CLASSES.index(label) - 1]


def test_first_bullet_with_a_site_of_two_images(make_run):
    counts = {
        **{key: {"nevus": 40, "melanoma": 20, "other": 20} for key in SITES},
        "site-2": {"nevus": 1, "melanoma": 1},
    }
    assert first_bullet(make_run, mostly, counts) == (
        "Scores of sites with few test cases (fewer than 10) are marked: site-2 (2)."
    )


def test_first_bullet_with_a_missing_class(make_run):
    assert first_bullet(make_run, mostly, {key: {"nevus": 40, "melanoma": 20} for key in SITES}) == (
        "No test image of other at any site: nothing is known about detecting it, and no mean includes it."
    )


def test_a_class_that_is_mostly_missed_follows_the_comparison_with_the_most_frequent_class(make_run):
    found = first_bullet(make_run, lambda label, number: "nevus" if label == "melanoma" and number else label)
    assert found == "Misses 57 of 60 melanoma images."


def test_missed_images_are_counted_beside_their_patients():
    sensitivity = {"sensitivity": Score(8 / 21, 0.2, 0.6, 18)}
    sheet = ScoreSheet(100, 88, "patient", {}, {"melanoma": sensitivity}, {}, {}, {"melanoma": 0.21, "nevus": 0.79})
    assert list(_of_missed(sheet)) == ["Misses 13 of 21 melanoma images (18 patients)."]
    unknown = replace(sheet, shares={"melanoma": math.nan, "nevus": math.nan})
    assert list(_of_missed(unknown)) == ["Misses 62 % of the melanoma images."]


def test_a_confounded_area_is_no_forecast_beside_a_measured_one():
    scores = {WITHIN: Score(0.8, 0.7, 0.9, 40), ACROSS: Score(0.9, 0.8, 1.0, 40)}
    sheet = ScoreSheet(100, 88, "patient", scores, {}, {}, {})
    said = {expected: " ".join(_of_confounding(sheet, expected)) for expected in (False, True)}
    assert said[False].endswith("At a hospital like none of these expect the area within sites at most.")
    assert said[True].endswith("0.100 of it is knowing the site, a sign of confounding.")


def test_what_to_expect_elsewhere_does_not_hide_that_a_model_is_no_better_than_guessing(make_run):
    run = read_run(make_run(right=0.3), "x")
    told = "expected at a hospital like none of these: AUROC 0.800"
    found = report_on([replace(run, log=replace(run.log, expected=(told,)))]).first.caveats
    assert found[0].startswith("No better than always predicting")
    assert found.index(f"{told[0].upper()}{told[1:]}.") < found.index(one(found, "Misses"))
