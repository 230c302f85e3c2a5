"""What hostile sites do to a federation, under each rule of averaging.

Ten sites train the head of EfficientNet-Lite0 on features of every third image of HAM10000, as 128 principal components,
divided with label skew (Dirichlet, alpha 1). One, two or four of them are hostile and know the model. The server's part is
:class:`BoundedContributions` around the mean or the robust rule. Messages are left out. A quarter of the lesions is for
testing. About a minute of CPU time without the features.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.decomposition import PCA
from sklearn.model_selection import GroupShuffleSplit
from torch import Tensor
from torch.nn import functional as F

from benchmarks.experiment import DATA
from benchmarks.frozen_features.run import embedded
from benchmarks.measure import run, table
from benchmarks.parties import site_names
from grandrounds.evaluation.metrics import site_metrics
from grandrounds.federation.server.means import OrderedMean
from grandrounds.federation.server.robust import BoundedContributions, DefenceOptions, RobustMean
from grandrounds.protocol.tasks import SINGLE
from grandrounds.seeding import numpy_generator

SITES, ROUNDS, STEPS, BATCH, RATE, ALPHA, COMPONENTS = 10, 20, 5, 64, 3.0, 1.0, 128
SEEDS, HOSTILE = (1, 2, 3), (1, 2, 4)
FACTOR = 100.0
State = dict[str, Tensor]
DEFAULT = "mean, bounded at 3 (default)"
RULES: Mapping[str, DefenceOptions] = {
    "mean, no bounds": DefenceOptions(norm_multiple=None, weight_multiple=None),
    "mean, bounded at 10": DefenceOptions(norm_multiple=10.0),
    DEFAULT: DefenceOptions(),
    "mean, bounded at 2": DefenceOptions(norm_multiple=2.0),
    "median": DefenceOptions(aggregation="median"),
    "trimmed mean, 0.2": DefenceOptions(aggregation="trimmed_mean"),
    "trimmed mean, 0.4": DefenceOptions(aggregation="trimmed_mean", trimmed_fraction=0.4),
    "geometric median": DefenceOptions(aggregation="geometric_median"),
}


class Site:
    """The features and labels of one site, and what it sends."""

    def __init__(self, features: Tensor, labels: Tensor, generator: np.random.Generator) -> None:
        self._features, self._labels, self._generator = features, labels, generator

    def update(self, state: State, labels: Tensor | None = None) -> State:
        """The update of a few steps of gradient descent from the received head."""
        targets = self._labels if labels is None else labels
        head = {name: value.clone() for name, value in state.items()}
        for _ in range(STEPS):
            rows = torch.from_numpy(self._generator.integers(len(targets), size=BATCH))
            images, away = self._features[rows], F.linear(self._features[rows], head["w"], head["b"]).softmax(dim=1)
            away[torch.arange(BATCH), targets[rows]] -= 1  # the gradient of the cross entropy by the logits
            head["w"] -= RATE * away.T @ images / BATCH
            head["b"] -= RATE * away.mean(dim=0)
        return {name: value - state[name] for name, value in head.items()}

    def flipped_labels(self, state: State) -> State:
        """An honest training on the labels ``classes - 1 - label``."""
        return self.update(state, len(state["b"]) - 1 - self._labels)

    def flipped_sign(self, state: State) -> State:
        """The honest update against its direction."""
        return {name: -value for name, value in self.update(state).items()}

    def scaled(self, state: State) -> State:
        """The update of flipped labels, a hundred times."""
        return {name: FACTOR * value for name, value in self.flipped_labels(state).items()}

    def random(self, state: State) -> State:
        """Normal noise with a hundred times the norm of the honest update."""
        honest = self.update(state)
        noise = {
            name: torch.from_numpy(self._generator.normal(size=value.shape)).float() for name, value in honest.items()
        }
        factor = FACTOR * norm_of(honest) / norm_of(noise)
        return {name: factor * value for name, value in noise.items()}


ATTACKS: Mapping[str, Callable[[Site, State], State]] = {
    "label flipping": Site.flipped_labels,
    "sign flipping": Site.flipped_sign,
    "scaled update": Site.scaled,
    "random update": Site.random,
}


def norm_of(state: State) -> float:
    return float(torch.cat([value.flatten() for value in state.values()]).norm())


def measured(options: argparse.Namespace) -> dict[str, Any]:
    """Scores by rule, attack and number of hostile sites, and whether bounds change the model of honest sites."""
    features, *others = load(options.features, 30 if options.quick else 3)
    data = (reduced(features, others[2]), *others)
    seeds, rounds = (SEEDS[:1], 2) if options.quick else (SEEDS, ROUNDS)
    scores, equal = [], []
    for seed in seeds:
        honest = {}
        for rule, defence in RULES.items():
            state, found = federation(data, defence, seed, rounds)
            honest[rule] = state
            scores.append({"rule": rule, "attack": "", "hostile": 0, "seed": seed, **found})
            for attack, send in ATTACKS.items():
                for hostile in HOSTILE:
                    _, found = federation(data, defence, seed, rounds, send, hostile)
                    scores.append({"rule": rule, "attack": attack, "hostile": hostile, "seed": seed, **found})
        plain, bounded = honest["mean, no bounds"], honest[DEFAULT]
        equal.append(all(torch.equal(plain[name], bounded[name]) for name in plain))
    labels = data[1]
    majority = float(np.bincount(labels[data[4]]).max() / len(data[4]))
    return {
        "sites": SITES,
        "rounds": rounds,
        "seeds": list(seeds),
        "majority": majority,
        "scores": scores,
        "equal": equal,
    }


def load(path: Path | None, every: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Features, labels, lesions, and the rows for training and testing."""
    folder = DATA / "ham10000"
    with (folder / "ham10000_manifest.csv").open(newline="") as stream:
        records = list(csv.DictReader(stream))[::every]
    if path and path.is_file():
        features = np.load(path)
    else:
        features = embedded(folder / "ham10000_200x150.zip", [record["image"] for record in records])
        if path:
            np.save(path, features)
    labels = np.unique([record["label"] for record in records], return_inverse=True)[1]
    lesions = np.array([record["lesion"] for record in records])
    train, test = next(GroupShuffleSplit(1, test_size=0.25, random_state=1).split(features, labels, lesions))
    return features, labels, lesions, train, test


