"""Attack the recommended setting: a site that trains the head of a frozen network, with and without noise.

Features of HAM10000 under EfficientNet-Lite0, reduced to 128 principal components. The site has half of 240 candidates; the
attacker knows all candidates and their labels, and trains models on other halves. Membership: LiRA (Carlini et al.,
"Membership Inference Attacks From First Principles", S&P 2022), by the model and by the soft labels of public images.
Chosen model: the server sends a head by which one image alone has a gradient in a known place. Matched pair: one of two
known images. Reconstruction: an image's features from the updates of several rounds. A bound on epsilon is by Clopper and
Pearson at 95 %, at a threshold that was chosen on other trials. A minute of CPU time without the features.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import beta
from sklearn.decomposition import PCA
from sklearn.metrics import roc_auc_score
from torch import nn
from torch.nn import functional as F

from benchmarks.hostile_sites.run import load
from benchmarks.measure import run, table
from benchmarks.noise import min_noise_multiplier
from grandrounds.privacy.gate.treatments import ClipAndNoise
from grandrounds.privacy.mechanisms.coarsening import quantise_rows
from grandrounds.privacy.mechanisms.dp_sgd import PrivateStep
from grandrounds.privacy.mechanisms.record_level import RecordLevelOptions
from grandrounds.protocol.spending import Unit, update_sensitivity
from grandrounds.seeding import numpy_generator

DELTA, CLIP, EPSILONS = 1e-4, 1.0, (8.0, 2.0)
COMPONENTS, CANDIDATES, PUBLIC = 128, 240, 200
MODELS, STEPS, RATE, PRIVATE_RATE = 128, 60, 2.0, 0.5
TRIALS, ROUNDS = 2000, (1, 10, 100)
LEVELS = 8
CONFIDENCE = 0.05
Array = np.ndarray


def epsilon_bound(members: Array, others: Array) -> float:
    """A lower bound on epsilon at ``DELTA`` from scores of an attack, higher for members.

    The threshold is chosen on one half of the trials, and the rates are bounded on the other.
    """
    choosing, counting = (members[::2], others[::2]), (members[1::2], others[1::2])
    best, chosen = 0.0, (math.inf, 1)
    for sign in (1, -1):  # the rate of members above a threshold, or of others below it
        high, low = (np.sort(sign * found) for found in (choosing if sign == 1 else choosing[::-1]))
        for threshold in np.quantile(np.concatenate([high, low]), np.linspace(0.02, 0.98, 49)):
            found = _bound(high, low, threshold)
            if found > best:
                best, chosen = found, (float(threshold), sign)
    threshold, sign = chosen
    high, low = (sign * found for found in (counting if sign == 1 else counting[::-1]))
    return _bound(high, low, threshold) if math.isfinite(threshold) else 0.0


def _bound(high: Array, low: Array, threshold: float) -> float:
    hits, errors = int((high > threshold).sum()), int((low > threshold).sum())
    rate = beta.ppf(CONFIDENCE / 2, hits, len(high) - hits + 1) if hits else 0.0
    error = beta.ppf(1 - CONFIDENCE / 2, errors + 1, len(low) - errors) if errors < len(low) else 1.0
    return max(0.0, math.log((rate - DELTA) / error)) if rate > DELTA else 0.0


def scores_of(members: Array, others: Array) -> dict[str, float]:
    """Area under the curve, hits at one false alarm in a hundred, and the bound on epsilon."""
    truth = np.concatenate([np.ones(len(members)), np.zeros(len(others))])
    return {
        "auc": round(float(roc_auc_score(truth, np.concatenate([members, others]))), 3),
        "hits": round(float((members > np.quantile(others, 0.99)).mean()), 3),
        "epsilon": round(epsilon_bound(members, others), 2),
    }


def trained_heads(features: Array, labels: Array, inside: Array, multiplier: float | None, seed: int) -> Array:
    """Heads of all models at once, shape ``(models, features + 1, classes)``, by full batches; clipped and noised if asked.

    ``inside`` has which candidates each model trains on, shape ``(models, candidates)``.
    """
    generator = numpy_generator(seed, "heads", str(multiplier))
    images = np.concatenate([features, np.ones((len(features), 1))], axis=1)
    target = np.eye(labels.max() + 1)[labels]
    heads = np.zeros((len(inside), images.shape[1], target.shape[1]))
    norms = np.linalg.norm(images, axis=1)
    for _ in range(STEPS):
        away = (_softmax(images @ heads) - target) * inside[:, :, None]
        if multiplier is not None:
            # The gradient of one image is the outer product of its features and ``away``.
            size = np.linalg.norm(away, axis=2) * norms
            away *= np.minimum(1.0, CLIP / np.maximum(size, 1e-12))[:, :, None]
        gradient = images.T @ away
        if multiplier is not None:
            gradient += generator.normal(scale=multiplier * CLIP, size=gradient.shape)
        heads -= (RATE if multiplier is None else PRIVATE_RATE) * gradient / inside.sum(axis=1)[:, None, None]
    return heads


def _softmax(logits: Array) -> Array:
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def predictions(heads: Array, features: Array) -> Array:
    """Probabilities, shape ``(models, images, classes)``."""
    images = np.concatenate([features, np.ones((len(features), 1))], axis=1)
    return _softmax(images @ heads)


def lira(values: Array, inside: Array) -> dict[str, float]:
    """Likelihood ratios of each model and candidate by normal distributions fitted to all other models.

    ``values`` has a statistic of each model and candidate; for several, shape ``(models, candidates, statistics)``.
    """
    ratios = np.zeros(inside.shape)
    for own in range(len(inside)):
        rest = np.arange(len(inside)) != own
        parts = []
        for mask in (inside[rest], 1 - inside[rest]):
            count = mask.sum(axis=0)
            mean = (values[rest] * mask).sum(axis=0) / count
            spread = np.sqrt(((values[rest] - mean) ** 2 * mask).sum(axis=0) / count) + 1e-6
            parts.append(-(((values[own] - mean) / spread) ** 2) / 2 - np.log(spread))
        ratios[own] = parts[0] - parts[1]
    return scores_of(ratios[inside == 1], ratios[inside == 0])


def by_confidence(heads: Array, features: Array, labels: Array, inside: Array) -> dict[str, float]:
    """LiRA by the logit of each candidate's probability of its own label."""
    own = predictions(heads, features)[:, np.arange(len(labels)), labels].clip(1e-9, 1 - 1e-9)
    return lira(np.log(own / (1 - own)), inside)


