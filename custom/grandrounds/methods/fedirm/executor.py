"""FedIRM at a site, whose own data say which part it has: with labels it tells, without labels it listens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from types import MappingProxyType
from typing import Any, ClassVar

from torch import nn

from grandrounds.errors import DataError, MessageError
from grandrounds.federation.context import SiteContext
from grandrounds.federation.executor import SiteExecutor
from grandrounds.federation.introduction import Introduction
from grandrounds.federation.memory import keep_freed_memory
from grandrounds.federation.messages import Payload, Release, ReleaseKind, Result
from grandrounds.methods.fedirm.options import (
    Divisor,
    Dropout,
    LabelledOptions,
    LocalOptions,
    NormUpdates,
    Objective,
    RelationOptions,
    Teacher,
    UnlabelledOptions,
    pair,
)
from grandrounds.methods.fedirm.relation import (
    MIN_SUPPORT,
    TEMPERATURE,
    Relation,
    RelationAverage,
    RelationSource,
    require_relation,
)
from grandrounds.methods.fedirm.schedule import RampKind, labelled_learning_rate
from grandrounds.methods.fedirm.self_training import train_on_own_labels
from grandrounds.methods.fedirm.teacher import ALPHA
from grandrounds.methods.fedirm.training import train_labelled
from grandrounds.methods.fedirm.uncertainty import DRAWS, THRESHOLD
from grandrounds.methods.fedirm.unlabelled import SiteTeacher, train_unlabelled
from grandrounds.methods.supervised.training import labelled_rows

RELATION, OWN_RELATION = "relation", "own_relation"


class FedIRMExecutor(SiteExecutor):
    """Inter-client relation matching (Liu et al., MICCAI 2021).

    A site with a labelled training image learns these and releases its relation matrix; any other site learns from a
    teacher and from the mean of those matrices. What labelled sites have beside labelled images is not used.

    Args:
        batch_size: see :class:`~grandrounds.methods.fedirm.options.LocalOptions`, as the next four.
        epochs: passes over the site's images in a round.
        steps: steps in a round instead.
        weight_decay: Adam's.
        betas: Adam's.
        learning_rate: see :class:`~grandrounds.methods.fedirm.options.LabelledOptions`, as the next four.
        later_learning_rate: from ``learning_rate_change`` on.
        learning_rate_change: the first round with the later rate, from 0.
        smoothing: of the labels.
        two_views: learn two views of each image.
        temperature: see :class:`~grandrounds.methods.fedirm.options.RelationOptions`, as the next four.
        min_support: fewest patients, else lesions, else images, behind a row that leaves the site; where the site's
            ``grandrounds.json`` has a higher ``privacy.min_support``, that counts.
        relation_average: ``samples``, ``batches`` or ``exact``.
        relation_source: ``logits`` or ``probabilities``.
        release_relation: release matrices that nobody matches, for figures in simulations.
        unlabelled_objective: see :class:`~grandrounds.methods.fedirm.options.UnlabelledOptions`, as the others.
        unlabelled_learning_rate: Adam's.
        ramp_learning_rate: multiply it by the ramp as well.
        teacher: ``ema_persistent``, ``ema_reset`` or ``none``.
        teacher_decay: limit of alpha.
        teacher_temperature: sharpens the teacher's probabilities.
        consistency_scale: kappa.
        consistency_divisor: ``images`` or ``batch_size``.
        relation_weight: rho.
        ramp_length: until the loss has its full weight.
        ramp_kind: ``squared`` or ``printed``.
        mc_dropout: ``head``, ``full`` or ``none``.
        draws: T.
        uncertainty_threshold: h, in nats.
        min_confidence: least probability of a certain prediction's class.
        bn_updates: ``once`` or ``code``.
        self_training_confidence: least probability of a pseudo-label in self-training.
        options: those of :class:`~grandrounds.federation.executor.SiteExecutor`.
    """

    releases: ClassVar[Mapping[str, ReleaseKind]] = MappingProxyType(
        {RELATION: ReleaseKind.CLASS_STATISTICS, OWN_RELATION: ReleaseKind.CLASS_STATISTICS}
    )
    needs_labels = False
    models = ("shared",)

    def __init__(
        self,
        *,
        batch_size: int = 48,
        epochs: int = 1,
        steps: int | None = None,
        weight_decay: float = LocalOptions.weight_decay,
        betas: list[float] | None = None,
        learning_rate: float = 2e-4,
        later_learning_rate: float | None = None,
        learning_rate_change: int = 21,
        smoothing: float = LabelledOptions.smoothing,
        two_views: bool = LabelledOptions.two_views,
        temperature: float = TEMPERATURE,
        min_support: int = MIN_SUPPORT,
        relation_average: RelationAverage = "samples",
        relation_source: RelationSource = "logits",
        release_relation: bool = False,
        unlabelled_objective: Objective = "fedirm",
        unlabelled_learning_rate: float = 2e-4,
        ramp_learning_rate: bool = False,
        teacher: Teacher = "ema_persistent",
        teacher_decay: float = ALPHA,
        teacher_temperature: float = 1.0,
        consistency_scale: float = 15.0,
        consistency_divisor: Divisor = "images",
        relation_weight: float = UnlabelledOptions.relation_weight,
        ramp_length: float = 30.0,
        ramp_kind: RampKind = "squared",
        mc_dropout: Dropout = "head",
        draws: int = DRAWS,
        uncertainty_threshold: float = THRESHOLD,
        min_confidence: float = 0.0,
        bn_updates: NormUpdates = "once",
        self_training_confidence: float = 0.0,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.local = LocalOptions(batch_size, epochs, steps, weight_decay, pair(betas or LocalOptions.betas, "betas"))
        self.labelled = LabelledOptions(learning_rate, later_learning_rate, learning_rate_change, smoothing, two_views)
        self.relations = RelationOptions(temperature, min_support, relation_average, relation_source, release_relation)
        self.unlabelled = UnlabelledOptions(
            unlabelled_objective=unlabelled_objective,
            unlabelled_learning_rate=unlabelled_learning_rate,
            ramp_learning_rate=ramp_learning_rate,
            teacher=teacher,
            teacher_decay=teacher_decay,
            teacher_temperature=teacher_temperature,
            consistency_scale=consistency_scale,
            consistency_divisor=consistency_divisor,
            relation_weight=relation_weight,
            ramp_length=ramp_length,
            ramp_kind=ramp_kind,
            mc_dropout=mc_dropout,
            draws=draws,
            uncertainty_threshold=uncertainty_threshold,
            min_confidence=min_confidence,
            bn_updates=bn_updates,
            self_training_confidence=self_training_confidence,
        )

    def options(self) -> dict[str, Any]:
        """All options that shape the training."""
        parts = (self.local, self.labelled, self.relations, self.unlabelled)
        return {name: value for part in parts for name, value in asdict(part).items()}

    def introduce(self, payload: Payload, context: SiteContext) -> Introduction:
        """Whether this site has labels, and nothing more."""
        return Introduction({"labelled": float(_has_labels(context))})

    def train(self, payload: Payload, context: SiteContext) -> Result:
        """Train for one round, as a site with labels or as one without."""
        with_labels = _has_labels(context)
        if with_labels != payload.values["labelled"]:
            now, then = ("with", "without") if with_labels else ("without", "with")
            raise DataError(
                f"{context.site}: it joined this run {then} labels and is {now} a labelled training image now; give it "
                "back the data it joined with, or start a run of another run_name"
            )
        keep_freed_memory()
        network = self.starting_model(payload, context)
        return self._tell(payload, context, network) if with_labels else self._listen(payload, context, network)

    def _tell(self, payload: Payload, context: SiteContext, network: nn.Module) -> Result:
        options = self.labelled
        rate = labelled_learning_rate(
            context.round_number - 1,
            options.learning_rate,
            options.later_learning_rate or options.learning_rate,
            options.learning_rate_change,
        )
        optimizer = self._optimizer(network, rate)
        relations = self._relations(context)
        metrics, relation = train_labelled(network, optimizer, context, self.local, options, relations)
        result = self.finish(payload, network, optimizer, metrics)
        matched = self.unlabelled.unlabelled_objective == "fedirm" and self.unlabelled.relation_weight > 0
        wanted = matched and payload.values["relation_wanted"]
        return _with(result, RELATION, relation) if wanted or self.relations.release_relation else result

    def _listen(self, payload: Payload, context: SiteContext, network: nn.Module) -> Result:
        options = self.unlabelled
        optimizer = self._optimizer(network, options.unlabelled_learning_rate)
        if options.unlabelled_objective == "self_training":
            metrics = train_on_own_labels(network, optimizer, context, self.local, options)
            return self.finish(payload, network, optimizer, metrics)
        teacher = SiteTeacher(network, options, self.kept.get("teacher", {}))
        target = _received(payload, len(context.problem.classes))
        relations = self._relations(context)
        metrics, own = train_unlabelled(network, optimizer, context, self.local, options, relations, target, teacher)
        if teacher.state():
            self.kept["teacher"] = teacher.state()
        result = self.finish(payload, network, optimizer, metrics)
        return _with(result, OWN_RELATION, own) if self.relations.release_relation else result

    def _relations(self, context: SiteContext) -> RelationOptions:
        """The job's options, with the floor that the site itself has set if that is higher."""
        return replace(self.relations, min_support=max(self.relations.min_support, context.data.min_support))

    def _optimizer(self, network: nn.Module, learning_rate: float) -> Any:
        local = self.local
        return self.make_optimizer(network, learning_rate, weight_decay=local.weight_decay, betas=local.betas)


def _has_labels(context: SiteContext) -> bool:
    return len(labelled_rows(context.data, "labelled")) > 0


def _with(result: Result, name: str, relation: Relation) -> Result:
    release = Release(ReleaseKind.CLASS_STATISTICS, relation._asdict())
    return replace(result, releases={**result.releases, name: release})


def _received(payload: Payload, classes: int) -> Relation | None:
    """The labelled sites' matrix, if the server has sent one."""
    if RELATION not in payload.parts:
        return None
    try:
        relation = Relation(**payload.parts[RELATION])
        require_relation(relation, classes, "the relation matrix from the server")
    except (TypeError, ValueError) as error:
        raise MessageError(f"the server's relation matrix cannot be used: {error}") from error
    return relation
