"""The table of a run's scores and the lines below it, as the terminal shows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from grandrounds.console.output import duration
from grandrounds.evaluation.score import MIN_CASES, Score
from grandrounds.evaluation.within import confounding_of
from grandrounds.federation.server.record import traffic
from grandrounds.reporting.caveats import exchanged_labels
from grandrounds.reporting.run import NAMES, ReadRun, Row, expectation, reference_sentences, scores_of, table_rows
from grandrounds.reporting.tables import FEW, format_bytes

COLUMNS: Mapping[str, str] = {
    "accuracy": "accuracy",
    "balanced_accuracy": "balanced",
    "f1_weighted": "wtd. F1",
    "auc_macro": "AUROC",
    "f1_macro": "macro F1",
}

SAME_MODELS = "selected model; the sites' own choices score the same"


def score_table(runs: Sequence[ReadRun]) -> Table:
    """Scores on each site's test images, their mean over sites, those of all images together, and reference rows.

    ``common`` is the model that the federation selected, ``own`` the one that scored best on the site's validation images. A
    job that exchanges no models has no common model, and a site without test images has no score. A score of few cases is
    marked; where classes or sites are withheld, it says over how many of them it is. Where all sites' own choices score
    as the selected model does, there is one column for both.

    Args:
        runs: the same run, once for each tested model.
    """
    shown = _without_repeated(runs)
    by_model = {NAMES[run.tests.model]: {row.name: row for row in table_rows(run)} for run in shown}
    task = runs[0].task
    means = ", ".join(COLUMNS[name] for name in task.scores)
    unit = runs[0].tests.unit
    of = "selected model, each site's own choice" if len(shown) == len(runs) else SAME_MODELS
    title = f"test images: {means}; cases are {unit}s; {of}"
    with_majority = "majority" in task.references
    majority = ["majority\naccuracy"] if with_majority else []
    columns = [f"{model}\n{COLUMNS[name]}" for model in by_model for name in task.scores]
    table = _empty_table(title, ["images", *majority, *columns])
    for name in dict.fromkeys(name for rows in by_model.values() for name in rows):
        if name == "mean":
            table.add_section()
        rows = [by_name.get(name) for by_name in by_model.values()]
        table.add_row(name, *_cells(rows, list(task.scores), with_majority))
    shown_scores = [score for by_name in by_model.values() for row in by_name.values() for score in row.scores.values()]
    scores = scores_of(shown[0])
    sentence = confounding_of(scores.pooled) if scores.pooled else ""
    remarks = [*_remarks(shown_scores), *([sentence] if sentence else []), *exchanged_labels(scores.sites)]
    if idle := runs[0].origin.idle:
        remarks = [f"{runs[0].log.method}: {idle}", *remarks]
    table.caption = "\n".join(remarks)
    return table


def _empty_table(title: str, columns: Sequence[str]) -> Table:
    """A table that fits into 100 columns."""
    table = Table(title=title, title_justify="left", padding=(0, 0, 0, 1), caption_justify="left")
    table.add_column("site", no_wrap=True)
    for label in columns:
        table.add_column(label, justify="right", no_wrap=True)
    return table


def _cells(rows: Sequence[Row | None], metrics: Sequence[str], with_majority: bool) -> list[str]:
    """The number of images, and the scores of each model; ``rows`` has the row of each model, if it has one."""
    first = next(row for row in rows if row)
    scores = [row.scores.get(metric) if row else None for row in rows for metric in metrics]
    images = "" if first.images is None else str(first.images)
    majority = [_number(first.majority)] if with_majority else []
    return [images, *majority, *map(_score, scores)]


def _without_repeated(runs: Sequence[ReadRun]) -> Sequence[ReadRun]:
    """The runs but the second, if its model has the same scores and counts at every site."""
    first, *others = runs
    scored = {site: record.to_json() for site, record in first.tests.sites.items()}
    return [
        first,
        *(run for run in others if {site: record.to_json() for site, record in run.tests.sites.items()} != scored),
    ]


def _score(score: Score | None) -> str:
    """A score with its mark and part, ``.632*`` or ``.632 (3/5)``; a dash where there is none."""
    if score is None or not score.known:
        return "-"
    part = f" ({score.of.split()[0]}/{score.of.split()[2]})" if score.of else ""
    return f"{score.value:.3f}{FEW if score.few else ''}{part}"


def _remarks(scores: Sequence[Score]) -> list[str]:
    """What marks mean, and why there are dashes."""
    remarks = [f"{FEW} rests on fewer than {MIN_CASES} cases"] if any(score.few for score in scores) else []
    parts = dict.fromkeys(score.of for score in scores if score.of)
    remarks += [
        f"({part.split()[0]}/{part.split()[2]}) over {part}; the others are withheld or have none" for part in parts
    ]
    return remarks + [f"- {reason}" for reason in dict.fromkeys(score.reason for score in scores if score.reason)]


def facts(summary: Mapping[str, Any]) -> list[str]:
    """Remarks on a run, its selected round, bytes and time, from its ``summary.json``, one line each."""
    selected = summary["selected"]
    lines = [
        *summary.get("remarks", []),
        f"selected: the model after round {selected['round']} of {summary['rounds_done']}",
    ]
    if selected.get("metric"):
        over = {
            "pooled": "validation images of all sites together",
            "server's images": "the server's validation images",
        }
        basis = over.get(selected.get("basis", ""), "mean over the sites' validation images")
        lines[-1] += f" ({selected['metric']} {selected['score']:.3f}, {basis})"
        lines += [f"selection: {selected['note']}"] if "note" in selected else []
    lines += [str(summary["reason"])] if summary.get("reason") else []
    lines += [*reference_sentences(summary), *expectation(summary)]
    moved = traffic(summary["bytes"]).moved
    lines.append(f"moved: {format_bytes(moved['down'])} to the sites, {format_bytes(moved['up'])} from them")
    rounds = sum(entry["round_seconds"] for entry in summary["rounds"])
    lines.append(f"time: {duration(rounds)} in {summary['rounds_done']} rounds")
    return lines


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"
