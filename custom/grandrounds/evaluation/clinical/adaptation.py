r"""Ways to adapt a model to a place: offsets by class or a last layer from a few labels, or offsets from class shares.

An offset :math:`b_c` for each class is added to the logits :math:`z`.

From labels: :math:`b = \arg\max_b \sum_i \log \operatorname{softmax}(z_i + b)_{y_i} - \tfrac{\lambda}{2} |b|^2`. The penalty
keeps the offset of a class without a label finite; the offsets add up to zero.

From shares, where images of a class look alike at both places and only its share differs (Saerens, Latinne and
Decaestecker, "Adjusting the outputs of a classifier to new a priori probabilities", Neural Computation 14, 2002):
:math:`b_c = \log(\pi'_c / \pi_c)`. Shares that are not known are found from the predictions alone, by expectation and
maximisation. The model must be calibrated for :math:`\pi` before (Alexandari, Kundaje and Shrikumar, "Maximum likelihood
with bias-corrected calibration is hard-to-beat at label shift adaptation", ICML 2020).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from grandrounds.checks import require_at_least, require_fraction, require_known_label
from grandrounds.errors import UsageError
from grandrounds.evaluation.bootstrap import Cases
from grandrounds.models.closed_form.around import solve_added, solve_near
from grandrounds.models.closed_form.solve import TEMPERATURES, best_temperature
from grandrounds.models.closed_form.sums import Sums, with_bias

OFFSET_PENALTY = 1.0
"""Lambda: as if offsets had a normal distribution with mean 0 and this inverse variance."""
LEAST_SHARE = 1e-7
"""Probabilities and shares are kept this far from 0."""
EM_STEPS = 10_000
NEWTON_STEPS = 100

Array = NDArray[np.float64]


def with_offsets(probabilities: Array, offsets: Array) -> Array:
    """The probabilities after offsets ``(classes,)`` were added to the logits, shape ``(n, classes)``.

    Example:
        >>> with_offsets(np.array([[0.5, 0.5]]), np.log([3.0, 1.0]))
        array([[0.75, 0.25]])
    """
    shifted = np.log(probabilities.clip(LEAST_SHARE)) + offsets
    odds = np.exp(shifted - shifted.max(axis=1, keepdims=True))
    return np.asarray(odds / odds.sum(axis=1, keepdims=True), np.float64)


def fit_offsets(probabilities: Array, labels: NDArray[np.int64], penalty: float = OFFSET_PENALTY) -> Array:
    """The offsets of the largest penalised likelihood, by Newton's method with halved steps.

    Args:
        probabilities: of the model for labelled images, shape ``(n, classes)``.
        labels: their classes, shape ``(n,)``.
        penalty: above 0.

    Returns:
        Shape ``(classes,)``.

    Example:
        >>> fit_offsets(np.full((4, 2), 0.5), np.zeros(4, np.int64), penalty=2 / np.log(3)).round(6)  # half of log(3)
        array([ 0.549306, -0.549306])
    """
    classes = probabilities.shape[1]
    counts = np.bincount(labels, minlength=classes)
    offset, identity = np.zeros(classes), penalty * np.eye(classes)

    def objective(offsets: Array) -> float:
        chosen = with_offsets(probabilities, offsets)[np.arange(len(labels)), labels]
        return float(np.log(chosen.clip(1e-300)).sum() - penalty / 2 * (offsets**2).sum())

    for _ in range(NEWTON_STEPS):
        expected = with_offsets(probabilities, offset)
        gradient = counts - expected.sum(axis=0) - penalty * offset
        step = np.linalg.solve(np.diag(expected.sum(axis=0)) - expected.T @ expected + identity, gradient)
        while objective(offset + step) < objective(offset) and abs(step).max() > 1e-9:
            step = step / 2
        offset = offset + step
        if abs(step).max() < 1e-9:
            break
    return np.asarray(offset, np.float64)


def shares_of(probabilities: Array, home: Array) -> Array:
    """The class shares at a place that make the predictions there most likely.

    Args:
        probabilities: calibrated for the shares ``home``, of images of the place, shape ``(n, classes)``.
        home: shape ``(classes,)``, each above 0.

    Returns:
        Shape ``(classes,)``; they add up to 1.

    Example:
        >>> shares_of(np.array([[0.8, 0.2], [0.8, 0.2], [0.2, 0.8]]), np.array([0.5, 0.5])).round(4)  # 7/9 and 2/9
        array([0.7778, 0.2222])
    """
    shares = np.array(home, np.float64)
    for _ in range(EM_STEPS):
        now = with_offsets(probabilities, share_offsets(home, shares)).mean(axis=0)
        if abs(now - shares).max() < 1e-10:
            break
        shares = now
    return shares


def share_offsets(home: Array, place: Array) -> Array:
    """The offsets that take a model that is calibrated for the shares ``home`` to those of a place.

    Example:
        >>> share_offsets(np.array([0.5, 0.5]), np.array([0.75, 0.25])).round(4)
        array([ 0.4055, -0.6931])
    """
    return np.asarray(np.log(place.clip(LEAST_SHARE)) - np.log(home.clip(LEAST_SHARE)), np.float64)


_LEAST = 10
_FORMS = f"a share from 0 to 0.9, labels:N or head:N with N of at least {_LEAST}, shares, or shares:CLASS=SHARE,..."


@dataclass(frozen=True, eq=False)
class AtPlace:
    """What an adaptation may use.

    Attributes:
        classes: the model's.
        probabilities: for all images of the place, shape ``(n, classes)``.
        labels: of the images ``fitted`` alone, shape ``(fitted,)``.
        fitted: rows of the images whose labels are used.
        home: gives predictions for the run's validation images.
        last_layer: gives what the network's last layer reads of all images, shape ``(n, features)``, and its weights, shape
            ``(features, classes)``.
        sums: gives sums of training images, their penalty, the weights of their classes, and the features of all images,
            float64, shape ``(n, features)``; None without sums.
    """

    classes: tuple[str, ...]
    probabilities: NDArray[np.float64]
    labels: NDArray[np.int64]
    fitted: NDArray[np.int64]
    home: Callable[[], Cases]
    last_layer: Callable[[], tuple[Tensor, Tensor]]
    sums: Callable[[], tuple[Sums, float, tuple[float, ...], Tensor]] | None = None


@dataclass(frozen=True, eq=False)
class Fit:
    """An adapted model.

    Attributes:
        how: in words.
        probabilities: for all images, shape ``(n, classes)``.
        by_class: what was fitted, such as ``offset``, each of shape ``(classes,)``; it tells of the labels.
    """

    how: str
    probabilities: NDArray[np.float64]
    by_class: Mapping[str, NDArray[np.float64]]


class Adaptation(Protocol):
    """A way to adapt a model to a place."""

    @property
    def images(self) -> int:
        """How many labels of the place it needs."""

    def adapted(self, seen: AtPlace) -> Fit:
        """Fit it."""


@dataclass(frozen=True)
class LabelOffsets:
    """Offsets by class from ``images`` labels."""

    images: int

    def adapted(self, seen: AtPlace) -> Fit:
        """See :class:`Adaptation`."""
        offsets = fit_offsets(seen.probabilities[seen.fitted], seen.labels)
        return Fit("offsets by class from labels", with_offsets(seen.probabilities, offsets), {"offset": offsets})


@dataclass(frozen=True)
class ShareOffsets:
    """Offsets by class from the place's class shares: those that are stated, or without any those of its predictions.

    The model is first calibrated by offsets on the run's validation images.
    """

    shares: Mapping[str, float]
    images: int = 0

    def adapted(self, seen: AtPlace) -> Fit:
        """See :class:`Adaptation`."""
        for name in self.shares:
            require_known_label(name, seen.classes, "--recalibrate shares")
        known = seen.home()
        assert known.probabilities is not None
        at_home = fit_offsets(known.probabilities, known.labels)
        home = with_offsets(known.probabilities, at_home).mean(axis=0)
        calibrated = with_offsets(seen.probabilities, at_home)
        stated = np.array([self.shares.get(name, 0.0) for name in seen.classes])
        place = stated / stated.sum() if self.shares else shares_of(calibrated, home)
        offsets = at_home + share_offsets(home, place)
        how = f"offsets by class from {'stated' if self.shares else 'estimated'} class shares"
        return Fit(how, with_offsets(seen.probabilities, offsets), {"share": place, "offset": offsets})


@dataclass(frozen=True)
class LabelHead:
    """The last layer from ``images`` labels: added to sums of training images, else kept near the one that the model has."""

    images: int

    def adapted(self, seen: AtPlace) -> Fit:
        """See :class:`Adaptation`; the temperature of the scores is that of the largest likelihood of images left out."""
        truth, rows = torch.from_numpy(seen.labels), torch.from_numpy(seen.fitted)
        targets = functional.one_hot(truth, len(seen.classes)).double()
        how = "last layer re-solved from labels"
        if seen.sums:
            sums, penalty, weights, features = seen.sums()
            head = solve_added(sums, penalty, features[rows], targets, torch.tensor(weights).double()[truth])
            how += " and the sums of training images"
        else:
            features, start = (one.double() for one in seen.last_layer())
            head = solve_near(features[rows], targets, start, features.var(dim=0, correction=0))
        losses = torch.stack(
            [functional.cross_entropy(temperature * head.held_out, truth) for temperature in TEMPERATURES]
        )
        logits = best_temperature(losses) * (with_bias(features) @ head.weights)
        return Fit(how, logits.softmax(dim=1).numpy(), {})


_WITH_LABELS: Mapping[str, Callable[[int], Adaptation]] = {"labels": LabelOffsets, "head": LabelHead}
"""By the name in ``NAME:N``."""


def read_recalibration(given: float | str) -> tuple[float, Adaptation | None]:
    """What ``--recalibrate`` asks for: a share of the cases, or an adaptation.

    Args:
        given: a share from 0 to 0.9, on which intercept and temperature of the positive group are fitted; ``labels:N`` for
            offsets by class or ``head:N`` for a last layer, from N labels; ``shares`` or ``shares:CLASS=SHARE,...`` for
            offsets from class shares.

    Raises:
        UsageError: if it has none of these forms.

    Example:
        >>> read_recalibration("0.3"), read_recalibration("labels:20")
        ((0.3, None), (0.0, LabelOffsets(images=20)))
    """
    kind, _, rest = str(given).partition(":")
    try:
        if kind == "shares":
            return 0.0, ShareOffsets(_shares(rest) if rest else {})
        if kind in _WITH_LABELS:
            require_at_least(int(rest), _LEAST, "N")
            return 0.0, _WITH_LABELS[kind](int(rest))
        if not 0 <= (share := float(given)) <= 0.9:
            raise ValueError("the share must be between 0 and 0.9")
        return share, None
    except ValueError as error:
        raise UsageError(f"--recalibrate: expected {_FORMS}, got {str(given)!r} ({error})") from error


def _shares(text: str) -> dict[str, float]:
    pairs = [part.partition("=") for part in text.split(",")]
    shares = {name.strip(): require_fraction(float(value), name.strip()) for name, _, value in pairs}
    if not math.isclose(sum(shares.values()), 1, abs_tol=0.02):
        raise ValueError(f"the shares add up to {sum(shares.values()):g} and not to 1")
    return shares
