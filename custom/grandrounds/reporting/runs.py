"""Finding and reading what a run has left, whatever state it is in."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from grandrounds.errors import ConfigurationError, DataError
from grandrounds.federation.server.record import EVENTS, SUMMARY, read_events
from grandrounds.ordering import natural_sorted
from grandrounds.privacy.ledger.ledger import LEDGER_NAME, read_ledger
from grandrounds.reporting.benchmark_result import is_committed, read_committed
from grandrounds.reporting.figures.training import sites_of
from grandrounds.reporting.predictions import CaseGroups, predicted_model, read_places, read_site_curves
from grandrounds.reporting.run import Event, Run, Spent, method_name

SERVER = "server"
EXPECTED: Mapping[str, type | tuple[type, ...]] = {
    "status": str,
    "rounds_done": int,
    "test": dict,
    "bytes": dict,
    "configuration": dict,
    "rounds": list,
    "selected": dict,
    "contributions": dict,
    "seconds": (int, float),
}


def read_run(path: Path, name: str, groups: CaseGroups | None = None, model: str | None = None) -> Run:
    """Read a run.

    Args:
        path: a simulation's workspace, a folder with ``summary.json``, or a file with a committed result.
        name: how the report calls it.
        groups: tells the patient or lesion of an image; without it each image is a case.
        model: whose predictions are wanted, ``common`` or ``own``; None prefers the common one. A run that has only the
            other kind is reported with that.

    Raises:
        ConfigurationError: if there is no run.
        DataError: if it is damaged; file and field are named.
    """
    if path.is_file():
        return read_committed(path, name, model)
    folder = record_folder(path)
    summary = _read_summary(folder / SUMMARY)
    events, notes = _read_events(folder)
    configuration = summary["configuration"]
    classes = _classes(configuration, folder / SUMMARY)
    # The sites' predictions are beside the record, or in their state where a run was not copied to its results.
    answers = folder.parent if folder.name == SERVER else folder
    sites = tuple(natural_sorted({*sites_of(events), *summary["test"], *summary["contributions"]}))
    model = predicted_model(answers, sites, model)
    places = read_places(answers, sites, model, classes, str(configuration["problem"]["dataset"]), groups)
    weights = folder / "selected.pt"
    return Run(
        name=name,
        method=method_name(str(configuration.get("method", "unknown method"))),
        seed=configuration.get("seed"),
        classes=classes,
        status=summary["status"],
        # In parentheses is what sites said: where they share details, it may name images or patients.
        reason=re.sub(r"\s*\(.*\)", "", str(summary.get("reason", "")), flags=re.DOTALL),
        configuration=configuration,
        sites=sites,
        places=places,
        scored=_means(summary["test"], model),
        model=model,
        events=events,
        bytes=summary["bytes"],
        contributions=summary["contributions"],
        untested=tuple(summary.get("untested", ())),
        rounds_done=summary["rounds_done"],
        seconds=float(summary["seconds"]),
        selected=summary["selected"],
        spent=_ledgers(path),
        unit="patient or lesion" if any(cases.count < len(cases.labels) for cases in places.values()) else "image",
        options=_executor_options(path),
        versions=summary.get("versions", {}),
        weights=weights if weights.is_file() else None,
        notes=notes,
        curves={} if places else read_site_curves(answers, sites, model, classes),
    )


def record_folder(path: Path) -> Path:
    """Where a run's record is.

    Raises:
        ConfigurationError: if there is none, or there are several; the message says what was looked for.
    """
    if not path.exists():
        raise ConfigurationError(f"{path} does not exist; name the workspace of a run or a result's JSON file")
    for folder in (path / "results", path):
        if (folder / SUMMARY).is_file():
            return folder
    # A run that was killed has not been copied to the results: its record is with the server's state.
    found = sorted(folder.parent for folder in path.glob(f"state/*/{SERVER}/{SUMMARY}"))
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(str(folder) for folder in found)
        raise ConfigurationError(f"{path} has several runs: {names}; name one of these folders")
    begun = [*path.glob(EVENTS), *path.glob(f"*/{EVENTS}"), *path.glob(f"state/*/{SERVER}/{EVENTS}")]
    if begun:
        raise ConfigurationError(
            f"{path}: the run stopped before its first round was complete ({begun[0]} is all there is); there is nothing "
            "to report yet"
        )
    raise ConfigurationError(
        f"{path} is no run: there is no {SUMMARY} in it, in its folder results or in state/RUN/{SERVER}; name the "
        "workspace of a simulation, the results of a downloaded job, or a committed result's JSON file"
    )


def _read_summary(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DataError(
            f"{path} is not valid JSON ({error}): it was cut or altered; restore it or run the job again"
        ) from error
    if not isinstance(content, dict):
        raise DataError(f"{path} is no summary of a run: expected an object, got {type(content).__name__}")
    if is_committed(content):
        raise ConfigurationError(f"{path.parent} is no run: {path.name} is a committed result; name the file itself")
    for key, kind in EXPECTED.items():
        if not isinstance(content.get(key), kind):
            raise DataError(
                f"{path}: {key} must be {_kind(kind)}, got {_short(content.get(key))}; it is no summary of a run"
            )
    return content


def _read_events(folder: Path) -> tuple[list[Event], tuple[str, ...]]:
    """The events, and a note if some were cut off when the process died."""
    path = folder / EVENTS
    if not path.is_file():
        return [], (f"the run's {EVENTS} is missing: nothing is known of single rounds",)
    try:
        events: list[Event] = list(read_events(folder))
        cut = sum(not _is_json(line) for line in path.read_text(encoding="utf-8").splitlines())
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} is damaged ({error!r}); restore it or run the job again") from error
    if cut == 0:
        return events, ()
    told = "an event was" if cut == 1 else f"{cut} events were"
    return events, (f"{told} cut off: the process ended while it wrote",)


def _is_json(line: str) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return True


def _classes(configuration: Mapping[str, Any], path: Path) -> tuple[str, ...]:
    problem = configuration.get("problem")
    known = problem if isinstance(problem, dict) else {}
    classes = known.get("classes")
    if not isinstance(classes, list) or len(classes) < 2 or not isinstance(known.get("dataset"), str):
        raise DataError(f"{path}: configuration.problem must have a data set and classes; run the job again")
    return tuple(str(name) for name in classes)


def _means(test: Mapping[str, Mapping[str, float]], model: str) -> dict[str, dict[str, float]]:
    """A site's own means of its test images, which travel where its predictions do not."""
    return {
        site: {name.removeprefix(f"{model}."): value for name, value in scores.items() if name.startswith(f"{model}.")}
        for site, scores in test.items()
    }


