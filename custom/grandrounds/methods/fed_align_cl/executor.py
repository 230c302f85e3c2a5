"""Fed-Align-CL at a site: iterations between two communications, and what the others need for the next."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from grandrounds.errors import ConfigurationError, MessageError
from grandrounds.federation.site.context import SiteContext
from grandrounds.federation.site.executor import SiteExecutor
from grandrounds.federation.site.store import copy_to_cpu
from grandrounds.methods.fed_align_cl.bank import (
    BANK,
    BATCH_SIZE,
    BATCH_SIZES,
    DISCRIMINATOR,
    EMBEDDINGS,
    require_bank,
    unpack_banks,
)
from grandrounds.methods.fed_align_cl.curriculum import Indices, Memory, correct_predictions, draw_order, moved_forward
from grandrounds.methods.fed_align_cl.iteration import (
    AlignmentTrainer,
    LocalInterval,
    LocalSteps,
    Neighbour,
    TrainingImages,
    interval_of_round,
    require_network_channels,
)
from grandrounds.methods.fed_align_cl.loss import make_discriminator, received_discriminator
from grandrounds.methods.fed_align_cl.noise import clip_bound, clipped_share, noisy_weights
from grandrounds.methods.fed_align_cl.options import (
    ROLES,
    Averaged,
    CurriculumOptions,
    EmbeddingNoiseOptions,
    EncoderAlignmentOptions,
    MethodOptions,
    NoiseSourceOptions,
    Role,
    ScheduleOptions,
    WeightNoiseOptions,
)
from grandrounds.methods.supervised.loss import adjusted_logits
from grandrounds.methods.supervised.training import labelled_rows
from grandrounds.models.backbones.resnet22 import recompute_activations
from grandrounds.models.inference.forward import Forward
from grandrounds.models.norm import norm_entries, normalises_by_batch
from grandrounds.models.split import embedding_width, split_network
from grandrounds.protocol.messages import GLOBAL, UPDATE, Payload, Release, ReleaseKind, Result, State, model_update
from grandrounds.protocol.tensors import difference
from grandrounds.seeding import numpy_generator

OWN_BANK, FORGOTTEN, MOVED_FORWARD = "own_bank", "forgotten", "moved_forward"
MOST_CLIPPED = 0.01
"""Share of clipped embeddings above which a site warns."""
STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


class FedAlignExecutor(SiteExecutor):
    """Trains the deployed model from one communication to the next, aligned with the others' noisy embeddings.

    Memory of what was forgotten, optimizers and entries that are not averaged stay at the site.
    """

    releases: ClassVar[Mapping[str, ReleaseKind]] = MappingProxyType(
        {BANK: ReleaseKind.EMBEDDINGS, DISCRIMINATOR: ReleaseKind.DISCRIMINATOR}
    )
    models: ClassVar[tuple[str, ...]] = ("shared",)
    record_level_obstacle: ClassVar[str] = "alignment compares images of two sites"
    schedule: ScheduleOptions
    alignment: EncoderAlignmentOptions
    curriculum: CurriculumOptions
    method: MethodOptions
    weight_noise: WeightNoiseOptions
    embedding_noise: EmbeddingNoiseOptions
    noise_source: NoiseSourceOptions

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"optimizer": "kept", **options})
        if self.method.recompute_activations and self.compute.compiler != "none":
            raise ConfigurationError("recompute_activations needs compiler=none: torch cannot compile what it does")
        if self.alignment.bank_rows == "distinct" and self.curriculum.replacement:
            raise ConfigurationError(
                "bank_rows=distinct needs replacement=false: an image that is twice in an order would be twice in a bank"
            )

    @classmethod
    def releases_with(cls, options: Mapping[str, Any]) -> dict[str, ReleaseKind]:
        """No bank without alignment, and no discriminator where moments are aligned."""
        aligned = (BANK,) if options["update"] == "moments" else (BANK, DISCRIMINATOR)
        wanted = (UPDATE, *aligned) if options["alignment"] else (UPDATE,)
        return {name: kind for name, kind in super().releases_with(options).items() if name in wanted}

    def starting_state(self, payload: Payload, context: SiteContext) -> State:
        """The deployed model, with the site's own entries where they are not averaged."""
        return {**super().starting_state(payload, context), **self.kept.get("local", {})}

    def train(self, payload: Payload, context: SiteContext) -> Result:
        """Train up to the next communication."""
        interval = interval_of_round(context.round_number, self.schedule.iterations, self.schedule.pace)
        network = self.starting_model(payload, context)
        if self.method.recompute_activations:
            recompute_activations(network)
        require_network_channels(context.data.images.shape[3], network, context.site)
        minimum = 2 if normalises_by_batch(network) else 1
        rows = labelled_rows(context.data, self.method.labels)
        images = TrainingImages(context, rows, self.schedule.iterations, minimum, self.method.view)
        trainer, optimizers = self._trainer(network, context)
        memory = self._memory(Forward(network), images)
        order = self._order(interval, memory, context)
        work = LocalSteps(trainer, images, order, interval, self.schedule, context)
        own_bank, mean = self._own_bank(context), self.alignment.bank_encoder == "mean"
        neighbours = {} if mean and own_bank is None else self._neighbours(payload, network, interval, context)
        upcoming = work.upcoming_embeddings(self.alignment) if mean and self._sends_bank(context) else None
        metrics = work.train(neighbours, self.alignment, own_bank) | self._counted(interval, memory, order, context)
        if self._remembers(interval) and memory.wants_before(interval.ends_epoch):
            memory.before(correct_predictions(Forward(network), images.all()), interval.ends_epoch)
        self._keep(work, optimizers, memory)
        self.kept[OWN_BANK] = upcoming.float().cpu() if upcoming is not None else None
        if upcoming is None and self._sends_bank(context):
            upcoming = work.upcoming_embeddings(self.alignment)
        metrics[BATCH_SIZE] = float(images.batch_size)
        return Result(self._releases(payload.parts[GLOBAL], work, upcoming), metrics, len(images))

    def _sends_bank(self, context: SiteContext) -> bool:
        following = interval_of_round(context.round_number + 1, self.schedule.iterations, self.schedule.pace)
        return self.method.alignment and self.schedule.warmed_up(following.epoch)

    def _own_bank(self, context: SiteContext) -> Tensor | None:
        """The site's embeddings by the mean encoder of the last round, as the others' banks are."""
        bank: Tensor | None = self.kept.get(OWN_BANK)
        return (
            bank.to(context.device) if bank is not None and self.kept["trained"] == context.round_number - 1 else None
        )

    def _trainer(
        self, network: nn.Module, context: SiteContext
    ) -> tuple[AlignmentTrainer, dict[Role, torch.optim.Optimizer]]:
        encoder, head = split_network(network)
        discriminator = make_discriminator(embedding_width(head), context.seed, "site", context.site, DISCRIMINATOR)
        if DISCRIMINATOR in self.kept:
            discriminator.load_state_dict(self.kept[DISCRIMINATOR])
        discriminator.to(context.device)
        parts = {"classification": network, "adversarial": encoder, "discriminator": discriminator}
        rates = self.alignment.learning_rates(self.schedule.learning_rate)
        optimizers = {role: self.make_optimizer(parts[role], rates[role], role=role) for role in ROLES}
        random_bytes = self.noise_source.random_bytes(context.key("training noise"))
        gate = context.gate.row_noise(BANK)
        added = self._added_to_logits(context)
        noise = self.embedding_noise
        trainer = AlignmentTrainer(network, discriminator, optimizers, noise, random_bytes, gate, added)
        return trainer, optimizers

    def _added_to_logits(self, context: SiteContext) -> Tensor | None:
        """The log shares of the site's classes; None if logits are not adjusted."""
        if not self.method.logit_adjustment:
            return None
        kind, labels, classes = context.problem.kind, context.data.labels, len(context.problem.classes)
        counts = torch.from_numpy(kind.class_counts(labels[labelled_rows(context.data, self.method.labels)], classes))
        nothing = torch.zeros(1, classes, device=context.device)
        return adjusted_logits(nothing, counts.to(context.device), self.method.logit_adjustment)[0]

    def _remembers(self, interval: LocalInterval) -> bool:
        """Whether the communication after an interval shows what was forgotten, for an epoch that uses it."""
        # Two epochs' ends are compared, so the first has to be examined one epoch earlier than it is used.
        early = int(self.curriculum.comparison == "epoch_to_epoch")
        return self.method.curriculum and self.schedule.warmed_up(interval.epoch + 1 + early)

    def _memory(self, model: Forward, images: TrainingImages) -> Memory:
        """The memory, after the deployed model was compared with the local model of the last answer."""
        memory = Memory(self.curriculum.comparison, len(images))
        if "memory" in self.kept:
            memory.load_state_dict(self.kept["memory"])
        if "trained" not in self.kept:
            return memory
        before = interval_of_round(self.kept["trained"], self.schedule.iterations, self.schedule.pace)
        if self._remembers(before) and memory.wants_after(before.ends_epoch):
            memory.after(correct_predictions(model, images.all()), before.ends_epoch)
        return memory

    def _order(self, interval: LocalInterval, memory: Memory, context: SiteContext) -> Indices:
        """The epoch's order, the same in all of its rounds: the memory changes at the end of an epoch only."""
        generator, forgotten = self._order_generator(interval, context), memory.forgotten()
        if self.method.curriculum and self.schedule.warmed_up(interval.epoch):
            return draw_order(forgotten, self.curriculum, generator)
        return generator.permutation(len(forgotten)).astype(np.int64)

    def _order_generator(self, interval: LocalInterval, context: SiteContext) -> np.random.Generator:
        return numpy_generator(context.seed, "site", context.site, "epoch", interval.epoch, "order")

    def _counted(
        self, interval: LocalInterval, memory: Memory, order: Indices, context: SiteContext
    ) -> dict[str, float]:
        """How many images were forgotten and moved forward, in the first interval of an epoch with a curriculum."""
        if interval.first > 1 or not (self.method.curriculum and self.schedule.warmed_up(interval.epoch)):
            return {}
        forgotten = memory.forgotten()
        none = np.zeros_like(forgotten)
        uniform = draw_order(none, self.curriculum, self._order_generator(interval, context))
        moved = moved_forward(order, uniform, forgotten)
        counts = int(forgotten.sum()), int(moved.sum())
        self.logger.info(
            "epoch %d: %d of %d images were forgotten, %d of them moved forward",
            interval.epoch,
            counts[0],
            len(forgotten),
            counts[1],
        )
        return {FORGOTTEN: float(counts[0]), MOVED_FORWARD: float(counts[1])}

    def _neighbours(
        self, payload: Payload, network: nn.Module, interval: LocalInterval, context: SiteContext
    ) -> dict[str, Neighbour]:
        if BANK not in payload.parts or not self.method.alignment or not self.schedule.warmed_up(interval.epoch):
            return {}
        width = embedding_width(split_network(network).head)
        discriminators = unpack_banks(payload.parts.get(DISCRIMINATOR, {}))
        sizes = payload.values.get(BATCH_SIZES, {})
        neighbours = {}
        for other, bank in payload.parts[BANK].items():
            if not isinstance(sizes.get(other), int):
                raise MessageError(f"the task has a bank of {other}, but not its batch size")
            require_bank(bank, len(bank), width, f"bank of {other}")
            discriminator: nn.Module = nn.Identity()
            if self.alignment.has_discriminator:
                if other not in discriminators:
                    self.logger.warning("%s: %s sent no discriminator and is left out", context.site, other)
                    continue
                discriminator = received_discriminator(discriminators[other], width, f"discriminator of {other}")
            neighbours[other] = Neighbour(bank.to(context.device), discriminator.to(context.device), sizes[other])
        return neighbours

    def _keep(self, work: LocalSteps, optimizers: Mapping[Role, torch.optim.Optimizer], memory: Memory) -> None:
        network = work.trainer.network
        shared = averaged_entries(network, self.method.averaged)
        own = {name: value for name, value in network.state_dict().items() if name not in shared}
        if self.site_options.optimizer == "kept":
            self.keep_optimizers({str(role): made for role, made in optimizers.items()})
        self.kept |= {
            DISCRIMINATOR: copy_to_cpu(work.trainer.discriminator.state_dict()),
            "memory": memory.state_dict(),
            "trained": work.context.round_number,
            "local": copy_to_cpu(own),
        }

    def _releases(self, sent: State, work: LocalSteps, embeddings: Tensor | None) -> dict[str, Release]:
        context, noise = work.context, self.embedding_noise
        releases = dict(model_update(self._update(sent, work.trainer.network, context)))
        if embeddings is None:
            return releases
        self._warn_of_clipping(embeddings, context)
        bank = work.bank(embeddings, self.alignment, noise, self.noise_source.random_bytes(context.key("bank noise")))
        releases[BANK] = Release(ReleaseKind.EMBEDDINGS, {EMBEDDINGS: bank})
        if self.alignment.has_discriminator:
            discriminator = copy_to_cpu(work.trainer.discriminator.state_dict())
            releases[DISCRIMINATOR] = Release(ReleaseKind.DISCRIMINATOR, discriminator)
        return releases

    def _warn_of_clipping(self, embeddings: Tensor, context: SiteContext) -> None:
        bounds = {"executor.embedding_clip": clip_bound(embeddings, self.embedding_noise)}
        gate = context.gate.row_noise(BANK)
        if gate is not None:
            bounds["the clip of the bank's rule in privacy.json"] = gate[0]
        for name, bound in bounds.items():
            share = clipped_share(embeddings, bound)
            if share > MOST_CLIPPED:
                self.logger.warning(
                    "%s: %s (%.3g) cuts %.0f %% of the embeddings, whose median norm is %.3g; raise it",
                    context.site,
                    name,
                    bound,
                    100 * share,
                    embeddings.norm(dim=1).median(),
                )

    def _update(self, sent: State, network: nn.Module, context: SiteContext) -> dict[str, Tensor]:
        """The difference of the noisy weights to the deployed ones; zero where an entry is not averaged."""
        shared = averaged_entries(network, self.method.averaged)
        averaged = {name: value for name, value in network.state_dict().items() if name in shared}
        noisy = noisy_weights(averaged, self.weight_noise, self.noise_source.normals(context.key("weight noise")))
        return difference({**sent, **noisy}, sent)


def averaged_entries(network: nn.Module, averaged: Averaged = "all") -> frozenset[str]:
    """The ``state_dict`` names that a site sends and replaces by the mean.

    Fed-Align-CL averages everything, the running statistics of batch norm included, with equal weights. Sites whose
    scanners differ may do better with normalisation of their own (FedBN: Li et al., ICLR 2021) or statistics of their own
    (SiloBN: Andreux et al., DART 2020).

    Args:
        network: whose.
        averaged: ``all``; ``local_norm`` all but normalisation layers (FedBN); ``local_statistics`` all but their running
            statistics (SiloBN).

    Example:
        >>> network = nn.Sequential(nn.Linear(1, 2, bias=False), nn.BatchNorm1d(2))
        >>> sorted(averaged_entries(network, "local_norm")), sorted(averaged_entries(network, "local_statistics"))
        (['0.weight'], ['0.weight', '1.bias', '1.weight'])
    """
    local = frozenset[str]() if averaged == "all" else norm_entries(network)
    if averaged == "local_statistics":
        local = frozenset(name for name in local if name.rpartition(".")[2] in STATISTICS)
    return frozenset(network.state_dict()) - local
