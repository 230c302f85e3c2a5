"""Ways to adapt a model to a place: offsets by class or a last layer from a few labels, or offsets from class shares."""

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
from grandrounds.evaluation.clinical.offsets import fit_offsets, share_offsets, shares_of, with_offsets
from grandrounds.models.closed_form.around import solve_added, solve_near
from grandrounds.models.closed_form.logits import TEMPERATURES, best_temperature
from grandrounds.models.closed_form.sums import Sums, with_bias

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
        losses = torch.stack([functional.cross_entropy(one * head.held_out, truth) for one in TEMPERATURES])
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
    found = {name.strip(): require_fraction(float(value), name.strip()) for name, _, value in pairs}
    if not math.isclose(sum(found.values()), 1, abs_tol=0.02):
        raise ValueError(f"the shares add up to {sum(found.values()):g} and not to 1")
    return found
