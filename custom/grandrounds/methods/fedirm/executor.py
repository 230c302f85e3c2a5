"""FedIRM at a site: labelled sites send their relation matrix, unlabelled sites match the mean of these."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, ClassVar

from torch import nn

from grandrounds.errors import DataError, MessageError
from grandrounds.federation.site.context import SiteContext
from grandrounds.federation.site.executor import SiteExecutor
from grandrounds.methods.fedirm.options import ClientOptions, LabelledOptions, RelationOptions, UnlabelledOptions
from grandrounds.methods.fedirm.relation import Relation, require_relation
from grandrounds.methods.fedirm.training import train_labelled
from grandrounds.methods.fedirm.unlabelled import SiteTeacher, self_train, train_unlabelled
from grandrounds.protocol.messages import Payload, Registration, Release, ReleaseKind, Result
from grandrounds.protocol.problem import Problem
from grandrounds.protocol.task import Task

RELATION, PSEUDO_RELATION = "relation", "pseudo_relation"


class FedIRMExecutor(SiteExecutor):
    """Inter-client relation matching (Liu et al., MICCAI 2021).

    A site with a labelled training image learns its labelled images and releases its relation matrix; any other site learns
    from a mean teacher and the mean of those matrices. Unlabelled images of labelled sites are not used.
    """

    releases: ClassVar[Mapping[str, ReleaseKind]] = MappingProxyType(
        {RELATION: ReleaseKind.CLASS_STATISTICS, PSEUDO_RELATION: ReleaseKind.CLASS_STATISTICS}
    )
    needs_labels = False
    models = ("shared",)
    needs_exclusive: ClassVar[bool] = False
    record_level_obstacle: ClassVar[str] = "sites without labels compare whole batches"

    local: ClientOptions
    labelled: LabelledOptions
    relations: RelationOptions
    unlabelled: UnlabelledOptions

    def require_kind(self, kind: Task) -> None:
        """See :meth:`SiteExecutor.require_kind`."""
        super().require_kind(kind)
        if self.unlabelled.unlabelled_objective == "self_training":
            kind.require_exclusive("executor.unlabelled_objective=self_training", "set it to fedirm")
        if self.labelled.logit_adjustment:
            kind.require_exclusive("executor.logit_adjustment", "set it to 0")

    @classmethod
    def nothing_to_do(cls, labelled: Mapping[str, int], unlabelled: Mapping[str, int]) -> str:
        """Only sites without labels learn in another way."""
        none = "every site has labels, so no site learns from the others' labels alone: this is federated averaging"
        return none if all(labelled.values()) else ""

    def register(self, payload: Payload, context: SiteContext) -> Registration:
        """Whether this site has labels."""
        return Registration({"labelled": float(_has_labels(context))})

    def train(self, payload: Payload, context: SiteContext) -> Result:
        """Train for one round, as a labelled or an unlabelled site."""
        with_labels = _has_labels(context)
        if with_labels != payload.values["labelled"]:
            now, then = ("with", "without") if with_labels else ("without", "with")
            raise DataError(
                f"{context.site}: the site joined this run {then} labels and is {now} a labelled training image now; "
                "restore the data it joined with, or start a run of another run_name"
            )
        network = self.starting_model(payload, context)
        train = self._train_labelled if with_labels else self._train_unlabelled
        return train(payload, context, network)

    def _train_labelled(self, payload: Payload, context: SiteContext, network: nn.Module) -> Result:
        optimizer = self._optimizer(network, self.labelled.rate_after(context.round_number - 1))
        relations = self._relations(context)
        metrics, relation = train_labelled(network, optimizer, context, self.local, self.labelled, relations)
        matched = self.unlabelled.unlabelled_objective == "fedirm" and self.unlabelled.relation_weight > 0
        wanted = matched and payload.values["relation_wanted"]
        releases = _released(RELATION, relation) if wanted or self.relations.release_relation else {}
        return self.finish(payload, network, optimizer, metrics, releases)

    def _train_unlabelled(self, payload: Payload, context: SiteContext, network: nn.Module) -> Result:
        options = self.unlabelled
        optimizer = self._optimizer(network, options.unlabelled_learning_rate)
        if options.unlabelled_objective == "self_training":
            metrics = self_train(network, optimizer, context, self.local, options)
            return self.finish(payload, network, optimizer, metrics)
        teacher = SiteTeacher(context.problem.kind, network, options, self.kept.get("teacher", {}))
        target = _received(payload, context.problem)
        relations = self._relations(context)
        metrics, relation = train_unlabelled(
            network, optimizer, context, self.local, options, relations, target, teacher
        )
        if teacher.state():
            self.kept["teacher"] = teacher.state()
        releases = _released(PSEUDO_RELATION, relation) if self.relations.release_relation else {}
        return self.finish(payload, network, optimizer, metrics, releases)

    def _relations(self, context: SiteContext) -> RelationOptions:
        """The job's options, with the site's own minimum support if that is higher."""
        return replace(self.relations, min_support=max(self.relations.min_support, context.data.min_support))

    def _optimizer(self, network: nn.Module, learning_rate: float) -> Any:
        local = self.local
        return self.make_optimizer(network, learning_rate, weight_decay=local.weight_decay, betas=local.betas)


def _has_labels(context: SiteContext) -> bool:
    return len(context.data.rows("labelled")) > 0


def _released(name: str, relation: Relation) -> dict[str, Release]:
    return {name: Release(ReleaseKind.CLASS_STATISTICS, relation._asdict())}


def _received(payload: Payload, problem: Problem) -> Relation | None:
    """The labelled sites' matrix, if the server has sent one."""
    if RELATION not in payload.parts:
        return None
    try:
        relation = Relation(**payload.parts[RELATION])
        require_relation(
            relation, problem.kind.relation_shape(len(problem.classes)), "the relation matrix from the server"
        )
    except (TypeError, ValueError) as error:
        raise MessageError(f"the server's relation matrix cannot be used: {error}") from error
    return relation
