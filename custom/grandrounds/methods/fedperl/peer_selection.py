"""Which peers a site learns from, by the similarity of the sites' models, and how they are anonymised.

Bdair et al. (FedPerl), MELBA 2022: a model is described by the mean and standard deviation of each of its layers, and
two models are compared by their cosine. The released code first scales each feature to [0, 1] over the models, which
the text does not mention. This matters: models with a common initialisation have raw cosines of almost one, so that the
ranking depends on the last digits and no similarity gate rejects a peer. All computation is in double precision.

Peers are the hospitals with the most similar models; a policy may reject some of them (Eq. 10 to 12). They are sent as one
average of their parameters, so that no hospital's model is shown to another (peer anonymisation, Eq. 6).
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from grandrounds.ordering import natural_key, natural_sorted

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
        if value.is_floating_point()
        and not name.endswith("num_batches_tracked")
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


def _mean_and_deviation(values: Tensor) -> tuple[Tensor, Tensor]:
    wide = values.double()
    mean = wide.mean()
    # Two passes: the mean of squares minus the squared mean cancels where the spread is small.
    return mean, ((wide - mean).square().sum() / max(wide.numel() - 1, 1)).sqrt()


PeerChoice = Literal["similar", "random", "fedmatch", "fedmatch_released"]
Policy = Literal["none", "validation", "gated_validation", "gated_similarity"]
GateScale = Literal["absolute", "relative"]

VALIDATED: tuple[Policy, ...] = ("validation", "gated_validation")
"""The policies that need every model's accuracy on the server's validation images."""
BYTE = 255.0
NOISE: Mapping[PeerChoice, tuple[float, float]] = {"fedmatch": (125.0, 125.0), "fedmatch_released": (0.0, 1.0)}
"""Mean and standard deviation of the noise in grey levels, before truncation to 0..255."""


def similar_peers(target: str, sites: Sequence[str], similarity: Tensor, top: int) -> list[str]:
    """Choose the sites whose models are most similar to the target's.

    Args:
        target: the site that gets the peers.
        sites: the sites that have trained, in the order of the rows of ``similarity``.
        similarity: shape ``(sites, sites)``.
        top: the maximum number of peers.

    Returns:
        Up to ``top`` names, most similar first, ties in natural order; none for a target that has not trained.

    Example:
        >>> likeness = torch.tensor([[1.0, 0.2, 0.9], [0.2, 1.0, 0.4], [0.9, 0.4, 1.0]])
        >>> similar_peers("site-1", ["site-1", "site-3", "site-6"], likeness, top=2)
        ['site-6', 'site-3']
        >>> similar_peers("site-2", ["site-1", "site-3", "site-6"], likeness, top=2)
        []
    """
    if target not in sites:
        return []
    likeness = dict(zip(sites, similarity[list(sites).index(target)].tolist(), strict=True))
    candidates = sorted(set(sites) - {target}, key=lambda site: (-likeness[site], natural_key(site), site))
    return candidates[:top]


def random_peers(target: str, sites: Sequence[str], top: int, generator: np.random.Generator) -> list[str]:
    """Draw peers uniformly without replacement from the sites that have trained.

    Returns:
        Up to ``top`` names other than ``target``, in the order drawn; none if ``target`` is not among ``sites``.
    """
    others = natural_sorted(set(sites) - {target})
    if target not in sites:
        return []
    return [str(name) for name in generator.permutation(np.array(others, dtype=object))[:top]]


def nearest_peers(target: str, embeddings: Mapping[str, Tensor], top: int) -> list[str]:
    """Choose the sites whose embeddings are nearest to the target's in Euclidean distance.

    Args:
        target: the site that gets the peers.
        embeddings: of each site that has trained, shape ``(features,)``.
        top: the maximum number of peers.

    Returns:
        Up to ``top`` names, nearest first, ties in natural order; none for a target without an embedding.

    Example:
        >>> points = {"a": torch.tensor([0.0]), "b": torch.tensor([3.0]), "c": torch.tensor([1.0])}
        >>> nearest_peers("a", points, top=1)
        ['c']
    """
    if target not in embeddings:
        return []
    own = embeddings[target].double()
    distance = {site: float((values.double() - own).norm()) for site, values in embeddings.items() if site != target}
    return sorted(distance, key=lambda site: (distance[site], natural_key(site), site))[:top]


def noise_image(choice: PeerChoice, channels: int, side: int, generator: np.random.Generator) -> Tensor:
    """Draw an image of Gaussian noise, truncated to the range of a byte.

    Args:
        choice: ``fedmatch`` has mean 125 and standard deviation 125, ``fedmatch_released`` 0 and 1 (nearly black).
        channels: of the image.
        side: height and width in pixels.
        generator: of the noise.

    Returns:
        Shape ``(1, channels, side, side)``, float32 in [0, 1].
    """
    from scipy.stats import truncnorm  # imported here because only a server with FedMatch peers needs it

    mean, deviation = NOISE[choice]
    low, high = -mean / deviation, (BYTE - mean) / deviation
    values = truncnorm.rvs(low, high, loc=mean, scale=deviation, size=(1, channels, side, side), random_state=generator)
    return torch.from_numpy(values / BYTE).float()


def passing_peers(
    peers: Sequence[str],
    policy: Policy,
    *,
    gate: float = 0.0,
    scale: GateScale = "absolute",
    target: str = "",
    accuracy: Mapping[str, float] = MappingProxyType({}),
    similarity: Mapping[str, float] = MappingProxyType({}),
) -> list[str]:
    r"""Keep the peers that pass a policy.

    .. math:: \Omega_v = \{n : V(n) \ge V(m)\}, \quad \Omega_{gv} = \{n : V(n) \ge \rho\},
              \quad \Omega_{gs} = \{n : W_{mn} \ge \rho\}

    A relative gate is :math:`\rho \max_k V(k)` over all models, or :math:`\rho \max_k W_{mk}` over the other sites. On hard
    data no model reaches an accuracy of 0.85: an absolute gate of that height rejects every peer.

    Args:
        peers: the selected peers :math:`S_T`.
        policy: ``none`` keeps all.
        gate: :math:`\rho`, in [0, 1].
        scale: ``absolute`` or ``relative``.
        target: the site that gets the peers, :math:`m`.
        accuracy: :math:`V`, of each site's last model on the server's validation images; for validation policies.
        similarity: :math:`W_{mk}` of the target with each other site; for ``gated_similarity``.

    Returns:
        The peers that pass, in their order; may be empty.

    Example:
        >>> accuracy = {"a": 0.7, "b": 0.7, "c": 0.69}
        >>> passing_peers(["b", "c"], "validation", target="a", accuracy=accuracy)
        ['b']
        >>> passing_peers(["b", "c"], "gated_validation", gate=0.75, accuracy=accuracy)
        []
        >>> passing_peers(["b", "c"], "gated_validation", gate=0.75, scale="relative", accuracy=accuracy)
        ['b', 'c']
    """
    if policy == "none":
        return list(peers)
    values = similarity if policy == "gated_similarity" else accuracy
    if policy == "validation":
        minimum = values[target]
    else:
        minimum = gate * max(values.values(), default=0.0) if scale == "relative" else gate
    return [peer for peer in peers if values[peer] >= minimum]


def anonymised_peer(states: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    r"""Average the peers' models (Eq. 6).

    .. math:: \theta_a = \frac{1}{k} \sum_{t=1}^{k} \theta_t

    Running means and variances of batch norm are averaged, too; integer entries take the maximum.

    Args:
        states: the peers' states, at least one, with the same entries. The average of one state is a copy of it and
            anonymises no site.

    Returns:
        New tensors of the same names, shapes and dtypes; they do not depend on the order of the states.

    Example:
        >>> anonymised_peer([{"weight": torch.tensor([1.0, 2.0])}, {"weight": torch.tensor([3.0, 6.0])}])
        {'weight': tensor([2., 4.])}
    """
    return {name: _average([state[name].detach() for state in states]) for name in states[0]}


def _average(values: list[Tensor]) -> Tensor:
    if not values[0].is_floating_point():
        return torch.stack(values).amax(dim=0)
    # A floating-point sum depends on its order, even in double precision; sorting by content fixes it.
    ordered = sorted(values, key=_content)
    total = functools.reduce(torch.add, (value.double() for value in ordered))
    return (total / len(values)).to(values[0].dtype)


def _content(value: Tensor) -> bytes:
    return value.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