def _executor_options(path: Path) -> dict[str, Any]:
    place = path / "job" / "app" / "config" / "config_fed_client.json"
    try:
        return dict(json.loads(place.read_text(encoding="utf-8"))["executors"][0]["executor"]["args"])
    except (OSError, ValueError, LookupError, TypeError):
        return {}


def _ledgers(path: Path) -> tuple[Spent, ...]:
    """What the privacy ledgers in a run's folder say."""
    found = {
        ledger.resolve() for part in ("results", "state", ".") for ledger in (path / part).glob(f"**/{LEDGER_NAME}")
    }
    spent = []
    for ledger in sorted(found):
        content = read_ledger(ledger)
        for name in content.datasets:
            bookings = [booking for booking in content.bookings if booking.dataset.name == name]
            last = bookings[-1]
            history = tuple((booking.purpose.round_number, _finite(booking.epsilon)) for booking in bookings)
            unit = last.spending.unit.value
            spent.append(Spent(content.opening.site, unit, _finite(last.epsilon), last.delta, history))
    return tuple(spent)


def _finite(value: float) -> float | None:
    return value if value < float("inf") else None


def _kind(kind: type | tuple[type, ...]) -> str:
    names = {str: "text", int: "a whole number", dict: "an object", list: "a list"}
    return "a number" if isinstance(kind, tuple) else names[kind]


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
