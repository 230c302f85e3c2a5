"""The server's part of mutual learning: it receives soft labels, checks them, and adds them up.

No model travels. The server keeps the latest soft labels of each site and the losses behind client confidence; it sends one
sum, the same for all sites (MDH-FL, arXiv 2308.00155; RHFL, Fang & Ye, CVPR 2022; FedMD, Li & Wang, 2019).

MDH-FL weights all clients equally. RHFL weights a client by how fast its loss on its own noisy labels falls; RHFL+ (Fang, Ye
& Du, IEEE TMC 2024) also by how far its parameters moved in the epoch. Both are as in the authors' code, except that weights
are at least zero.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from grandrounds.errors import MessageError
from grandrounds.methods.mutual.options import STRENGTHS, ExchangeOptions
from grandrounds.methods.mutual.soft_labels import SoftLabels, add_up, decode, recent


class SoftLabelExchange:
    """The latest soft labels of each site, and the sum of those that count.

    Args:
        classes: number of classes.
        options: what is exchanged.
        per_epoch: exchanges in a collaborative epoch; client confidence is reported in the first and holds for all of them.
    """

    def __init__(self, classes: int, options: ExchangeOptions, per_epoch: int = 1) -> None:
        self._classes = classes
        self._options = options
        self._per_epoch = per_epoch
        self._latest: dict[str, SoftLabels] = {}
        self._losses: dict[str, tuple[float | None, float]] = {}
        self._changes: dict[str, float] = {}

    def check(
        self, site: str, encoded: Tensor, number: int, images: int, loss: float | None = None, change: float = 0.0
    ) -> Tensor:
        """Refuse soft labels that cannot be added to those of the others, without any other effect.

        Args:
            site: whose they are.
            encoded: as they travelled.
            number: of the exchange.
            images: public images of this exchange.
            loss: mean loss on the site's labels, for client confidence; None without.
            change: how far local training has moved the model, for RHFL+'s; see ``learner.parameter_change``.

        Returns:
            The soft labels as decoded.

        Raises:
            MessageError: naming the site, if number of images or classes differ, values are not finite or no distributions,
                or if the loss that client confidence needs is missing, not positive or not finite.
        """
        name = f"soft labels of {site}"
        if self._reports_confidence(number):
            if loss is None or not 0 < loss < math.inf:
                raise MessageError(f"{name}: client confidence needs a loss that is positive and finite, got {loss}")
            if not 0 <= change < math.inf:
                raise MessageError(f"{name}: the change of the model must be at least 0 and finite, got {change}")
        return decode(encoded, images, self._classes, name, self._options.content == "logits")

    def accept(
        self, site: str, encoded: Tensor, number: int, images: int, loss: float | None = None, change: float = 0.0
    ) -> None:
        """Keep the soft labels of a site; those that :meth:`check` refuses leave no trace."""
        values = self.check(site, encoded, number, images, loss, change)
        if self._reports_confidence(number) and loss is not None:
            self._losses[site] = (self._losses[site][1] if site in self._losses else None, loss)
            self._changes[site] = change
        self._latest[site] = SoftLabels.of_site(site, number, values)

    def total(self, number: int) -> SoftLabels | None:
        """The weighted sum that all sites get after an exchange; None if there are no soft labels.

        It includes those of absent sites that are up to ``max_age`` exchanges old.
        """
        chosen = recent(self._latest, number, self._options.max_age)
        return add_up(chosen, self._weights(list(chosen))) if chosen else None

    def state_dict(self) -> dict[str, Any]:
        """What must survive a restart: tensors and numbers."""
        return {
            "values": {site: labels.values for site, labels in self._latest.items()},
            "rounds": {site: labels.newest for site, labels in self._latest.items()},
            "losses": dict(self._losses),
            "changes": dict(self._changes),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state of :meth:`state_dict`."""
        rounds = state["rounds"]
        self._latest = {site: SoftLabels.of_site(site, rounds[site], value) for site, value in state["values"].items()}
        self._losses = {site: (before, now) for site, (before, now) in state["losses"].items()}
        self._changes = dict(state["changes"])

    def _reports_confidence(self, number: int) -> bool:
        return self._options.weighting != "uniform" and (number - 1) % self._per_epoch == 0

    def _weights(self, sites: list[str]) -> dict[str, float] | None:
        """Client confidence; equal weights until every contributor has reported two losses. None is a plain sum."""
        weighting = self._options.weighting
        if weighting == "uniform" or len(sites) < 2:
            return None
        pairs = [self._losses[site] for site in sites if site in self._losses]
        previous, current = [before for before, _ in pairs if before is not None], [now for _, now in pairs]
        if len(previous) < len(sites):
            return dict(zip(sites, equal_weights(len(sites)), strict=True))
        strength = STRENGTHS[weighting]
        if weighting == "ccr":
            weights = ccr_weights(previous, current, strength)
        else:
            weights = eccr_weights(previous, current, [self._changes[site] for site in sites], strength)
        return dict(zip(sites, weights, strict=True))


