"""FedDF: average the models that can be averaged, then distil each from all.

Lin, Kong, Stich & Jaggi, "Ensemble Distillation for Robust Model Fusion in Federated Learning", NeurIPS 2020. Weights
travel, and whoever distils holds the public images and every architecture. Where the architectures are all different there
is nothing to average.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from grandrounds.errors import ConfigurationError, GrandRoundsError
from grandrounds.federation.site.training import Adam
from grandrounds.methods.mutual.bn_recalibration import recalibrate_batch_norm
from grandrounds.methods.mutual.distillation import Averaging, alignment_loss, ensemble_target
from grandrounds.methods.mutual.predictions import as_input, public_rows
from grandrounds.methods.mutual.work import Work
from grandrounds.options import POSITIVE, Min, Options
from grandrounds.ordering import natural_sorted


@dataclass(frozen=True)
class FusionOptions(Options):
    """How a model is distilled from all. Without labels there is no validation set to stop by."""

    distillation_steps: Annotated[int, "batches", Min(1)] = 1000
    distillation_batch: Annotated[int, "public images in a batch", Min(2)] = 128
    distillation_rate: Annotated[float, "learning rate of Adam, which falls to zero along a half cosine", POSITIVE] = (
        1e-3
    )
    clip_norm: Annotated[float, "largest norm of a gradient", POSITIVE] = 5.0
    averaging: Annotated[Averaging, "what of the teachers is averaged (FedDF's text: logits)"] = "logits"
    recalibrate_bn: Annotated[bool, "recompute batch norm's statistics from all public images afterwards"] = False

    def require_batch(self, images: int) -> None:
        """Check that so many public images make a batch.

        Raises:
            ConfigurationError: if not.
        """
        if images < self.distillation_batch:
            raise ConfigurationError(
                f"the public set has {images} images, which make no batch of {self.distillation_batch}; lower "
                "distillation_batch or add images"
            )


def means_by_architecture(
    states: Mapping[str, Mapping[str, Tensor]], architectures: Mapping[str, str]
) -> dict[str, dict[str, Tensor]]:
    """The mean model of each architecture, all sites alike.

    Args:
        states: state of the model of each site.
        architectures: fingerprint of the architecture of each site, see ``models.registry.architecture_fingerprint``.

    Returns:
        By fingerprint: floating-point entries averaged in the natural order of the sites, others as the first site has
        them.

    Raises:
        ValueError: if two states of one architecture differ in names or shapes, or a site has no architecture.

    Example:
        >>> states = {"a": {"w": torch.tensor([1.0])}, "b": {"w": torch.tensor([3.0])}, "c": {"v": torch.tensor([5.0])}}
        >>> means_by_architecture(states, {"a": "x", "b": "x", "c": "y"})
        {'x': {'w': tensor([2.])}, 'y': {'v': tensor([5.])}}
    """
    members: dict[str, list[str]] = {}
    for site in natural_sorted(states):
        if site not in architectures:
            raise ValueError(f"the architecture of {site} is not known")
        members.setdefault(architectures[site], []).append(site)
    return {kind: _mean_state([states[site] for site in sites], sites) for kind, sites in members.items()}


def teacher_rows(
    teachers: Sequence[nn.Module],
    images: NDArray[np.uint8],
    work: Work,
    averaging: Averaging = "logits",
    batch_size: int = 256,
) -> Tensor:
    """The ensemble's soft labels for all public images, once for all steps: the teachers do not change meanwhile.

    Returns:
        Probabilities, shape ``(images, classes)``, on the CPU.

    Raises:
        ValueError: if there is no teacher, or they differ in the number of classes.
    """
    rows = np.arange(len(images), dtype=np.int64)
    each = [public_rows(teacher, images, rows, work, batch_size=batch_size, content="logits") for teacher in teachers]
    return ensemble_target(each, averaging)


def distil(
    student: nn.Module,
    images: NDArray[np.uint8],
    target: Tensor,
    options: FusionOptions,
    generator: np.random.Generator,
    work: Work,
) -> float:
    """Move a model towards the ensemble's soft labels.

    Args:
        student: trained in place, in training mode.
        images: all public images.
        target: their soft labels, see :func:`teacher_rows`.
        options: how.
        generator: draws the batches, without replacement within a batch.
        work: where to compute.

    Returns:
        The mean loss over the steps, in nats.

    Raises:
        ConfigurationError: if the images do not make a batch.
        GrandRoundsError: if the loss is not finite.
    """
    size = options.distillation_batch
    options.require_batch(len(images))
    student.train()
    optimizer = Adam(student.parameters(), lr=options.distillation_rate, fused=True)
    decay = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, options.distillation_steps)
    wanted = target.to(work.device, next(student.parameters()).dtype)
    losses: list[Tensor] = []
    for _ in range(options.distillation_steps):
        work.check_abort()
        batch = generator.choice(len(images), size, replace=False)
        with work.autocast():
            logits = student(as_input(student, images[batch], work.device))
        loss = alignment_loss(logits, wanted[torch.from_numpy(batch).to(work.device)])
        optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(student.parameters(), options.clip_norm)
        optimizer.step()
        decay.step()
        losses.append(loss.detach())
    if options.recalibrate_bn:
        recalibrate_batch_norm(student, images, np.arange(len(images), dtype=np.int64), work)
    mean = float(torch.stack(losses).double().mean())
    if not np.isfinite(mean):
        raise GrandRoundsError("distillation diverged: its loss is not finite; lower distillation_rate")
    return mean


def _mean_state(states: Sequence[Mapping[str, Tensor]], sites: Sequence[str]) -> dict[str, Tensor]:
    shapes = [{name: entry.shape for name, entry in state.items()} for state in states]
    for site, own in zip(sites, shapes, strict=True):
        if own != shapes[0]:
            raise ValueError(
                f"models of {sites[0]} and {site} are said to be of one architecture and differ in entries"
            )
    return {name: _mean_entry([state[name] for state in states]) for name in states[0]}


def _mean_entry(entries: Sequence[Tensor]) -> Tensor:
    if not entries[0].is_floating_point():
        return entries[0].clone()
    total = torch.zeros_like(entries[0], dtype=torch.float64)
    for entry in entries:
        total += entry
    return (total / len(entries)).to(entries[0].dtype)
