"""FedDF: the server has a model of each architecture, all distilled from the ensemble of the sites' models.

Lin, Kong, Stich & Jaggi, "Ensemble Distillation for Robust Model Fusion in Federated Learning", NeurIPS 2020, Algorithm 3
(heterogeneous prototypes).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor, nn

from grandrounds.checks import reraised_as
from grandrounds.data.images.tensors import to_device
from grandrounds.data.site import PUBLIC_NAME as PUBLIC
from grandrounds.errors import ConfigurationError, MessageError
from grandrounds.federation.server.controller import RoundController
from grandrounds.federation.server.options import ServerComputeOptions, UpdateOptions
from grandrounds.federation.site.context import SiteContext, StateCache, choose_device
from grandrounds.federation.site.data import load_dataset
from grandrounds.federation.site.store import copy_to_cpu
from grandrounds.federation.site.training import Adam, Meter, OptimizerStep, train_steps
from grandrounds.methods.mutual.executor import OwnModelExecutor
from grandrounds.methods.mutual.public import as_input, predict_public
from grandrounds.methods.mutual.training import alignment_loss, recalibrate_batch_norm
from grandrounds.models.registry import architecture_fingerprint, build_model
from grandrounds.options import ABOVE_ZERO, METHOD, Min, Options
from grandrounds.ordering import natural_sorted
from grandrounds.protocol.messages import (
    GLOBAL,
    UPDATE,
    Payload,
    Registration,
    ReleaseKind,
    Result,
    State,
    floating_entries,
    model_update,
    require_like,
)
from grandrounds.protocol.names import SERVER
from grandrounds.protocol.problem import require_whole_models
from grandrounds.protocol.tensors import UpdatePrecision, apply_update, difference
from grandrounds.seeding import numpy_generator


@dataclass(frozen=True)
class PublicSetOptions(Options):
    """Where the public images are."""

    public: Annotated[str, "the name under which the server knows the public images", METHOD] = PUBLIC


class FusionController(RoundController):
    """Ensemble distillation for sites with different networks.

    In each round the sites train the model of their architecture and send updates; models of one architecture are averaged,
    and the model of each architecture learns the mean prediction of all sites' models on public images that the server has.
    The last round only delivers what the round before has made, and every site tests its own model.
    """

    registrations: ClassVar[bool] = True
    public_set: PublicSetOptions
    fusion: FusionOptions
    updates: UpdateOptions
    server_compute: ServerComputeOptions

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        if self.rounds < 2:
            raise ConfigurationError(f"rounds must be at least 2: the last only delivers, got {self.rounds}")
        if self.problem.weights is not None and not self.problem.has_frozen:
            raise ConfigurationError(
                "problem.weights must be null unless problem.trainable freezes layers: the first models come from the seed"
            )
        self._device = choose_device(self.server_compute.server_device)
        self._prototypes: dict[str, dict[str, Tensor]] = {}
        self._sent: dict[str, State] = {}
        self._trained: dict[str, dict[str, Tensor]] = {}
        self._losses: dict[str, float] = {}

    @property
    def delivers(self) -> bool:
        """Whether this is the last round."""
        return self.round_number == self.rounds

    def model(self) -> None:
        """There is none: each site scores and tests its own."""

    def start(self) -> None:
        """Find the public images.

        Raises:
            ConfigurationError: if the server has none, or fewer than a batch, or has no whole models.
        """
        require_whole_models(self.problem, "FedDF")
        with reraised_as(None, ConfigurationError, where="FedDF distils on public images at the server"):
            self._public = load_dataset(self.public_set.public, self.problem, SERVER, self.fl_ctx)
        self.fusion.require_batch(len(self._public.images))

    def check_registration(self, site: str, registration: Registration) -> None:
        """Refuse a network that the server cannot build, or that differs from the server's.

        Raises:
            MessageError: naming the backbone.
        """
        backbone = registration.facts.get("backbone", "")
        with reraised_as(MessageError, ConfigurationError, where=f"{site} has a network that the server does not know"):
            state = self._network(backbone).state_dict()
        if registration.facts.get("architecture") != architecture_fingerprint(state):
            raise MessageError(
                f"{site} has a {registration.facts.get('backbone')} that differs from the job's in more than its weights "
                "(backbone, norm, channels or classes); take these out of its grandrounds.json"
            )

    def open_round(self, sites: list[str]) -> None:
        """Make the first model of each architecture that is new."""
        self._trained = {}
        for site in sites:
            if self._kind(site) not in self._prototypes:
                backbone = self.registered[site].facts["backbone"]
                self._prototypes[self._kind(site)] = copy_to_cpu(self._network(backbone).state_dict())
        self._sent = dict(self._prototypes)

    def payload_for(self, site: str) -> Payload:
        """The model of the site's architecture."""
        return self.payload({GLOBAL: self._sent[self._kind(site)]}, rounds=self.rounds)

    def check(self, site: str, result: Result) -> None:
        """Refuse an update that does not fit the site's architecture.

        Raises:
            MessageError: naming the entry.
        """
        if self.delivers:
            if result.update is not None:
                raise MessageError(f"{site} has sent an update in the last round, which is not used")
            return
        if result.update is None:
            raise MessageError("the result has no update")
        require_like(result.update, floating_entries(self._sent[self._kind(site)]), "update")

    def absorb(self, site: str, result: Result) -> None:
        """Keep the site's model."""
        if result.update is not None:
            self._trained[site] = apply_update(self._sent[self._kind(site)], result.update)

    def close_round(self) -> None:
        """Average what can be averaged, and distil each architecture from all models."""
        self._losses = {}
        if self.delivers:
            return
        if self.server_compute.server_threads:
            torch.set_num_threads(self.server_compute.server_threads)
        context = self._context()
        sites = natural_sorted(self._trained)
        teachers = [self._loaded(self._kind(site), self._trained[site]) for site in sites]
        target = ensemble_soft_labels(teachers, context, self.fusion.averaging)
        means = means_by_architecture(self._trained, {site: self._kind(site) for site in sites})
        distilled = {}
        for kind, state in {**self._prototypes, **means}.items():
            student = self._loaded(kind, state)
            generator = numpy_generator(self.seed, "fusion", self.round_number, kind)
            self._losses[kind] = distil(student, target, self.fusion, generator, context)
            distilled[kind] = copy_to_cpu(student.state_dict())
        self._prototypes = distilled

    def round_notes(self) -> dict[str, Any]:
        """Mean loss of the distillation by backbone, in nats."""
        return {"distillation_loss": {self._backbone(kind): round(loss, 5) for kind, loss in self._losses.items()}}

    def update_precision(self) -> UpdatePrecision:
        """See the option."""
        return self.updates.update_precision

    def state_dict(self) -> dict[str, Any]:
        """The models by architecture."""
        return {"prototypes": self._prototypes}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the models."""
        self._prototypes = state["prototypes"]

    def _kind(self, site: str) -> str:
        return self.registered[site].facts["architecture"]

    def _backbone(self, kind: str) -> str:
        known = (registration.facts for registration in self.registered.values())
        return next(facts["backbone"] for facts in known if facts["architecture"] == kind)

    def _network(self, backbone: str) -> nn.Module:
        spec = replace(self.problem.model_spec(pretrained=False), backbone=backbone)
        return build_model(spec, self.seed)

    def _context(self) -> SiteContext:
        """The server's computation as a task, on the public images."""
        return SiteContext(
            site=SERVER,
            round_number=self.round_number,
            problem=self.problem,
            seed=self.seed,
            data=self._public,
            device=self._device,
            precision="float32",
            aborted=self._aborted,
            cache=StateCache(self.folder / "cache"),
        )

    def _aborted(self) -> bool:
        self.check_abort()
        return False

    def _loaded(self, kind: str, state: State) -> nn.Module:
        network = self._network(self._backbone(kind))
        network.load_state_dict(state)
        return network.to(self._device)


