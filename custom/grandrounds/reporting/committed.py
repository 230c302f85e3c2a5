"""A benchmark's committed result as a run: confusion matrices instead of predictions, nothing of a single image."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from grandrounds.errors import DataError
from grandrounds.evaluation.cases import Cases, cases_from_confusion
from grandrounds.ordering import natural_sorted
from grandrounds.reporting.run import MODELS, Event, Run

NEEDED = ("method", "seed", "classes", "test", "predictions", "bytes", "selected")


def is_committed(content: Mapping[str, Any]) -> bool:
    """Whether this is a committed result and no run's summary."""
    return all(key in content for key in NEEDED)


def read_committed(path: Path, name: str, model: str | None = None) -> Run:
    """Read a committed result.

    Args:
        path: the JSON file.
        name: how the report calls it.
        model: whose predictions are wanted, as in :func:`~grandrounds.reporting.record.read_run`.

    Raises:
        DataError: if the file is no such result; the field is named.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, UnicodeDecodeError) as error:
        raise DataError(f"{path} is not valid JSON ({error}): it was cut or altered, or it is no result") from error
    missing = [key for key in NEEDED if not isinstance(content, dict) or key not in content]
    if missing:
        raise DataError(f"{path} is no result with predictions by site: {missing[0]} is missing")
    try:
        return _run(content, name, model)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise DataError(f"{path} is damaged or of another format ({error!r})") from error


def _run(content: Mapping[str, Any], name: str, wanted: str | None) -> Run:
    classes = tuple(content["classes"])
    order = (*([wanted] if wanted else []), *MODELS)
    (model, *_) = (model for model in order if content["predictions"].get(model))
    sites = tuple(natural_sorted(content["test"]))
    controller = content.get("options", {}).get("controller", {})
    places = {site: _cases(found["confusion"], len(classes)) for site, found in content["predictions"][model].items()}
    return Run(
        name=name,
        method=content["method"],
        seed=int(content["seed"]),
        classes=classes,
        status="finished",
        reason="",
        configuration=controller,
        sites=sites,
        places={site: places[site] for site in sites if site in places},
        scored={},
        model=model,
        events=_events(content),
        bytes=content["bytes"],
        contributions={},
        untested=tuple(site for site in sites if site not in places),
        rounds_done=int(controller.get("rounds", 0)),
        seconds=float(content.get("seconds", 0)),
        selected=content["selected"],
        communities=dict(content.get("devices", {})),
        options=content.get("options", {}).get("executor", {}),
        versions=content.get("versions", {}),
        notes=("only confusion matrices are committed: there are no curves, and cases are images",),
    )


def _cases(confusion: list[list[int]], classes: int) -> Cases:
    counts = np.array(confusion, np.int64)
    if counts.shape != (classes, classes) or (counts < 0).any():
        raise ValueError(f"a confusion matrix has shape {counts.shape}, expected {(classes, classes)}")
    return cases_from_confusion(counts)


def _events(content: Mapping[str, Any]) -> list[Event]:
    """Peers and similarity as the events that tell of them."""
    peers = [
        {"event": "round_end", "round": int(number), "answered": list(given), "peers": given}
        for number, given in content.get("peers", {}).items()
    ]
    alike = [
        {"event": "similarity", "round": int(number), **found}
        for number, found in content.get("similarity", {}).items()
    ]
    start = {"event": "start", "rounds": len(peers), "sites": list(content["test"])}
    return sorted([start, *peers, *alike], key=lambda event: event.get("round", 0))
