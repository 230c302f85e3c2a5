"""Soft labels: what sites publish of the public images, how it travels, and what a site makes of the sum.

The server adds up the predictions of the sites, and every site subtracts its own from the sum. That is enough for MDH-FL's
alignment (arXiv 2308.00155, Eq. 3), and for RHFL's with client confidence. So the server
makes one sum for all sites, and no site sees the soft labels of another. Sums are made of *decoded* predictions, and a site
subtracts its own as they were decoded, not as they were computed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from grandrounds.checks import require_at_least
from grandrounds.errors import MessageError
from grandrounds.ordering import natural_sorted

WireFormat = Literal["fp64", "fp32", "fp16", "uint8"]
WIRE_DTYPES: Mapping[str, torch.dtype] = {
    "fp64": torch.float64,
    "fp32": torch.float32,
    "fp16": torch.float16,
    "uint8": torch.uint8,
}
WIRE_LEVELS = 255
WIRE_TOLERANCE = 1e-3
LARGEST_LOGIT = 1e3
"""Absolute value: one site's must not be all that a mean is."""


@dataclass(frozen=True, eq=False)
class SoftLabels:
    r"""Predictions on public images: those of one site, or the weighted sum of several.

    Attributes:
        values: :math:`S = \sum_j w_j D_j`, shape ``(images, classes)``; :math:`D_j` are probabilities (FedMD: logits).
        rounds: the contributors, each with the exchange that its predictions are from.
        weights: :math:`w_j` of each contributor; one unless clients are weighted by confidence.
    """

    values: Tensor
    rounds: Mapping[str, int]
    weights: Mapping[str, float]

    def __post_init__(self) -> None:
        if not self.rounds or set(self.rounds) != set(self.weights):
            raise ValueError(
                "soft labels need contributors, each with a round and a weight, "
                f"got rounds of {sorted(self.rounds)} and weights of {sorted(self.weights)}"
            )
        for site, weight in self.weights.items():
            require_at_least(weight, 0, f"weight of {site}")

    @classmethod
    def of_site(cls, site: str, round_number: int, values: Tensor) -> SoftLabels:
        """The predictions of one site."""
        return cls(values, {site: round_number}, {site: 1.0})

    @property
    def newest(self) -> int:
        """The latest exchange that a contribution is from."""
        return max(self.rounds.values())

    def mean(self) -> Tensor:
        r"""Mean over all contributors, :math:`\sum_j w_j D_j / \sum_j w_j` (FedMD's consensus).

        Raises:
            ValueError: if all weights are zero.
        """
        mass = sum(self.weights.values())
        if mass <= 0:
            raise ValueError("the weights of all contributors are zero")
        return self.values / mass

    def weight_of_others(self, site: str) -> float:
        r"""Sum of the weights of the other sites, :math:`\sum_{j \ne p} w_j`."""
        return sum(weight for other, weight in self.weights.items() if other != site)

    def loss_scale(self, site: str) -> float:
        r"""The factor of the divergence from :meth:`mean_of_others`.

        One if all weights are one: MDH-FL's mean over the others. Else :meth:`weight_of_others`: RHFL's alignment
        :math:`\sum_{j \ne p} w_j \mathrm{KL}(D_j \Vert D_p)` has the gradient of this factor times that divergence.
        """
        plain = all(weight == 1 for weight in self.weights.values())
        return 1.0 if plain else self.weight_of_others(site)

    def mean_of_others(self, site: str, own: Mapping[int, Tensor]) -> Tensor | None:
        r"""Mean of the predictions of the other sites, which a site aligns its model to.

        .. math:: m_{-p} = \frac{S - w_p D_p}{\sum_{j \ne p} w_j}

        A site that is not a contributor subtracts nothing.

        Args:
            site: whose target this is.
            own: the site's predictions as decoded, by the exchange in which it published them.

        Returns:
            Probabilities, shape ``(images, classes)``: what rounding has left below zero is zero, and each
            row sums to one. None if there is no other contributor with a weight.

        Raises:
            ValueError: if predictions of the site are in the sum which ``own`` lacks, or which have another shape.
        """
        if self.weight_of_others(site) <= 0:
            return None
        rest = self._without(site, own).clamp(min=0)
        return rest / rest.sum(dim=1, keepdim=True)

    def _without(self, site: str, own: Mapping[int, Tensor]) -> Tensor:
        if site not in self.rounds:
            return self.values
        needed = self.rounds[site]
        if needed not in own:
            raise ValueError(
                f"the sum holds soft labels of {site} from round {needed}, which cannot be subtracted: "
                f"it has those of rounds {sorted(own)}"
            )
        mine = own[needed]
        if mine.shape != self.values.shape:
            raise ValueError(
                f"soft labels of {site} have shape {tuple(mine.shape)}, the sum {tuple(self.values.shape)}"
            )
        return self.values - self.weights[site] * mine


