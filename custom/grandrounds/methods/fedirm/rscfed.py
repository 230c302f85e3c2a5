"""A rival of FedIRM on the same seam: the server's consensus of random subsets (RSCFed, Liang et al., CVPR 2022)."""

from __future__ import annotations

from typing import Any

from grandrounds.errors import ConfigurationError
from grandrounds.methods.fedirm.consensus import SUBSET_SIZE, SUBSETS, ConsensusMean
from grandrounds.methods.fedirm.controller import FedIRMController
from grandrounds.models.registry import build_model
from grandrounds.seeding import numpy_generator


class ConsensusController(FedIRMController):
    """Averages sub-consensus models instead of the sites' models.

    Its sites train as FedIRM's with ``relation_weight=0``: labelled ones on their labels, the others from a mean teacher.

    Args:
        subsets: how many subsets of the round's sites are drawn.
        subset_size: sites in each.
        distance_scale: beta: how fast a model's weight falls with its distance from its subset's mean. It acts only where
            it is about as large as images over distance: with the 0.01 of the authors' command for skin lesions and 700
            images a site all weigh the same (their commands for SVHN and CIFAR-100 have 1e4).
        options: those of :class:`~grandrounds.methods.fedirm.controller.FedIRMController`.
    """

    def __init__(
        self,
        *,
        subsets: int = SUBSETS,
        subset_size: int = SUBSET_SIZE,
        distance_scale: float = 1e4,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        for name, value, least in (
            ("subsets", subsets, 1),
            ("subset_size", subset_size, 1),
            ("distance_scale", distance_scale, 0),
        ):
            if not value >= least:
                raise ConfigurationError(f"{name} must be at least {least}, got {value}")
        self.subsets = subsets
        self.subset_size = subset_size
        self.distance_scale = distance_scale

    def start(self) -> None:
        """Build the initial model, and note which entries are parameters."""
        super().start()
        network = build_model(self.problem.model_spec(pretrained=False), self.seed)
        self._parameters = tuple(name for name, _ in network.named_parameters())

    def open_round(self, sites: list[str]) -> None:
        """Expect an update from each of these sites."""
        super().open_round(sites)
        generator = numpy_generator(self.seed, "consensus", self.round_number)
        self._consensus = ConsensusMean(
            sites, self.subsets, self.subset_size, self.distance_scale, self._parameters, generator
        )
        self._mean = self._consensus

    def round_notes(self) -> dict[str, Any]:
        """How much each site counted in each subset."""
        weights = [{site: round(weight, 6) for site, weight in of.items()} for of in self._consensus.weights]
        return {**super().round_notes(), "subsets": weights}

    def fingerprint(self) -> dict[str, Any]:
        """How the consensus is found, beside the rest."""
        return {
            **super().fingerprint(),
            "subsets": self.subsets,
            "subset_size": self.subset_size,
            "distance_scale": self.distance_scale,
        }