def by_soft_labels(rows: Array, inside: Array) -> dict[str, float]:
    """LiRA by the soft labels of public images, on the direction between the means with and without a candidate."""
    flat = rows.reshape(len(rows), -1)
    half = len(rows) // 2
    weights = inside[:half] - 0.5
    # The direction is from one half of the models, the likelihoods are of the other.
    directions = weights.T @ (flat[:half] - flat[:half].mean(axis=0)) / half
    return lira(flat[half:] @ directions.T, inside[half:])


def chosen_model(features: Array, labels: Array, multiplier: float | None) -> dict[str, float]:
    """The package's private step on a head by which the first candidate alone is taken for a class that no image has."""
    target, rest = features[0], features[1:]
    classes = int(labels.max()) + 2
    network = nn.Linear(features.shape[1], classes)
    direction = target / np.linalg.norm(target)
    with torch.no_grad():
        network.weight.zero_()
        network.bias.zero_()
        margin = (direction @ target + (rest @ direction).max()) / 2
        network.weight[-1] = torch.from_numpy(200 * direction)
        network.bias[-1] = -200 * float(margin)
    noiseless, repeats = 1e-6, TRIALS // 4
    known = _sums(network, features, labels, noiseless, 1)[0] - _sums(network, rest, labels[1:], noiseless, 1)[0]
    worlds = ((features, labels), (rest, labels[1:]))
    return scores_of(*(_sums(network, *world, multiplier or noiseless, repeats) @ known for world in worlds))


def _sums(network: nn.Module, features: Array, labels: Array, multiplier: float, repeats: int) -> Array:
    """The noisy sums of clipped gradients of so many private steps, a row each."""
    options = RecordLevelOptions(CLIP, multiplier, 1.0, 1, microbatch=len(features))
    step = PrivateStep(network, F.cross_entropy, len(features), options)
    images, own, rows = torch.from_numpy(features).float(), torch.from_numpy(labels), []
    for _ in range(repeats):
        step.set_gradients(images, own)
        found = [parameter.grad.flatten() for parameter in network.parameters() if parameter.grad is not None]
        rows.append(torch.cat(found).double().numpy() * len(features))
    return np.stack(rows)


