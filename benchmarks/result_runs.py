"""Committed results as runs of a report: what an experiment has written of a run in one JSON file.

    python -m benchmarks.result_runs benchmarks/mdhfl_pbc/results/*.json --out report

A result has confusion matrices or scores instead of predictions, and nothing of a single image. Four contents are
understood: confusion matrices of two models by site (``predictions``), of each site's own model (``confusion``), scores of
all test images together (``scores``), and areas under the curves by site, of one model or of one for each site
(``models``). The largest epsilon of the sites' privacy ledgers may be beside them (``budget``).
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from grandrounds.errors import DataError
from grandrounds.evaluation.bootstrap import Cases, cases_from_confusion
from grandrounds.evaluation.history import Event
from grandrounds.evaluation.record import EvalRecord
from grandrounds.option_keys import FORMER_NAMES, current_configuration
from grandrounds.options import with_current_names
from grandrounds.ordering import natural_sorted
from grandrounds.protocol.tasks import task_of
from grandrounds.reporting.model import report_on
from grandrounds.reporting.page import write_report
from grandrounds.reporting.run import FINISHED, MODELS, Origin, ReadRun, RunLog, Spent, Tests
from grandrounds.reporting.runs import named_runs, split_argument

if TYPE_CHECKING:
    from grandrounds.protocol.task import Task

NEEDED = ("method", "seed")
CONTENTS = ("predictions", "confusion", "scores", "models")
COUNTS_ALONE = "the result has only confusion matrices: there are no curves, and cases are images"
SCORES_ALONE = (
    "the result has only scores of all test images together: there are no intervals, and no scores of sites or classes"
)
ANY_SITE = "any site"
OTHER_NAMES = {"auroc_macro": "auc_macro", "roc": "auroc", "precision_recall": "average_precision", "images": "n"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="+", metavar="[NAME=]FILE", help="result files")
    parser.add_argument("--out", type=Path, required=True, help="folder of the report")
    parser.add_argument("--title", help="of the page")
    parser.add_argument("--reference", help="the method to compare with")
    parser.add_argument("--model", choices=("common", "own"), help="whose scores")
    arguments = parser.parse_args()
    named = [(name or path.stem, path) for name, path in map(split_argument, arguments.results)]
    runs = [read_result(path, name, arguments.model) for name, path in named_runs(named).items()]
    print(write_report(report_on(runs, arguments.title, arguments.reference), arguments.out))


def read_result(path: Path, name: str, model: str | None = None) -> ReadRun:
    """Read a benchmark's JSON file; ``name`` and ``model`` as in :func:`~grandrounds.reporting.runs.read_run`.

    Raises:
        DataError: if the file is no such result; the field is named.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, UnicodeDecodeError) as error:
        raise DataError(f"{path} is not valid JSON ({error}): it was cut or altered, or it is no result") from error
    missing = [key for key in NEEDED if not isinstance(content, dict) or key not in content]
    if missing:
        raise DataError(f"{path} is no result that can be reported: {missing[0]} is missing")
    if not any(key in content for key in CONTENTS):
        raise DataError(f"{path} is no result that can be reported: it needs one of {', '.join(CONTENTS)}")
    try:
        return _run(content, name, model)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise DataError(f"{path} is damaged or of another format ({error!r})") from error


def _run(content: Mapping[str, Any], name: str, wanted: str | None) -> ReadRun:
    options = content.get("options", {})
    configuration = _configuration(content, options)
    classes = tuple(content.get("classes") or configuration["problem"]["classes"])
    model, counts = _counts(content, wanted)
    site_metrics = _site_metrics(content.get("models", {}))
    sites = _sites(content)
    log = RunLog(
        method=content["method"],
        status=FINISHED,
        reason="",
        configuration={**configuration, "seed": int(content["seed"])},
        sites=sites,
        events=_events(content, sites),
        bytes=content["bytes"] if "bytes" in content else _summed(content["models"]),
        contributions=content.get("contributions", {}),
        untested=tuple(site for site in sites if counts and site not in counts),
        rounds_done=int(configuration.get("rounds", 0)),
        seconds=float(content.get("seconds", 0)),
        selected=content.get("selected", {}),
        versions=content.get("versions", {}),
    )
    origin = Origin(
        provenance={"simulated": True},
        communities=dict(content.get("devices", {})),
        options=with_current_names(options.get("executor", {}), FORMER_NAMES["executor"]),
        spent=_spent(content),
        notes=() if site_metrics else (COUNTS_ALONE if counts else SCORES_ALONE,),
    )
    task = task_of(configuration["problem"])
    records = {
        site: EvalRecord.of(task, classes, [_cases(counts[site], len(classes))]) for site in sites if site in counts
    }
    records |= {
        site: _reported(task, classes, metrics) for site, metrics in site_metrics.items() if site not in records
    }
    together = (
        None if records else _reported(task, classes, _renamed(content["scores"].get("selected", content["scores"])))
    )
    return ReadRun(name, classes, log, Tests(model, records, together), origin)


