"""Areas under the curves, and the separation of sites in a model's embeddings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.metrics import auc, precision_recall_curve, roc_auc_score
from torch import nn

from benchmarks.fed_align_cl_ham10000.domain_probe import site_probe
from benchmarks.fed_align_cl_ham10000.embeddings import site_silhouette
from grandrounds.data.images.tensors import to_tensor
from grandrounds.models.split import split_network

BATCH = 128


def curve_areas(labels: NDArray[np.int64], scores: Sequence[float] | NDArray[np.float64]) -> dict[str, float]:
    """Areas under the ROC and the precision-recall curve of malignant (1) against benign; NaN where a class is missing.

    The second is the trapezoids', as mammography papers and Fed-Align-CL report it. It joins points that no threshold
    reaches, so it is a little above the average precision (Davis & Goadrich, ICML 2006).
    """
    if len(np.unique(labels)) < 2:
        return {"roc": math.nan, "precision_recall": math.nan}
    precision, recall, _ = precision_recall_curve(labels, scores)
    return {"roc": float(roc_auc_score(labels, scores)), "precision_recall": float(auc(recall, precision))}


@torch.no_grad()
def embed(
    model: nn.Module, images: NDArray[np.uint8], rows: NDArray[np.int64]
) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
    """Embeddings, and the difference of the logits, malignant less benign."""
    encoder, head = split_network(model)
    found = []
    for start in range(0, len(rows), BATCH):
        embedding = encoder(to_tensor(images[rows[start : start + BATCH]], torch.device("cpu")))
        logits = head(embedding).double()
        found.append((embedding, logits[:, 1] - logits[:, 0]))
    embeddings, scores = (torch.cat(parts).numpy() for parts in zip(*found, strict=True))
    return embeddings, scores


def separability(
    embeddings: NDArray[np.float32], sites: NDArray[Any], truth: NDArray[np.int64], groups: NDArray[Any]
) -> dict[str, Any]:
    """Linear probe and silhouette of embeddings, of all images and of benign ones alone.

    Where sites differ in the share of malignant images, a probe of all images can name a site by the diagnosis.
    """
    benign = truth == 0
    return {
        "probe": site_probe(embeddings, sites, seed=1, groups=groups)._asdict(),
        "probe_benign": site_probe(embeddings[benign], sites[benign], seed=1, groups=groups[benign])._asdict(),
        "silhouette": site_silhouette(embeddings, sites),
        "silhouette_benign": site_silhouette(embeddings[benign], sites[benign]),
    }
