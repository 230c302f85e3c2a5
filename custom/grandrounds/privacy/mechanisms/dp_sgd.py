r"""Record-level private training (DP-SGD): per-sample clipped gradients with noise, on secret Poisson batches.

.. math:: g = \frac{1}{qN} \Big( \sum_{i \in B} g_i \min(1, C / \|g_i\|_2) + N(0, z^2 C^2 I) \Big)

Abadi et al., "Deep Learning with Differential Privacy", CCS 2016, algorithm 1. Each image is in the batch :math:`B` with
probability :math:`q`, independently. The guarantee is for one image; a patient with k images has about k times the epsilon.
With the unit ``patient`` patients are sampled instead of images, and each adds the gradient of one image, drawn anew in
every step: the guarantee is for all images of a patient.

It holds for losses that are a mean over samples. Losses that compare samples and layers that normalise by the batch have no
per-sample gradients and are refused.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from grandrounds.data.images.tensors import to_device
from grandrounds.errors import ConfigurationError
from grandrounds.privacy.mechanisms.gaussian import with_noise
from grandrounds.privacy.mechanisms.record_level import RecordLevelOptions

Loss = Callable[[Tensor, Tensor], Tensor]
"""The mean loss of logits, shape ``(batch, classes)``, and targets, shape ``(batch, ...)``."""
MEAN_TOLERANCE = 1e-4
DRAWN = 4
"""Samples with which a loss is checked."""
FLOAT_STEPS = 2**53
GRADIENT_VALUES, MAX_MICROBATCH = 2**24, 512
"""How many values the samples' gradients may have in memory at once, and the maximum number of samples."""
HALF_ULP = 2.0**-24
"""The relative rounding error of single precision."""


