"""A rival of FedIRM on the same seam: the server's consensus of random subsets (RSCFed, Liang et al., CVPR 2022)."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from grandrounds.methods.fedirm.consensus import SUBSET_SIZE, SUBSETS, ConsensusMean
from grandrounds.methods.fedirm.controller import FedIRMController
from grandrounds.models.registry import build_model
from grandrounds.options import require_least, take_options
from grandrounds.seeding import numpy_generator


@dataclass(frozen=True)
class ConsensusOptions:
    """How the consensus is found.

    Attributes:
        subsets: how many subsets of the round's sites are drawn.
        subset_size: sites in each.
        distance_scale: beta: how fast a model's weight falls with its distance from its subset's mean. It acts only where
            it is about as large as images over distance: with the 0.01 of the authors' command for skin lesions and 700
            images a site all weigh the same (their commands for SVHN and CIFAR-100 have 1e4).
    """

    subsets: int = SUBSETS
    subset_size: int = SUBSET_SIZE
    distance_scale: float = 1e4

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            ConfigurationError: naming the option, what was expected and what came.
        """
        require_least(self, 1, "subsets", "subset_size")
        require_least(self, 0, "distance_scale")


class ConsensusController(FedIRMController):
    """Averages sub-consensus models instead of the sites' models.

    Its sites train as FedIRM's with ``relation_weight=0``: labelled ones on their labels, the others from a mean teacher.

    Args:
        options: those of :class:`ConsensusOptions` and :class:`~grandrounds.methods.fedirm.controller.FedIRMController`.
    """

    option_groups: ClassVar[tuple[type, ...]] = (ConsensusOptions,)

    def __init__(self, **options: Any) -> None:
        self.consensus, others = take_options(ConsensusOptions, options)
        super().__init__(**others)

    def start(self) -> None:
        """Build the initial model, and note which entries are parameters."""
        super().start()
        network = build_model(self.problem.model_spec(pretrained=False), self.seed)
        self._parameters = tuple(name for name, _ in network.named_parameters())

    def open_round(self, sites: list[str]) -> None:
        """Expect an update from each of these sites."""
        super().open_round(sites)
        generator = numpy_generator(self.seed, "consensus", self.round_number)
        options = self.consensus
        self._consensus = ConsensusMean(
            sites, options.subsets, options.subset_size, options.distance_scale, self._parameters, generator
        )
        self._mean = self._consensus

    def round_notes(self) -> dict[str, Any]:
        """How much each site counted in each subset."""
        weights = [{site: round(weight, 6) for site, weight in of.items()} for of in self._consensus.weights]
        return {**super().round_notes(), "subsets": weights}

    def fingerprint(self) -> dict[str, Any]:
        """How the consensus is found, beside the rest."""
        return {**super().fingerprint(), **asdict(self.consensus)}
