"""How FedPerl's server chooses peers, and what sites make of them, as checked values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from grandrounds.errors import ConfigurationError
from grandrounds.methods.fedperl.loss import ConsistencyReduction
from grandrounds.methods.fedperl.peer_selection import VALIDATED, GateScale, PeerChoice, Policy
from grandrounds.methods.fedperl.peers import in_warm_up
from grandrounds.methods.fedperl.similarity import LayerSelection, Normalisation
from grandrounds.options import require_fractions, require_min, require_words

Newcomers = Literal["none", "random"]


@dataclass(frozen=True)
class PeerOptions:
    """Which peers a site gets.

    Attributes:
        peers: T, how many at most; 0 is SSFL.
        peer_choice: ``similar`` takes the most similar models (FedPerl), ``random`` draws among those that have trained,
            ``fedmatch`` takes the nearest in what they predict for a noise image; ``fedmatch_released`` does so as in the
            release of FedPerl's authors.
        policy: which of them pass: ``none`` asks nothing; ``validation`` those at least as accurate as the site's own last
            model, ``gated_validation`` those of at least ``gate`` accuracy on the server's validation images,
            ``gated_similarity`` those of at least ``gate`` similarity (Eq. 10 to 12).
        gate: rho, in [0, 1].
        gate_scale: ``absolute``, or ``relative`` to the best value there is.
        anonymise: send the average of the peers' parameters (Eq. 6) instead of each.
        pa_min_peers: fewest hospitals behind an anonymised peer; with fewer none is sent. Of one alone the average is its
            model, which is anonymous to nobody (the paper does not exclude that: 1).
        warm_up: rounds without peers.
        peer_interval: peers are sent in every so manieth round (FedMatch: 10).
        newcomers: peers of a site that has not trained: ``none``, or ``random`` ones (authors' code).
        features: which entries of a model describe it.
        feature_scaling: ``minmax`` scales each feature over the sites (authors' code), ``none`` does not (text). Without
            scaling, models that start from the same weights have cosines of almost 1.
        validation_features: whether accuracy and loss on the server's validation images are features too (authors' code).
    """

    peers: int = 2
    peer_choice: PeerChoice = "similar"
    policy: Policy = "none"
    gate: float = 0.0
    gate_scale: GateScale = "absolute"
    anonymise: bool = True
    pa_min_peers: int = 2
    warm_up: int = 10
    peer_interval: int = 1
    newcomers: Newcomers = "none"
    features: LayerSelection = "parameters_and_buffers"
    feature_scaling: Normalisation = "minmax"
    validation_features: bool = False

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            ConfigurationError: naming the option, what was expected and what came.
        """
        require_min(self, 0, "peers", "pa_min_peers", "warm_up")
        require_min(self, 1, "peer_interval")
        require_fractions(self, "gate")
        require_words(self, "peer_choice", "policy", "gate_scale", "newcomers", "features", "feature_scaling")
        if (self.gate > 0) != self.policy.startswith("gated"):
            raise ConfigurationError(
                f"gate is {self.gate} with policy {self.policy!r}: a gated policy needs a gate above 0, another has none"
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

    def sends_in(self, round_number: int) -> bool:
        """Whether peers are sent in this round."""
        return not in_warm_up(round_number, self.warm_up) and round_number % self.peer_interval == 0


@dataclass(frozen=True)
class StoreOptions:
    """Where the server keeps the sites' last models; no result depends on it.

    Attributes:
        peer_memory_mib: MiB of them in memory; the others are in files of the run's folder, mapped when needed.
    """

    peer_memory_mib: int = 1024

    def __post_init__(self) -> None:
        """Check the value.

        Raises:
            ConfigurationError: if it is negative.
        """
        require_min(self, 0, "peer_memory_mib")


@dataclass(frozen=True)
class GuidanceOptions:
    """What peers add to a site's training.

    Attributes:
        consistency_weight: gamma of Eq. 9; the paper's is 0.01. 0 is what the authors' code does, where the term has no
            gradient.
        consistency_reduction: ``mean`` over classes, or ``sum`` (the squared norm as printed).
        peer_agreement: ``mean`` averages predictions (FedPerl); ``vote`` takes the majority's label where the own model is
            confident, and the divergence of the peers on those images for consistency (FedMatch).
    """

    consistency_weight: float = 0.01
    consistency_reduction: ConsistencyReduction = "mean"
    peer_agreement: Literal["mean", "vote"] = "mean"

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            ConfigurationError: naming the option, what was expected and what came.
        """
        require_min(self, 0, "consistency_weight")
        require_words(self, "consistency_reduction", "peer_agreement")