class PrivateStep:
    """Computes the private gradients of one step; any optimizer may follow.

    ``records`` is :math:`N`, the number of images or patients that batches are drawn from, at least 1.

    Raises:
        ConfigurationError: if a layer of the network mixes the samples of a batch (batch norm) or keeps statistics.
    """

    def __init__(self, network: nn.Module, loss: Loss, records: int, options: RecordLevelOptions) -> None:
        require_separate_samples(network)
        if records < 1:
            raise ConfigurationError(f"records must be at least 1, got {records}")
        self._network = network
        self._loss = loss
        self._records = records
        self._options = options
        self._checked = False

    def set_gradients(self, images: Tensor, targets: Tensor) -> None:
        """Put the noisy gradient of a batch into ``.grad`` of each trained parameter.

        Images, possibly none, have shape ``(batch, channels, height, width)``; labels or soft labels ``(batch, ...)``.

        Raises:
            ConfigurationError: if the loss is not a mean over samples.
        """
        trained = {name: value for name, value in self._network.named_parameters() if value.requires_grad}
        sums = {name: torch.zeros_like(value, dtype=torch.float64) for name, value in trained.items()}
        weights = max(1, sum(value.numel() for value in trained.values()))
        size = self._options.microbatch or max(1, min(MAX_MICROBATCH, GRADIENT_VALUES // weights))
        for chunk, target in _chunks(images, targets, size):
            self._require_mean(chunk[:1], target[:1])
            for name, value in self._clipped_sum(trained, chunk, target).items():
                sums[name] += value
        sigma = self._options.noise_multiplier * self._options.clip
        expected = self._options.sampling_rate * self._records
        for name, parameter in trained.items():
            noisy = with_noise(sums[name], sigma) / expected
            parameter.grad = to_device(noisy.to(parameter.dtype), parameter.device)

    def _clipped_sum(self, trained: dict[str, nn.Parameter], images: Tensor, targets: Tensor) -> dict[str, Tensor]:
        values = {name: parameter.detach() for name, parameter in trained.items()}

        def loss_of(parameters: dict[str, Tensor], image: Tensor, target: Tensor) -> Tensor:
            """The loss of one sample as a function of the parameters."""
            return self._loss(functional_call(self._network, parameters, (image[None],)), target[None])

        each = vmap(grad(loss_of), in_dims=(None, 0, 0), randomness="different")(values, images, targets)
        rows = {name: gradient.flatten(1) for name, gradient in each.items()}
        squares = [torch.linalg.vector_norm(row, dim=1, dtype=torch.float64).square() for row in rows.values()]
        norms = torch.stack(squares).sum(dim=0).sqrt()
        # A gradient that is not finite counts as zero. An error would tell, without noise, that such an image is there.
        finite = torch.isfinite(norms)
        # Two sums of n clipped gradients in single precision are each off by at most n^2 half units of the clip.
        bound = self._options.clip * (1 - 2 * len(images) ** 2 * HALF_ULP)
        factors = torch.where(finite, (bound / norms).clamp(max=1.0), 0.0).to(images.dtype)
        with torch.autocast(images.device.type, enabled=False):  # half precision would round beyond the bound
            sums = {name: factors @ row.nan_to_num_(0.0, 0.0, 0.0) for name, row in rows.items()}
        return {name: value.view_as(values[name]) for name, value in sums.items()}

    def _require_mean(self, image: Tensor, target: Tensor) -> None:
        """Check once that the loss of several samples is the mean of theirs.

        The logits and targets are drawn: an error about the site's own would depend on them without noise. Of image and
        target, one each, only the form counts.
        """
        if self._checked:
            return
        with torch.no_grad():
            classes = self._network(torch.zeros_like(image)).shape[1]
            logits = torch.randn(DRAWN, classes, device=image.device)
            if target.is_floating_point():
                targets = torch.rand(DRAWN, *target.shape[1:], device=target.device, dtype=target.dtype)
            else:
                targets = torch.randint(classes, (DRAWN, *target.shape[1:]), device=target.device)
            together = self._loss(logits, targets)
            alone = torch.stack([self._loss(logits[i : i + 1], targets[i : i + 1]) for i in range(DRAWN)]).mean()
        if not bool(torch.isclose(together, alone, rtol=MEAN_TOLERANCE, atol=MEAN_TOLERANCE)):
            raise ConfigurationError(
                f"the loss is not a mean over samples (batch {float(together):.5g}, mean of its samples "
                f"{float(alone):.5g}): pairs, batch statistics and class weights cannot be record-level private; train "
                "without them"
            )
        self._checked = True


def poisson_batches(rows: NDArray[np.int64], options: RecordLevelOptions) -> Iterator[NDArray[np.int64]]:
    """Draw the batches of a round; each row is in each batch with probability ``sampling_rate``, independently.

    The draw must be secret: privacy amplification by sampling does not hold against a party that can repeat it. Therefore
    the generator has no seed.

    Yields:
        Rows in ascending order, possibly none.
    """
    for _ in range(options.steps):
        words = np.frombuffer(os.urandom(8 * len(rows)), np.uint64) >> np.uint64(11)
        yield rows[words < np.uint64(math.ceil(options.sampling_rate * FLOAT_STEPS))]


def one_image_each(units: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    """Draw one row of each unit, for example of each patient in a batch; all rows of a unit are equally likely.

    Example:
        >>> one_image_each([np.array([4]), np.array([7])]).tolist()
        [4, 7]
    """
    return np.array([rows[int.from_bytes(os.urandom(8)) % len(rows)] for rows in units], np.int64)


def require_separate_samples(network: nn.Module) -> None:
    """Check that no layer mixes the samples of a batch or keeps running statistics.

    Raises:
        ConfigurationError: naming the first layer that does.

    Example:
        >>> require_separate_samples(nn.Sequential(nn.Conv2d(3, 4, 1), nn.GroupNorm(2, 4)))
    """
    for name, module in network.named_modules():
        mixes = isinstance(module, nn.modules.batchnorm._BatchNorm)
        if mixes or getattr(module, "track_running_stats", False):
            raise ConfigurationError(
                f"layer {name!r} is a {type(module).__name__}, which mixes the samples of a batch: record-level privacy "
                "needs problem.norm=group, or frozen"
            )


def _chunks(images: Tensor, targets: Tensor, size: int) -> Iterator[tuple[Tensor, Tensor]]:
    for start in range(0, len(images), size):
        yield images[start : start + size], targets[start : start + size]
