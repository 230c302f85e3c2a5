"""FedDF on the server: a model of each architecture, all distilled from the ensemble of the sites' models.

Lin, Kong, Stich & Jaggi, "Ensemble Distillation for Robust Model Fusion in Federated Learning", NeurIPS 2020, Algorithm 3
(heterogeneous prototypes).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor, nn

from grandrounds.checks import reraised_as
from grandrounds.data.site import PUBLIC_NAME as PUBLIC
from grandrounds.errors import ConfigurationError, MessageError
from grandrounds.federation.server.controller import RoundController
from grandrounds.federation.server.options import ServerComputeOptions, UpdateOptions
from grandrounds.federation.site.context import SiteContext, StateCache, choose_device
from grandrounds.federation.site.data import load_dataset
from grandrounds.federation.site.store import copy_to_cpu
from grandrounds.methods.feddf.fusion import FusionOptions, distil, ensemble_soft_labels, means_by_architecture
from grandrounds.models.registry import architecture_fingerprint, build_model
from grandrounds.option_annotations import METHOD
from grandrounds.options import Options
from grandrounds.ordering import natural_sorted
from grandrounds.protocol.messages import GLOBAL, Payload, Registration, Result, State, floating_entries, require_like
from grandrounds.protocol.names import SERVER
from grandrounds.protocol.problem import require_whole_models
from grandrounds.protocol.tensors import UpdatePrecision, apply_update
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
