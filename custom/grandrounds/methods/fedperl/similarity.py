"""How alike the models of two hospitals are, from the statistics of their layers.

Bdair et al. (FedPerl), MELBA 2022: a model is described by the mean and standard deviation of each of its layers, and
two models are compared by the cosine. Their released code first scales each feature to [0, 1] over the models, which
the text does not mention. It matters: models fine-tuned from one start have raw cosines of almost one, so without
scaling the ranking hangs on the last digits and no similarity gate ever closes. Everything here is double precision.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Literal

import torch
from torch import Tensor

LayerSelection = Literal["parameters_and_buffers", "parameters", "weights"]
Normalisation = Literal["minmax", "none"]


def layer_moments(
    state: Mapping[str, Tensor], features: LayerSelection, parameter_names: Collection[str] = ()
) -> Tensor:
    r"""Describe a model by the mean and the unbiased standard deviation of each layer.

    .. math:: F = (\mu_1, \sigma_1, \dots, \mu_l, \sigma_l)

    Counters (integer entries, ``num_batches_tracked``) are left out; the deviation of a single number is zero.

    Args:
        state: the model's state, in its own order.
        features: which entries count as layers: all, those in ``parameter_names``, or those of two or more dimensions
            (kernels and matrices: no bias, no normalisation).
        parameter_names: the trainable entries; read for ``parameters`` only.

    Returns:
        Shape ``(2 * layers,)``, float64.

    Raises:
        ValueError: if no entry is left, one is empty or has a value that is not finite, or ``features`` is unknown.

    Example:
        >>> layer_moments({"weight": torch.tensor([1.0, 3.0]), "bias": torch.tensor([5.0])}, "parameters_and_buffers")
        tensor([2.0000, 1.4142, 5.0000, 0.0000], dtype=torch.float64)
    """
    if features not in ("parameters_and_buffers", "parameters", "weights"):
        raise ValueError(f"features must be parameters_and_buffers, parameters or weights, got {features!r}")
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
    r"""Scale each feature to [0, 1] over the models, or leave it as it is.

    .. math:: z_{mj} = \frac{F_{mj} - \min_n F_{nj}}{\max_n F_{nj} - \min_n F_{nj}}

    Args:
        features: one model in each row, shape ``(models, features)``.
        method: ``minmax``, where a feature that is the same in all models becomes one; or ``none``.

    Returns:
        Same shape, float64.

    Raises:
        ValueError: if ``features`` is not two-dimensional, or the method is unknown.

    Example:
        >>> normalise_features(torch.tensor([[2.0, 3.0], [4.0, 3.0]]), "minmax")
        tensor([[0., 1.],
                [1., 1.]], dtype=torch.float64)
    """
    if method not in ("minmax", "none"):
        raise ValueError(f"normalisation must be minmax or none, got {method!r}")
    if features.dim() != 2:
        raise ValueError(f"features must have shape (models, features), got {tuple(features.shape)}")
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
        Shape ``(models, models)``, float64, in [-1, 1], symmetric; the diagonal is one. A row of zeros has no
        direction: its cosines are zero, with itself too.

    Raises:
        ValueError: if ``features`` is not two-dimensional.

    Example:
        >>> cosine_similarity_matrix(torch.tensor([[3.0, 0.0], [3.0, 4.0], [0.0, 0.0]]))
        tensor([[1.0000, 0.6000, 0.0000],
                [0.6000, 1.0000, 0.0000],
                [0.0000, 0.0000, 0.0000]], dtype=torch.float64)
    """
    if features.dim() != 2:
        raise ValueError(f"features must have shape (models, features), got {tuple(features.shape)}")
    # A matrix product may round equal entries differently. Sorted, each model once: the result does not depend on the
    # order of the rows, and equal models tie exactly.
    distinct: tuple[Tensor, Tensor] = torch.unique(features.double(), dim=0, return_inverse=True)
    values, row = distinct
    norms = torch.linalg.vector_norm(values, dim=1, keepdim=True)
    directions = values / torch.where(norms > 0, norms, 1.0)
    cosines = directions @ directions.T
    cosines = ((cosines + cosines.T) / 2).clamp_(-1.0, 1.0)
    cosines.diagonal().copy_((norms > 0).squeeze(1))
    return cosines[row[:, None], row]


def similarity_matrix(features: Tensor, method: Normalisation) -> Tensor:
    """Normalise the features of all models, then compare every pair.

    Args:
        features: the moments of one model in each row, shape ``(models, features)``.
        method: how features are scaled; see ``normalise_features``.

    Returns:
        Cosines, shape ``(models, models)``, float64; see ``cosine_similarity_matrix``.
    """
    return cosine_similarity_matrix(normalise_features(features, method))


def _is_layer(name: str, value: Tensor) -> bool:
    return value.is_floating_point() and not name.endswith("num_batches_tracked")


def _mean_and_deviation(values: Tensor) -> tuple[Tensor, Tensor]:
    wide = values.double()
    mean = wide.mean()
    # Two passes: the mean of squares less the square of the mean cancels where the spread is small.
    return mean, ((wide - mean).square().sum() / max(wide.numel() - 1, 1)).sqrt()
