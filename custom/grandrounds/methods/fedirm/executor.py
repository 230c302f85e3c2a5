"""FedIRM at a site: labelled sites send their relation matrix, unlabelled sites match the mean of these."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, ClassVar

import torch
from nvflare.apis.fl_context import FLContext
from nvflare.apis.signal import Signal
from torch import nn

from grandrounds.errors import DataError, MessageError
from grandrounds.federation.executor_options import require_stated
from grandrounds.federation.site.context import SiteContext
from grandrounds.federation.site.executor import RunHere, SiteExecutor
from grandrounds.methods.fedirm.options import ClientOptions, LabelledOptions, RelationOptions, UnlabelledOptions
from grandrounds.methods.fedirm.relation import NOT_RELEASED, Relation, require_relation
from grandrounds.methods.fedirm.training import SiteTeacher, self_train, train_labelled, train_unlabelled
from grandrounds.protocol.messages import Payload, Registration, Release, ReleaseKind, Result
from grandrounds.protocol.problem import Problem
from grandrounds.protocol.task import Task

RELATION, PSEUDO_RELATION = "relation", "pseudo_relation"
FACTOR = "labelled_weight"
"""Option of the controller, by which a site with labels multiplies its own images in a secure sum."""


class FedIRMExecutor(SiteExecutor):
    """Inter-client relation matching (Liu et al., MICCAI 2021).

    A site with a labelled training image learns its labelled images and releases its relation matrix; any other site learns
    from a mean teacher and the mean of those matrices. Unlabelled images of labelled sites are not used.
    """

    releases: ClassVar[Mapping[str, ReleaseKind]] = MappingProxyType(
        {RELATION: ReleaseKind.CLASS_STATISTICS, PSEUDO_RELATION: ReleaseKind.CLASS_STATISTICS}
    )
    needed: ClassVar[tuple[str, ...]] = ("labelled",)
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
    def releases_with(cls, options: Mapping[str, Any]) -> dict[str, ReleaseKind]:
        """Sites with labels release a matrix where others match it, and all for figures."""
        declared = super().releases_with(options)
        if not options["release_relation"]:
            del declared[PSEUDO_RELATION]
            if options["unlabelled_objective"] != "fedirm" or options["relation_weight"] <= 0:
                del declared[RELATION]
        return declared

    @classmethod
    def nothing_to_do(cls, labelled: Mapping[str, int], unlabelled: Mapping[str, int]) -> str:
        """Only sites without labels learn in another way."""
        none = "every site has labels, so no site learns from the others' labels alone: this is federated averaging"
        return none if all(labelled.values()) else ""

    def _prepared(self, payload: Payload, fl_ctx: FLContext, abort_signal: Signal) -> tuple[SiteContext, RunHere]:
        if FACTOR in payload.values:
            require_stated(fl_ctx, payload.values, {FACTOR: 1.0})
        return super()._prepared(payload, fl_ctx, abort_signal)

    def register(self, payload: Payload, context: SiteContext) -> Registration:
        """Whether this site has labels."""
        return Registration({"labelled": float(_has_labels(context))})

    def train(self, payload: Payload, context: SiteContext) -> Result:
        """Train for one round, as a labelled or an unlabelled site."""
        with_labels, before = _has_labels(context), payload.values["labelled"]
        if before is not None and with_labels != before:
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
        wanted = (matched or _adds_up(payload)) and payload.values["relation_wanted"]
        shown = self.relations.release_relation and not _adds_up(payload)
        releases = _released(RELATION, relation) if wanted or shown else {}
        result = self.finish(payload, network, optimizer, metrics, releases)
        factor = payload.values[FACTOR] if _adds_up(payload) else 1.0
        return replace(result, samples=max(1, round(factor * result.samples)))

    def _train_unlabelled(self, payload: Payload, context: SiteContext, network: nn.Module) -> Result:
        options = self.unlabelled
        optimizer = self._optimizer(network, options.unlabelled_learning_rate)
        if options.unlabelled_objective == "self_training":
            metrics = self_train(network, optimizer, context, self.local, options)
            return self.finish(payload, network, optimizer, metrics, _of_no_row(payload, context.problem))
        teacher = SiteTeacher(context.problem.kind, network, options, self.kept.get("teacher", {}))
        target = _received(payload, context.problem)
        relations = self._relations(context)
        metrics, relation = train_unlabelled(
            network, optimizer, context, self.local, options, relations, target, teacher
        )
        if teacher.state():
            self.kept["teacher"] = teacher.state()
        shown = self.relations.release_relation and not _adds_up(payload)
        releases = _released(PSEUDO_RELATION, relation) if shown else _of_no_row(payload, context.problem)
        return self.finish(payload, network, optimizer, metrics, releases)

    def _relations(self, context: SiteContext) -> RelationOptions:
        """The job's options, with the site's own minimum support if that is higher."""
        return replace(self.relations, min_support=max(self.relations.min_support, context.data.min_support))

    def _optimizer(self, network: nn.Module, learning_rate: float) -> Any:
        local = self.local
        return self.make_optimizer(
            network, learning_rate, head_rate=local.head_rate, weight_decay=local.weight_decay, betas=local.betas
        )


def _adds_up(payload: Payload) -> bool:
    """Whether the server sees a sum of matrices alone, and asks all sites the same."""
    return payload.values["labelled"] is None


def _of_no_row(payload: Payload, problem: Problem) -> dict[str, Release]:
    """What a site without labels adds to a sum of matrices, so that all add the same names: nothing."""
    if not (_adds_up(payload) and payload.values["relation_wanted"]):
        return {}
    rows, columns = problem.kind.relation_shape(len(problem.classes))
    return _released(RELATION, Relation(torch.full((rows, columns), 1 / columns), torch.full((rows,), NOT_RELEASED)))


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
