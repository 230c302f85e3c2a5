"""Semi-supervised learning at hospitals with synthetic devices: what is measured of a run.

Scores are of the test images of all sites together, as a mean over the last three checkpoints of the global model. Test
images pass the frozen layers once for all rows of a seed (``GRANDROUNDS_FEATURES``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch

from benchmarks.experiment import Experiment, Predicted, Run, mean_of, pooled, read_predictions, site_data
from grandrounds.data.site import Part
from grandrounds.evaluation.confusion import confusion_matrix
from grandrounds.evaluation.metrics import site_metrics
from grandrounds.federation.site.features import FeatureOptions, Features
from grandrounds.models.adaptation import site_statistics
from grandrounds.models.norm_layers import use_statistics
from grandrounds.models.registry import build_model
from grandrounds.protocol.messages import GLOBAL
from grandrounds.protocol.problem import SITE_NORM, Problem
from grandrounds.protocol.tasks import SINGLE

LABELS = ("accepted", "pseudo_label_accuracy", "kept", "matched_rows")
"""Of pseudo-labels by round; FedIRM's filter keeps predictions, and a matrix row is matched if any is of its class."""
SCORED = ("f1_macro", "auc_macro", "balanced_accuracy", "accuracy")
BATCH = 256


class SiteImages(NamedTuple):
    """Labels of a site's images, what the frozen layers make of these, and the batch norm statistics that the site uses."""

    labels: np.ndarray
    features: torch.Tensor
    statistics: dict[str, torch.Tensor]


class Custom(Experiment):
    """Scores of the last rounds, and pseudo-labels round by round."""

    def measures(self, run: Run) -> dict[str, Any]:
        """What the report needs."""
        sites = run.partition["sites"]
        tested = replace(run, sites=self.setting(run.row).get("unseen", run.sites))
        scored = dict(_own(run) if run.job.options("executor")["model"] == "own" else _global(tested))
        rounds = run.metrics("accepted") or run.metrics("kept")
        return {
            "classes": run.partition["classes"],
            "scores": scored,
            "pseudo_labels": {
                "round": list(rounds),
                **{name: [mean_of(found, name, 4) for found in rounds.values()] for name in LABELS},
                "by_class": _by_class(run),
            },
            "manifests": {site: content["sha256"] for site, content in sites.items()},
        }


def mean_score(content: dict[str, Any], metric: str) -> float:
    """A score of a result: the mean over its scored rounds."""
    return float(np.mean([found[metric] for found in content["scores"].values()]))


def _global(run: Run) -> Iterator[tuple[int, dict[str, Any]]]:
    """Scores of the global model after the rounds of the last checkpoints, by round."""
    network = _network(run)
    images = _features(run, network, "test")
    for path in sorted(run.place.glob("state/*/server/round_*.pt")):
        saved = torch.load(path, map_location="cpu", weights_only=True)
        network.load_state_dict(saved["content"]["method"][GLOBAL])
        yield saved["round"], _scores(_predicted(network, images))


def _own(run: Run) -> Iterator[tuple[int, dict[str, Any]]]:
    """Scores of the sites' own models after the last round, each on its site's test images."""
    by_site = {}
    classes = run.partition["classes"]
    for path in sorted(run.place.glob("state/*/*/predictions_own.csv")):
        by_site[path.parent.name] = read_predictions(path, classes)
    yield run.job.options("controller")["rounds"], _scores(pooled(by_site))


def _by_class(run: Run) -> dict[str, list[int]]:
    """By class, unlabelled images, those with a confident label of the last global model, and the correct ones of these."""
    threshold = run.job.options("executor").get("threshold")
    if threshold is None or run.job.options("executor")["model"] == "own":
        return {}
    network = _network(run)
    state = torch.load(run.place / "results" / "last.pt", map_location="cpu", weights_only=True)
    network.load_state_dict(state)
    labels, probabilities, _ = _predicted(network, _features(run, network, "unlabelled"))
    found, sure = probabilities.argmax(axis=1), probabilities.max(axis=1) >= threshold
    classes = len(run.partition["classes"])
    accepted = np.bincount(found[sure], minlength=classes)
    return {
        "unlabelled": np.bincount(labels, minlength=classes).tolist(),
        "accepted": accepted.tolist(),
        "right": np.bincount(found[sure & (found == labels)], minlength=classes).tolist(),
    }


def _network(run: Run) -> torch.nn.Module:
    problem = Problem.from_dict(run.job.options("problem"))
    return build_model(problem.model_spec(pretrained=True), run.row.seed).eval()


def _features(run: Run, network: torch.nn.Module, part: Part) -> list[SiteImages]:
    """One part of each site's images."""
    found = []
    spec = Problem.from_dict(run.job.options("problem")).model_spec(pretrained=True)
    for site in run.sites:
        data = site_data(run.job, site, run.sites_dir)
        rows, seed = data.rows(part), run.row.seed
        kept = Features(run.place / site, FeatureOptions(1), network, seed, site)
        statistics = {}
        if spec.norm == SITE_NORM:
            statistics = site_statistics(spec, seed, data.images, data.rows("train"))
        found.append(SiteImages(data.labels[rows], kept.draw("own", data.images, rows, "none", 0, 0), statistics))
    return found


def _predicted(network: torch.nn.Module, sites: Sequence[SiteImages]) -> Predicted:
    """Labels and probabilities of all sites' images."""
    found = []
    with torch.no_grad():
        for site in sites:
            if site.statistics:
                use_statistics(network, site.statistics)
            found += [network(batch).softmax(dim=1) for batch in site.features.split(BATCH)]
    probabilities = torch.cat(found).double().numpy()
    return Predicted(np.concatenate([site.labels for site in sites]), probabilities, probabilities.argmax(axis=1))


def _scores(images: Predicted) -> dict[str, Any]:
    found = site_metrics(SINGLE, *images)
    confusion = confusion_matrix(images.labels, images.decided, images.probabilities.shape[1])
    return {**{name: round(found[name], 6) for name in SCORED}, "confusion": confusion.tolist()}
