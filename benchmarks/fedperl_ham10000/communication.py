"""Additional communication as FedPerl (Bdair et al., MELBA 2022, Table 2) reports it.

The paper counts models that a client downloads beside the global one. A run's record has measured bytes, which also cover
warm-up rounds without peers and sites without peers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from grandrounds.checks import require_at_least
from grandrounds.reporting.run import traffic


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
