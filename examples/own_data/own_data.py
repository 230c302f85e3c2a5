"""A data set and a metric: images whose names hold everything, and Cohen's kappa."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import grandrounds as gr
from grandrounds.evaluation.metrics import confusion_matrix


@gr.register_dataset("named_images")
def named_images(root: Path, options: gr.ReaderOptions) -> Iterator[Mapping[str, str]]:
    """Images named SITE-CLASS-PATIENT-NUMBER.png in one folder."""
    for path in sorted(root.glob("*.png")):
        site, label, patient, _ = path.stem.split("-")
        yield {"image": path.name, "label": label, "patient": patient, "site": site}


@gr.register_metric("cohen_kappa")
def cohen_kappa(labels: NDArray[np.integer], probabilities: NDArray[np.floating]) -> float:
    """Agreement beyond chance, (observed - expected) / (1 - expected); 0 where one class alone occurs and is predicted."""
    counts = confusion_matrix(labels, probabilities.argmax(axis=1), probabilities.shape[1]) / len(labels)
    expected = float(counts.sum(axis=0) @ counts.sum(axis=1))
    return (float(np.trace(counts)) - expected) / (1 - expected) if expected < 1 else 0.0
