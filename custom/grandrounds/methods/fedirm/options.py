"""How FedIRM's server and sites work, as checked values: what all sites share, and what labelled and unlabelled ones do.

The defaults are what this project advises; Liu et al. (FedIRM, MICCAI 2021) and the authors' code are presets of the job.
Rounds are counted from 0 here, as the paper counts them: by how many came before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from grandrounds.errors import ConfigurationError
from grandrounds.methods.fedirm.relation import MIN_SUPPORT, TEMPERATURE, RelationAverage, RelationSource
from grandrounds.methods.fedirm.schedule import RampKind
from grandrounds.methods.fedirm.teacher import ALPHA
from grandrounds.methods.fedirm.uncertainty import DRAWS, THRESHOLD
from grandrounds.options import require_fractions, require_min, require_positive, require_words

Teacher = Literal["ema_persistent", "ema_reset", "none"]
Objective = Literal["fedirm", "self_training"]
Dropout = Literal["head", "full", "none"]
NormUpdates = Literal["once", "code"]
Divisor = Literal["images", "batch_size"]


@dataclass(frozen=True)
class ServerOptions:
    """What the server does.

    Attributes:
        unlabelled_start: the first round in which unlabelled sites train, counted from 0; None never lets them.
        min_support: fewest patients of a class at a site for its row to count in the mean; 0 counts every row, the uniform
            ones of absent classes too (paper and authors' code), but none that its site has withheld.
    """

    unlabelled_start: int | None = 21
    min_support: int = MIN_SUPPORT

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            ConfigurationError: naming the option, what was expected and what came.
        """
        require_min(self, 0, "unlabelled_start", "min_support")


@dataclass(frozen=True)
class LocalOptions:
    """Local training, the same at all sites.

    Attributes:
        batch_size: images per step, at least two for batch normalisation.
        epochs: passes over the site's images in a round.
        steps: steps in a round instead, the same at every site whatever its size; None counts epochs.
        weight_decay: Adam's, coupled (L2).
        betas: Adam's.
    """

    batch_size: int = 48
    epochs: int = 1
    steps: int | None = None
    weight_decay: float = 5e-4
    betas: tuple[float, float] = (0.9, 0.999)

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            ConfigurationError: naming the option, what was expected and what came.
        """
        require_min(self, 2, "batch_size")
        require_min(self, 1, "epochs", "steps")
        require_min(self, 0, "weight_decay")
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas):
            raise ConfigurationError(f"betas must be two numbers from 0 to below 1, got {list(self.betas)}")

    def pass_steps(self, images: int) -> int:
        """Batches in one pass over so many images; a single image left over joins the batch before.

        Example:
            >>> LocalOptions(batch_size=48).pass_steps(97), LocalOptions(batch_size=48).pass_steps(98)
            (2, 3)
        """
        full, rest = divmod(images, self.batch_size)
        return max(full + (rest > 1), 1)

    def round_steps(self, images: int) -> int:
        """Steps in a round at a site with so many images."""
        return self.steps or self.epochs * self.pass_steps(images)

    def elapsed(self, round_number: int, step: int, images: int) -> int:
        """What the ramp counts: epochs before this step, or rounds where steps are fixed; rounds count from 1."""
        if self.steps:
            return round_number - 1
        return (round_number - 1) * self.epochs + step // self.pass_steps(images)


@dataclass(frozen=True)
class RelationOptions:
    """Relation matrices.

    Attributes:
        temperature: tau, how much mean predictions are softened.
        min_support: fewest patients behind a row that leaves the site (lesions where patients are not known, images where
            neither is).
        relation_average: at labelled sites: ``samples`` adds up the logits of training (Eq. 2 and 3), ``batches`` is the
            mean of the batches' matrices (authors' code), ``exact`` a further pass with the trained weights and without
            dropout and augmentation.
        relation_source: what unlabelled sites average: ``logits``, or ``probabilities`` (Eq. 5 as printed).
        release_relation: whether unlabelled sites release their matrix, and labelled ones theirs where nobody matches it:
            for figures in simulations.
    """

    temperature: float = TEMPERATURE
    min_support: int = MIN_SUPPORT
    relation_average: RelationAverage = "samples"
    relation_source: RelationSource = "logits"
    release_relation: bool = False

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            ConfigurationError: naming the option, what was expected and what came.
        """
        require_positive(self, "temperature")
        require_min(self, 0, "min_support")
        require_words(self, "relation_average", "relation_source")


