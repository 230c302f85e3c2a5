"""One hospital in the alignment: its networks, its optimizers by role, and its steps in the order of the protocol.

An iteration is: classify, embed, train the discriminator on what others have sent, align the encoder. What passes
between hospitals is what the methods return and take; how it travels is not known here.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from grandrounds.errors import GrandRoundsError
from grandrounds.federation.site.training import Adam
from grandrounds.methods.fed_align_cl.alignment import (
    encoder_objective,
    gradient_objective,
    source_objective,
    target_gradient,
    target_objective,
    train_discriminator,
    train_discriminator_as_released,
)
from grandrounds.methods.fed_align_cl.noise import EmbeddingNoiseOptions, noisy_embeddings
from grandrounds.models.compute import at_least_single
from grandrounds.models.norm import statistics_untouched
from grandrounds.models.split import split_network
from grandrounds.privacy.mechanisms.secure_noise import RandomBytes

Role = Literal["classification", "adversarial", "discriminator"]
ROLES: tuple[Role, ...] = ("classification", "adversarial", "discriminator")
LEARNING_RATE = 1e-5
MakeOptimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


def adam(learning_rate: float = LEARNING_RATE) -> MakeOptimizer:
    """Adam without weight decay, as the paper trains everything."""
    return partial(Adam, lr=learning_rate, fused=True)


def make_optimizers(
    network: nn.Module, discriminator: nn.Module, make: MakeOptimizer | None = None
) -> dict[Role, torch.optim.Optimizer]:
    """Three optimizers: of the whole network for classification, of its encoder for alignment, of the discriminator.

    Their moments are the site's own and go on after a deployment: keep their ``state_dict`` by role.

    Args:
        network: to be trained.
        discriminator: of the site.
        make: makes an optimizer of parameters; by default Adam with the paper's step size.
    """
    make = make or adam()
    return {
        "classification": make(network.parameters()),
        "adversarial": make(split_network(network).encoder.parameters()),
        "discriminator": make(discriminator.parameters()),
    }


@dataclass(frozen=True)
class Embedded:
    """A batch's embeddings with their graph, ``clean`` as the encoder made them and ``noisy`` as they travel."""

    clean: Tensor
    noisy: Tensor


class Participant:
    """One hospital's networks and steps.

    Args:
        network: images to logits, in training mode, with its head as last child; its activations may be recomputed.
        discriminator: of the site.
        optimizers: by role.
        noise: what happens to embeddings.
        random_bytes: where their noise comes from.
    """

    def __init__(
        self,
        network: nn.Module,
        discriminator: nn.Module,
        optimizers: Mapping[Role, torch.optim.Optimizer],
        noise: EmbeddingNoiseOptions,
        random_bytes: RandomBytes = os.urandom,
    ) -> None:
        self.network = network
        self.discriminator = discriminator
        self._encoder, self._head = split_network(network)
        self._optimizers = optimizers
        self._noise = noise
        self._random_bytes = random_bytes

    def classify(self, images: Tensor, labels: Tensor) -> Tensor:
        """Take a step of classification; return the cross-entropy before it, without a graph (Eq. 1)."""
        loss = F.cross_entropy(at_least_single(self.network(images)), labels)
        self._descend("classification", loss, self.network)
        return loss.detach()

    def embed(self, images: Tensor, count_statistics: bool = False) -> Embedded:
        """Embed a batch, normalised by its own statistics; noise is drawn once.

        Args:
            images: shape ``(batch, channels, height, width)``.
            count_statistics: whether the running statistics note the batch; not if classification has done so.
        """
        with nullcontext() if count_statistics else statistics_untouched(self._encoder):
            return self._with_noise(self._encoder(images))

    def discriminate(self, own: Embedded, others: Sequence[Tensor]) -> Tensor:
        """Train the discriminator, a step for each other hospital; return its mean loss."""
        return train_discriminator(self.discriminator, self._optimizers["discriminator"], own.clean, others)

    def discriminate_as_released(self, own: Embedded, others: Sequence[Tensor]) -> Tensor:
        """The authors' code in place of :meth:`discriminate`, after which they do nothing to the encoder."""
        return train_discriminator_as_released(self.discriminator, self._optimizers["discriminator"], own.noisy, others)

    def align(self, own: Embedded, others: Sequence[nn.Module]) -> Tensor:
        """One step of the encoder on all pairs, given the other hospitals' discriminators; return the loss."""
        return self._align(encoder_objective(self.discriminator, others, own.clean, own.noisy))

    def align_as_source(self, own: Embedded) -> Tensor:
        """One step of the encoder on one pair in which it is the source; return the loss."""
        return self._align(source_objective(self.discriminator, own.clean, pairs=1))

    def align_as_target(self, own: Embedded, other: nn.Module) -> Tensor:
        """One step of the encoder on one pair in which it is the target; return the loss."""
        return self._align(target_objective([other], own.noisy))

    def answer(self, noisy: Tensor) -> Tensor:
        """The gradient that another hospital gets for its embeddings, shape ``(samples, width)``."""
        return target_gradient(self.discriminator, noisy)

    def align_by_answers(self, own: Embedded, answers: Sequence[Tensor]) -> None:
        """One step of the encoder on all pairs, given each other hospital's answer."""
        source = source_objective(self.discriminator, own.clean, len(answers))
        self._align(source + gradient_objective(own.noisy, answers))

    def align_by_gradient(self, own: Embedded, gradient: Tensor) -> None:
        """One step of the encoder, given the gradient of everything for the embeddings that were sent."""
        self._align(gradient_objective(own.noisy, [gradient]))

    def learn_jointly(
        self, images: Tensor, labels: Tensor, batches: Sequence[Tensor], others: Sequence[nn.Module], weight: float
    ) -> dict[str, Tensor]:
        """Classification and alignment on one graph: one pass, one backward pass, one step of the network.

        Args:
            images: a batch.
            labels: its classes.
            batches: noisy embeddings of the other hospitals, for the discriminator.
            others: their discriminators.
            weight: of alignment beside classification.

        Returns:
            The three losses, without graphs.
        """
        own = self._with_noise(self._encoder(images))
        adversary = self.discriminate(own, batches)
        classification = F.cross_entropy(at_least_single(self._head(own.clean)), labels)
        alignment = encoder_objective(self.discriminator, others, own.clean, own.noisy)
        self._descend("classification", classification + weight * alignment, self.network)
        return {
            "loss": classification.detach(),
            "loss_alignment": alignment.detach(),
            "loss_discriminator": adversary,
        }

    def _with_noise(self, embeddings: Tensor) -> Embedded:
        embeddings = at_least_single(embeddings)
        return Embedded(embeddings, noisy_embeddings(embeddings, self._noise, self._random_bytes))

    def _align(self, loss: Tensor) -> Tensor:
        self._descend("adversarial", loss, self._encoder)
        return loss.detach()

    def _descend(self, role: Role, loss: Tensor, part: nn.Module) -> None:
        if not bool(torch.isfinite(loss)):
            raise GrandRoundsError(f"training diverged: the loss of {role} is not finite; lower executor.learning_rate")
        self._optimizers[role].zero_grad(set_to_none=True)
        # Into this part alone: the discriminators that the loss goes through keep their gradients as they are.
        torch.autograd.backward(loss, inputs=[p for p in part.parameters() if p.requires_grad])
        self._optimizers[role].step()
