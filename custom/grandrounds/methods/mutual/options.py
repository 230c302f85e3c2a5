"""What can be chosen of mutual learning: what is exchanged, how a site learns from the others, and how from its own labels.

MDH-FL, RHFL, RHFL+ and FedMD differ in these options and in nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from grandrounds.errors import ConfigurationError
from grandrounds.methods.mutual.loss import LABEL_FLOOR
from grandrounds.methods.mutual.soft_labels import WireFormat
from grandrounds.options import require_min, require_positive, require_words

Content = Literal["probabilities", "logits", "none"]
Weighting = Literal["uniform", "ccr", "eccr"]
Alignment = Literal["divergence", "digest", "none"]
Last = Literal["own_labels", "alignment"]
AlignmentOptimizer = Literal["per_round", "fresh_per_batch"]
Statistics = Literal["eval", "batch"]
PublicView = Literal["none", "turns"]
LocalLoss = Literal["symmetric", "cross_entropy", "refined"]
LocalView = Literal["none", "turns", "weak"]

STRENGTHS: Mapping[str, float] = {"ccr": 0.5, "eccr": 1.2}
"""How much confidence counts, as in the authors' code of RHFL and of RHFL+."""


@dataclass(frozen=True)
class ExchangeOptions:
    """What is exchanged, and what the server makes of it.

    Attributes:
        content: ``probabilities`` (MDH-FL, RHFL), ``logits`` (FedMD), or ``none``: nothing leaves a site.
        wire: format of the rows in both directions; ``uint8`` is for probabilities.
        weighting: ``uniform`` (MDH-FL), or by client confidence: ``ccr`` (RHFL), ``eccr`` (RHFL+).
        strength: how much confidence counts; None is what the method's code has.
        max_age: how many exchanges old the rows of an absent site may be; 0 takes fresh rows only.
        chunk: images per exchange; None is one exchange per round (MDH-FL), the batch size is RHFL's.
        per_round: public images that a round is about, drawn anew in each; None is all.
        public_batch: public images in a batch of the alignment, the same at all sites; the rest that makes no whole batch is
            left out.
    """

    content: Content = "probabilities"
    wire: WireFormat = "fp32"
    weighting: Weighting = "uniform"
    strength: float | None = None
    max_age: int = 0
    chunk: int | None = None
    per_round: int | None = None
    public_batch: int = 16

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            ConfigurationError: naming the option, what was expected and what came.
        """
        require_words(self, "content", "wire", "weighting")
        require_min(self, 0, "max_age", "strength")
        require_min(self, 1, "chunk", "per_round")
        require_min(self, 2, "public_batch")
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
class AlignmentOptions:
    """How a site learns from the others on the public images.

    Attributes:
        alignment: ``divergence`` from the mean of the others (MDH-FL), ``digest`` of the mean logits of all (FedMD), or
            ``none``: training on the own labels alone.
        alignment_rate: learning rate of Adam.
        alignment_optimizer: one Adam for each round, or a new one for each batch (RHFL's code).
        alignment_view: ``none``, or random flips and quarter turns, the same at all sites.
        teacher_statistics: what batch norm uses when rows are computed: running statistics (``eval``), or those of the
            batch, without touching the running ones (RHFL).
        rows_batch: images in a batch when rows are computed.
        final_phase: what a run ends with: training on the own labels (RHFL's code), or learning from the others, as in the
            text of MDH-FL, where the own labels come first in an epoch. Before the last round both do the same.
    """

    alignment: Alignment = "divergence"
    alignment_rate: float = 1e-3
    alignment_optimizer: AlignmentOptimizer = "per_round"
    alignment_view: PublicView = "none"
    teacher_statistics: Statistics = "eval"
    rows_batch: int = 256
    final_phase: Last = "own_labels"

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            ConfigurationError: naming the option, what was expected and what came.
        """
        require_words(self, "alignment", "alignment_optimizer", "alignment_view", "teacher_statistics", "final_phase")
        require_min(self, 2, "rows_batch")
        require_positive(self, "alignment_rate")


@dataclass(frozen=True)
class LocalOptions:
    """How a site learns from its own labels.

    Attributes:
        loss: ``symmetric`` (MDH-FL, RHFL), ``cross_entropy``, or ``refined`` labels (RHFL+).
        ce_weight: of the cross-entropy; None is 0.1 for ``symmetric`` and 0.4 for ``refined``.
        rce_weight: of the reverse cross-entropy; None is 1 for ``symmetric`` and 0.9 for ``refined``.
        label_floor: what stands for the logarithm of zero: A = ln(label_floor).
        temperature: of ``refined``.
        batch_size: images in a batch; the rest of a pass that makes no whole batch is left out.
        learning_rate: of Adam, which starts anew in every round.
        local_epochs: passes over the own images in a round; a fraction is a part of the batches of a pass.
        pretrain_epochs: passes before the first exchange; 0 starts from random weights.
        local_view: ``none``, random flips and quarter turns, or ``weak``, which rotates and jitters as well.
        recalibrate_bn: after alignment and after training, batch norm's running statistics are computed anew from all
            own images; see ``settling``.
    """

    loss: LocalLoss = "symmetric"
    ce_weight: float | None = None
    rce_weight: float | None = None
    label_floor: float = LABEL_FLOOR
    temperature: float = 4.0
    batch_size: int = 16
    learning_rate: float = 1e-3
    local_epochs: float = 1.0
    pretrain_epochs: float = 40.0
    local_view: LocalView = "turns"
    recalibrate_bn: bool = False

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            ConfigurationError: naming the option, what was expected and what came.
        """
        require_words(self, "loss", "local_view")
        require_min(self, 2, "batch_size")
        require_min(self, 0, "pretrain_epochs", "ce_weight", "rce_weight")
        require_positive(self, "learning_rate", "local_epochs", "temperature")
        if not isinstance(self.recalibrate_bn, bool):
            raise ConfigurationError(f"recalibrate_bn must be true or false, got {self.recalibrate_bn!r}")
        if not 0 < self.label_floor < 1:
            raise ConfigurationError(f"label_floor must be above 0 and below 1, got {self.label_floor}")
