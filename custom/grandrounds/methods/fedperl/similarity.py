"""Similarity of the sites' models, from the statistics of their layers.

Bdair et al. (FedPerl), MELBA 2022: a model is described by the mean and standard deviation of each of its layers, and
two models are compared by their cosine. The released code first scales each feature to [0, 1] over the models, which
the text does not mention. This matters: models with a common initialisation have raw cosines of almost one, so that the
ranking depends on the last digits and no similarity gate rejects a peer. All computation is in double precision.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from grandrounds.ordering import natural_sorted

LayerSelection = Literal["parameters_and_buffers", "parameters", "weights"]
Normalisation = Literal["minmax", "none"]


def layer_moments(
    state: Mapping[str, Tensor], features: LayerSelection, parameter_names: Collection[str] = ()
) -> Tensor:
    r"""Describe a model by the mean and the unbiased standard deviation of each layer (zero for a single number).

    .. math:: F = (\mu_1, \sigma_1, \dots, \mu_l, \sigma_l)

    Args:
        state: the model's state; integer entries and ``num_batches_tracked`` are left out.
        features: which entries count as layers: all, those in ``parameter_names``, or ``weights`` of two or more dimensions.
        parameter_names: the trainable entries, for ``parameters``.

    Returns:
        Shape ``(2 * layers,)``, float64.

    Raises:
        ValueError: if no entry is left, or one is empty or not finite.

    Example:
        >>> layer_moments({"weight": torch.tensor([1.0, 3.0]), "bias": torch.tensor([5.0])}, "parameters_and_buffers")
        tensor([2.0000, 1.4142, 5.0000, 0.0000], dtype=torch.float64)
    """
    layers = {
        name: value.detach()
        for name, value in state.items()
        if _is_layer(name, value)
        and (features != "parameters" or name in parameter_names)
        and (features != "weights" or value.dim() >= 2)
    }
    if not layers:
        raise ValueError(f"the state has no entry that counts as a layer under features = {features}")
    moments = torch.stack([moment for value in layers.values() for moment in _mean_and_deviation(value)])
    bad = ~torch.isfinite(moments)
    if bad.any():
        raise ValueError(f"{list(layers)[int(bad.nonzero()[0]) // 2]} is empty or has a value that is not finite")
    return moments


def normalise_features(features: Tensor, method: Normalisation) -> Tensor:
    r"""Scale each feature to [0, 1] over the models.

    .. math:: z_{mj} = \frac{F_{mj} - \min_n F_{nj}}{\max_n F_{nj} - \min_n F_{nj}}

    Args:
        features: one row per model, shape ``(models, features)``.
        method: ``minmax``, which sets a constant feature to one; or ``none``.

    Returns:
        Same shape, float64.

    Example:
        >>> normalise_features(torch.tensor([[2.0, 3.0], [4.0, 3.0]]), "minmax")
        tensor([[0., 1.],
                [1., 1.]], dtype=torch.float64)
    """
    values = features.double()
    if method == "none" or not len(values):
        return values
    low, high = values.aminmax(dim=0)
    constant = high == low
    return torch.where(constant, 1.0, (values - low) / torch.where(constant, 1.0, high - low))


def cosine_similarity_matrix(features: Tensor) -> Tensor:
    r"""Cosine of every pair of rows.

    .. math:: W_{mn} = \frac{F_m \cdot F_n}{\lVert F_m \rVert \, \lVert F_n \rVert}

    Args:
        features: shape ``(models, features)``.

    Returns:
        Shape ``(models, models)``, float64, in [-1, 1], symmetric, with a diagonal of one. The cosines of a row of zeros
        are zero, with itself, too.

    Example:
        >>> cosine_similarity_matrix(torch.tensor([[3.0, 0.0], [3.0, 4.0], [0.0, 0.0]]))
        tensor([[1.0000, 0.6000, 0.0000],
                [0.6000, 1.0000, 0.0000],
                [0.0000, 0.0000, 0.0000]], dtype=torch.float64)
    """
    # A matrix product may round equal entries differently. With sorted, distinct rows the result does not depend on their
    # order, and equal models tie exactly.
    distinct: tuple[Tensor, Tensor] = torch.unique(features.double(), dim=0, return_inverse=True)
    values, row = distinct
    norms = torch.linalg.vector_norm(values, dim=1, keepdim=True)
    directions = values / torch.where(norms > 0, norms, 1.0)
    cosines = directions @ directions.T
    cosines = ((cosines + cosines.T) / 2).clamp_(-1.0, 1.0)
    cosines.diagonal().copy_((norms > 0).squeeze(1))
    return cosines[row[:, None], row]


def similarity_matrix(features: Tensor, method: Normalisation) -> Tensor:
    """Cosines, shape ``(models, models)``, of features that are normalised over all models."""
    return cosine_similarity_matrix(normalise_features(features, method))


@dataclass
class SimilarityTracker:
    """The features of each site's model at the end of its last training, and the similarity of all pairs.

    Attributes:
        features: which entries of a model describe it.
        scaling: how features are scaled over the sites.
        parameters: the names of the trainable entries.
        with_validation: whether the validation scores are features, too (authors' code).
        validation: accuracy and class-weighted loss on the server's validation images, shape ``(2,)``, by site; empty
            if no option needs them.
        embeddings: the prediction on a fixed noise image, by site; empty if no option needs them.
        similarity: cosine of every pair of models, shape ``(sites, sites)``, float64.
    """

    features: LayerSelection
    scaling: Normalisation
    parameters: frozenset[str] = frozenset()
    with_validation: bool = False
    validation: dict[str, Tensor] = field(default_factory=dict)
    embeddings: dict[str, Tensor] = field(default_factory=dict)
    similarity: Tensor = field(default_factory=lambda: torch.zeros(0, 0, dtype=torch.float64))
    _moments: dict[str, Tensor] = field(default_factory=dict)

    @property
    def sites(self) -> list[str]:
        """The sites that have trained, in natural order: the order of the similarity's rows."""
        return natural_sorted(self._moments)

    def describe(self, site: str, state: Mapping[str, Tensor]) -> None:
        """Describe a site's new model; call :meth:`compare` after all models of a round."""
        self._moments[site] = layer_moments(state, self.features, self.parameters)

    def compare(self) -> None:
        """Compare every pair of models."""
        if self._moments:
            self.similarity = similarity_matrix(self._feature_matrix(), self.scaling)

    def raw_cosines(self) -> tuple[float, float] | None:
        """The minimum and maximum cosine of two sites' unscaled features; None with fewer than two sites."""
        if len(self._moments) < 2:
            return None
        cosines = cosine_similarity_matrix(self._feature_matrix())
        others = cosines[~torch.eye(len(cosines), dtype=torch.bool)]
        return float(others.min()), float(others.max())

    def similarities_of(self, site: str) -> dict[str, float]:
        """Similarity of a site with each other site; empty for one that has not trained."""
        sites = self.sites
        if site not in sites:
            return {}
        row = self.similarity[sites.index(site)].tolist()
        return {other: value for other, value in zip(sites, row, strict=True) if other != site}

    def accuracy(self) -> dict[str, float]:
        """Each site's accuracy on the server's validation images, in [0, 1]."""
        return {site: float(scores[0]) for site, scores in self.validation.items()}

    def state_dict(self) -> dict[str, Any]:
        """The state that cannot be recomputed from the models."""
        return {"validation": dict(self.validation), "embeddings": dict(self.embeddings)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned."""
        self.validation, self.embeddings = dict(state["validation"]), dict(state["embeddings"])

    def _feature_matrix(self) -> Tensor:
        rows = torch.stack([self._moments[site] for site in self.sites])
        if not self.with_validation:
            return rows
        return torch.cat([rows, torch.stack([self.validation[site].double() for site in self.sites])], dim=1)


def _is_layer(name: str, value: Tensor) -> bool:
    return value.is_floating_point() and not name.endswith("num_batches_tracked")


def _mean_and_deviation(values: Tensor) -> tuple[Tensor, Tensor]:
    wide = values.double()
    mean = wide.mean()
    # Two passes: the mean of squares minus the squared mean cancels where the spread is small.
    return mean, ((wide - mean).square().sum() / max(wide.numel() - 1, 1)).sqrt()
