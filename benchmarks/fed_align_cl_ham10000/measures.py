"""What is measured of a trained model: areas under the curves at each site, and how far its layers tell sites apart."""

from __future__ import annotations

import csv
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from grandrounds.data.datasets.malignancy import MALIGNANT
from grandrounds.evaluation.binary_curves import curve_areas
from grandrounds.evaluation.domain_probe import plane_of, site_probe, site_silhouette
from grandrounds.models.split import embeddings_and_penultimate

BATCH = 128
LAYERS = ("embedding", "penultimate")
Layers = tuple[NDArray[np.float32], NDArray[np.float32]]


def measured(job: Any, weights: Path, partition: Path, sites: list[str], plane: bool) -> dict[str, Any]:
    """Test a model on the test images of all sites.

    The probe is trained on embeddings of all test images, and of benign ones alone: where sites differ in the share of
    malignant images, the first can name a site by the diagnosis.

    Args:
        job: whose problem it is of.
        weights: the model.
        partition: of the sites.
        sites: to be tested.
        plane: whether each test image's place in a plane is kept.

    Returns:
        By site both areas and counts; the probe, the silhouette and, if wanted, the plane of each layer, with the sites'
        and images' classes.
    """
    from grandrounds.evaluation.external import load_trained
    from grandrounds.protocol.problem import Problem

    problem = Problem.from_dict(job.options("problem"))
    model = load_trained(problem.model_spec(pretrained=False), weights)
    layers: list[Layers] = []
    truth, groups, where, by_site = [], [], [], {}
    for site in sites:
        data = _data(problem, site, partition)
        rows = data.rows("test")
        found, scores = _embedded(model, data.images, rows)
        labels = data.labels[rows]
        areas = curve_areas(labels, scores)
        by_site[site] = {**areas._asdict(), "images": len(rows), "malignant": int((labels == 1).sum())}
        layers.append(found)
        truth.append(labels)
        groups += [data.groups[row] for row in rows]
        where += [site] * len(rows)
    pair = [np.concatenate([own[index] for own in layers]) for index in range(len(LAYERS))]
    same = np.array_equal(*pair)
    probes = {
        name: _told_apart(values, np.array(where), np.concatenate(truth), np.array(groups), plane)
        for name, values in zip(LAYERS, pair, strict=True)
        if not (same and name == "penultimate")
    }
    norms = np.linalg.norm(pair[0], axis=1)
    shown = {"plane": {"site": where, "malignant": np.concatenate(truth).tolist()}} if plane else {}
    return {"sites": by_site, "layers": probes, "norm": [float(norms.mean()), float(norms.max())], **shown}


def told_by_sites(results: Path) -> dict[str, dict[str, float]]:
    """Both areas and counts at each site from the predictions that it has made of its own test images."""
    found = {}
    for path in sorted(results.glob("*/predictions_common.csv")):
        with path.open(newline="", encoding="utf-8") as stream:
            rows = list(csv.DictReader(stream))
        labels = np.array([row["label"] == MALIGNANT for row in rows], np.int64)
        areas = curve_areas(labels, [float(row[f"probability_{MALIGNANT}"]) for row in rows])
        found[path.parent.name] = {**areas._asdict(), "images": len(rows), "malignant": int(labels.sum())}
    return found


def _told_apart(
    values: NDArray[np.float32], sites: NDArray[Any], truth: NDArray[np.int64], groups: NDArray[Any], plane: bool
) -> dict[str, Any]:
    benign = truth == 0
    found = {
        "probe": site_probe(values, sites, seed=1, groups=groups)._asdict(),
        "probe_benign": site_probe(values[benign], sites[benign], seed=1, groups=groups[benign])._asdict(),
        "silhouette": site_silhouette(values, sites),
        "silhouette_benign": site_silhouette(values[benign], sites[benign]),
    }
    return {**found, "plane": plane_of(values, seed=1).round(1).tolist()} if plane else found


def _data(problem: Any, site: str, partition: Path) -> Any:
    from grandrounds.data.site import load_site_data, locate_dataset

    location = locate_dataset(site, problem.dataset, [partition])
    cache = Path(os.environ["GRANDROUNDS_CACHE"])
    return load_site_data(location, problem.classes, problem.image_size, problem.channels, cache)


@torch.no_grad()
def _embedded(
    model: nn.Module, images: NDArray[np.uint8], rows: NDArray[np.int64]
) -> tuple[Layers, NDArray[np.float64]]:
    """Both layers and the difference of the logits, malignant less benign."""
    from grandrounds.data.images.views import to_tensor

    found, scores = [], []
    for start in range(0, len(rows), BATCH):
        batch = to_tensor(images[rows[start : start + BATCH]], torch.device("cpu"))
        found.append([layer.numpy() for layer in embeddings_and_penultimate(model, batch)])
        logits = model(batch).double().numpy()
        scores.append(logits[:, 1] - logits[:, 0])
    first, second = (np.concatenate([pair[index] for pair in found]) for index in (0, 1))
    return (first, second), np.concatenate(scores)
