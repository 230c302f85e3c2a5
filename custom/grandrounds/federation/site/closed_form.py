"""What a site computes for a head in closed form: sums of features, losses of temperatures, and a head of its own labels."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from grandrounds.data.batches import eval_batches
from grandrounds.data.images.tensors import to_device
from grandrounds.errors import ConfigurationError, DataError
from grandrounds.evaluation.metrics import WORST_LOSS
from grandrounds.federation.site.context import SiteContext
from grandrounds.federation.site.executor import SiteExecutor
from grandrounds.models.closed_form.solve import (
    DEFAULT_CORRECTION,
    DEFAULT_PENALTIES,
    DEFAULT_TEMPERATURE,
    best_temperature,
    risk_offset,
    risk_terms,
    solve_grid,
    squared_error,
    standardised,
    summed_losses,
    uncorrected,
)
from grandrounds.models.closed_form.sums import (
    DEFAULT_BALANCE,
    DEFAULT_NORM,
    FEATURE_VIEWS,
    Sums,
    class_weights,
    clipped,
    sums_of,
)
from grandrounds.models.depths import DepthNetwork, depth_features, depth_head, forget_risks
from grandrounds.models.inference.forward import BATCH
from grandrounds.options import Options
from grandrounds.protocol.messages import Payload, State
from grandrounds.protocol.problem import DEPTHS

_logger = logging.getLogger(__name__)


def labelled_images(context: SiteContext, minimum: int) -> tuple[np.ndarray, np.ndarray, Tensor]:
    """The labelled training images whose classes have enough patients.

    Args:
        context: of the site.
        minimum: patients of a class whose images are used.

    Returns:
        Rows of training images; their targets, float64, shape ``(rows, classes)``; and the patients of each class.

    Raises:
        ConfigurationError: if one of several findings is of too few patients.
    """
    data, kind, classes = context.data, context.problem.kind, context.problem.classes
    rows, support = data.rows("labelled"), torch.tensor(list(data.patients_by_class("labelled").values()))
    targets = _targets(rows, context)
    few = (support > 0) & (support < minimum)
    if few.any():  # one of several findings cannot be left out of an image
        names = ", ".join(classes[number] for number in few.nonzero().flatten().tolist())
        kind.require_exclusive(f"the site's minimum of {minimum} patients", f"leave {names} out of problem.classes")
    used = kind.complete(data.labels[rows]) & ~targets[:, few.numpy()].any(axis=1)
    return rows[used], targets[used], torch.where(few, 0, support)


def sums_at_site(
    network: nn.Module,
    rows: np.ndarray,
    targets: np.ndarray,
    weights: Tensor,
    context: SiteContext,
    views: Sequence[str],
    norm: float,
) -> Sums:
    """The sums of some images.

    Args:
        network: in evaluation mode.
        rows: of the images.
        targets: shape ``(rows, classes)``.
        weights: of classes.
        context: of the site.
        views: fixed ones, over which each image is averaged.
        norm: to which the norm of an image's features is clipped.
    """
    of_images = context.problem.kind.image_weights(torch.from_numpy(targets), weights)

    def batches() -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Features, targets and weights."""
        for view in views:
            for places in eval_batches(np.arange(len(rows)), BATCH):
                context.check_abort()
                features = depth_features(network, context.views(rows[places], view)).double()
                share = to_device(of_images[places] / len(views), context.device)
                yield clipped(features, norm), to_device(targets[places], context.device), share

    return sums_of(batches(), depth_head(network).features, targets.shape[1], context.device)


def candidate_losses(
    network: nn.Module, heads: State, centre: Tensor, offsets: Tensor, context: SiteContext
) -> tuple[Tensor, int]:
    """The summed losses of several heads, see :func:`~grandrounds.models.closed_form.solve.summed_losses`.

    Args:
        network: whose head has their scaling, in evaluation mode.
        heads: ``weight`` and ``bias`` of each, shapes ``(heads, classes, features)`` and ``(heads, classes)``.
        centre: of their scores, shape ``(classes,)``.
        offsets: of logits, shape ``(offsets, classes)``.
        context: of the site, with a validation image.

    Returns:
        Shape ``(offsets, heads, temperatures)``, each loss at most ``WORST_LOSS``, and the number of answers behind them.
    """
    rows, kind, head = context.data.rows("val"), context.problem.kind, depth_head(network)
    view = context.problem.test_view
    views = ["none"] if view is None else ["none", view]
    weight, bias = (heads[name].double() for name in ("weight", "bias"))
    scores = []
    for batch in eval_batches(rows, BATCH):
        context.check_abort()
        features = [depth_features(network, context.unchanged(batch, one)).double() for one in views]
        scaled = (torch.stack(features).mean(dim=0) - head.shift.double()) * head.scale.double()
        scores.append(scaled.cpu() @ weight.transpose(1, 2) + bias[:, None])
    labels = context.data.labels[rows]
    table = summed_losses(kind, torch.cat(scores, dim=1), centre, offsets, labels, WORST_LOSS)
    return table, len(kind.entries(labels)[0])