def recent(latest: Mapping[str, SoftLabels], newest: int, max_age: int = 0) -> dict[str, SoftLabels]:
    """The soft labels of sites that are not too old, in the natural order of the sites.

    Args:
        latest: the latest soft labels of each site.
        newest: the current exchange; no soft labels are of a later one.
        max_age: how many exchanges older soft labels may be; 0 takes current ones only.

    Example:
        >>> sent = torch.ones(1, 1)
        >>> latest = {"b": SoftLabels.of_site("b", 3, sent), "a": SoftLabels.of_site("a", 5, sent)}
        >>> list(recent(latest, newest=5)), list(recent(latest, newest=5, max_age=2))
        (['a'], ['a', 'b'])
    """
    return {site: latest[site] for site in natural_sorted(latest) if newest - latest[site].newest <= max_age}


def add_up(labels: Mapping[str, SoftLabels], weights: Mapping[str, float] | None = None) -> SoftLabels:
    r"""The sum :math:`S = \sum_j w_j D_j` of the soft labels of sites.

    The order of the sum is the natural order of the sites, so that it is equal to the bit in any order of arrival.

    Args:
        labels: of each site, of one at least, all of one shape.
        weights: :math:`w_j` of each site, not negative; None is one each.

    Returns:
        The sum, in the dtype of the values.

    Raises:
        ValueError: if a weight is negative.

    Example:
        >>> values = {"a": torch.tensor([[0.5, 0.5]]), "b": torch.tensor([[0.9, 0.1]])}
        >>> add_up({site: SoftLabels.of_site(site, 1, value) for site, value in values.items()}).values
        tensor([[1.4000, 0.6000]])
    """
    sites = natural_sorted(labels)
    chosen = dict.fromkeys(sites, 1.0) if weights is None else dict(weights)
    total = torch.zeros_like(labels[sites[0]].values, dtype=torch.float64)
    for site in sites:
        total.add_(labels[site].values, alpha=chosen[site])
    rounds = {site: labels[site].newest for site in sites}
    return SoftLabels(total.to(labels[sites[0]].values.dtype), rounds, {site: chosen[site] for site in sites})


def require_soft_labels(
    values: Tensor, images: int, classes: int, name: str, tolerance: float = WIRE_TOLERANCE
) -> None:
    """Check that each row is a probability distribution.

    Args:
        values: what was received, expected of shape ``(images, classes)``, floating point.
        images: number of public images.
        classes: their number.
        name: for errors, for example ``"soft labels of site-2"``.
        tolerance: how far the sum of a row may be off.

    Raises:
        MessageError: naming the first wrong row, if the shape is another, an entry is not finite or negative, or a row does
            not sum to 1.
    """
    require_logits(values, images, classes, name)
    _refuse_first((values < 0).any(dim=1), f"{name}: row {{}} has a negative entry")
    sums = values.sum(dim=1, dtype=torch.float64)
    _refuse_first((sums - 1).abs() > tolerance, f"{name}: row {{}} does not sum to 1")


