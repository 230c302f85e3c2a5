"""FedIRM at a site, whose own data say which part it has: with labels it tells, without labels it listens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from types import MappingProxyType
from typing import Any, ClassVar

from torch import nn

from grandrounds.errors import DataError, MessageError
from grandrounds.federation.site.context import SiteContext
from grandrounds.federation.site.executor import SiteExecutor
from grandrounds.methods.fedirm.options import LabelledOptions, LocalOptions, RelationOptions, UnlabelledOptions
from grandrounds.methods.fedirm.relation import Relation, require_relation
from grandrounds.methods.fedirm.schedule import labelled_learning_rate
from grandrounds.methods.fedirm.self_training import train_on_own_labels
from grandrounds.methods.fedirm.training import train_labelled
from grandrounds.methods.fedirm.unlabelled import SiteTeacher, train_unlabelled
from grandrounds.options import take_options
from grandrounds.protocol.messages import Payload, Release, ReleaseKind, Result
from grandrounds.protocol.registration import Registration

RELATION, OWN_RELATION = "relation", "own_relation"


class FedIRMExecutor(SiteExecutor):
    """Inter-client relation matching (Liu et al., MICCAI 2021).

    A site with a labelled training image learns these and releases its relation matrix; any other site learns from a
    teacher and from the mean of those matrices. What labelled sites have beside labelled images is not used.

    Args:
        options: those of :class:`~grandrounds.methods.fedirm.options.LocalOptions`,
            :class:`~grandrounds.methods.fedirm.options.LabelledOptions`,
            :class:`~grandrounds.methods.fedirm.options.RelationOptions`,
            :class:`~grandrounds.methods.fedirm.options.UnlabelledOptions` and
            :class:`~grandrounds.federation.site.executor.SiteExecutor`. Where the site's ``grandrounds.json`` has a higher
            ``privacy.min_support`` than ``min_support``, that counts.
    """

    releases: ClassVar[Mapping[str, ReleaseKind]] = MappingProxyType(
        {RELATION: ReleaseKind.CLASS_STATISTICS, OWN_RELATION: ReleaseKind.CLASS_STATISTICS}
    )
    needs_labels = False
    models = ("shared",)
    record_level_obstacle: ClassVar[str] = "sites without labels compare whole batches"

    option_groups: ClassVar[tuple[type, ...]] = (LocalOptions, LabelledOptions, RelationOptions, UnlabelledOptions)

    def __init__(self, **options: Any) -> None:
        self.local, others = take_options(LocalOptions, options)
        self.labelled, others = take_options(LabelledOptions, others)
        self.relations, others = take_options(RelationOptions, others)
        self.unlabelled, others = take_options(UnlabelledOptions, others)
        super().__init__(**others)

    def options(self) -> dict[str, Any]:
        """All options that shape the training."""
        parts = (self.local, self.labelled, self.relations, self.unlabelled)
        return {name: value for part in parts for name, value in asdict(part).items()}

    def register(self, payload: Payload, context: SiteContext) -> Registration:
        """Whether this site has labels, and nothing more."""
        return Registration({"labelled": float(_has_labels(context))})

    def train(self, payload: Payload, context: SiteContext) -> Result:
        """Train for one round, as a site with labels or as one without."""
        with_labels = _has_labels(context)
        if with_labels != payload.values["labelled"]:
            now, then = ("with", "without") if with_labels else ("without", "with")
            raise DataError(
                f"{context.site}: it joined this run {then} labels and is {now} a labelled training image now; give it "
                "back the data it joined with, or start a run of another run_name"
            )
        network = self.starting_model(payload, context)
        return (
            self._train_labelled(payload, context, network)
            if with_labels
            else self._train_unlabelled(payload, context, network)
        )

    def _train_labelled(self, payload: Payload, context: SiteContext, network: nn.Module) -> Result:
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
        matched = self.unlabelled.unlabelled_objective == "fedirm" and self.unlabelled.relation_weight > 0
        wanted = matched and payload.values["relation_wanted"]
        releases = _released(RELATION, relation) if wanted or self.relations.release_relation else {}
        return self.finish(payload, network, optimizer, metrics, releases)

    def _train_unlabelled(self, payload: Payload, context: SiteContext, network: nn.Module) -> Result:
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
        releases = _released(OWN_RELATION, own) if self.relations.release_relation else {}
        return self.finish(payload, network, optimizer, metrics, releases)

    def _relations(self, context: SiteContext) -> RelationOptions:
        """The job's options, with the floor that the site itself has set if that is higher."""
        return replace(self.relations, min_support=max(self.relations.min_support, context.data.min_support))

    def _optimizer(self, network: nn.Module, learning_rate: float) -> Any:
        local = self.local
        return self.make_optimizer(network, learning_rate, weight_decay=local.weight_decay, betas=local.betas)


def _has_labels(context: SiteContext) -> bool:
    return len(context.data.rows("labelled")) > 0


def _released(name: str, relation: Relation) -> dict[str, Release]:
    return {name: Release(ReleaseKind.CLASS_STATISTICS, relation._asdict())}


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