@dataclass(frozen=True)
class LabelledOptions:
    """What labelled sites do.

    Attributes:
        learning_rate: Adam's, in the first rounds.
        later_learning_rate: from round ``learning_rate_change`` on; None does not change it.
        learning_rate_change: the first round with the later rate.
        smoothing: of the labels, in [0, 1]. A model that has learnt smoothed labels is less sure, so that fewer of its
            predictions pass ``uncertainty_threshold``.
        two_views: learn two views of each image, added up.
    """

    learning_rate: float = 2e-4
    later_learning_rate: float | None = None
    learning_rate_change: int = 21
    smoothing: float = 0.0
    two_views: bool = True

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            ConfigurationError: naming the option, what was expected and what came.
        """
        require_positive(self, "learning_rate", "later_learning_rate")
        require_min(self, 0, "learning_rate_change")
        require_fractions(self, "smoothing")


@dataclass(frozen=True)
class UnlabelledOptions:
    """What sites without labels do.

    Attributes:
        unlabelled_objective: ``fedirm``, or ``self_training`` on pseudo-labels that the received model gives once a round.
        unlabelled_learning_rate: Adam's.
        ramp_learning_rate: multiply that rate by the ramp's weight as well (this project's; neither text nor code has it).
            All of the loss has the ramp as a factor, which Adam divides out again, so that without this option sites take
            whole steps from the first one on.
        teacher: ``ema_persistent`` stays at the site from round to round (authors' code), ``ema_reset`` begins every round
            as the received model, ``none`` is a second pass of the student (Eq. 1).
        teacher_decay: limit of the moving average's alpha, in [0, 1].
        teacher_temperature: the teacher's probabilities are sharpened by it, in (0, 1]; 1 leaves them.
        consistency_scale: kappa, factor of the whole loss.
        consistency_divisor: consistency is divided by the batch's ``images``, or by ``batch_size`` even where there are
            fewer (authors' code).
        relation_weight: rho; 0 is Fed-Consistency.
        ramp_length: rounds (with several epochs: epochs) until the loss has its full weight.
        ramp_kind: ``squared``, or as ``printed``.
        mc_dropout: where dropout is drawn to find what is certain: before the last layer (``head``, which costs next to
            nothing), everywhere (``full``), or ``none``: then all predictions count as certain.
        draws: T, how often.
        uncertainty_threshold: h, entropy in nats below which a prediction is certain.
        min_confidence: least probability of a certain prediction's class, in [0, 1].
        bn_updates: running statistics follow a batch ``once`` a step, or as fast as with the passes of the authors'
            ``code``, one for the student and one for each draw.
        self_training_confidence: least probability of a pseudo-label in self-training, in [0, 1].
    """

    unlabelled_objective: Objective = "fedirm"
    unlabelled_learning_rate: float = 2e-4
    ramp_learning_rate: bool = False
    teacher: Teacher = "ema_persistent"
    teacher_decay: float = ALPHA
    teacher_temperature: float = 1.0
    consistency_scale: float = 15.0
    consistency_divisor: Divisor = "images"
    relation_weight: float = 0.5
    ramp_length: float = 30.0
    ramp_kind: RampKind = "squared"
    mc_dropout: Dropout = "head"
    draws: int = DRAWS
    uncertainty_threshold: float = THRESHOLD
    min_confidence: float = 0.0
    bn_updates: NormUpdates = "once"
    self_training_confidence: float = 0.0

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            ConfigurationError: naming the option, what was expected and what came.
        """
        require_words(
            self, "unlabelled_objective", "teacher", "consistency_divisor", "ramp_kind", "mc_dropout", "bn_updates"
        )
        require_positive(self, "unlabelled_learning_rate")
        require_fractions(self, "teacher_decay", "min_confidence", "self_training_confidence")
        require_min(self, 0, "consistency_scale", "relation_weight", "ramp_length", "uncertainty_threshold")
        require_min(self, 1, "draws")
        if not 0 < self.teacher_temperature <= 1:
            raise ConfigurationError(
                f"teacher_temperature must be above 0 and at most 1, got {self.teacher_temperature}"
            )
