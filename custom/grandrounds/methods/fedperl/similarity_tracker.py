"""How the server describes the sites' last models, and compares them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from grandrounds.methods.fedperl.similarity import (
    LayerSelection,
    Normalisation,
    cosine_similarity_matrix,
    layer_moments,
    similarity_matrix,
)
from grandrounds.ordering import natural_sorted
from grandrounds.protocol.messages import State


@dataclass
class SimilarityTracker:
    """Descriptions of the sites' models as they were at the end of their last training.

    Attributes:
        features: which entries of a model describe it.
        scaling: how features are scaled over the sites.
        parameters: the names of the trainable entries.
        validation: accuracy and class-weighted loss on the server's validation images, shape ``(2,)``, by site; empty
            where nothing needs them.
        embeddings: what a model predicts for a fixed image of noise, by site; empty where nothing needs them.
    """

    features: LayerSelection
    scaling: Normalisation
    parameters: frozenset[str] = frozenset()
    validation: dict[str, Tensor] = field(default_factory=dict)
    embeddings: dict[str, Tensor] = field(default_factory=dict)
    with_validation: bool = False
    """Whether the scores on validation images are features as well (authors' code)."""
    _moments: dict[str, Tensor] = field(default_factory=dict)
    _similarity: Tensor = field(default_factory=lambda: torch.zeros(0, 0, dtype=torch.float64))

    @property
    def sites(self) -> list[str]:
        """The sites that have trained, in natural order: the order of the similarity's rows."""
        return natural_sorted(self._moments)

    @property
    def similarity(self) -> Tensor:
        """Cosine of every pair of models, shape ``(sites, sites)``, float64."""
        return self._similarity

    def describe(self, site: str, state: State) -> None:
        """Describe a site's new model; call :meth:`compare` when all of a round are described."""
        self._moments[site] = layer_moments(state, self.features, self.parameters)

    def compare(self) -> None:
        """Compare every pair of models."""
        if self._moments:
            self._similarity = similarity_matrix(self._rows(), self.scaling)

    def raw_cosines(self) -> tuple[float, float] | None:
        """Least and greatest cosine of two different sites' features without scaling; None with fewer than two sites.

        Models that started from the same weights are often so alike that neither a ranking nor a gate means anything.
        """
        if len(self._moments) < 2:
            return None
        cosines = cosine_similarity_matrix(self._rows())
        others = cosines[~torch.eye(len(cosines), dtype=torch.bool)]
        return float(others.min()), float(others.max())

    def similarities_of(self, site: str) -> dict[str, float]:
        """Similarity of a site with each other one; empty for one that has not trained."""
        sites = self.sites
        if site not in sites:
            return {}
        row = self._similarity[sites.index(site)].tolist()
        return {other: value for other, value in zip(sites, row, strict=True) if other != site}

    def accuracy(self) -> dict[str, float]:
        """Each site's accuracy on the server's validation images, in [0, 1]."""
        return {site: float(scores[0]) for site, scores in self.validation.items()}

    def state_dict(self) -> dict[str, Any]:
        """What cannot be computed again from the models."""
        return {"validation": dict(self.validation), "embeddings": dict(self.embeddings)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what :meth:`state_dict` gave."""
        self.validation, self.embeddings = dict(state["validation"]), dict(state["embeddings"])

    def _rows(self) -> Tensor:
        rows = torch.stack([self._moments[site] for site in self.sites])
        if not self.with_validation:
            return rows
        return torch.cat([rows, torch.stack([self.validation[site].double() for site in self.sites])], dim=1)
