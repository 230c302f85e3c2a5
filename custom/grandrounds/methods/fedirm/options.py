"""FedIRM's options: the server, local training, relation matrices, and sites with and without labels.

The defaults are this project's recommendation, but for the filter and the weight of labelled sites; Liu et al. (FedIRM,
MICCAI 2021) and the authors' code are presets of the job. Options count rounds from 0, as the paper does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from grandrounds.errors import ConfigurationError
from grandrounds.federation.site.training import RateOptions
from grandrounds.methods.fedirm.relation import MIN_SUPPORT, TEMPERATURE, RampKind, RelationAverage, RelationSource
from grandrounds.methods.fedirm.uncertainty import ALPHA, DRAWS
from grandrounds.options import ABOVE_ZERO, BASIC, FRACTION, METHOD, Min, Options, Range

Teacher = Literal["ema_persistent", "ema_reset", "none"]
Objective = Literal["fedirm", "self_training"]
Dropout = Literal["head", "full", "none"]
NormUpdates = Literal["once", "code"]
Divisor = Literal["images", "batch_size"]


@dataclass(frozen=True)
class ServerOptions(Options):
    """When unlabelled sites train, how much labelled sites count, and which rows the mean relation matrix averages.

    A ``min_support`` of 0 counts every row that its site releases, the uniform ones of absent classes, too (paper and code).
    """

    unlabelled_start: Annotated[int | None, "first round of unlabelled sites (from 0); null: never", Min(0), METHOD] = (
        21
    )
    min_support: Annotated[int, "minimum number of patients of a class at a site for its row to count", Min(0)] = (
        MIN_SUPPORT
    )
    labelled_weight: Annotated[
        float, "factor of a labelled site's weight in the mean (RSCFed's code: 200 for skin lesions)", ABOVE_ZERO
    ] = 1.0

    def unlabelled_sites_train(self, elapsed: int) -> bool:
        """Whether unlabelled sites train after ``elapsed`` rounds."""
        return self.unlabelled_start is not None and elapsed >= self.unlabelled_start


@dataclass(frozen=True)
class ClientOptions(RateOptions):
    """Local training with Adam, the same at all sites."""

    batch_size: Annotated[int, "images per step", Min(2), BASIC] = 48
    epochs: Annotated[int, "passes over the site's images in a round", Min(1)] = 1
    steps: Annotated[int | None, "steps in a round instead, the same at every site", Min(1), BASIC] = None
    weight_decay: Annotated[float, "coupled (L2) weight decay", Min(0)] = 5e-4
    betas: Annotated[tuple[float, float], "Adam's betas", Range(0, 1, open_maximum=True)] = (0.9, 0.999)
    clip_norm: Annotated[float | None, "bound on the norm of a step's gradient; null clips nothing", ABOVE_ZERO] = None

    def check(self) -> None:
        """Refuse betas that are not a pair."""
        if len(self.betas) != 2:
            raise ConfigurationError(f"betas must be two numbers, got {list(self.betas)}")

    def pass_steps(self, images: int) -> int:
        """Batches in one pass over the images; a single remaining image joins the batch before.

        Example:
            >>> ClientOptions(batch_size=48).pass_steps(97), ClientOptions(batch_size=48).pass_steps(98)
            (2, 3)
        """
        full, rest = divmod(images, self.batch_size)
        return max(full + (rest > 1), 1)

    def round_steps(self, images: int) -> int:
        """Steps in a round at a site with this number of images."""
        return self.steps or self.epochs * self.pass_steps(images)

    def elapsed(self, round_number: int, step: int, images: int) -> int:
        """Epochs before a step, or rounds if ``steps`` is set: the argument of the ramp. Rounds count from 1 here."""
        if self.steps:
            return round_number - 1
        return (round_number - 1) * self.epochs + step // self.pass_steps(images)


@dataclass(frozen=True)
class RelationOptions(Options):
    """Relation matrices of a site.

    ``relation_average`` at labelled sites: ``samples`` averages the logits of training (Eq. 2 and 3), ``batches`` the
    matrices of the batches (authors' code), ``exact`` the logits of an additional pass without dropout and augmentation.
    ``min_support`` counts lesions if patients are unknown, and images if neither is known; a higher
    ``privacy.min_support`` of the site's ``grandrounds.json`` takes precedence.
    """

    temperature: Annotated[float, "tau, the softmax temperature of mean predictions", ABOVE_ZERO] = TEMPERATURE
    min_support: Annotated[int, "minimum number of patients behind a row that leaves the site", Min(0)] = MIN_SUPPORT
    relation_average: Annotated[RelationAverage, "what labelled sites average"] = "samples"
    relation_source: Annotated[RelationSource, "what unlabelled sites average (Eq. 5 prints probabilities)"] = "logits"
    release_relation: Annotated[bool, "release matrices that no site matches, for figures in simulations"] = False


@dataclass(frozen=True)
class LabelledOptions(Options):
    """Training of labelled sites."""

    learning_rate: Annotated[float, "Adam's, in the first rounds", ABOVE_ZERO, BASIC] = 2e-4
    later_learning_rate: Annotated[
        float | None, "from round learning_rate_change on; null: constant (authors' code: 3e-4)", ABOVE_ZERO
    ] = None
    learning_rate_change: Annotated[int, "first round with the later rate (from 0)", Min(0)] = 21
    smoothing: Annotated[float, "label smoothing; it lowers confidence, so that fewer predictions count", FRACTION] = (
        0.0
    )
    two_views: Annotated[bool, "learn two views of each image, summed"] = True
    logit_adjustment: Annotated[
        float, "log class shares of the site's labels that training adds to logits, times this; 0 adds none", Min(0)
    ] = 0.0

    def rate_after(self, elapsed: int) -> float:
        """The learning rate after ``elapsed`` rounds."""
        later = self.later_learning_rate or self.learning_rate
        return self.learning_rate if elapsed < self.learning_rate_change else later


@dataclass(frozen=True)
class UnlabelledOptions(Options):
    """Training of unlabelled sites.

    ``unlabelled_objective``: ``fedirm``, or ``self_training`` on pseudo-labels of the received model. ``teacher``:
    ``ema_persistent`` is kept from round to round (authors' code), ``ema_reset`` starts each round as the received model,
    ``none`` is a second pass of the student (Eq. 1). ``mc_dropout``: before the last layer (``head``, almost free),
    everywhere (``full``), or ``none``, so that all predictions count as certain. ``bn_updates``: running statistics are
    updated ``once`` per step, or as often as by the passes of the authors' ``code``. ``ramp_learning_rate`` is in neither
    text nor code: the ramp is a factor of the whole loss, which Adam's normalisation cancels otherwise.
    """

    unlabelled_objective: Annotated[Objective, "what unlabelled sites minimise"] = "fedirm"
    unlabelled_learning_rate: Annotated[float, "Adam's", ABOVE_ZERO] = 2e-4
    ramp_learning_rate: Annotated[bool, "multiply the learning rate by the ramp"] = False
    teacher: Annotated[Teacher, "the mean teacher"] = "ema_persistent"
    teacher_decay: Annotated[float, "limit of the moving average's alpha", FRACTION] = ALPHA
    teacher_temperature: Annotated[
        float, "sharpens the teacher's probabilities; 1 leaves them", Range(0, 1, open_minimum=True)
    ] = 1.0
    consistency_scale: Annotated[float, "kappa, factor of the whole loss", Min(0)] = 15.0
    consistency_divisor: Annotated[Divisor, "divisor of consistency on short batches (authors' code: batch_size)"] = (
        "images"
    )
    relation_weight: Annotated[float, "rho; 0 is Fed-Consistency", Min(0), METHOD] = 0.5
    ramp_length: Annotated[float, "rounds (with several epochs: epochs) until the loss has its full weight", Min(0)] = (
        30.0
    )
    ramp_kind: Annotated[RampKind, "exponent of the ramp: squared, or as printed"] = "squared"
    mc_dropout: Annotated[Dropout, "where Monte Carlo dropout is drawn"] = "head"
    draws: Annotated[int, "T, the number of Monte Carlo draws", Min(1)] = DRAWS
    uncertainty_threshold: Annotated[
        float | None,
        "h, entropy in nats below which a prediction is certain; null: ln 2 of classes, 0.45 of findings (about 0.83 sure)",
        Min(0),
        METHOD,
    ] = None
    min_confidence: Annotated[float, "minimum probability of a certain prediction, also in self-training", FRACTION] = (
        0.0
    )
    bn_updates: Annotated[NormUpdates, "updates of running statistics per step"] = "once"
