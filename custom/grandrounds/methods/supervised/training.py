"""Local supervised training for a fixed number of steps, plain or with record-level differential privacy (DP-SGD).

In DP-SGD all randomness is secret to the site: batches, views, dropout and noise. The server knows the job's seed, from
which it could derive the batches.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import torch
from torch import Tensor, nn

from grandrounds.data.batches import index_batches
from grandrounds.data.images.augmentation import view_named
from grandrounds.data.site import SiteData
from grandrounds.errors import ConfigurationError, DataError
from grandrounds.federation.site.context import SiteContext
from grandrounds.federation.site.training import Algorithm, Meter, OptimizerStep, RateOptions, train_steps
from grandrounds.methods.supervised.loss import OWN_LOSSES, Loss, adjusted_logits, median_class_weights
from grandrounds.options import ABOVE_ZERO, BASIC, METHOD, Min
from grandrounds.privacy.mechanisms.record_level import ProtectedUnit, RecordLevelOptions
from grandrounds.protocol.task import Task
from grandrounds.protocol.tensors import at_least_single
from grandrounds.registered import registered


@dataclass(frozen=True)
class TrainingOptions(RateOptions):
    """How a site trains in one round; neither optimizer has weight decay, and SGD has no momentum."""

    labels: Annotated[
        Literal["labelled", "all"], "labels to use: those of the labelled part, or all known ones (upper bounds)"
    ] = "labelled"
    batch_size: Annotated[int, "images per step and kind", Min(2), BASIC] = 16
    steps: Annotated[int, "local steps per round, the same at every site (FedVC)", Min(1), BASIC] = 26
    learning_rate: Annotated[float, "of the optimizer", ABOVE_ZERO, BASIC] = 5e-5
    cosine_rounds: Annotated[
        int | None, "rounds over which the learning rate falls along a half cosine; null for a constant rate", Min(1)
    ] = None
    class_weights: Annotated[
        Literal["median", "pooled", "none"],
        "weight the cross-entropy, or images with a finding, by median frequency among the site's labels, or class_counts",
    ] = "median"
    class_counts: Annotated[
        tuple[int, ...] | None,
        "labelled images of each class over all sites (job statistics), for class_weights=pooled or logit_adjustment",
    ] = None
    class_weight_limit: Annotated[float | None, "maximum weight of a class; null for no limit", ABOVE_ZERO] = None
    logit_adjustment: Annotated[
        float,
        "log class shares (of class_counts, else of the site's labels) that training adds to logits, times this; 1 is "
        "balanced softmax, 0 adds none",
        Min(0),
    ] = 0.0
    loss: Annotated[str | None, "of labelled images, by gr.register_loss; null for the task's own"] = None
    algorithm: Annotated[Algorithm, "the optimizer"] = "adam"
    proximal_weight: Annotated[float, "mu of FedProx; 0 disables it", Min(0), METHOD] = 0.0
    weak_augmentation: Annotated[bool, "flip, rotate and jitter labelled and weakly augmented images"] = True
    weak_view: Annotated[
        str,
        "a view: weak: flips, rotation with black corners, colour (FedPerl); turns: quarter turns and mirrors (cells)",
    ] = "weak"

    def check(self) -> None:
        """Refuse counts without their use, pooled weights without counts, and a view or loss that does not exist."""
        if self.loss is not None:
            registered(OWN_LOSSES, self.loss, "loss")
        view_named(self.weak_view, "weak_view")
        if self.weak_view == "strong":
            raise ConfigurationError(
                "weak_view must not be strong, the view on which pseudo-labels are learnt; use weak"
            )
        if self.class_weights == "pooled" and self.class_counts is None:
            raise ConfigurationError(
                "class_weights=pooled needs class_counts, the labelled images of each class over all sites"
            )
        if self.class_counts is not None and self.class_weights != "pooled" and not self.logit_adjustment:
            raise ConfigurationError(
                "class_counts are for class_weights=pooled or logit_adjustment above 0; set one, or leave them out"
            )
        if self.class_counts is not None and (min(self.class_counts, default=0) < 0 or not any(self.class_counts)):
            raise ConfigurationError(f"class_counts must be counts, not all zero, got {list(self.class_counts)}")

    def loss_for(self, task: Task) -> Loss:
        """The loss of labelled images."""
        return task.loss if self.loss is None else registered(OWN_LOSSES, self.loss, "loss")

    def weights_of(self, labels: np.ndarray, classes: int, task: Task) -> Tensor | None:
        """The weight in the loss of each class, or of images with each finding, shape ``(classes,)``; None if equal.

        Args:
            labels: of the site's labelled training images.
            classes: their number.
            task: what labels are.

        Raises:
            ConfigurationError: if there is not a count for each class.
        """
        if self.class_weights == "none":
            return None
        counts = self._counts(labels, classes, task, self.class_counts if self.class_weights == "pooled" else None)
        if not counts.any():  # a site whose images show no finding
            return None
        weights = median_class_weights(counts)
        return weights if self.class_weight_limit is None else weights.clamp(max=self.class_weight_limit)

    def adjusted_by(self, labels: np.ndarray, classes: int, task: Task) -> Tensor | None:
        """The counts of classes by whose shares logits are adjusted, shape ``(classes,)``; None if they are not.

        Args:
            labels: of the site's labelled training images.
            classes: their number.
            task: what labels are.

        Raises:
            ConfigurationError: if there is not a count for each class, or classes do not exclude each other.
        """
        if not self.logit_adjustment:
            return None
        self.require_kind(task)
        return self._counts(labels, classes, task, self.class_counts)

    def require_kind(self, task: Task) -> None:
        """Refuse logits that are adjusted, where classes do not exclude each other.

        Raises:
            ConfigurationError: naming the option and what to set.
        """
        if self.logit_adjustment:
            task.require_exclusive("executor.logit_adjustment", "set it to 0")

    @staticmethod
    def _counts(labels: np.ndarray, classes: int, task: Task, given: tuple[int, ...] | None) -> Tensor:
        counts = task.class_counts(labels, classes) if given is None else np.array(given)
        if len(counts) != classes:
            raise ConfigurationError(f"class_counts must have a count for each of {classes} classes, got {len(counts)}")
        return torch.from_numpy(counts)

    def rate_of(self, round_number: int) -> float:
        """The learning rate of a round, from 1; after ``cosine_rounds`` that of the last of them.

        Source: Loshchilov and Hutter, SGDR, ICLR 2017, eq. 5 without restarts, with a round as the unit of time.

        Example:
            >>> [TrainingOptions(learning_rate=0.1, cosine_rounds=2).rate_of(number) for number in (1, 2, 3)]
            [0.1, 0.05, 0.05]
        """
        if self.cosine_rounds is None:
            return self.learning_rate
        done = (min(round_number, self.cosine_rounds) - 1) / self.cosine_rounds
        return self.learning_rate * (1 + math.cos(math.pi * done)) / 2

    @property
    def view(self) -> str:
        """The view of labelled and weakly augmented images."""
        return self.weak_view if self.weak_augmentation else "none"


class LabelledBatches:
    """The labelled part of each step: weak views, labels and class weights.

    Raises:
        DataError: if the site has no labelled training image, naming the site.
    """

    def __init__(self, context: SiteContext, options: TrainingOptions) -> None:
        self._context = context
        self.rows = rows_to_learn(context, options)
        self._batches = list(
            index_batches(self.rows, options.batch_size, options.steps, context.generator("labelled batches"))
        )
        self._key = context.key("labelled views")
        self._view = options.view
        context.draw_ahead(self._batches, self._view, self._key)
        of_site = context.data.labels[self.rows], len(context.problem.classes), context.problem.kind
        weights, counts = options.weights_of(*of_site), options.adjusted_by(*of_site)
        self._strength = options.logit_adjustment
        self._loss = options.loss_for(context.problem.kind)
        self._adjusted_by = None if counts is None else counts.to(context.device)
        self.weights = None if weights is None else weights.to(context.device)

    def loss(self, network: nn.Module, step: int) -> Tensor:
        """The supervised loss of a step's batch, in the context's precision."""
        context = self._context
        rows = self._batches[step]
        images = context.views(rows, self._view, self._key, step)
        labels = context.labels(rows)
        with context.autocast():
            logits = network(images)
            if self._adjusted_by is not None:
                logits = adjusted_logits(at_least_single(logits), self._adjusted_by, self._strength)
            return self._loss(logits, labels, self.weights)


def labelled_rows(data: SiteData, labels: Literal["labelled", "all"]) -> np.ndarray:
    """Rows of the training images whose labels are used."""
    rows = data.rows("labelled" if labels == "labelled" else "train")
    return rows[data.known[rows]]


def rows_to_learn(context: SiteContext, options: TrainingOptions) -> np.ndarray:
    """Rows of the training images whose labels are used, at least one.

    Raises:
        DataError: if there is none, naming the site.
    """
    rows = labelled_rows(context.data, options.labels)
    if not len(rows):
        raise DataError(
            f"{context.site}: the labelled set is empty: no training image has a label that may be used; label "
            "some, or leave this site out of the job"
        )
    return rows


def train_supervised(
    network: nn.Module, optimizer: torch.optim.Optimizer, context: SiteContext, options: TrainingOptions
) -> dict[str, float]:
    """Train in place.

    Returns:
        ``loss`` (mean over the steps) and ``samples`` (labelled training images).

    Raises:
        TaskAborted: if the task was given up.
        DataError: if there is nothing to train on.
    """
    batches = LabelledBatches(context, options)
    optimizer_step = OptimizerStep(network, optimizer, options.proximal_weight, context.gradient_scaler())
    meter = Meter()
    train_steps(context, options.steps, lambda step: batches.loss(network, step), optimizer_step, meter)
    return {"loss": meter.total("loss") / options.steps, "samples": float(len(batches.rows))}


SEED_BYTES = 6


def units_to_learn(context: SiteContext, options: TrainingOptions, unit: ProtectedUnit) -> list[np.ndarray]:
    """Rows of the training images whose labels are used, by image or by patient.

    Raises:
        DataError: if there is none, or the patient of an image is not known; the site is named.
    """
    rows = rows_to_learn(context, options)
    if unit == "record":
        return [np.array([row]) for row in rows]
    patients = np.array(context.data.patients)[rows] if context.data.patients else np.full(len(rows), "")
    unknown = int((patients == "").sum())
    if unknown:
        raise DataError(
            f"{context.site}: privacy_unit=patient needs the patient of every training image; the column patient is empty "
            f"for {unknown} of {len(rows)}; fill it in, or use privacy_unit=record"
        )
    return [rows[patients == patient] for patient in np.unique(patients)]


def require_single_images(options: TrainingOptions) -> None:
    """Check that a step depends on the single images of its batch only.

    Raises:
        ConfigurationError: naming the option that prevents it, and its required value.
    """
    if options.class_weights != "none":
        raise ConfigurationError(
            f"record_noise_multiplier needs class_weights=none, got {options.class_weights}: class weights depend "
            "on all labels of the site"
        )
    if options.logit_adjustment:
        raise ConfigurationError(
            f"record_noise_multiplier needs logit_adjustment=0, got {options.logit_adjustment}: shares of classes depend on "
            "all labels of the site"
        )
    if options.proximal_weight:
        raise ConfigurationError(
            f"record_noise_multiplier needs proximal_weight=0, got {options.proximal_weight}: gradients are clipped per "
            "image, and the proximal term belongs to no image"
        )


def train_privately(
    network: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    context: SiteContext,
    options: TrainingOptions,
    protection: RecordLevelOptions,
) -> dict[str, float]:
    """Train in place.

    Args:
        network: without batch norm.
        optimizer: of its parameters.
        context: of the task.
        options: of training; ``batch_size`` is the expected size of a batch.
        protection: clipping and noise.

    Returns:
        ``samples`` (labelled training images). The loss is not reported: it would be a number without noise.

    Raises:
        ConfigurationError: if a layer or the loss mixes the images of a batch.
        TaskAborted: if the task was given up.
        DataError: if there is nothing to train on.
    """
    from grandrounds.privacy.mechanisms.dp_sgd import PrivateStep, one_image_each, poisson_batches  # if a job asks

    units = units_to_learn(context, options, protection.unit)
    loss = options.loss_for(context.problem.kind)
    step = PrivateStep(network, lambda logits, labels: loss(logits, labels, None), len(units), protection)
    key = _secret()
    devices = [context.device] if context.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(_secret())
        for number, drawn in enumerate(poisson_batches(np.arange(len(units)), protection)):
            context.check_abort()
            batch = one_image_each([units[index] for index in drawn])
            images = context.views(batch, options.view, key, number)
            with context.autocast():
                step.set_gradients(images, context.labels(batch))
            optimizer.step()
    return {"samples": float(sum(map(len, units)))}


def _secret() -> int:
    return int.from_bytes(os.urandom(SEED_BYTES))