def solve_own_head(network: nn.Module, context: SiteContext) -> None:
    """Write a head in closed form, from the site's own labels, into a network, by the defaults of ridge regression.

    The penalty is that of the smallest squared error on the site's validation images, the temperature that of their largest
    likelihood. The log has both.

    Raises:
        ConfigurationError: if the network has no head of several depths.
        DataError: if the site has no labelled image.
    """
    if not isinstance(network, DepthNetwork):
        raise ConfigurationError(f"executor.own_head=ridge is a head of several depths: set problem.head={DEPTHS}")
    kind, validation = context.problem.kind, context.data.rows("val")
    rows, targets, _ = labelled_images(context, 0)
    if not len(rows):
        raise DataError(f"{context.site}: executor.own_head=ridge needs a labelled training image, and there is none")
    training = network.training
    network.eval()
    exclusive = len(kind.answers(targets.shape[1])) == 1
    weights = class_weights(torch.from_numpy(targets.sum(axis=0)), DEFAULT_BALANCE if exclusive else 0.0)
    sums = sums_at_site(network, rows, targets, weights, context, FEATURE_VIEWS, DEFAULT_NORM)
    heads, penalty = solve_grid(sums, DEFAULT_PENALTIES), len(DEFAULT_PENALTIES) // 2
    temperature = of_risks = DEFAULT_TEMPERATURE
    if len(validation):
        answers = _targets(validation, context)
        held_out = sums_at_site(network, validation, answers, weights, context, ("none",), DEFAULT_NORM)
        errors = [squared_error(head, held_out) for head in heads]
        penalty = errors.index(min(errors))
    linear, bias, shift, scale = standardised(heads[penalty], sums)
    head, shares = depth_head(network), sums.targets[-1] / sums.weight
    if len(validation):
        head.set_linear(linear, bias, shift, scale)
        solved = {"weight": linear[None], "bias": bias[None]}
        losses, _ = candidate_losses(network, solved, *uncorrected(kind, shares, weights), context)
        temperature, of_risks = map(best_temperature, losses[:, 0])
    centre, offset = kind.centre_and_offset(shares, DEFAULT_CORRECTION)
    offsets = torch.stack([offset, risk_offset(kind, shares, weights)])
    if exclusive:  # a class that the site does not have is not ruled out: the others may teach it
        offsets = torch.where(shares > 0, offsets, 0.0)
    risk = risk_terms(offsets[0], temperature, offsets[1], of_risks)
    head.set_linear(linear, bias + offsets[0] / temperature - centre, shift, scale, temperature, risk)
    network.train(training)
    message = "%s: own head of %d images, penalty %g, temperature %g"
    _logger.info(message, context.site, len(rows), DEFAULT_PENALTIES[penalty], temperature)


def _targets(rows: np.ndarray, context: SiteContext) -> np.ndarray:
    data, kind, classes = context.data, context.problem.kind, len(context.problem.classes)
    counts = np.array([kind.class_counts(data.labels[[row]], classes) for row in rows], np.float64)
    return counts.reshape(len(rows), classes)


@dataclass(frozen=True)
class OwnHeadOptions(Options):
    """Where a model of a site's own begins."""

    own_head: Annotated[
        Literal["given", "ridge"],
        "head that a model of the site's own starts from: given by weights or seed, or ridge, in closed form from the "
        "site's labels",
    ] = "given"


class OwnHeadExecutor(SiteExecutor):
    """A site whose own model may begin with a head in closed form."""

    beginning: OwnHeadOptions

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        if self.beginning.own_head != "given":
            self.model.require_own(
                "own_head=ridge is for models of the sites' own; a shared one starts from controller.start_from=ridge"
            )

    def starting_model(self, payload: Payload, context: SiteContext) -> nn.Module:
        """See :meth:`SiteExecutor.starting_model`; before its first round a site of its own solves its head."""
        network = super().starting_model(payload, context)
        if self.beginning.own_head == "ridge" and not self.kept:
            solve_own_head(network, context)
            if not self.options().get("logit_adjustment"):
                forget_risks(network)
        return network
