r"""The noise on weights and embeddings before they leave a site.

A. Jiménez-Sánchez et al., "Memory-aware curriculum federated learning for breast cancer classification", Computer Methods
and Programs in Biomedicine 229, 2023, add :math:`N(0, s^2 \sigma^2)` to what sites send; the released code scales the noise
by each tensor's own standard deviation. Both are obfuscation without any guarantee: nothing is clipped, one record can
change the result by any amount, so no finite epsilon holds. Embeddings are clipped before, so that a third kind, a multiple
of the clipping bound, is the Gaussian mechanism per embedding.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping

import torch
from torch import Tensor

from grandrounds.data.images.tensors import to_device
from grandrounds.errors import GrandRoundsError
from grandrounds.federation.site.store import copy_to_cpu
from grandrounds.methods.fed_align_cl.options import EmbeddingNoiseOptions, Normals, WeightNoiseOptions
from grandrounds.privacy.mechanisms.gaussian import RandomBytes, noised_entries, with_noise
from grandrounds.protocol.tensors import RUNNING_VARIANCE

MEDIAN_FACTOR = 3.0
"""Default bound on the norm of an embedding, as a multiple of the median norm."""


def noisy_weights(weights: Mapping[str, Tensor], options: WeightNoiseOptions, normals: Normals) -> dict[str, Tensor]:
    """The weights as they leave: not their difference to the global model, whose deviation is another."""
    level = options.weight_noise_level
    if options.weight_noise == "absolute":
        return absolute_noise(weights, level, normals)
    return relative_noise(weights, level if options.weight_noise == "relative" else 0.0, normals)


def clip_embeddings(embeddings: Tensor, clip: float) -> Tensor:
    r"""Shorten every embedding to a norm of at most ``clip``, with a gradient.

    .. math:: e \cdot \frac{R}{\max(\|e\|_2, R)}

    Args:
        embeddings: shape ``(samples, width)``.
        clip: :math:`R`, above zero.

    Example:
        >>> clip_embeddings(torch.tensor([[3.0, 4.0], [0.3, 0.4]]), clip=1.0)
        tensor([[0.6000, 0.8000],
                [0.3000, 0.4000]])
    """
    norms = torch.linalg.vector_norm(embeddings, dim=1, keepdim=True)
    factors: Tensor = clip / norms.clamp_min(clip)
    return embeddings * factors


def clip_bound(embeddings: Tensor, options: EmbeddingNoiseOptions) -> float:
    r"""The bound on the norm of a set of embeddings: the option's, or :math:`3 \, \mathrm{median} \|e\|_2`.

    Networks differ in the norms of their embeddings by a factor of ten, so a fixed bound may cut all of one and none of
    another.

    Example:
        >>> clip_bound(torch.tensor([[3.0, 4.0], [6.0, 8.0], [0.0, 0.5]]), EmbeddingNoiseOptions())
        15.0
    """
    if options.embedding_clip is not None:
        return options.embedding_clip
    # Embeddings of a dead encoder are zero and have no scale.
    return MEDIAN_FACTOR * float(torch.linalg.vector_norm(embeddings.detach().double(), dim=1).median()) or 1.0


def clipped_share(embeddings: Tensor, clip: float) -> float:
    """The share of embeddings, shape ``(samples, width)``, whose norm is above a bound.

    Example:
        >>> clipped_share(torch.tensor([[3.0, 4.0], [0.3, 0.4]]), clip=1.0)
        0.5
    """
    return float((torch.linalg.vector_norm(embeddings.detach(), dim=1) > clip).double().mean())


def embedding_deviation(clipped: Tensor, options: EmbeddingNoiseOptions, clip: float) -> float:
    """The standard deviation of the noise for a set of embeddings.

    Args:
        clipped: shape ``(samples, width)``, already clipped.
        options: how much.
        clip: the bound, see :func:`clip_bound`.

    Returns:
        Above zero. With ``relative`` embeddings that are all equal, whose deviation is zero, get the noise of embeddings
        whose entries are as large as the bound allows: the output of a dead encoder gets noise, too.
    """
    level = options.embedding_noise_level
    if options.embedding_noise == "absolute":
        return math.sqrt(level)
    if options.embedding_noise == "clipped":
        return level * clip
    deviation = float(clipped.detach().double().std(correction=0))
    return level * (deviation or clip / math.sqrt(clipped.shape[1]))


def noisy_embeddings(
    embeddings: Tensor,
    options: EmbeddingNoiseOptions,
    random_bytes: RandomBytes = os.urandom,
    gate: tuple[float, float] | None = None,
) -> Tensor:
    """Clip embeddings and add noise that is drawn once, for sending and for training.

    Args:
        embeddings: shape ``(samples, width)``, with their graph.
        options: how much.
        gate: bound on the norm and standard deviation of the noise that the site's privacy gate adds to what is sent: for
            training, which must see what the others see. None for sending.
        random_bytes: where the noise comes from. The default is the operating system's generator, which no party can
            predict; a seeded one makes a run repeatable and its noise no secret.

    Returns:
        The same shape and dtype, on the same device, with the graph of the embeddings.

    Raises:
        GrandRoundsError: if an embedding is not finite.
    """
    seen = embeddings.detach().cpu()  # noise is scaled and added on the host, which waits for an accelerator
    if not bool(torch.isfinite(seen).all()):
        raise GrandRoundsError("training diverged: an embedding is not finite; lower executor.learning_rate")
    clip = clip_bound(seen, options)
    deviation = embedding_deviation(clip_embeddings(seen, clip), options, clip)
    noisy = _with_noise(clip_embeddings(embeddings, clip), deviation, random_bytes)
    return noisy if gate is None else _with_noise(clip_embeddings(noisy, gate[0]), gate[1], random_bytes)


def absolute_noise(weights: Mapping[str, Tensor], variance: float, normals: Normals) -> dict[str, Tensor]:
    r"""The paper's noise: the standard deviation :math:`\sigma` on every entry; its sensitivity :math:`s` is one.

    Args:
        weights: by ``state_dict`` name.
        variance: :math:`\sigma^2`; the paper tries 0, 0.001, 0.01 and 0.1.
        normals: draws the noise.

    Returns:
        New tensors of the same dtypes. Integer buffers and running variances are copies: a variance with noise may be
        negative.

    Example:
        >>> state = {"w": torch.ones(3), "bn.running_var": torch.ones(1)}
        >>> absolute_noise(state, 0.0, torch.randn)["w"]
        tensor([1., 1., 1.])
    """
    return _noised(weights, dict.fromkeys(_noisy(weights), math.sqrt(variance)), normals)


def relative_noise(weights: Mapping[str, Tensor], fraction: float, normals: Normals) -> dict[str, Tensor]:
    r"""The released code's noise: :math:`\kappa` times the standard deviation of each tensor's own values.

    The scale depends on the data, so it reveals something about them.

    Args:
        weights: by ``state_dict`` name.
        fraction: :math:`\kappa`; 0.001 in the code.
        normals: draws the noise.

    Returns:
        New tensors of the same dtypes. Integer buffers, running variances, constant tensors and single values are copies.

    Example:
        >>> relative_noise({"constant": torch.ones(3)}, 0.001, torch.randn)
        {'constant': tensor([1., 1., 1.])}
    """
    scales = {name: fraction * float(value.std()) for name, value in _noisy(weights).items() if value.numel() > 1}
    return _noised(weights, scales, normals)


def _with_noise(embeddings: Tensor, deviation: float, random_bytes: RandomBytes) -> Tensor:
    sent = with_noise(embeddings, deviation, random_bytes)
    return embeddings + (to_device(sent.to(embeddings.dtype), embeddings.device) - embeddings.detach())


def _noisy(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {
        name: value for name, value in noised_entries(weights).items() if name.rpartition(".")[2] != RUNNING_VARIANCE
    }


def _noised(weights: Mapping[str, Tensor], scales: Mapping[str, float], normals: Normals) -> dict[str, Tensor]:
    noised = copy_to_cpu(weights)
    for name, scale in scales.items():
        if scale > 0:
            # Drawn in single precision, five times as fast: it obfuscates, and no guarantee rests on its lowest bits.
            noise = normals(noised[name].shape)
            noised[name].add_(noise.to(noised[name].dtype), alpha=scale)
    return noised
