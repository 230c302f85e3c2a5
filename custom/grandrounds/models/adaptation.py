"""Statistics of a site's images for the batch norms of a network that starts from trained weights.

Adaptive batch normalisation (Li et al., "Adaptive Batch Normalization for Practical Domain Adaptation", Pattern Recognition
2018) needs no label. With ``problem.norm=site`` the trained layers normalise by the statistics that the site's own images
have in the network of the published weights. They stay at the site.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from grandrounds.data.images.tensors import to_tensor
from grandrounds.models.norm import adapt_statistics
from grandrounds.models.registry import build_model
from grandrounds.protocol.messages import is_running_statistic
from grandrounds.protocol.problem import ModelSpec

STATISTICS_BATCH = 128
MAX_IMAGES = 512


def site_statistics(
    spec: ModelSpec, seed: int, images: NDArray[np.uint8], rows: NDArray[np.integer], device: torch.device | str = "cpu"
) -> dict[str, Tensor]:
    """What :func:`~grandrounds.models.norm_layers.use_statistics` takes, from images with or without labels.

    Args:
        spec: of the network; its layers have the published weights, whatever has been trained since.
        seed: of the run.
        images: of one site, uint8, shape ``(images, height, width, channels)``.
        rows: of the images to use; if there are more than 512, this many evenly spaced ones.
        device: where to compute.

    Returns:
        Means and variances by ``state_dict`` name, each of shape ``(channels,)``: means over batches of at most 128 images.
    """
    chosen = rows[np.linspace(0, len(rows) - 1, min(len(rows), MAX_IMAGES)).round().astype(int)]
    batches = np.array_split(chosen, -(-len(chosen) // STATISTICS_BATCH))
    network = build_model(replace(spec, norm="batch", load_weights=True), seed).to(device)
    adapt_statistics(network, (to_tensor(np.ascontiguousarray(images[batch]), device) for batch in batches))
    state = network.state_dict()
    return {name: state[name] for name in state if is_running_statistic(name) and state[name].is_floating_point()}
