"""What the commands print: results on the standard output, everything else on the standard error; tables of scores."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Mapping, Sequence
from statistics import fmean
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


MODELS: Mapping[str, str] = {"common": "selected", "own": "own choice"}
COLUMNS: Mapping[str, str] = {"balanced_accuracy": "balanced acc.", "f1_weighted": "weighted F1"}


def score_table(summary: Mapping[str, Any]) -> Table:
    """Scores on each site's test images, with their mean over sites.

    ``common`` is the model that the federation selected, ``own`` the one that scored best on the site's validation images. A
    job that exchanges no models has no common model, and a site without test images has no score.
    """
    tests: Mapping[str, Mapping[str, float]] = summary["test"]
    models = [model for model in MODELS if any(f"{model}.n" in scores for scores in tests.values())]
    keys = [f"{model}.{metric}" for model in models for metric in COLUMNS]
    table = Table("site", title="test images", title_justify="left")
    table.add_column("images", justify="right")
    for model in models:
        for label in COLUMNS.values():
            table.add_column(f"{MODELS[model]}\n{label}", justify="right")
    counts = {site: _count(scores, models) for site, scores in tests.items()}
    for site, scores in tests.items():
        table.add_row(site, str(counts[site]), *(_number(scores.get(key, math.nan)) for key in keys))
    table.add_section()
    means = [_mean([scores[key] for scores in tests.values() if key in scores]) for key in keys]
    table.add_row("mean", "", *map(_number, means))
    return table


def facts(summary: Mapping[str, Any]) -> list[str]:
    """Selected round, bytes and time of a run, from its ``summary.json``, one line each."""
    selected = summary["selected"]
    lines = [f"selected: the model after round {selected['round']} of {summary['rounds_done']}"]
    if selected.get("metric"):
        lines[0] += f" ({selected['metric']} {selected['score']:.3f}, mean over the sites' validation images)"
    sizes = [(name, size) for parts in summary["bytes"].values() for name, size in parts.items()]
    down, up = (megabytes(sum(size for name, size in sizes if name.startswith(way))) for way in ("down.", "up."))
    lines.append(f"moved: {down} to the sites, {up} from them")
    rounds = sum(entry["round_seconds"] for entry in summary["rounds"])
    lines.append(f"time: {duration(rounds)} in {summary['rounds_done']} rounds")
    return lines


def _count(scores: Mapping[str, float], models: Sequence[str]) -> int:
    return int(next((scores[f"{model}.n"] for model in models if f"{model}.n" in scores), 0))


def _mean(values: Sequence[float]) -> float:
    return fmean(values) if values else math.nan


def _number(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.3f}"
