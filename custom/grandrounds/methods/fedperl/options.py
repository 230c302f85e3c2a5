"""FedPerl's options: peer selection and storage at the server, peer learning at a site."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from grandrounds.errors import ConfigurationError
from grandrounds.methods.fedperl.loss import ConsistencyReduction
from grandrounds.methods.fedperl.peer_selection import (
    VALIDATED,
    GateScale,
    LayerSelection,
    Normalisation,
    PeerChoice,
    Policy,
)
from grandrounds.options import FRACTION, METHOD, Min, Options

Newcomers = Literal["none", "random"]


@dataclass(frozen=True)
class PeerOptions(Options):
    """Which peers a site gets.

    ``peer_choice``: ``similar`` for the most similar models (FedPerl), ``random``, ``fedmatch`` for the nearest predictions
    on a noise image, or ``fedmatch_released`` for that as FedPerl's authors released it. ``policy`` keeps the peers that are
    at least as accurate as the site's own model (``validation``), or have at least ``gate`` accuracy on the server's
    validation images (``gated_validation``) or ``gate`` similarity (``gated_similarity``; Eq. 10 to 12). The average of a
    single peer is its model: with ``pa_min_peers`` of 1, which the paper allows, a single peer is not anonymous. Without
    ``feature_scaling`` models with a common initialisation have cosines of almost 1.
    """

    peers: Annotated[int, "T, the maximum number of peers; 0 is SSFL", Min(0), METHOD] = 2
    peer_choice: Annotated[PeerChoice, "how candidates are selected"] = "similar"
    policy: Annotated[Policy, "which candidates pass"] = "none"
    gate: Annotated[float, "rho, the threshold of a gated policy", FRACTION] = 0.0
    gate_scale: Annotated[GateScale, "a relative gate is a share of the best value"] = "absolute"
    anonymise: Annotated[bool, "send the average of the peers' parameters (Eq. 6) instead of each model"] = True
    pa_min_peers: Annotated[int, "minimum number of peers behind an anonymised peer", Min(0)] = 2
    warm_up: Annotated[int, "rounds without peers", Min(0)] = 10
    peer_interval: Annotated[int, "send peers every peer_interval rounds (FedMatch: 10)", Min(1)] = 1
    newcomers: Annotated[Newcomers, "peers of a site that has not trained (authors' code: random)"] = "none"
    features: Annotated[LayerSelection, "which entries of a model describe it"] = "parameters_and_buffers"
    feature_scaling: Annotated[Normalisation, "scale each feature over the sites (authors' code: minmax)"] = "minmax"
    validation_features: Annotated[
        bool, "add accuracy and loss on the server's validation images to the features (authors' code)"
    ] = False

    def check(self) -> None:
        """Refuse a gate without a gated policy, and anonymity that can never be reached."""
        if (self.gate > 0) != self.policy.startswith("gated"):
            raise ConfigurationError(
                f"gate is {self.gate} with policy {self.policy!r}: only a gated policy has a gate, and it must be above 0"
            )
        if self.anonymise and 0 < self.peers < self.pa_min_peers:
            raise ConfigurationError(
                f"peers is {self.peers}, but an anonymised peer needs pa_min_peers = {self.pa_min_peers}: none would ever "
                "be sent; ask for more peers, or set anonymise to false"
            )

    @property
    def needs_validation(self) -> str:
        """The option that needs validation images at the server; empty if none does."""
        if self.policy in VALIDATED:
            return f"controller.policy={self.policy}"
        return "controller.validation_features" if self.validation_features else ""

    def obstacle(self, sites: int, rounds: int) -> str:
        """Why no site of a run gets a peer, and what to change; empty where one may, or none is asked for."""
        if not self.peers:
            return ""
        if not any(map(self.sends_in, range(1, rounds + 1))):
            return (
                f"no site gets a peer: warm_up is {self.warm_up} and peer_interval {self.peer_interval} in a run of "
                f"{rounds} rounds; lower controller.warm_up or train longer"
            )
        needed = max(self.pa_min_peers, 1) if self.anonymise else 1
        if sites > needed:
            return ""
        lower = "lower controller.pa_min_peers or " if sites > 1 else ""
        return (
            f"no site gets a peer: a peer takes the models of at least {needed} other sites, and the run has {sites} in "
            f"all; {lower}have more sites"
        )

    def sends_in(self, round_number: int) -> bool:
        """Whether peers are sent in a round, counted from 1."""
        return round_number > self.warm_up and round_number % self.peer_interval == 0


@dataclass(frozen=True)
class StoreOptions(Options):
    """Where the server keeps the sites' last models; no result depends on it."""

    identifies_run: ClassVar[bool] = False

    peer_memory_mib: Annotated[int, "MiB of models kept in memory; the others are memory-mapped files", Min(0)] = 1024


@dataclass(frozen=True)
class PeerLearningOptions(Options):
    """What peers add to a site's training.

    ``peer_agreement`` is ``mean`` for averaged predictions (FedPerl), ``unanimous`` for these where the local model and all
    peers predict the same class, or ``vote`` for the majority's label where the local model is confident, with the peers'
    divergence on these images as consistency (FedMatch).
    """

    consistency_weight: Annotated[float, "gamma of Eq. 9; 0 equals the authors' code", Min(0), METHOD] = 0.01
    consistency_reduction: Annotated[ConsistencyReduction, "mean over classes, or the squared norm as printed"] = "mean"
    peer_agreement: Annotated[Literal["mean", "unanimous", "vote"], "how pseudo-labels are agreed on"] = "mean"