class FusionExecutor(OwnModelExecutor):
    """Trains the model of its architecture; its own model is what the server has distilled last.

    The last round only delivers. In each of the last ``test_rounds`` rounds the model that was sent is tested.
    """

    releases: ClassVar[Mapping[str, ReleaseKind]] = MappingProxyType({UPDATE: ReleaseKind.MODEL_UPDATE})
    needed: ClassVar[tuple[str, ...]] = ("backbone",)

    def starting_state(self, payload: Payload, context: SiteContext) -> State:
        """The model that was sent; else the last one that was.

        Raises:
            MessageError: if it does not fit.
        """
        if GLOBAL not in payload.parts:
            return super().starting_state(payload, context)
        require_like(payload.parts[GLOBAL], self.network(context).state_dict(), "the distilled model")
        return payload.parts[GLOBAL]

    def train(self, payload: Payload, context: SiteContext) -> Result:
        """Train what was sent, and send the update; in the last round keep it as it is."""
        if GLOBAL not in payload.parts or not isinstance(payload.values.get("rounds"), int):
            raise MessageError(f"the task lacks the number of rounds or {GLOBAL}")
        sent, rounds, number = self.starting_state(payload, context), payload.values["rounds"], context.round_number
        network = self.starting_model(payload, context)
        metrics = self.scores_of_round(network, context, rounds)
        first = not self.kept
        self.kept = {"model": copy_to_cpu(sent)}
        samples = len(context.data.rows("labelled"))
        if number == rounds:
            return Result({}, metrics, samples)
        metrics |= self.train_round(network, first, number - 1, rounds - 1, context)
        return Result(model_update(difference(copy_to_cpu(network.state_dict()), sent)), metrics, samples)


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

    The students' loss is :func:`~grandrounds.methods.mutual.training.alignment_loss`. With ``probabilities`` its gradient is
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