def require_logits(values: Tensor, images: int, classes: int, name: str) -> None:
    """Check shape and range of values that need not be distributions: the logits of FedMD.

    Raises:
        MessageError: if the shape is another, or an entry is not finite, or larger than ``LARGEST_LOGIT``.
    """
    if not values.is_floating_point():
        raise MessageError(f"{name}: expected floating-point values, got {values.dtype}")
    if values.dim() == 2 and values.shape[1] != classes:
        raise MessageError(
            f"{name}: expected {classes} classes, got {values.shape[1]}; all models need the same classes"
        )
    if values.shape != (images, classes):
        raise MessageError(f"{name}: expected shape {(images, classes)}, got {tuple(values.shape)}")
    _refuse_first(~torch.isfinite(values).all(dim=1), f"{name}: row {{}} has an entry that is not finite")
    _refuse_first((values.abs() > LARGEST_LOGIT).any(dim=1), f"{name}: row {{}} has an entry above {LARGEST_LOGIT:g}")


def encode(values: Tensor, wire: WireFormat) -> Tensor:
    r"""Soft labels as they travel; probabilities need only eight bits: the maximum error of an entry is 1/510.

    .. math:: u = \mathrm{round}(255 \, p) \quad\text{for uint8}

    Args:
        values: shape ``(images, classes)``; also the mean of several sites.
        wire: ``fp64`` (for comparisons), ``fp32``, ``fp16`` or ``uint8`` (probabilities only).

    Raises:
        ValueError: if there are too many classes: a uniform distribution would round to zero.

    Example:
        >>> encode(torch.tensor([[0.7, 0.2, 0.1]]), "uint8")
        tensor([[178,  51,  26]], dtype=torch.uint8)
    """
    if wire != "uint8":
        return values.to(WIRE_DTYPES[wire])
    if values.shape[1] > WIRE_LEVELS:
        raise ValueError(f"uint8 cannot hold rows of {values.shape[1]} classes, at most {WIRE_LEVELS}; use fp16")
    return (values.double() * WIRE_LEVELS).round().to(torch.uint8)


def decode(encoded: Tensor, images: int, classes: int, name: str, logits: bool = False) -> Tensor:
    """Soft labels from what travelled; probabilities are again distributions.

    Args:
        encoded: as :func:`encode` makes them.
        images: number of public images.
        classes: number of classes.
        name: for errors, for example ``"soft labels of site-2"``.
        logits: whether they are logits (FedMD), which need a floating-point format.

    Returns:
        Shape ``(images, classes)``, float32 (float64 from fp64). Probabilities of fp16 and uint8 are divided by their sum;
        others are as they were received.

    Raises:
        MessageError: if the dtype is not that of a format, the shape is another, an entry is not finite, or a row is farther
            off a distribution than its format rounds.

    Example:
        >>> decode(torch.tensor([[178, 51, 26]], dtype=torch.uint8), 1, 3, "soft labels")
        tensor([[0.6980, 0.2000, 0.1020]])
    """
    if logits:
        require_logits(encoded, images, classes, name)
    if encoded.dtype not in WIRE_DTYPES.values():
        raise MessageError(f"{name}: expected one of {', '.join(WIRE_DTYPES)}, got {encoded.dtype}")
    if logits:
        return encoded.float() if encoded.dtype == torch.float16 else encoded
    if encoded.dtype in (torch.float64, torch.float32):
        require_soft_labels(encoded, images, classes, name)
        return encoded
    tolerance = WIRE_TOLERANCE
    rows = encoded.double()
    if encoded.dtype == torch.uint8:
        rows = rows / WIRE_LEVELS
        # Each entry is rounded by half a level at most; the rest is for the float32 values that were rounded.
        tolerance = min(classes, WIRE_LEVELS) / (2 * WIRE_LEVELS) + WIRE_TOLERANCE
    require_soft_labels(rows, images, classes, name, tolerance=tolerance)
    return (rows / rows.sum(dim=1, keepdim=True)).float()


def _refuse_first(bad: Tensor, message: str) -> None:
    if bad.any():
        raise MessageError(message.format(int(bad.nonzero()[0])))
