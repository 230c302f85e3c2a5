"""FedDF: average the models that can be averaged, then distil each from all.

Lin, Kong, Stich & Jaggi, "Ensemble Distillation for Robust Model Fusion in Federated Learning", NeurIPS 2020. Weights
travel, and the server holds the public images and every architecture. Where all architectures differ there is nothing to
average.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import torch
from torch import Tensor, nn

from grandrounds.data.images.tensors import to_device
from grandrounds.errors import ConfigurationError
from grandrounds.federation.site.context import SiteContext
from grandrounds.federation.site.training import Adam, Meter, OptimizerStep, train_steps
from grandrounds.methods.mutual.loss import alignment_loss
from grandrounds.methods.mutual.public import as_input, predict_public
from grandrounds.methods.mutual.training import recalibrate_batch_norm
from grandrounds.option_annotations import ABOVE_ZERO, METHOD, Min
from grandrounds.options import Options
from grandrounds.ordering import natural_sorted

Averaging = Literal["logits", "probabilities"]


@dataclass(frozen=True)
class FusionOptions(Options):
    """How a model is distilled from all. Without labels there is no validation set to stop by."""

    distillation_steps: Annotated[int, "batches", Min(1), METHOD] = 1000
    distillation_batch: Annotated[int, "public images in a batch", Min(2)] = 128
    distillation_rate: Annotated[
        float, "learning rate of Adam, which falls to zero along a half cosine", ABOVE_ZERO, METHOD
    ] = 1e-3
    clip_norm: Annotated[float, "maximum norm of a gradient", ABOVE_ZERO] = 5.0
    averaging: Annotated[Averaging, "what of the teachers is averaged (FedDF's text: logits)"] = "logits"
    recalibrate_bn: Annotated[bool, "recompute batch norm's statistics from all public images afterwards"] = False

    def require_batch(self, images: int) -> None:
        """Check that there are enough public images for a batch.

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

    Example:
        >>> states = {"a": {"w": torch.tensor([1.0])}, "b": {"w": torch.tensor([3.0])}, "c": {"v": torch.tensor([5.0])}}
        >>> means_by_architecture(states, {"a": "x", "b": "x", "c": "y"})
        {'x': {'w': tensor([2.])}, 'y': {'v': tensor([5.])}}
    """
    members: dict[str, list[Mapping[str, Tensor]]] = {}
    for site in natural_sorted(states):
        members.setdefault(architectures[site], []).append(states[site])
    return {
        kind: {name: _mean_entry([state[name] for state in states]) for name in states[0]}
        for kind, states in members.items()
    }


def ensemble_target(teachers: Sequence[Tensor], averaging: Averaging = "logits") -> Tensor:
    r"""Soft labels of all sites' models together, to which FedDF distils each of its students.

    .. math:: t = \mathrm{softmax}\Big(\frac{1}{P} \sum_j z_j\Big) \quad\text{or}\quad
        t = \frac{1}{P} \sum_j \mathrm{softmax}(z_j)

    The students' loss is :func:`~grandrounds.methods.mutual.loss.alignment_loss`. With ``probabilities`` its gradient is
    that of FedDF's mean over the teachers of the divergences from each.

    Args:
        teachers: logits of each of at least one model, every one of shape ``(batch, classes)``.
        averaging: what is averaged; ``logits`` is FedDF's text, ``probabilities`` the default of its code.

    Returns:
        Probabilities, shape ``(batch, classes)``, without gradient.

    Example:
        >>> ensemble_target([torch.tensor([[0.8, 0.2]]).log(), torch.tensor([[0.2, 0.8]]).log()])
        tensor([[0.5000, 0.5000]])
    """
    scores = torch.stack([teacher.detach() for teacher in teachers])
    if averaging == "logits":
        return scores.mean(dim=0).softmax(dim=-1)
    return scores.softmax(dim=-1).mean(dim=0)


def ensemble_soft_labels(
    teachers: Sequence[nn.Module], context: SiteContext, averaging: Averaging = "logits", batch_size: int = 256
) -> Tensor:
    """The ensemble's soft labels for all public images, once for all steps: the teachers do not change meanwhile.

    Args:
        teachers: the models of all sites, at least one.
        context: of the server's computation; its data are the public images.
        averaging: see :func:`ensemble_target`.
        batch_size: maximum number of images in a batch.

    Returns:
        Probabilities, shape ``(images, classes)``, on the CPU.
    """
    images = context.data.images
    rows = np.arange(len(images), dtype=np.int64)
    logits = [
        predict_public(teacher, images, rows, context, batch_size=batch_size, content="logits") for teacher in teachers
    ]
    return ensemble_target(logits, averaging)


class DistillationStep(OptimizerStep):
    """Takes steps of Adam with clipped gradients and a learning rate that falls along a half cosine."""

    def __init__(self, student: nn.Module, options: FusionOptions) -> None:
        optimizer = Adam(student.parameters(), lr=options.distillation_rate, fused=True)
        super().__init__(student, optimizer, clip_norm=options.clip_norm)
        self._decay = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, options.distillation_steps)

    def step(self, losses: Iterable[Tensor]) -> None:
        """Go one step down the sum of the losses."""
        super().step(losses)
        self._decay.step()


def distil(
    student: nn.Module, target: Tensor, options: FusionOptions, generator: np.random.Generator, context: SiteContext
) -> float:
    """Move a model towards the ensemble's soft labels.

    Args:
        student: trained in place, in training mode.
        target: soft labels of all public images, see :func:`ensemble_soft_labels`.
        options: how.
        generator: draws the batches, without replacement within a batch.
        context: of the server's computation; its data are the public images, at least a batch.

    Returns:
        The mean loss over the steps, in nats.

    Raises:
        GrandRoundsError: if the loss is not finite.
    """
    images, steps = context.data.images, options.distillation_steps
    student.train()
    wanted = target.to(context.device, next(student.parameters()).dtype)

    def loss_of(step: int) -> Tensor:
        batch = generator.choice(len(images), options.distillation_batch, replace=False)
        with context.autocast():
            logits = student(as_input(student, context.views(batch, "none", public=images)))
        return alignment_loss(logits, wanted[to_device(batch, context.device)])

    meter = Meter()
    step = DistillationStep(student, options)
    train_steps(context, steps, loss_of, step, meter, "controller.distillation_rate", "distillation")
    if options.recalibrate_bn:
        recalibrate_batch_norm(student, np.arange(len(images), dtype=np.int64), context, images)
    return meter.total("loss") / steps


def _mean_entry(entries: Sequence[Tensor]) -> Tensor:
    if not entries[0].is_floating_point():
        return entries[0].clone()
    total = torch.zeros_like(entries[0], dtype=torch.float64)
    for entry in entries:
        total += entry
    return (total / len(entries)).to(entries[0].dtype)
