"""Tables and figures of FedIRM on HAM10000. Every row states its number of seeds."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.report import Drawing, Part
from benchmarks.results import EXPLAINED, Methods, Results, Seeds, difference_table, pair_by_seed, shared_seeds
from benchmarks.tables import markdown_table, mean_and_spread
from grandrounds.methods.fedirm.figures import RelationRound, relation_figure, relation_gap

METRICS = {"auc": "AUC", "sensitivity": "sens.", "specificity": "spec.", "accuracy": "accuracy", "f1": "F1"}
MODELS = {"selected": "selected", "last": "last round", "labelled_choice": "chosen by labelled sites"}
MAIN, PROPOSED, CONSISTENCY, LOWER = ("lesion", "one", "image", "image_again"), "fedirm", "consistency", "fedavg_lower"
REFERENCES = (LOWER, "fedavg_lower_fifth", "silent", CONSISTENCY)
CURVES = {
    "sites with labels (of ten)": ({1: "one", 2: "lesion", 3: "labelled_3", 4: "labelled_4"}, (PROPOSED, LOWER)),
    "sites without labels, beside two with": (
        {1: "unlabelled_1", 2: "unlabelled_2", 4: "unlabelled_4", 8: "lesion"},
        (PROPOSED, CONSISTENCY),
    ),
}


def parts(results: Results) -> Iterator[Part]:
    """Everything between the markers of the page."""
    for setting in MAIN:
        if results.settings[setting]:
            yield from _scores(results, setting)
    for section in (_curves, _filter, _relations):
        yield from section(results)


def _score(run: dict[str, Any], model: str, metric: str) -> float:
    """A one-against-rest score of a run at its validation-chosen threshold; NaN where the model is not there."""
    values = run["scores"].get(model)
    return float("nan") if values is None else float(values["one_vs_rest"]["validation"][metric])


def _score_table(methods: Methods, titles: dict[str, str], model: str) -> str:
    rows = []
    for method, runs in methods.items():
        columns = [[_score(run, model, metric) for run in runs.values()] for metric in METRICS]
        columns.append([run["scores"].get(model, {}).get("accuracy", np.nan) for run in runs.values()])
        cells = [mean_and_spread([value for value in column if not np.isnan(value)]) for column in columns]
        rows.append([titles[method], len(runs), *cells])
    rows += _references(next(iter(methods.values())))
    return markdown_table(["method", "seeds", *METRICS.values(), "top-1"], rows)


def _references(runs: Seeds) -> Iterator[list[object]]:
    """Always predicting the most frequent class, and guessing, whose scores at a threshold depend on the threshold.

    Later rows have no scores of single classes to count the classes by.
    """
    found = []
    for run in (run for run in runs.values() if "classes" in run["scores"]["last"]):
        true = class_counts(run["scores"]["last"])
        share, classes = float(true.max() / true.sum()), len(true)
        one_vs_rest = 1 - 2 * (1 - share) / classes
        found.append([0.5, 1 / classes, 1 - 1 / classes, one_vs_rest, 2 * share / (1 + share) / classes, share])
    if found:
        yield ["always nv", len(found), *(mean_and_spread(column) for column in zip(*found, strict=True))]
        yield ["guessing", None, 0.5, None, None, None, None, 1 / classes]


def class_counts(scores: dict[str, Any]) -> NDArray[np.int64]:
    """Test images of each class, from accuracy a, sensitivity and specificity s: n (a - spec) / (sens - spec).

    Example:
        >>> classes = [{"accuracy": 0.75, "sensitivity": 0.5, "specificity": 1.0}]
        >>> class_counts({"n": 8, "classes": classes})
        array([4])
    """
    columns = ([one[name] for one in scores["classes"]] for name in ("accuracy", "sensitivity", "specificity"))
    accuracy, sensitivity, specificity = map(np.array, columns)
    counts: NDArray[np.int64] = np.rint(scores["n"] * (accuracy - specificity) / (sensitivity - specificity)).astype(
        np.int64
    )
    return counts


def _scores(results: Results, setting: str) -> Iterator[Part]:
    """Scores at the selected and at the last round, and what FedIRM gains on the others."""
    methods, titles = results.settings[setting], results.titles
    title = results.configuration["settings"][setting]["title"]
    yield (
        f"**{title}.** Mean ± standard deviation over seeds, threshold chosen on validation images. *Top-1*: share of "
        "images whose most probable class is right."
    )
    for model in ("selected", "last"):
        yield f"Model: {MODELS[model]}."
        yield _score_table(methods, titles, model)
    yield (
        "The selected round and its threshold are chosen with the labels of all sites' validation images, those without "
        "training labels as well. Where the labelled sites' validation images alone choose both (any round but the last):"
    )
    yield _score_table(methods, titles, "labelled_choice")
    yield from _differences(methods, titles)


def _differences(methods: Methods, titles: dict[str, str]) -> Iterator[Part]:
    rows = []
    for reference in REFERENCES:
        pair = [methods.get(method, Seeds()) for method in (PROPOSED, reference)]
        shared = shared_seeds(*pair)
        for model in ("selected", "last") if shared else ():
            cells = [pair_by_seed(*pair, partial(_score, model=model, metric=metric)) for metric in METRICS]
            rows.append([f"{titles[PROPOSED]} - {titles[reference]}", MODELS[model], len(shared), *cells])
    if rows:
        yield EXPLAINED
        yield difference_table(["difference", "model", "seeds", *METRICS.values()], rows)


def _filtered(run: dict[str, Any]) -> list[float]:
    """Means over the rounds of the share of kept predictions and of the rows that a batch matches."""
    courses = ([v for v in run["unlabelled"].get(name, []) if v is not None] for name in ("kept", "matched_rows"))
    return [float(np.mean(known)) if known else float("nan") for known in courses]


def _curves(results: Results) -> Iterator[Part]:
    """AUC against the number of labelled and of unlabelled sites."""
    for label, (settings, methods) in CURVES.items():
        rows: list[list[object]] = []
        for method in methods:
            runs = [results.settings[setting].get(method, Seeds()).get(1) for setting in settings.values()]
            rows.append([results.titles[method], *(_score(run, "selected", "auc") if run else None for run in runs)])
        yield f"**AUC against the number of {label}** (seed 1, selected round)."
        yield markdown_table(["method", *map(str, settings)], rows)


def _filter(results: Results) -> Iterator[Part]:
    """What the filter lets through: share, matched rows, and patients of each class."""
    rows: list[list[object]] = []
    for method, runs in {**results.settings["lesion"], **results.settings["options"]}.items():
        for run in [run for run in runs.values() if run.get("unlabelled_support")]:
            last = list(run["unlabelled_support"].values())[-1]
            shown = ["withheld" if count < 0 else count for count in last]
            rows.append([results.titles[method], run["seed"], _score(run, "selected", "auc"), *_filtered(run), *shown])
    if rows:
        names = next(run["classes"] for runs in results.settings["lesion"].values() for run in runs.values())
        yield (
            "**What the filter keeps:** AUC of the selected round, share of kept predictions, rows of a batch that have a "
            "counterpart (means over rounds), and the patients (lesions) that unlabelled sites surely took for each class "
            "in the last round."
        )
        yield markdown_table(["method", "seed", "AUC", "kept", "rows matched", *names], rows)


def _relations(results: Results) -> Iterator[Part]:
    """Relation matrices with and without the loss."""
    pair = [results.settings["lesion"].get(method, {}) for method in (PROPOSED, CONSISTENCY)]
    for seed in shared_seeds(*pair)[:1]:
        runs = [_rounds(found[seed]) for found in pair]
        common = sorted({entry.round_number for entry in runs[0]} & {entry.round_number for entry in runs[1]})
        if not common:
            return
        shown = sorted({common[0], common[len(common) // 2], common[-1]})
        yield (
            f"**Relation matrices** (seed {seed}; grey rows are withheld or unknown). Mean absolute difference of labelled "
            f"and unlabelled sites over the rounds drawn: {np.nanmean([relation_gap(e) for e in runs[0]]):.4f} with "
            f"relation matching, {np.nanmean([relation_gap(e) for e in runs[1]]):.4f} without."
        )
        figure = relation_figure(runs[0], shown, pair[0][seed]["classes"], runs[1])
        yield Drawing("relations", "Relation matrices", figure)


def _rounds(run: dict[str, Any]) -> list[RelationRound]:
    unknown = [np.nan] * len(run["classes"])

    def matrix(rows: list[list[float] | None]) -> np.ndarray:
        return np.array([unknown if row is None else row for row in rows])

    return sorted(
        RelationRound(int(number), matrix(entry["labelled"]), matrix(entry["unlabelled"]))
        for number, entry in run["relations"].items()
        if entry["unlabelled"] is not None
    )
