"""Fed-Align-CL at a site: a stretch of iterations between two communications, and what the others need for the next."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from grandrounds.errors import ConfigurationError, MessageError
from grandrounds.federation.aggregation import difference
from grandrounds.federation.site.context import SiteContext
from grandrounds.federation.site.executor import SiteExecutor
from grandrounds.federation.site.hooks import OPTIMIZER
from grandrounds.federation.site.store import copy_to_cpu
from grandrounds.methods.fed_align_cl.averaging import averaged_entries
from grandrounds.methods.fed_align_cl.bank import (
    BANK,
    BATCH_SIZE,
    BATCH_SIZES,
    DISCRIMINATOR,
    EMBEDDINGS,
    require_bank,
    unpack,
)
from grandrounds.methods.fed_align_cl.curriculum import Indices, Memory
from grandrounds.methods.fed_align_cl.local_steps import StretchWork, TrainingImages, draw_order
from grandrounds.methods.fed_align_cl.loss import make_discriminator, received_discriminator
from grandrounds.methods.fed_align_cl.noise import noisy_weights
from grandrounds.methods.fed_align_cl.options import (
    AlignmentOptions,
    CurriculumOptions,
    NoiseOptions,
    PartOptions,
    ScheduleOptions,
)
from grandrounds.methods.fed_align_cl.paced import Neighbour
from grandrounds.methods.fed_align_cl.participant import ROLES, Participant, Role
from grandrounds.methods.fed_align_cl.prediction import correct_predictions, require_channels
from grandrounds.methods.fed_align_cl.schedule import Stretch, scores_are_due, stretch_of_round, takes_part
from grandrounds.methods.supervised.training import labelled_rows
from grandrounds.models.backbones.resnet22 import recompute_activations
from grandrounds.models.norm import normalises_by_batch
from grandrounds.models.split import embedding_width, split_network
from grandrounds.options import take_options
from grandrounds.protocol.messages import GLOBAL, Payload, Release, ReleaseKind, Result, State, model_update
from grandrounds.seeding import numpy_generator, torch_generator


class FedAlignExecutor(SiteExecutor):
    """Trains the deployed model from one communication to the next, aligned with the others' noisy embeddings.

    Memory of what was forgotten, optimizers and what is not averaged stay at the site.

    Args:
        options: those of :class:`~grandrounds.methods.fed_align_cl.options.ScheduleOptions`,
            :class:`~grandrounds.methods.fed_align_cl.options.AlignmentOptions`,
            :class:`~grandrounds.methods.fed_align_cl.options.CurriculumOptions`,
            :class:`~grandrounds.methods.fed_align_cl.options.PartOptions`,
            :class:`~grandrounds.methods.fed_align_cl.options.NoiseOptions` and
            :class:`~grandrounds.federation.site.executor.SiteExecutor`.
    """

    releases: ClassVar[Mapping[str, ReleaseKind]] = MappingProxyType(
        {BANK: ReleaseKind.EMBEDDINGS, DISCRIMINATOR: ReleaseKind.DISCRIMINATOR}
    )
    models: ClassVar[tuple[str, ...]] = ("shared",)
    record_level_obstacle: ClassVar[str] = "alignment compares images of two sites"
    option_groups: ClassVar[tuple[type, ...]] = (
        ScheduleOptions,
        AlignmentOptions,
        CurriculumOptions,
        PartOptions,
        NoiseOptions,
    )

    def __init__(self, **options: Any) -> None:
        self.schedule, others = take_options(ScheduleOptions, options)
        self.alignment, others = take_options(AlignmentOptions, others)
        self.curriculum, others = take_options(CurriculumOptions, others)
        self.parts, others = take_options(PartOptions, others)
        self.noise, others = take_options(NoiseOptions, others)
        super().__init__(**{"optimizer": "kept", **others})
        if self.alignment.exchange != "paced":
            raise ConfigurationError(
                f"exchange must be paced between machines, got {self.alignment.exchange!r}, which exchanges embeddings in "
                "every iteration and is for studies in one process"
            )
        if self.parts.recompute_activations and self.compute.compiler != "none":
            raise ConfigurationError("recompute_activations needs compiler=none: torch cannot compile what it does")
        if self.alignment.bank_rows == "distinct" and self.curriculum.replacement:
            raise ConfigurationError(
                "bank_rows=distinct needs replacement=false: an image that an order has twice would be in two rows of a bank"
            )

    def options(self) -> dict[str, Any]:
        """How the site trains and what it sends."""
        groups = (self.schedule, self.alignment, self.curriculum, self.parts, self.noise)
        return {name: value for group in groups for name, value in asdict(group).items()}

    def starting_state(self, payload: Payload, context: SiteContext) -> State:
        """The deployed model, with the site's own entries where they are not averaged."""
        return {**super().starting_state(payload, context), **self.kept.get("local", {})}

    def train(self, payload: Payload, context: SiteContext) -> Result:
        """Train up to the next communication."""
        stretch = stretch_of_round(context.round_number, self.schedule.iterations, self.schedule.pace)
        network = self.starting_model(payload, context)
        if self.parts.recompute_activations:
            recompute_activations(network)
        require_channels(context.data.images.shape[3], network, context.site)
        least = 2 if normalises_by_batch(network) else 1
        rows = labelled_rows(context.data, self.parts.labels)
        images = TrainingImages(context, rows, self.schedule.iterations, least, self.parts.view)
        participant, optimizers = self._participant(network, context)
        memory = self._memory(network, images)
        order = self._order(stretch, memory, context)
        work = StretchWork(participant, images, order, stretch, self.schedule, context)
        metrics = work.train(self._neighbours(payload, network, stretch, context), self.alignment)
        if self._remembers(stretch) and memory.wants_before(stretch.closes):
            memory.before(correct_predictions(network, images.all()), stretch.closes)
        self._keep(work, optimizers, memory)
        metrics[BATCH_SIZE] = float(images.batch_size)
        return Result(self._releases(payload.parts[GLOBAL], work), metrics, len(images))

    def _participant(
        self, network: nn.Module, context: SiteContext
    ) -> tuple[Participant, dict[Role, torch.optim.Optimizer]]:
        encoder, head = split_network(network)
        discriminator = make_discriminator(embedding_width(head), context.seed, "site", context.site, DISCRIMINATOR)
        if DISCRIMINATOR in self.kept:
            discriminator.load_state_dict(self.kept[DISCRIMINATOR])
        discriminator.to(context.device)
        parts = {"classification": network, "adversarial": encoder, "discriminator": discriminator}
        rates = self.alignment.learning_rates(self.schedule.learning_rate)
        optimizers = {role: self.make_optimizer(parts[role], rates[role], role=role) for role in ROLES}
        random_bytes = self.noise.random_bytes(context.key("training noise"))
        return Participant(network, discriminator, optimizers, self.noise.embeddings, random_bytes), optimizers

    def _remembers(self, stretch: Stretch) -> bool:
        """Whether the communication after a stretch tells what was forgotten, for an epoch that makes use of it."""
        # Two epochs' ends are compared, so the first has to be looked at one epoch earlier than it is used.
        early = int(self.curriculum.comparison == "epoch_to_epoch")
        return self.parts.curriculum and scores_are_due(stretch.epoch + early, self.schedule.warm_up)

    def _memory(self, network: nn.Module, images: TrainingImages) -> Memory:
        """The memory, after the deployed model has been compared with what this site had before it last answered."""
        memory = Memory(self.curriculum.comparison, len(images))
        if "memory" in self.kept:
            memory.load_state_dict(self.kept["memory"])
        if "trained" not in self.kept:
            return memory
        before = stretch_of_round(self.kept["trained"], self.schedule.iterations, self.schedule.pace)
        if self._remembers(before) and memory.wants_after(before.closes):
            memory.after(correct_predictions(network, images.all()), before.closes)
        return memory

    def _order(self, stretch: Stretch, memory: Memory, context: SiteContext) -> Indices:
        """The epoch's order, the same in all of its rounds: memory is settled at the end of an epoch only."""
        generator = numpy_generator(context.seed, "site", context.site, "epoch", stretch.epoch, "order")
        forgotten = memory.forgotten()
        if self.parts.curriculum and takes_part(stretch.epoch, self.schedule.warm_up):
            return draw_order(forgotten, self.curriculum, generator)
        return generator.permutation(len(forgotten)).astype(np.int64)

    def _neighbours(
        self, payload: Payload, network: nn.Module, stretch: Stretch, context: SiteContext
    ) -> dict[str, Neighbour]:
        if (
            not self.parts.alignment
            or not takes_part(stretch.epoch, self.schedule.warm_up)
            or BANK not in payload.parts
        ):
            return {}
        width = embedding_width(split_network(network).head)
        discriminators = unpack(payload.parts.get(DISCRIMINATOR, {}))
        sizes = payload.values.get(BATCH_SIZES, {})
        found = {}
        for other, bank in payload.parts[BANK].items():
            if other not in discriminators or not isinstance(sizes.get(other), int):
                raise MessageError(f"the task has a bank of {other}, but not its discriminator and batch size")
            require_bank(bank, len(bank), width, f"bank of {other}")
            discriminator = received_discriminator(discriminators[other], width, f"discriminator of {other}")
            found[other] = Neighbour(bank.to(context.device), discriminator.to(context.device), sizes[other])
        return found

    def _keep(self, work: StretchWork, optimizers: Mapping[Role, torch.optim.Optimizer], memory: Memory) -> None:
        network = work.participant.network
        trained = copy_to_cpu(network.state_dict())
        shared = averaged_entries(network, self.parts.averaged)
        if self.site_options.optimizer == "kept":
            self.kept.update({f"{OPTIMIZER}.{role}": made.state_dict() for role, made in optimizers.items()})
        self.kept |= {
            DISCRIMINATOR: copy_to_cpu(work.participant.discriminator.state_dict()),
            "memory": memory.state_dict(),
            "trained": work.context.round_number,
            "local": {name: value for name, value in trained.items() if name not in shared},
        }

    def _releases(self, sent: State, work: StretchWork) -> dict[str, Release]:
        context, noise = work.context, self.noise
        releases = model_update(self._update(sent, work.participant.network, context))
        following = stretch_of_round(context.round_number + 1, self.schedule.iterations, self.schedule.pace)
        if not self.parts.alignment or not takes_part(following.epoch, self.schedule.warm_up):
            return releases
        bank = work.bank(self.alignment, noise.embeddings, noise.random_bytes(context.key("bank noise")))
        discriminator = copy_to_cpu(work.participant.discriminator.state_dict())
        return {
            **releases,
            BANK: Release(ReleaseKind.EMBEDDINGS, {EMBEDDINGS: bank}),
            DISCRIMINATOR: Release(ReleaseKind.DISCRIMINATOR, discriminator),
        }

    def _update(self, sent: State, network: nn.Module, context: SiteContext) -> dict[str, Tensor]:
        """The difference of the noisy weights to the deployed ones; zero where an entry is not averaged."""
        shared = averaged_entries(network, self.parts.averaged)
        trained = copy_to_cpu(network.state_dict())
        generator = torch_generator(context.key("weight noise"))
        noisy = noisy_weights(
            {name: trained[name] for name in trained if name in shared}, self.noise.weights, generator
        )
        return difference({**sent, **noisy}, sent)