def _reported(task: Task, classes: tuple[str, ...], scores: Mapping[str, float]) -> EvalRecord:
    """Scores that stand in a result without what they were computed from."""
    if "n" not in scores:
        raise ValueError("scores must have the number of images, n")
    exact = {name: value for name, value in scores.items() if math.isfinite(value)}
    return EvalRecord(task, classes, int(scores["n"]), exact)


def _sites(content: Mapping[str, Any]) -> tuple[str, ...]:
    """Names of the sites; where only their number is given, those with traffic."""
    listed = content.get("sites") or content["test"]
    return tuple(natural_sorted(content["bytes"] if isinstance(listed, int) else listed))


def _spent(content: Mapping[str, Any]) -> tuple[Spent, ...]:
    """The largest epsilon of the sites' ledgers, which a benchmark keeps instead of all of them."""
    budget = content.get("budget")
    return (Spent(ANY_SITE, budget["unit"], float(budget["epsilon"]), float(content["delta"])),) if budget else ()


def _counts(content: Mapping[str, Any], wanted: str | None) -> tuple[str, Mapping[str, list[list[int]]]]:
    """Whose predictions are known, and their confusion matrices by site."""
    if "predictions" in content:
        order = (*([wanted] if wanted else []), *MODELS)
        (model, *_) = (model for model in order if content["predictions"].get(model))
        return model, {site: found["confusion"] for site, found in content["predictions"][model].items()}
    own = "confusion" in content or len(content.get("models", {})) > 1
    return "own" if own else "common", content.get("confusion", {})


def _site_metrics(models: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Scores by site of the last round's model: of the one there is, or of each site's own where there are several."""
    metrics: dict[str, dict[str, float]] = {}
    for name, model in models.items():
        for site, scores in model["scores"]["last"]["sites"].items():
            if len(models) == 1 or name == site:
                metrics[site] = _renamed(scores)
    return metrics


def _summed(models: Mapping[str, Any]) -> dict[str, Mapping[str, int]]:
    """Bytes by site; a site is in one federation, or alone."""
    return {site: parts for model in models.values() for site, parts in model["bytes"].items()}


def _renamed(scores: Mapping[str, Any]) -> dict[str, float]:
    return {OTHER_NAMES.get(key, key): float(value) for key, value in scores.items() if isinstance(value, (int, float))}


def _configuration(content: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """The controller's options with the benchmark's setting; the folder of a weights file is left out."""
    controller = current_configuration({"problem": {}, **options.get("controller", {})})
    problem = {**controller["problem"], **with_current_names(options.get("problem", {}), FORMER_NAMES["problem"])}
    if problem.get("weights"):
        problem["weights"] = Path(problem["weights"]).name
    return {**controller, "problem": problem, "setting": content.get("setting")}


def _cases(confusion: list[list[int]], classes: int) -> Cases:
    counts = np.array(confusion, np.int64)
    if counts.shape != (classes, classes) or (counts < 0).any():
        raise ValueError(f"a confusion matrix has shape {counts.shape}, expected {(classes, classes)}")
    return cases_from_confusion(counts)


def _events(content: Mapping[str, Any], sites: Sequence[str]) -> list[Event]:
    """What the result has of single rounds, as events of a record."""
    events: dict[int, Event] = {}
    for number, given in content.get("peers", {}).items():
        events[int(number)] = {"event": "round_end", "round": int(number), "answered": list(given), "peers": given}
    for number, entropy in content.get("soft_label_entropy", {}).items():
        events[int(number)] = {
            "event": "round_end",
            "round": int(number),
            "answered": [],
            "soft_label_entropy": entropy,
        }
    similarity = [
        {"event": "similarity", "round": int(number), **entry}
        for number, entry in content.get("similarity", {}).items()
    ]
    relations = [_relation(int(number), entry) for number, entry in content.get("relations", {}).items()]
    start = {"event": "start", "rounds": len(events), "sites": list(sites)}
    return sorted([start, *events.values(), *similarity, *relations], key=lambda event: event.get("round", 0))


def _relation(number: int, entry: Mapping[str, Any]) -> Event:
    """The labelled sites' matrix, and the mean of the others' as if it were of one site."""
    labelled = {"event": "relation", "round": number, **_rows(entry["labelled"])}
    return {**labelled, "pseudo_relations": {"mean": _rows(entry["unlabelled"])} if entry.get("unlabelled") else {}}


def _rows(rows: Sequence[list[float] | None]) -> dict[str, Any]:
    """A matrix whose unknown rows are zero, with a support of zero."""
    return {
        "matrix": [row or [0.0] * len(rows) for row in rows],
        "support": [int(row is not None) for row in rows],
    }


if __name__ == "__main__":
    main()
