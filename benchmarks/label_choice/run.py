"""Labels chosen across sites by counts of suspected classes, against labels at random: ridge heads on kept features.

Images are divided between ten sites as in the other experiments. Of the training images a few labels are drawn at random;
then, in steps of a ladder of budgets, a head is fitted to all labels so far, the sites' counts are added, and each site
draws its share of each class (``evened``). ``surest`` and ``least certain`` take for each class the images of the largest
probability and of the smallest gap between two classes; ``margin alone`` those of the smallest gap, whatever the class.
``by class`` knows the classes of all images and labels equal numbers: a bound that no hospital has.
"""

from __future__ import annotations

import argparse
import hashlib
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.experiment import DATA
from benchmarks.label_choice.choice import drawn, evened
from benchmarks.measure import run
from benchmarks.results import Pair, difference_table
from grandrounds.data.images.tensors import to_tensor
from grandrounds.data.partition.schemes import make_partition
from grandrounds.data.site import load_site_data, locate_dataset
from grandrounds.deployment.simulate import choose_sites
from grandrounds.evaluation.label_choice import gaps_of, meant_for
from grandrounds.evaluation.metrics import site_metrics
from grandrounds.models.depths import depth_features
from grandrounds.models.registry import build_model
from grandrounds.protocol.problem import Problem
from grandrounds.protocol.tasks import SINGLE

SETTINGS: dict[str, dict[str, Any]] = {
    "HAM10000": {
        "partition": {"dataset": "ham10000", "scheme": "sites"},
        "budgets": (100, 150, 200, 300, 400, 560, 800, 1253),
    },
    "blood cells": {
        "partition": {"dataset": "pbc", "scheme": "dirichlet"},
        "budgets": (40, 60, 80, 120, 160, 240, 320, 480),
    },
}
SITES, SIDE, BATCH = 10, 64, 64
PENALTY, TEMPERATURE = 1.0, 8.0
ARMS = ("random", "evened", "surest", "least certain", "margin alone", "by class")
SHOWN = {"balanced_accuracy": "balanced accuracy", "auc_macro": "AUC", "f1_macro": "macro F1", "accuracy": "accuracy"}
Choice = Callable[["Division", "Head", NDArray[np.int64], int], NDArray[np.int64]]


class Division:
    """Images of a division: features, labels, site, and which are for training and testing."""

    def __init__(self, content: dict[str, Any], seed: int, kept: dict[str, NDArray[np.float32]], place: Path) -> None:
        made = make_partition(
            root=DATA / content["dataset"], out=place / f"sites_{seed}", seed=seed, sites=SITES, labelled=1, **content
        )
        self.classes = made["classes"]
        problem = Problem(
            dataset=made["dataset_name"], classes=tuple(self.classes), image_size=SIDE, backbone="efficientnet_lite0",
            norm="frozen", head="depths", weights="imagenet", trainable="head",
        )  # fmt: skip
        features, labels, parts, sites = [], [], [], []
        for number, site in enumerate(choose_sites(None, place / f"sites_{seed}")[0]):
            data = load_site_data(
                locate_dataset(site, problem.dataset, [place / f"sites_{seed}"]), problem, place / "cache"
            )
            features.append(features_of(data.images, problem, kept))
            labels.append(data.labels)
            parts.append(data.split)
            sites.append(np.full(len(data.labels), number))
        self.features, self.labels = np.concatenate(features), np.concatenate(labels)
        self.sites, split = np.concatenate(sites), np.concatenate(parts)
        self.train, self.test = (np.flatnonzero(split == part) for part in ("train", "test"))
        self.labelled = self.train[:0]

    def counted(self) -> NDArray[np.int64]:
        """Labels of each class so far."""
        return np.bincount(self.labels[self.labelled], minlength=len(self.classes))


class Head:
    """Ridge regression on the labelled images of all sites with balanced classes, from their inner products."""

    def __init__(self, division: Division, rows: NDArray[np.int64]) -> None:
        classes = len(division.classes)
        counts = np.bincount(division.labels[rows], minlength=classes)
        weights = (1 / np.maximum(counts, 1))[division.labels[rows]]
        weights /= weights.sum()
        features = division.features[rows].astype(np.float64)
        answers = np.eye(classes)[division.labels[rows]]
        self._mean = weights @ features
        variances = weights @ np.square(features) - np.square(self._mean)
        self._scale = 1 / np.sqrt(np.maximum(variances, 1e-6 * np.median(variances)))
        root = np.sqrt(weights)[:, None]
        standard = root * (features - self._mean) * self._scale
        shares = weights @ answers
        products = standard @ standard.T + PENALTY * np.eye(len(rows))
        self._weights = standard.T @ np.linalg.solve(products, root * (answers - shares))
        self._shares = shares
        self._offset = np.where(counts > 0, 0.0, -1e4)

    def __call__(self, features: NDArray[np.float32]) -> NDArray[np.float64]:
        """Probabilities of images."""
        scores = ((features - self._mean) * self._scale) @ self._weights + self._shares
        logits = TEMPERATURE * scores + self._offset
        odds = np.exp(logits - logits.max(axis=1, keepdims=True))
        return odds / odds.sum(axis=1, keepdims=True)


def features_of(
    images: NDArray[np.uint8], problem: Problem, kept: dict[str, NDArray[np.float32]]
) -> NDArray[np.float32]:
    """The features of images, computed once for all divisions."""
    names = [hashlib.sha256(image.tobytes()).hexdigest() for image in images]
    missing = [row for row, name in enumerate(names) if name not in kept]
    if missing:
        network = build_model(problem.model_spec(pretrained=True), 0).eval()
        for start in range(0, len(missing), BATCH):
            rows = missing[start : start + BATCH]
            with torch.inference_mode():
                found = depth_features(network, to_tensor(images[rows], torch.device("cpu"))).numpy()
            kept.update({names[row]: values for row, values in zip(rows, found, strict=True)})
    return np.stack([kept[name] for name in names])