def matched_pair(features: Array, labels: Array, epsilon: float | None) -> dict[str, float]:
    """Which of two known images an update of one step is of, behind the gate's noise for one record."""
    heads = np.zeros((1, features.shape[1] + 1, int(labels.max()) + 1))
    images = np.concatenate([features, np.ones((len(features), 1))], axis=1)
    away = predictions(heads, features)[0] - np.eye(heads.shape[2])[labels]
    updates = -np.einsum("cf,ck->cfk", images, away)
    first, second = (updates[row] / np.linalg.norm(updates[row]) for row in (0, int(np.argmax(labels != labels[0]))))
    scores = []
    for update in (first, second):
        sent = [_through_gate(update, epsilon) for _ in range(TRIALS // 2)]
        scores.append(np.array([float((one * (first - second)).sum()) for one in sent]))
    return scores_of(*scores)


def _through_gate(update: Array, epsilon: float | None) -> Array:
    if epsilon is None:
        return update
    sigma = min_noise_multiplier(epsilon, DELTA) * update_sensitivity(CLIP, Unit.RECORD)
    treated = ClipAndNoise(CLIP, sigma, Unit.RECORD).apply({"w": torch.from_numpy(update)})
    return treated["w"].numpy()


def reconstructed(features: Array, labels: Array, epsilon: float | None) -> list[dict[str, Any]]:
    """Correlation of an image's features with the mean row of its label in the updates of so many rounds of that budget."""
    cases = []
    for rounds in ROUNDS:
        found = []
        for row in range(10):
            image = np.append(features[row], 1.0)
            away = np.full(int(labels.max()) + 1, 1 / (labels.max() + 1))
            away[labels[row]] -= 1
            update = np.outer(image, -away)
            update /= np.linalg.norm(update)
            if epsilon is not None:
                multiplier = min_noise_multiplier(epsilon, DELTA, rounds, 1.0)
                sigma = multiplier * update_sensitivity(CLIP, Unit.RECORD) / math.sqrt(rounds)
                update = ClipAndNoise(CLIP, sigma, Unit.RECORD).apply({"w": torch.from_numpy(update)})["w"].numpy()
            found.append(np.corrcoef(update[:-1, labels[row]], features[row])[0, 1])
        cases.append({"rounds": rounds, "correlation": round(float(np.mean(found)), 3)})
    return cases


def measured(options: argparse.Namespace) -> dict[str, Any]:
    """Scores by attack and protection."""
    features, labels, _, train, _test = load(options.features, 30 if options.quick else 3)
    reduced = (
        PCA(COMPONENTS if len(train) > COMPONENTS else 32, random_state=0)
        .fit_transform(features[train])
        .astype(np.float64)
    )
    reduced /= np.linalg.norm(reduced, axis=1, keepdims=True)
    count = CANDIDATES if not options.quick else 40
    candidates, owned = reduced[:count], np.unique(labels[train][:count], return_inverse=True)[1]
    public = reduced[count : count + PUBLIC]
    models = 48 if options.quick else MODELS
    generator = numpy_generator(0, "heads", "division")
    inside = np.array([generator.permutation(count) < count // 2 for _ in range(models)]).astype(float)
    cases, rebuilt = [], []
    for name, epsilon in (("none, or `standard`", None), *((f"epsilon {value:g}", value) for value in EPSILONS)):
        multiplier = None if epsilon is None else min_noise_multiplier(epsilon, DELTA, STEPS, 1.0)
        heads = trained_heads(candidates, owned, inside, multiplier, 0)
        rows = predictions(heads, public)
        one = None if epsilon is None else min_noise_multiplier(epsilon, DELTA, 1, 1.0)
        found = {
            "LiRA, model": by_confidence(heads, candidates, owned, inside),
            "LiRA, soft labels": by_soft_labels(rows, inside),
            "chosen model, one step": chosen_model(candidates, owned, one),
            "matched pair, one update": matched_pair(candidates, owned, epsilon),
        }
        if epsilon is None:
            coarse = quantise_rows(torch.from_numpy(rows.reshape(-1, rows.shape[2])).float(), LEVELS, "rows").numpy()
            found[f"LiRA, soft labels in {LEVELS} steps"] = by_soft_labels(coarse.reshape(rows.shape), inside)
        cases += [{"protection": name, "attack": attack, **values} for attack, values in found.items()]
        rebuilt += [{"protection": name, **case} for case in reconstructed(candidates, owned, epsilon)]
    return {"delta": DELTA, "models": models, "candidates": count, "attacks": cases, "reconstruction": rebuilt}


def tables(result: dict[str, Any]) -> str:
    """A row for each attack and protection."""
    columns = {
        "attack": "attack",
        "protection": "protection",
        "AUC": "auc",
        "hits at 1 % false alarms": "hits",
        "epsilon at least": "epsilon",
    }
    rows = sorted(result["attacks"], key=lambda case: case["attack"])
    rounds = {"protection": "protection", "rounds": "rounds", "correlation": "correlation"}
    return f"""{result["models"]} models, {result["candidates"]} candidates, delta {result["delta"]:g}.

{table(columns, rows, 2)}

Reconstruction of an image's features, all rounds together within the budget.

{table(rounds, result["reconstruction"], 2)}"""


if __name__ == "__main__":
    run(__file__, measured, tables, features={"type": Path, "help": "file of features, written if it is missing"})
