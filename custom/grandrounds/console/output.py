"""What the commands print: results on the standard output, everything else on the standard error; tables of scores."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

WIDTH_WITHOUT_TERMINAL = 160
INTERRUPTED = 130  # exit status after Ctrl-C, by the shells' convention


def results() -> Console:
    """The console for results; without a terminal it is wide enough for every row of a table."""
    return _console(stderr=False)


def notes() -> Console:
    """The console for progress and remarks, on the standard error."""
    return _console(stderr=True)


def say(console: Console, text: str = "") -> None:
    """Print text as it is: brackets are not markup, and long lines are not broken."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def say_json(content: Any) -> None:
    """Print one JSON document on the standard output."""
    sys.stdout.write(json.dumps(content, indent=2) + "\n")


def megabytes(size: float) -> str:
    """A number of bytes as megabytes (10^6).

    Example:
        >>> megabytes(1_250_000)
        '1.2 MB'
    """
    return f"{size / 1e6:.1f} MB"


def duration(seconds: float) -> str:
    """A duration as text.

    Example:
        >>> duration(7.4), duration(75), duration(3700)
        ('7 s', '1 min 15 s', '1 h 01 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def _console(stderr: bool) -> Console:
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() or "COLUMNS" in os.environ else WIDTH_WITHOUT_TERMINAL
    return Console(stderr=stderr, width=width)


COLUMNS: Mapping[str, str] = {
    "accuracy": "accuracy",
    "balanced_accuracy": "balanced",
    "f1_weighted": "wtd. F1",
    "auc_macro": "AUROC",
    "f1_macro": "F1",
}


def score_table(summary: Mapping[str, Any]) -> Table:
    """Scores on each site's test images, their mean over sites, those of all images together, and reference rows.

    ``common`` is the model that the federation selected, ``own`` the one that scored best on the site's validation images. A
    job that exchanges no models has no common model, and a site without test images has no score. Where sites have released
    counts of their predictions, classes with few cases are in no mean, and the accuracy of always predicting the most
    frequent class is beside the scores.
    """
    from grandrounds.reporting.summary_scores import NAMES, ModelScores, is_multi, scores_in, tested_models

    multi, columns = is_multi(summary), scores_in(summary)
    tests: Mapping[str, Mapping[str, float]] = summary["test"]
    models = tested_models(summary)
    means = (
        "means over findings of AUROC, balanced accuracy, F1" if multi else "accuracy, balanced accuracy, weighted F1"
    )
    title = f"test images: {means}; selected model, each site's own choice"
    table = Table(title=title, title_justify="left", padding=(0, 0, 0, 1))  # fits into 100 columns
    table.add_column("site", no_wrap=True)
    for label in ("images", *([] if multi else ["majority\naccuracy"])):
        table.add_column(label, justify="right", no_wrap=True)
    for model in models:
        for name in columns:
            table.add_column(f"{NAMES[model]}\n{COLUMNS[name]}", justify="right", no_wrap=True)
    by_model = {model: ModelScores.of(summary, model) for model in models}
    first = next(iter(by_model.values()), None)
    for site in tests:
        cells = [
            _number(by_model[model].sites.get(site, {}).get(name, math.nan)) for model in models for name in columns
        ]
        table.add_row(
            site,
            str(first.images.get(site, 0)) if first else "0",
            *([] if multi else [_number(first.majority.get(site, math.nan)) if first else "-"]),
            *cells,
        )
    table.add_section()
    rows = {
        "mean": [found.mean for found in by_model.values()],
        "pooled": [found.pooled for found in by_model.values()],
    }
    if first:
        rows |= {name: [scores] * len(models) for name, scores in first.references.items()}
    for name, scored in rows.items():
        images = str(sum(first.images.values())) if name == "pooled" and first else ""
        constant = {"pooled": first.majority.get(""), "mean": first.mean_majority}.get(name) if first else None
        majority = "" if constant is None else _number(constant)
        table.add_row(
            name,
            images,
            *([] if multi else [majority]),
            *(_number(scores.get(key, math.nan)) for scores in scored for key in columns),
        )
    return table


def facts(summary: Mapping[str, Any]) -> list[str]:
    """Selected round, bytes and time of a run, from its ``summary.json``, one line each."""
    selected = summary["selected"]
    lines = [f"selected: the model after round {selected['round']} of {summary['rounds_done']}"]
    if selected.get("metric"):
        over = {
            "pooled": "validation images of all sites together",
            "server's images": "the server's validation images",
        }
        basis = over.get(selected.get("basis", ""), "mean over the sites' validation images")
        lines[0] += f" ({selected['metric']} {selected['score']:.3f}, {basis})"
        lines += [f"selection: {selected['note']}"] if "note" in selected else []
    lines += [str(summary["reason"])] if summary.get("reason") else []
    sizes = [(name, size) for parts in summary["bytes"].values() for name, size in parts.items()]
    down, up = (megabytes(sum(size for name, size in sizes if name.startswith(way))) for way in ("down.", "up."))
    lines.append(f"moved: {down} to the sites, {up} from them")
    rounds = sum(entry["round_seconds"] for entry in summary["rounds"])
    lines.append(f"time: {duration(rounds)} in {summary['rounds_done']} rounds")
    return lines


def _number(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.3f}"
