"""What a method gains and what it costs, as FedPerl (Bdair et al., MELBA 2022, Table 2) reports it.

The paper counts models that a client downloads beside the global one. A run's record has measured bytes, which tell
more: rounds of warm-up without peers and sites without any are in them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from grandrounds.checks import require_at_least

GLOBAL = "down.global"


class Traffic(NamedTuple):
    """Bytes of tensors of a run, over all sites.

    Attributes:
        down_global: global models that sites got, also for scoring and testing.
        down_extra: everything else that sites got.
        up: everything that sites answered.
    """

    down_global: int
    down_extra: int
    up: int


def relative_improvement(value: float, reference: float) -> float:
    r"""Relative improvement over a reference, in percent: :math:`\mathrm{RI}(a|b) = 100 (a - b) / b`.

    Args:
        value: a metric, higher is better.
        reference: the same metric of what is improved on (the paper: F1 of training alone on the labelled images).

    Raises:
        ValueError: if the reference is not above zero.

    Example:
        >>> round(relative_improvement(0.747, 0.647), 3)
        15.456
    """
    if not reference > 0:
        raise ValueError(f"reference must be above 0, got {reference}")
    return 100 * (value - reference) / reference


def additional_communication(extra_models: float, client_rounds: int = 1) -> float:
    """Additional communication, in percent of one model per client and round: AC of the paper.

    Args:
        extra_models: models that clients download beside the global one, in all ``client_rounds`` together. T peers
            give 100 T, one anonymised peer 100, none 0.
        client_rounds: how often a client takes part in a round.

    Raises:
        ValueError: if ``extra_models`` is negative or ``client_rounds`` below one.

    Example:
        >>> additional_communication(3), additional_communication(1), additional_communication(980, 1000)
        (300.0, 100.0, 98.0)
    """
    require_at_least(extra_models, 0, "extra_models")
    require_at_least(client_rounds, 1, "client_rounds")
    return 100 * extra_models / client_rounds


def traffic(sizes: Mapping[str, Mapping[str, int]]) -> Traffic:
    """Add up the bytes of a run's record.

    Args:
        sizes: by site and by ``down.NAME`` or ``up.NAME``: the entry ``bytes`` of a run's summary.

    Raises:
        ValueError: if a name begins with neither.

    Example:
        >>> traffic({"site-1": {"down.global": 40, "down.peer-1": 10, "up.update": 20}})
        Traffic(down_global=40, down_extra=10, up=20)
    """
    down_global = down_extra = up = 0
    for site, parts in sizes.items():
        for name, size in parts.items():
            if name == GLOBAL:
                down_global += size
            elif name.startswith("down."):
                down_extra += size
            elif name.startswith("up."):
                up += size
            else:
                raise ValueError(f"{site}: expected down.NAME or up.NAME, got {name!r}")
    return Traffic(down_global, down_extra, up)


def measured_communication(summary: Mapping[str, Any], model_bytes: int) -> float:
    """Additional communication of a run by its measured bytes, in percent of one model per site and round.

    The site-rounds are all in which a site was asked to train: what the paper leaves out, warm-up and sites without
    peers, lowers the value.

    Args:
        summary: of the run; ``bytes`` and each round's ``asked`` are read.
        model_bytes: of one model, all buffers included.

    Raises:
        ValueError: if ``model_bytes`` is below one or no site was asked.

    Example:
        >>> sizes = {"a": {"down.global": 12, "down.peer-1": 4}}
        >>> measured_communication({"bytes": sizes, "rounds": [{"asked": ["a"]}, {"asked": ["a"]}]}, model_bytes=4)
        50.0
    """
    require_at_least(model_bytes, 1, "model_bytes")
    site_rounds = sum(len(entry["asked"]) for entry in summary["rounds"])
    return additional_communication(traffic(summary["bytes"]).down_extra / model_bytes, site_rounds)