def at_random(division: Division, head: Head, pool: NDArray[np.int64], number: int) -> NDArray[np.int64]:
    """The first of the division's own order of its images at random."""
    return pool[:number]


def across_sites(division: Division, head: Head, pool: NDArray[np.int64], number: int) -> NDArray[np.int64]:
    """As a federation does it: counts of the sites, their sum, shares, and each site's own draw."""
    labelled, classes = division.counted(), len(division.classes)
    places = [pool[division.sites[pool] == site] for site in range(SITES)]
    meant = [meant_for(head(division.features[own]), labelled) for own in places]
    available = np.sum([np.bincount(own, minlength=classes) for own in meant], axis=0)
    shares = evened(available, labelled, number) / np.maximum(available, 1)
    draws = [np.random.default_rng([len(division.labelled), site]) for site in range(SITES)]
    return np.concatenate(
        [place[drawn(*one)] for place, *one in zip(places, meant, [shares] * SITES, draws, strict=True)]
    )


def ordered(score: Callable[[NDArray[np.float64]], NDArray[np.float64]]) -> Choice:
    """As :func:`across_sites`, but for each class the images of the lowest scores, of all sites together."""

    def choose(division: Division, head: Head, pool: NDArray[np.int64], number: int) -> NDArray[np.int64]:
        """Choose with all probabilities at one place."""
        probabilities, labelled = head(division.features[pool]), division.counted()
        meant, scores = meant_for(probabilities, labelled), score(probabilities)
        wanted = evened(np.bincount(meant, minlength=len(labelled)), labelled, number).round().astype(int)
        order = np.argsort(scores, kind="stable")
        return np.concatenate([pool[order[meant[order] == each][: wanted[each]]] for each in range(len(labelled))])

    return choose


def by_margin(division: Division, head: Head, pool: NDArray[np.int64], number: int) -> NDArray[np.int64]:
    """The smallest gaps of all sites together, whatever the class."""
    return pool[np.argsort(gaps_of(head(division.features[pool])), kind="stable")[:number]]


def by_class(division: Division, head: Head, pool: NDArray[np.int64], number: int) -> NDArray[np.int64]:
    """Of the true classes as many as make them even, in the order at random."""
    truth, labelled = division.labels[pool], division.counted()
    wanted = evened(np.bincount(truth, minlength=len(labelled)), labelled, number).round().astype(int)
    return np.concatenate([pool[truth == each][: wanted[each]] for each in range(len(labelled))])


CHOICES: dict[str, Choice] = {
    "random": at_random,
    "evened": across_sites,
    "surest": ordered(lambda probabilities: -probabilities.max(axis=1)),
    "least certain": ordered(gaps_of),
    "margin alone": by_margin,
    "by class": by_class,
}


def curve(division: Division, arm: str, budgets: tuple[int, ...], seed: int) -> list[dict[str, float]]:
    """Scores on the test images after each step of the ladder; all arms of a division start from the same images."""
    order = np.random.default_rng(seed).permutation(division.train)
    labelled, scores = order[: budgets[0]], []
    head = Head(division, labelled)
    for budget in budgets:
        if budget > len(labelled):
            pool = order[~np.isin(order, labelled)]
            division.labelled = labelled
            labelled = np.concatenate([labelled, CHOICES[arm](division, head, pool, budget - len(labelled))])
            head = Head(division, labelled)
        found = site_metrics(SINGLE, division.labels[division.test], head(division.features[division.test]))
        scores.append({"labels": len(labelled), **{name: found[name] for name in SHOWN}})
    return scores


def measured(options: argparse.Namespace) -> dict[str, Any]:
    """All arms on all divisions of both data sets."""
    rows = []
    for name, content in SETTINGS.items():
        kept: dict[str, NDArray[np.float32]] = {}
        for seed in options.seeds[:1] if options.quick else options.seeds:
            with tempfile.TemporaryDirectory() as place:
                division = Division(content["partition"], seed, kept, Path(place))
            for arm in ARMS:
                budgets = content["budgets"][:3] if options.quick else content["budgets"]
                rows.append({"data": name, "seed": seed, "arm": arm, "scores": curve(division, arm, budgets, seed)})
                print(
                    name, seed, arm, [round(score["balanced_accuracy"], 3) for score in rows[-1]["scores"]], flush=True
                )
    return {"side": SIDE, "penalty": PENALTY, "rows": rows}


def tables(result: dict[str, Any]) -> str:
    """For each data set and budget the means of the arms, and what choosing adds to labels at random."""
    parts = []
    for name, content in SETTINGS.items():
        found = {
            arm: [row["scores"] for row in result["rows"] if (row["data"], row["arm"]) == (name, arm)] for arm in ARMS
        }
        for score in ("balanced_accuracy", "auc_macro", "f1_macro"):
            rows = []
            for step, budget in enumerate(content["budgets"]):
                values = {arm: [run[step][score] for run in runs] for arm, runs in found.items()}
                means = [f"{np.mean(values[arm]):.3f}" for arm in ARMS]
                rows.append([budget, *means, Pair(values["evened"], values["random"], None)])
            parts += [f"**{name}: {SHOWN[score]}**", difference_table(["labels", *ARMS, "evened - random"], rows)]
    return "\n\n".join(parts)


if __name__ == "__main__":
    run(__file__, measured, tables, timed=False, seeds={"type": int, "nargs": "+", "default": [1, 2, 3, 4, 5]})
