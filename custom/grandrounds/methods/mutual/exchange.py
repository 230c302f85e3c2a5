"""The server's part of mutual learning: it takes rows, checks them, and adds them up.

No model travels. What the server keeps is the latest rows of every site and the losses that client confidence is computed
from; what it sends is one sum, the same for all sites (MDH-FL, arXiv 2308.00155; RHFL, Fang & Ye, CVPR 2022; FedMD, Li &
Wang, 2019).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from grandrounds.errors import CheckpointError, MessageError
from grandrounds.methods.mutual.contributions import Contribution, RowSum, sum_rows, usable
from grandrounds.methods.mutual.options import STRENGTHS, ExchangeOptions
from grandrounds.methods.mutual.soft_labels import decode_rows, decode_scores, require_same_public_set
from grandrounds.methods.mutual.weights import ccr_weights, eccr_weights, equal_weights


@dataclass(frozen=True, eq=False)
class RowMessage:
    """What a site sends in an exchange.

    Attributes:
        number: of the exchange, which rises with every one of the run.
        rows: as they travel, shape ``(images, classes)``.
        public: digest of the public set that the rows are about.
        loss: mean loss on the own labels, for client confidence; None without.
        change: how far the own labels have moved the model, for RHFL+'s; see ``weights.parameter_change``.
    """

    number: int
    rows: Tensor
    public: str
    loss: float | None = None
    change: float = 0.0


class RowExchange:
    """The latest rows of each site, and the sum of those that count.

    Args:
        public: digest of the public set that all sites have.
        classes: number of classes.
        options: what is exchanged.
        per_epoch: exchanges in a collaborative epoch; client confidence is told in the first and holds for all of them.
    """

    def __init__(self, public: str, classes: int, options: ExchangeOptions, per_epoch: int = 1) -> None:
        self._public = public
        self._classes = classes
        self._options = options
        self._per_epoch = per_epoch
        self._latest: dict[str, Contribution] = {}
        self._losses: dict[str, tuple[float | None, float]] = {}
        self._changes: dict[str, float] = {}

    def check(self, site: str, message: RowMessage, number: int, images: int) -> Tensor:
        """Refuse rows that cannot be added to those of the others, without any other effect.

        Args:
            site: whose they are.
            message: what it sent.
            number: of the exchange that is going on.
            images: public images that this exchange is about.

        Returns:
            The rows as decoded.

        Raises:
            MessageError: naming the site, if the rows are of another exchange or about another public set, are not as
                many, have another number of classes, are not finite or off the simplex, or if the loss that client
                confidence needs is missing, not positive or not finite.
        """
        name = self._name_of_current(site, message, number)
        if self._tells_confidence(number):
            _require_confidence(message, name)
        decode = decode_scores if self._options.content == "logits" else decode_rows
        return decode(message.rows, images, self._classes, name)

    def _name_of_current(self, site: str, message: RowMessage, number: int) -> str:
        """How errors call a site's rows, if they are of this exchange and about the public set."""
        name = f"rows of {site}"
        if message.number != number:
            raise MessageError(f"{name} are of exchange {message.number}, expected {number}")
        require_same_public_set(self._public, message.public, name)
        return name

    def accept(self, site: str, message: RowMessage, number: int, images: int) -> None:
        """Take in the rows of a site; rows that :meth:`check` refuses leave no trace."""
        rows = self.check(site, message, number, images)
        if self._tells_confidence(number) and message.loss is not None:
            self._losses[site] = (self._losses[site][1] if site in self._losses else None, message.loss)
            self._changes[site] = message.change
        self._latest[site] = Contribution(number, rows)

    def total(self, number: int) -> RowSum | None:
        """The sum that all sites get after an exchange.

        Args:
            number: of the exchange.

        Returns:
            The weighted sum over fresh contributions and those of absent sites up to ``max_age`` exchanges old, in the
            natural order of the sites; None if there is none.
        """
        chosen = usable(self._latest, number, self._options.max_age)
        if not chosen:
            return None
        return sum_rows(chosen, self._weights(list(chosen)))

    def state_dict(self) -> dict[str, Any]:
        """What must survive a restart: tensors, numbers and texts."""
        return {
            "public": self._public,
            "rows": {site: contribution.rows for site, contribution in self._latest.items()},
            "numbers": {site: contribution.round for site, contribution in self._latest.items()},
            "losses": dict(self._losses),
            "changes": dict(self._changes),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state of :meth:`state_dict`.

        Raises:
            CheckpointError: if it is about another public set.
        """
        if state["public"] != self._public:
            raise CheckpointError(
                f"the checkpoint is about the public set {state['public'][:12]}, this run about {self._public[:12]}"
            )
        self._latest = {site: Contribution(state["numbers"][site], rows) for site, rows in state["rows"].items()}
        self._losses = {site: (before, now) for site, (before, now) in state["losses"].items()}
        self._changes = dict(state["changes"])

    def _tells_confidence(self, number: int) -> bool:
        return self._options.weighting != "uniform" and (number - 1) % self._per_epoch == 0

    def _weights(self, sites: list[str]) -> dict[str, float] | None:
        """Client confidence; equal weights until every contributor has told two losses. None is a plain sum."""
        weighting = self._options.weighting
        if weighting == "uniform" or len(sites) < 2:
            return None
        pairs = [self._losses[site] for site in sites if site in self._losses]
        previous, current = [before for before, _ in pairs if before is not None], [now for _, now in pairs]
        if len(previous) < len(sites):
            return dict(zip(sites, equal_weights(len(sites)), strict=True))
        strength = STRENGTHS[weighting] if self._options.strength is None else self._options.strength
        if weighting == "ccr":
            weights = ccr_weights(previous, current, strength)
        else:
            weights = eccr_weights(previous, current, [self._changes[site] for site in sites], strength)
        return dict(zip(sites, weights, strict=True))


def _require_confidence(message: RowMessage, name: str) -> None:
    if message.loss is None or not 0 < message.loss < math.inf:
        raise MessageError(f"{name}: client confidence needs a loss that is positive and finite, got {message.loss}")
    if not 0 <= message.change < math.inf:
        raise MessageError(f"{name}: the change of the model must be at least 0 and finite, got {message.change}")