def equal_weights(clients: int) -> list[float]:
    r"""The weights of MDH-FL, and of the first epoch of RHFL and RHFL+: :math:`1/(P-1)`, so that the others' sum to one.

    There must be two clients at least.

    Example:
        >>> equal_weights(3)
        [0.5, 0.5, 0.5]
    """
    return [1 / (clients - 1)] * clients


def ccr_weights(previous: Sequence[float], current: Sequence[float], strength: float = 0.5) -> list[float]:
    r"""Client confidence re-weighting (RHFL).

    .. math::
        q_p = \frac{L_p^{t-1} - L_p^t}{L_p^t}, \qquad
        w = \mathrm{softmax}\Big( \frac{1}{P-1} + \beta \frac{q_p}{\sum_j q_j} \Big)

    When losses rise on the whole, the sum is negative and the client that does worst gets most; :func:`eccr_weights` does
    not have this.

    Args:
        previous: the mean loss of each of at least two clients on its own labels one epoch ago, above zero and finite.
        current: the same now.
        strength: :math:`\beta`.

    Returns:
        One weight for each client; they sum to one over all clients. Equal where no loss changed.

    Example:
        >>> [round(weight, 4) for weight in ccr_weights([1, 1, 1], [0.5, 0.8, 1.0])]
        [0.4147, 0.3072, 0.278]
    """
    base = equal_weights(len(current))
    qualities = _relative_gains(previous, current)
    total = sum(qualities)
    if total == 0:
        return [1 / len(current)] * len(current)
    scores = [share + strength * quality / total for share, quality in zip(base, qualities, strict=True)]
    return [float(weight) for weight in torch.tensor(scores, dtype=torch.float64).softmax(dim=0)]


def eccr_weights(
    previous: Sequence[float], current: Sequence[float], changes: Sequence[float], strength: float = 1.2
) -> list[float]:
    r"""Enhanced client confidence re-weighting (RHFL+).

    .. math::
        q_p = \frac{L_p^{t-1} - L_p^t}{L_p^t (1 + \Delta_p)}, \qquad
        w_p \propto \max\Big(0, \frac{1}{P-1} + \beta \frac{q_p}{\sum_j |q_j|}\Big)

    The code has no maximum: a client that does badly can get a negative weight there, and pushes the others away.

    Arguments and result are those of :func:`ccr_weights`; ``changes`` is :math:`\Delta_p`, see
    :func:`~grandrounds.methods.mutual.executor.parameter_change`, at least zero and finite.

    Example:
        >>> [round(weight, 4) for weight in eccr_weights([1, 1, 1], [0.5, 0.8, 1.0], [0, 0, 0])]
        [0.5407, 0.2741, 0.1852]
    """
    base = equal_weights(len(current))
    gains = _relative_gains(previous, current)
    qualities = [gain / (1 + change) for gain, change in zip(gains, changes, strict=True)]
    total = sum(map(abs, qualities))
    if total == 0:
        return [1 / len(current)] * len(current)
    scores = [max(0.0, share + strength * quality / total) for share, quality in zip(base, qualities, strict=True)]
    # Many clients may all be at zero, as their 1/(P-1) is small.
    return [score / sum(scores) for score in scores] if any(scores) else [1 / len(current)] * len(current)


def _relative_gains(previous: Sequence[float], current: Sequence[float]) -> list[float]:
    return [(before - now) / now for before, now in zip(previous, current, strict=True)]
