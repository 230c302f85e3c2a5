"""What a site without labels takes the diseases for, over a round: for its own log, and for figures in simulations."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from grandrounds.data.site import SiteData
from grandrounds.methods.fedirm.relation import Relation
from grandrounds.methods.fedirm.training import patients_of_classes


class OwnRelation:
    """The relation matrix of a site without labels: the mean of its batches' matrices, row by row where there is one.

    Args:
        data: of the site.
        classes: how many classes there are.
        device: where the batches are.
    """

    def __init__(self, data: SiteData, classes: int, device: torch.device) -> None:
        self._data = data
        self._sum = torch.zeros(classes, classes, device=device)
        self._batches = torch.zeros(classes, dtype=torch.int64, device=device)
        self._seen: list[tuple[np.ndarray, Tensor, Tensor]] = []

    def add(self, own: Relation, rows: np.ndarray, labels: Tensor, keep: Tensor) -> None:
        """Take in a batch: its matrix, its images, what they were taken for, and which of these predictions are certain."""
        self._sum += torch.where(own.known[:, None], own.matrix.detach(), 0.0)
        self._batches += own.known
        self._seen.append((rows, labels, keep))

    def relation(self) -> Relation:
        """The mean, on the CPU; ``support`` is how many patients (else lesions, else images) were surely of the class."""
        mean = self._sum / self._batches.clamp(min=1)[:, None]
        uniform = torch.full_like(mean, 1 / len(mean))
        matrix = torch.where(self._batches[:, None] > 0, mean, uniform).cpu()
        rows = np.concatenate([rows for rows, _, _ in self._seen])
        labels = torch.cat([labels for _, labels, _ in self._seen]).cpu().numpy()
        keep = torch.cat([keep for _, _, keep in self._seen]).cpu().numpy()
        return Relation(matrix, patients_of_classes(self._data, rows[keep], labels[keep], len(matrix)))
