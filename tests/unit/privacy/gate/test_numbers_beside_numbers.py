"""What leaves is looked at together: no number of images of a class that stays is determined by the others.

200 drawn data sets of 20 to 60 images and 20 of 300 to 500, of two classes, of which one has fewer patients than a table
needs. The adversary knows how the gate rounds, and tries all numbers.
"""

import math

import numpy as np
import pytest
import torch

from grandrounds.evaluation.metrics import site_metrics
from grandrounds.privacy.gate.gate import STEPS, coarsened, without_scores_of_classes, without_small_tables
from grandrounds.privacy.gate.inspection import Inspected
from grandrounds.privacy.gate.policy import ReleaseRule
from grandrounds.privacy.gate.treatments import CountSupport
from grandrounds.protocol.messages import ReleaseKind
from grandrounds.protocol.tasks import SINGLE

SIZES = [(20, 61)] * 200 + [(300, 501)] * 20
ROUNDS = 5
RULE = ReleaseRule(ReleaseKind.COUNTS, "counts_*", CountSupport(10), ("images", "patients"))
NEAR = 1e-9


def drawn(seed, sizes=(20, 61)):
    """Numbers of images of both classes, and what a site reports of five models."""
    generator = np.random.default_rng(seed)
    images, rare = int(generator.integers(*sizes)), int(generator.integers(1, 10))
    labels = (np.arange(images) < rare).astype(np.int64)
    answers = []
    for skill in np.linspace(0, 2, ROUNDS):
        positive = 1 / (1 + np.exp(-generator.normal(size=images) - skill * labels))
        answers.append(site_metrics(SINGLE, labels, np.stack([1 - positive, positive], 1)))
    return (images - rare, rare), answers


def released(answer, numbers):
    """What the gate lets out of one model's scores under the policy ``open``."""
    counts = torch.tensor([[[*numbers], [0, 0], [0, 0]]], dtype=torch.int64)
    scalars = {f"validation.{name}": float(value) for name, value in answer.items()}
    known = Inspected({"counts_validation": (RULE, {"images": counts, "patients": counts})}, scalars, {}, (), 1)
    tables = ["counts_validation", "counts_common", "counts_own"]
    left = coarsened(without_scores_of_classes(without_small_tables(known, 2), tables))
    return {name.removeprefix("validation."): value for name, value in left.scalars.items()}, left.releases


def exact(answer):
    """The same without rounding, as it left before."""
    return {name: answer[name] for name in ("n", "accuracy", "auc_macro")}


def fraction_fits(shown, denominator, step):
    """Whether a fraction with this denominator is shown so."""
    nearest = round(shown * denominator) / denominator
    return abs(nearest - shown) <= step / 2 + NEAR


def candidates(answers, rounded):
    """All numbers of images of two classes that could have given these answers."""
    found = []
    for images in range(max(int(answers[0]["n"]) - 5, 5), int(answers[0]["n"]) + 6):
        step = next((step for step in STEPS if step * images >= 1), STEPS[-1]) if rounded else 0.0
        shown = math.floor(images / 10 + 0.5) * 10 if rounded else images
        if any(answer["n"] != shown for answer in answers):
            continue
        found += [
            (images - rare, rare)
            for rare in range(1, images)
            # Ties count half, and the macro mean of two classes is the area of one.
            if all(
                fraction_fits(answer["accuracy"], images, step)
                and fraction_fits(answer["auc_macro"], 2 * rare * (images - rare), step)
                for answer in answers
            )
        ]
    return found


def test_the_rare_class_of_no_drawn_data_set_is_determined():
    determined, before = 0, 0
    for seed, sizes in enumerate(SIZES):
        numbers, answers = drawn(seed, sizes)
        shown = [released(answer, numbers) for answer in answers]
        assert not any(tables for _, tables in shown)
        assert not any("balanced_accuracy" in scores for scores, _ in shown)
        possible = candidates([scores for scores, _ in shown], rounded=True)
        assert numbers in possible
        determined += len({min(pair) for pair in possible}) == 1 or len({sum(pair) for pair in possible}) == 1
        before += len({min(pair) for pair in candidates([exact(answer) for answer in answers], rounded=False)}) == 1
    assert determined == 0
    assert before > len(SIZES) // 2  # the exact scores would tell it


@pytest.mark.parametrize("images", [5, 9, 19, 20, 49, 99, 100, 400])
def test_a_rounded_score_excludes_no_number_of_images_of_its_size(images):
    """Each value that is shown of as many images or more is that of some number of right ones."""
    step = next((step for step in STEPS if step * images >= 1), STEPS[-1])
    for shown in np.arange(0, 1 + NEAR, step):
        for more in range(images, images + 30):
            assert fraction_fits(float(shown), more, step)


def test_scores_beside_a_table_of_their_images_leave_as_they_are():
    _, answers = drawn(0)
    scores, tables = released(answers[0], (30, 12))
    assert tables.keys() == {"counts_validation"}
    assert scores["auc_macro"] == answers[0]["auc_macro"]


def test_scores_of_an_unknown_number_of_images_are_rounded_and_few_count_as_ten():
    """A policy may let scores out and not their number of images."""
    alone = coarsened(Inspected({}, {"validation.auc_macro": 0.123456, "loss": 0.123456}, {}, (), 1)).scalars
    assert alone == {"validation.auc_macro": 0.1, "loss": 0.123456}
    few = coarsened(Inspected({}, {"validation.n": 4.0, "validation.accuracy": 0.75}, {}, (), 1)).scalars
    assert few == {"validation.n": 10.0, "validation.accuracy": 0.8}
    assert {type(value) for value in few.values()} == {float}


def test_a_model_that_a_server_makes_up_still_reads_the_shares_of_classes_from_its_mean_loss():
    """A limit, which the page on privacy names: this number selects the model."""
    numbers = (36, 4)
    labels = np.repeat([0, 1], numbers)
    answer = site_metrics(SINGLE, labels, np.tile([0.9, 0.1], (40, 1)))
    left, _ = released(answer, numbers)
    share = (left["log_loss"] + math.log(0.9)) / (math.log(0.9) - math.log(0.1))
    assert share == pytest.approx(numbers[1] / sum(numbers))
