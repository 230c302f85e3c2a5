"""The mean of the others' soft labels, from nothing but a sum and the own rows.

That is enough for MDH-FL's alignment (arXiv 2308.00155, Eq. 3), and for RHFL's with client confidence. So a server, or an
encryption scheme that can only add, has to make one sum for all sites, and no site sees the rows of another.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from grandrounds.methods.mdhfl.contributions import RowSum


def leave_one_out_mean(row_sum: RowSum, site: str, own: Mapping[int, Tensor]) -> Tensor | None:
    r"""Mean of the others' rows, which is what a site aligns its model to.

    .. math:: m_{-p} = \frac{S - w_p D_p}{\sum_{j \ne p} w_j}

    A site that is no contributor takes nothing out: :math:`m = S / \sum_j w_j`.

    Args:
        row_sum: the sum; decrypted, if it was encrypted.
        site: whose target this is.
        own: the site's rows as decoded, by the round in which it sent them.

    Returns:
        Probabilities, shape ``(images, classes)``: what rounding or decryption has left below zero is zero, and rows sum to
        one. None if there is no other contributor (with a weight): then the site has nothing to align to.

    Raises:
        ValueError: if rows of the site are in the sum which ``own`` lacks, or which have another shape.
    """
    mass = alignment_scale(row_sum.weights, site)
    if mass <= 0:
        return None
    rest = _without_own(row_sum, site, own).clamp(min=0)
    return rest / rest.sum(dim=1, keepdim=True)


def mean_of_all(row_sum: RowSum) -> Tensor:
    r"""Mean of all rows, the own included, :math:`\sum_j w_j D_j / \sum_j w_j` (FedMD's consensus).

    Raises:
        ValueError: if all weights are zero.
    """
    mass = sum(row_sum.weights.values())
    if mass <= 0:
        raise ValueError("the weights of all contributors are zero")
    return row_sum.total / mass


def alignment_scale(weights: Mapping[str, float], site: str) -> float:
    r"""Sum of the others' weights, :math:`\sum_{j \ne p} w_j`.

    RHFL's alignment :math:`\sum_{j \ne p} w_j \mathrm{KL}(D_j \Vert D_p)` has the gradient of this scale times the
    divergence from :func:`leave_one_out_mean`. MDH-FL's weights are :math:`1/(P-1)`, which makes it one.

    Example:
        >>> round(alignment_scale({"a": 0.5, "b": 0.3, "c": 0.2}, "a"), 6)
        0.5
    """
    return sum(weight for other, weight in weights.items() if other != site)


def loss_scale(row_sum: RowSum, site: str) -> float:
    """What the divergence from :func:`leave_one_out_mean` is multiplied by.

    Returns:
        One for a plain sum, whose weights are all one: MDH-FL's mean over the others. Else :func:`alignment_scale`.
    """
    plain = all(weight == 1 for weight in row_sum.weights.values())
    return 1.0 if plain else alignment_scale(row_sum.weights, site)


def _without_own(row_sum: RowSum, site: str, own: Mapping[int, Tensor]) -> Tensor:
    if site not in row_sum.rounds:
        return row_sum.total
    needed = row_sum.rounds[site]
    if needed not in own:
        raise ValueError(
            f"the sum holds rows of {site} from round {needed}, which cannot be taken out: "
            f"it has those of rounds {sorted(own)}"
        )
    rows = own[needed]
    if rows.shape != row_sum.total.shape:
        raise ValueError(f"rows of {site} have shape {tuple(rows.shape)}, the sum {tuple(row_sum.total.shape)}")
    return row_sum.total - row_sum.weights[site] * rows
