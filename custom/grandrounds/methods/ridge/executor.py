"""Federated ridge regression at a site: counts of classes, sums of products of features, losses, images to label."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
import torch
from nvflare.apis.fl_context import FLContext
from nvflare.apis.signal import Signal
from torch import Tensor

from grandrounds.errors import MessageError
from grandrounds.evaluation.label_choice import NO_BIN, Cuts, Ranked, chosen, gaps_of, meant_for, ranked
from grandrounds.federation.executor_options import require_stated
from grandrounds.federation.site.closed_form import candidate_losses, labelled_images, sums_at_site
from grandrounds.federation.site.context import SiteContext
from grandrounds.federation.site.executor import RunHere, SiteExecutor
from grandrounds.federation.site.outcomes import gate_of
from grandrounds.federation.site.scoring import score
from grandrounds.federation.site.store import SiteStore
from grandrounds.methods.ridge.options import MOST_OFFSETS, MOST_PENALTIES, ViewOptions
from grandrounds.methods.ridge.phases import (
    ANSWERS,
    CANDIDATES,
    CENTRE,
    CLASS_COUNTS,
    CLASS_WEIGHTS,
    COUNT,
    LABEL_BUDGET,
    LABEL_CUTS,
    LABELS,
    LOGITS,
    LOSSES,
    OFFSET,
    PHASE,
    SOLVE,
    SUMS,
    UNSEEN,
    VALIDATION_IMAGES,
    temperature_metric,
)
from grandrounds.models.closed_form.solve import TEMPERATURES
from grandrounds.models.closed_form.sums import DEFAULT_NORM, Sums
from grandrounds.privacy.gate.treatments import LABEL_MARGINS, SUPPORT
from grandrounds.privacy.secure_sums.summands import LARGEST_NORM
from grandrounds.protocol.messages import COMMON, TRAIN, Payload, Release, ReleaseKind, Result, State
from grandrounds.protocol.names import ELSEWHERE, LABEL_NEXT, OTHER_SOURCES
from grandrounds.protocol.paths import in_kit
from grandrounds.protocol.problem import DEPTHS, TRAIN_HEAD, Problem
from grandrounds.protocol.question import question_id
from grandrounds.protocol.wire import stated_arguments, stated_problem

RANKED, RANKED_NAMES = "ranked", "names"
"""What a site keeps of its unlabelled images: the parts of :class:`Ranked` with the budget, and their names."""


class RidgeExecutor(SiteExecutor):
    """Answers the phases of :class:`~grandrounds.methods.ridge.controller.RidgeController`; it trains nothing itself.

    A class with fewer patients here than the site's minimum is left out of its counts and sums. A site without labels has
    none, and scores as the others do.
    """

    view_options: ViewOptions
    _question: str = ""
    needs_labels = False
    needs_float32: ClassVar[str] = "its sums are of what the network gives"
    needs_exclusive: ClassVar[bool] = False
    models: ClassVar[tuple[str, ...]] = ("shared",)
    releases: ClassVar[Mapping[str, ReleaseKind]] = MappingProxyType(
        dict.fromkeys((CLASS_COUNTS, SUMS, LOSSES, LABEL_MARGINS), ReleaseKind.SUFFICIENT_STATISTICS)
    )

    @classmethod
    def releases_with(cls, options: Mapping[str, Any]) -> dict[str, ReleaseKind]:
        """No update, because nothing is trained; losses are a release only where no server sees them."""
        never = (LOSSES,) if options.get(LABEL_BUDGET) else (LOSSES, LABEL_MARGINS)
        return {name: kind for name, kind in cls.releases.items() if name not in never}

    def _require_allowed(self, task_name: str, fl_ctx: FLContext) -> None:
        if task_name == TRAIN:
            gate_of(fl_ctx).require_releases(self.releases_with(stated_arguments(fl_ctx) or {}))

    def _prepared(self, payload: Payload, fl_ctx: FLContext, abort_signal: Signal) -> tuple[SiteContext, RunHere]:
        context, run = super()._prepared(payload, fl_ctx, abort_signal)
        require_own_network(context.problem, context.seed, stated_problem(fl_ctx), in_kit(fl_ctx))
        if PHASE in payload.values:
            require_stated(fl_ctx, payload.values, {LARGEST_NORM: DEFAULT_NORM, LABEL_BUDGET: 0})
        return context, run

    def tested_models(self, payload: Payload, context: SiteContext, store: SiteStore) -> dict[str, State]:
        """The selected model and, where the server knows them, those of the other sites and of other sources.

        Before, the site writes which images it is to label, where these were chosen; what is wrong with that costs the list.
        """
        if LABEL_CUTS in payload.parts and RANKED in self.kept:
            try:
                self._write_list(payload.parts[LABEL_CUTS], context, store)
            except (MessageError, TypeError) as error:
                self.logger.error(f"no list of images to label: {error}")
        tested = super().tested_models(payload, context, store)
        others = {name: payload.parts[name] for name in (ELSEWHERE, OTHER_SOURCES) if name in payload.parts}
        return {**tested, **{name: {**tested[COMMON], **head} for name, head in others.items()}}

    def _write_list(self, part: State, context: SiteContext, store: SiteStore) -> None:
        names, classes = _unlabelled(context), context.problem.classes
        if names != self.kept[RANKED_NAMES]:
            raise MessageError("the site's unlabelled images are not those which were counted; start another run")
        *arrays, budget = (value.numpy() for value in self.kept[RANKED])
        images, cuts = Ranked(*arrays), read_cuts(part, len(classes))
        lines = [[names[at], classes[images.meant[at]]] for at in chosen(images, cuts)[: int(budget)]]
        store.write_predictions(LABEL_NEXT, ["image", "meant"], lines)

    def train(self, payload: Payload, context: SiteContext) -> Result:
        """Answer the phase of a task.

        Raises:
            MessageError: if there is no such phase.
        """
        answers = {COUNT: self._count, SOLVE: self._add_up, LOGITS: self._temper, LABELS: self._rank}
        phase: Any = payload.values.get(PHASE)
        if phase not in answers:
            raise MessageError(f"a task of ridge regression has no phase {phase!r}")
        return answers[phase](payload, context)

    def _count(self, payload: Payload, context: SiteContext) -> Result:
        rows, targets, support = _labelled(context)
        return _released(CLASS_COUNTS, {CLASS_COUNTS: torch.from_numpy(targets.sum(axis=0)).long()}, support, len(rows))

    def _add_up(self, payload: Payload, context: SiteContext) -> Result:
        sums, support, images = self.site_sums(payload, context, payload.parts[CLASS_WEIGHTS][CLASS_WEIGHTS])
        return _released(SUMS, sums.packed(), support, images)

    def site_sums(self, payload: Payload, context: SiteContext, class_weights: Tensor) -> tuple[Sums, Tensor, int]:
        """The sums of this site, the patients of each class, and the number of images."""
        rows, targets, support = _labelled(context)
        network = self.starting_model(payload, context).eval()
        sums = sums_at_site(
            network, rows, targets, class_weights, context, self.view_options.views, payload.values[LARGEST_NORM]
        )
        return sums, support, len(rows)

    def _temper(self, payload: Payload, context: SiteContext) -> Result:
        """Losses of validation images, which are added up unseen where sums are secure; a site without any has zeros."""
        heads, (centre, offsets) = payload.parts[CANDIDATES], (payload.parts[LOGITS][name] for name in (CENTRE, OFFSET))
        require_few_heads(heads, centre, offsets, len(context.problem.classes))
        count = len(context.data.rows("val"))
        table, answers = torch.zeros(len(offsets), len(heads["bias"]), len(TEMPERATURES), dtype=torch.float64), 0
        if count:
            network = self.starting_model(payload, context).eval()
            table, answers = candidate_losses(network, heads, centre, offsets, context)
        if payload.values.get(UNSEEN):
            tensors = {LOSSES: table.flatten(), ANSWERS: torch.tensor([answers], dtype=torch.float64)}
            return Result({LOSSES: Release(ReleaseKind.SUFFICIENT_STATISTICS, tensors)}, samples=answers)
        losses = (table.flatten() / max(answers, 1)).tolist() if count else []
        metrics = {temperature_metric(number): loss for number, loss in enumerate(losses)}
        return Result(metrics={**metrics, VALIDATION_IMAGES: float(count)}, samples=1)

    def _rank(self, payload: Payload, context: SiteContext) -> Result:
        """Count the unlabelled images by class and margin; which is where is kept for the end.

        It is done by one head and one number of labels in a run, and in a job: a difference would show single images.
        """
        minimum = context.release_minimum(ReleaseKind.SUFFICIENT_STATISTICS, LABEL_MARGINS)
        rows, classes = context.data.rows("unlabelled"), len(context.problem.classes)
        require_label_question(payload, classes)
        assert self._run_here is not None
        question = question_id(TRAIN, payload, names := _unlabelled(context))
        self._question = first = self._question or question
        if {first, self._run_here.store.first_question(LABELS, question)} != {question}:
            raise MessageError("images to label are counted once in a run and in a job: take another run_name")
        network = self.starting_model(payload, context).eval()
        decisions = score(network, rows, context)[1].decisions.numpy()
        meant = meant_for(decisions, payload.parts[LABELS][LABELS].numpy())
        patients = [context.data.groups[row] for row in rows]
        images, support = ranked(meant, gaps_of(decisions), patients, minimum, classes)
        budget = torch.tensor(payload.values[LABEL_BUDGET])
        self.kept |= {RANKED: [*map(torch.from_numpy, images), budget], RANKED_NAMES: names}
        table = {LABEL_MARGINS: torch.from_numpy(images.table(classes))}
        return _released(LABEL_MARGINS, table, torch.from_numpy(support), int(support.any()))


def require_label_question(payload: Payload, classes: int) -> None:
    """Check that a job with a budget asks for images to label, and by numbers of labels.

    Raises:
        MessageError: if not.
    """
    labelled, budget = payload.parts[LABELS][LABELS], payload.values.get(LABEL_BUDGET, 0)
    if not budget > 0 or labelled.dtype != torch.int64 or labelled.shape != (classes,) or bool((labelled < 0).any()):
        raise MessageError(f"images to label are counted with {LABEL_BUDGET} above 0, by labels of {classes} classes")


def read_cuts(part: State, classes: int) -> Cuts:
    """How far each class is to be labelled, as a server says.

    Raises:
        MessageError: if that cannot be.
        TypeError: if there are other entries.
    """
    cuts = Cuts(**{name: value.numpy() for name, value in part.items()})
    for values, most in zip(cuts, (NO_BIN, 1), strict=True):
        if values.shape != (classes,) or not ((values >= 0) & (values <= most)).all():
            raise MessageError(
                f"{LABEL_CUTS} must be bins from 0 to {NO_BIN} and shares from 0 to 1 of {classes} classes"
            )
    return cuts


def require_few_heads(heads: State, centre: Tensor, offsets: Tensor, classes: int) -> None:
    """Check that losses are of a few whole heads; an offset for each image would single images out.

    Raises:
        MessageError: if not.
    """
    shapes = [tuple(tensor.shape) for tensor in (heads["weight"], heads["bias"], centre, offsets)]
    (count, *_), (logits, *_) = (shape or (0,) for shape in shapes[1::2])
    whole = [(count, classes, *shapes[0][2:3]), (count, classes), (classes,), (logits, classes)]
    if shapes != whole or not 1 <= count <= MOST_PENALTIES or not 1 <= logits <= MOST_OFFSETS:
        raise MessageError(
            f"losses are of at most {MOST_PENALTIES} heads with {MOST_OFFSETS} offsets of {classes} classes each, asked for "
            f"are tensors of shapes {shapes}"
        )


def require_own_network(asked: Problem, seed: int, stated: tuple[dict[str, Any], int] | None, signed: bool) -> None:
    """Check that features are of the network that this site builds from the job; sums of others could show single images.

    Args:
        asked: what the server's task says.
        seed: likewise.
        stated: problem and seed of the job at this site; None without its server's part.
        signed: whether the job must be here, as a person has signed it.

    Raises:
        MessageError: naming what differs.
    """
    if (asked.head, asked.trainable) != (DEPTHS, TRAIN_HEAD):
        raise MessageError(
            f"sums leave this site for problem.head={DEPTHS} and problem.trainable={TRAIN_HEAD} only, whose frozen layers "
            f"it has itself; the task says head={asked.head} and trainable={asked.trainable}"
        )
    if stated is None and not signed:
        return
    if stated is None:
        raise MessageError("the job's problem is not at this site, so the task's network cannot be compared with it")
    signed_problem = Problem.from_dict(stated[0])
    same = replace(signed_problem, intensities=asked.intensities) == asked
    if not same or (asked.weights is None and stated[1] != seed):
        raise MessageError("the task's problem or seed is not that of the job which was signed; submit the job again")


def _unlabelled(context: SiteContext) -> list[str]:
    return [context.data.names[row] for row in context.data.rows("unlabelled")]


def _labelled(context: SiteContext) -> tuple[np.ndarray, np.ndarray, Tensor]:
    """What the sums are of: no class of fewer patients than the site's policy asks for."""
    return labelled_images(context, context.release_minimum(ReleaseKind.SUFFICIENT_STATISTICS, SUMS))


def _released(name: str, tensors: dict[str, Tensor], support: Tensor, samples: int) -> Result:
    release = Release(ReleaseKind.SUFFICIENT_STATISTICS, {**tensors, SUPPORT: support})
    return Result({name: release}, {"samples": float(samples)}, samples)
