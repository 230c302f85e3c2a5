"""Options of mutual learning: the exchange, learning from the other sites, and local training.

MDH-FL, RHFL, RHFL+ and FedMD differ in these options only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from grandrounds.data.images.augmentation import view_named
from grandrounds.data.site import PUBLIC_NAME
from grandrounds.errors import ConfigurationError
from grandrounds.methods.mutual.soft_labels import WireFormat
from grandrounds.options import ABOVE_ZERO, BASIC, METHOD, Min, Options

Content = Literal["probabilities", "logits", "none"]
Weighting = Literal["uniform", "ccr", "eccr"]
Alignment = Literal["divergence", "digest", "none"]
Statistics = Literal["eval", "batch"]

STRENGTHS: Mapping[str, float] = {"ccr": 0.5, "eccr": 1.2}
"""Strength of client confidence, as in the authors' code of RHFL and of RHFL+."""


@dataclass(frozen=True)
class ExchangeOptions(Options):
    """What is exchanged, and how the server combines it."""

    content: Annotated[
        Content, "what sites publish: probabilities (MDH-FL, RHFL), logits (FedMD) or none (nothing leaves a site)"
    ] = "probabilities"
    wire: Annotated[WireFormat, "format of soft labels in both directions; uint8 is for probabilities"] = "fp32"
    weighting: Annotated[Weighting, "uniform (MDH-FL), or client confidence: ccr (RHFL), eccr (RHFL+)", METHOD] = (
        "uniform"
    )
    max_age: Annotated[int, "maximum age, in exchanges, of the soft labels of an absent site", Min(0)] = 0
    chunk: Annotated[
        int | None,
        "public images per exchange; null is one exchange per epoch (MDH-FL), the batch size is RHFL's",
        Min(1),
    ] = None
    per_round: Annotated[int | None, "public images per epoch, drawn anew for each; null is all", Min(1)] = None
    public_batch: Annotated[
        int, "public images per batch of the alignment; incomplete batches are skipped", Min(2), METHOD
    ] = 16

    def check(self) -> None:
        """Refuse a format or weighting that does not fit the content, and old soft labels about other images."""
        if self.content == "logits" and self.wire == "uint8":
            raise ConfigurationError("wire uint8 holds probabilities only, content is logits; take fp16")
        if self.content != "probabilities" and self.weighting != "uniform":
            raise ConfigurationError(
                f"weighting {self.weighting} is for probabilities, content is {self.content}; take uniform"
            )
        if self.max_age and (self.chunk is not None or self.per_round is not None):
            raise ConfigurationError(
                f"max_age {self.max_age} needs exchanges about the same images; leave chunk and per_round out"
            )


@dataclass(frozen=True)
class ContributorOptions(Options):
    """Whose soft labels are used, on which images. With two contributors, each learns the soft labels of the other."""

    public: Annotated[str, "the name under which sites know the public images", METHOD] = PUBLIC_NAME
    aggregation: Annotated[
        Literal["auto", "mean", "secure"],
        "mean: the server reads each site's soft labels; secure: only their sum; auto: secure where a site's policy asks "
        "for it in kits, else mean",
    ] = "auto"
    min_contributors: Annotated[
        int, "minimum number of sites with a weight above zero in a sum that is sent", Min(2)
    ] = 2


@dataclass(frozen=True)
class AlignmentOptions(Options):
    """How a site learns from the others on the public images."""

    alignment: Annotated[
        Alignment, "divergence from the mean of the others (MDH-FL), digest of all logits (FedMD), or none"
    ] = "divergence"
    alignment_rate: Annotated[float, "learning rate of Adam in the alignment", ABOVE_ZERO] = 1e-3
    alignment_epochs: Annotated[int, "passes over the public images of an exchange (MDH-FL: 1)", Min(1)] = 1
    alignment_optimizer: Annotated[
        Literal["per_round", "fresh_per_batch"], "one Adam per epoch, or a new one for each batch (RHFL's code)"
    ] = "per_round"
    alignment_view: Annotated[
        str, "view of public images, the same at all sites: none, or turns (flips and quarter turns)"
    ] = "none"
    teacher_statistics: Annotated[
        Statistics, "batch norm in predictions: running statistics (eval), or those of the batch (RHFL)"
    ] = "eval"
    final_phase: Annotated[
        Literal["local_training", "alignment"],
        "how a run ends: with local training (RHFL's code) or alignment (MDH-FL)",
    ] = "local_training"

    def check(self) -> None:
        """Refuse a view that does not exist."""
        view_named(self.alignment_view, "alignment_view")


@dataclass(frozen=True)
class LocalOptions(Options):
    """How a site trains on its own labels."""

    loss: Annotated[
        Literal["symmetric", "cross_entropy", "refined"],
        "symmetric (MDH-FL, RHFL), cross_entropy, or refined (RHFL+; pre-training and client confidence: symmetric)",
        METHOD,
    ] = "symmetric"
    ce_weight: Annotated[
        float | None, "weight of the cross-entropy; null is 0.1 for symmetric and 0.4 for refined", Min(0)
    ] = None
    rce_weight: Annotated[
        float | None, "weight of the reverse cross-entropy; null is 1 for symmetric and 0.9 for refined", Min(0)
    ] = None
    temperature: Annotated[float, "temperature of the refined loss after pre-training", ABOVE_ZERO] = 4.0
    logit_adjustment: Annotated[
        float,
        "log class shares of the site's labels that local training adds to the logits, times this; 0 adds none",
        Min(0),
    ] = 0.0
    batch_size: Annotated[int, "images per batch; incomplete batches are skipped", Min(2), BASIC] = 16
    learning_rate: Annotated[float, "learning rate of Adam, which starts anew in every round", ABOVE_ZERO, BASIC] = 1e-3
    local_epochs: Annotated[float, "passes over the local images per epoch; may be a fraction", ABOVE_ZERO, BASIC] = 1.0
    pretrain_epochs: Annotated[
        float, "passes before the first exchange; 0 starts from random weights", Min(0), METHOD
    ] = 40.0
    local_view: Annotated[str, "view: none, turns (flips and quarter turns), or weak (rotation and jitter too)"] = (
        "turns"
    )
    recalibrate_bn: Annotated[
        bool, "recompute the running statistics of batch norm from all local images after alignment and training"
    ] = False

    def check(self) -> None:
        """Refuse a view that does not exist."""
        view_named(self.local_view, "local_view")


@dataclass(frozen=True)
class FinalTestOptions(Options):
    """When a site's model is tested, beside the test at the end."""

    identifies_run: ClassVar[bool] = False

    test_rounds: Annotated[int, "number of last rounds in which the model is tested, for means over rounds", Min(0)] = 0