def reduced(features: np.ndarray, train: np.ndarray) -> np.ndarray:
    """The first principal components of the training images, the largest one with a standard deviation of one."""
    found = PCA(min(COMPONENTS, len(train)), random_state=0).fit(features[train]).transform(features)
    return found / found[train].std(axis=0).max()


def divided(labels: np.ndarray, rows: np.ndarray, seed: int) -> list[np.ndarray]:
    """Rows by site: each class is divided by a draw from a Dirichlet distribution."""
    generator = numpy_generator(seed, "hostile sites", "division")
    parts: list[list[int]] = [[] for _ in range(SITES)]
    for label in np.unique(labels):
        own = generator.permutation(rows[labels[rows] == label])
        ends = (np.cumsum(generator.dirichlet([ALPHA] * SITES))[:-1] * len(own)).astype(int)
        for part, chosen in zip(parts, np.split(own, ends), strict=True):
            part.extend(chosen.tolist())
    return [np.array(part, dtype=np.int64) for part in parts]


def federation(
    data: tuple[np.ndarray, ...],
    defence: DefenceOptions,
    seed: int,
    rounds: int,
    send: Callable[[Site, State], State] = Site.update,
    hostile: int = 0,
) -> tuple[State, dict[str, float]]:
    """The last head of a run, and its scores; the first sites are the hostile ones."""
    features, labels, _, train, test = data
    names, classes = site_names(SITES), int(labels.max()) + 1
    sites = {
        name: Site(
            torch.from_numpy(features[rows]).float(), torch.from_numpy(labels[rows]), numpy_generator(seed, name)
        )
        for name, rows in zip(names, divided(labels, train, seed), strict=True)
    }
    state = {"w": torch.zeros(classes, features.shape[1]), "b": torch.zeros(classes)}
    mean = BoundedContributions(OrderedMean() if defence.aggregation == "mean" else RobustMean(defence), defence)
    for _ in range(rounds):
        mean.open(names)
        for number, name in enumerate(names):
            mean.add(name, (send if number < hostile else Site.update)(sites[name], state))
        moved = mean.close()
        assert moved is not None
        state = {name: value + moved[name] for name, value in state.items()}
    logits = F.linear(torch.from_numpy(features[test]).float(), state["w"], state["b"])
    found = site_metrics(SINGLE, labels[test], logits.softmax(dim=1).nan_to_num().numpy())
    return state, {name: round(found[name], 4) for name in ("accuracy", "balanced_accuracy")}


def tables(result: dict[str, Any]) -> str:
    """Accuracy by rule and attack."""

    def mean(metric: str, **wanted: Any) -> float:
        return float(np.mean([s[metric] for s in result["scores"] if all(s[key] == v for key, v in wanted.items())]))

    parts = []
    for metric in ("accuracy", "balanced_accuracy"):
        rows = []
        for rule in RULES:
            row: dict[str, Any] = {"rule": rule, "none": mean(metric, rule=rule, hostile=0)}
            for attack in ATTACKS:
                for hostile in HOSTILE:
                    row[f"{attack} {hostile}"] = mean(metric, rule=rule, attack=attack, hostile=hostile)
            rows.append(row)
        title = metric.replace("_", " ").capitalize()
        parts += [
            f"{title}, mean of {len(result['seeds'])} seeds, by number of hostile sites of {result['sites']}.",
            table({key: key for key in rows[0]}, rows, 2),
        ]
    same = all(result["equal"])
    parts.append(
        f"The majority class has an accuracy of {result['majority']:.2f}. Of honest sites, the models with and without "
        f"bounds are {'equal to the last bit' if same else 'NOT equal'} with every seed."
    )
    return "\n\n".join(parts)


if __name__ == "__main__":
    run(
        __file__,
        measured,
        tables,
        features=dict(type=Path, default=None, help="file of features, written if it is missing"),
    )
