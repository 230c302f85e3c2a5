"""The rows of Fed-Align-CL's tables as combinations of its parts, so that two rows differ in nothing else.

Jiménez-Sánchez et al., 2021, Table 3: Single is one hospital alone, Cross the same models at the other hospitals, Mix
the pooled images of all, which privacy forbids; Fed is federated averaging, to which curriculum, alignment or both are
added.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal


@dataclass(frozen=True)
class Baseline:
    """What a row is made of.

    Attributes:
        training: each hospital ``alone``, all images ``pooled``, or ``federated``.
        alignment: whether encoders are aligned.
        curriculum: whether forgotten images come first.
        tested: on the images of the hospital that trained (``own``), of the others, or of all.
    """

    training: Literal["alone", "pooled", "federated"]
    alignment: bool = False
    curriculum: bool = False
    tested: Literal["own", "others", "all"] = "all"

    def __post_init__(self) -> None:
        """Check that the parts fit together.

        Raises:
            ValueError: if there is alignment or curriculum without a federation.
        """
        if self.training != "federated" and (self.alignment or self.curriculum):
            raise ValueError(f"alignment and curriculum need a federation, got training {self.training!r}")


BASELINES: Mapping[str, Baseline] = MappingProxyType(
    {
        "single": Baseline("alone", tested="own"),
        "cross": Baseline("alone", tested="others"),
        "mix": Baseline("pooled"),
        "fed": Baseline("federated"),
        "fed_cl": Baseline("federated", curriculum=True),
        "fed_align": Baseline("federated", alignment=True),
        "fed_align_cl": Baseline("federated", alignment=True, curriculum=True),
    }
)
