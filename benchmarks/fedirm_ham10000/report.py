"""Tables and figures of FedIRM on HAM10000. Every row states its number of seeds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from benchmarks.report import Drawing, Part
from benchmarks.results import EXPLAINED, Methods, Pair, Results, Seeds, difference_table, shared_seeds
from benchmarks.tables import markdown_table, mean_and_spread
from grandrounds.methods.fedirm.figures import (
    RelationRound,
    relation_figure,
    relation_gap,
)
from grandrounds.plotting import draw_legend, draw_line, label_axes, looks, new_axes

METRICS = {"auc": "AUC", "sensitivity": "sens.", "specificity": "spec.", "accuracy": "accuracy", "f1": "F1"}
MODELS = {"selected": "selected", "last": "last round", "labelled_choice": "chosen by labelled sites"}
MAIN, PROPOSED, CONSISTENCY, LOWER = ("lesion", "one", "image"), "fedirm", "consistency", "fedavg_lower"
REFERENCES = (LOWER, "fedavg_lower_fifth", "silent", CONSISTENCY)
CURVES = (
    (
        "labelled",
        {1: "one", 2: "lesion", 3: "labelled_3", 4: "labelled_4"},
        (PROPOSED, LOWER),
        "sites with labels (of ten)",
    ),
    (
        "unlabelled",
        {1: "unlabelled_1", 2: "unlabelled_2", 4: "unlabelled_4", 8: "lesion"},
        (PROPOSED, CONSISTENCY),
        "sites without labels, beside two with",
    ),
)
# Published accuracies in percent, one labelled and nine unlabelled clients, ISIC 2018: SemiAnAgg (TMLR 2024).
PUBLISHED = {
    "FedAvg, all ten labelled": 80.78,
    "FedAvg, the labelled client alone": 66.25,
    "RSCFed (CVPR 2022)": 69.85,
    "IsoFed (MICCAI 2023)": 68.49,
    "CBAFed (CVPR 2023)": 69.99,
    "SemiAnAgg (TMLR 2024)": 72.24,
}


def parts(results: Results) -> Iterator[Part]:
    """Everything between the markers of the page."""
    for setting in MAIN:
        if results.settings[setting]:
            yield from _scores(results, setting)
    for section in (_beside_published, _options, _curves, _filter, _relations):
        yield from section(results)


def _score(run: dict[str, Any], model: str, metric: str) -> float:
    """A one-against-rest score of a run at its validation-chosen threshold; NaN where the model is not there."""
    values = run["scores"].get(model)
    return float("nan") if values is None else float(values["one_vs_rest"]["validation"][metric])


def _score_table(methods: Methods, titles: dict[str, str], model: str) -> str:
    rows = []
    for method, runs in methods.items():
        columns = [[_score(run, model, metric) for run in runs.values()] for metric in METRICS]
        cells = [mean_and_spread([value for value in column if not np.isnan(value)]) for column in columns]
        rows.append([titles[method], len(runs), *cells])
    return markdown_table(["method", "seeds", *METRICS.values()], rows)


def _scores(results: Results, setting: str) -> Iterator[Part]:
    """Scores at the selected and at the last round, and what FedIRM gains on the others."""
    methods, titles = results.settings[setting], results.titles
    title = results.configuration["settings"][setting]["title"]
    yield f"**{title}.** Mean ± standard deviation over seeds, threshold chosen on validation images."
    for model in ("selected", "last"):
        yield f"Model: {MODELS[model]}."
        yield _score_table(methods, titles, model)
    yield (
        "The selected round and its threshold are chosen with the labels of all sites' validation images, those without "
        "training labels as well. Where the labelled sites' validation images alone choose both (any round but the last):"
    )
    yield _score_table(methods, titles, "labelled_choice")
    yield "AUC of each seed (selected round):"
    seeds = sorted({seed for runs in methods.values() for seed in runs})
    rows = [
        [titles[m], *(_score(runs[seed], "selected", "auc") if seed in runs else None for seed in seeds)]
        for m, runs in methods.items()
    ]
    yield markdown_table(["method", *(f"seed {seed}" for seed in seeds)], rows)
    yield from _differences(methods, titles)


def _differences(methods: Methods, titles: dict[str, str]) -> Iterator[Part]:
    rows = []
    for reference in REFERENCES:
        pair = [methods.get(method, {}) for method in (PROPOSED, reference)]
        shared = shared_seeds(*pair)
        for model in ("selected", "last") if shared else ():
            cells = [
                Pair(*([_score(runs[seed], model, metric) for seed in shared] for runs in pair)) for metric in METRICS
            ]
            rows.append([f"{titles[PROPOSED]} - {titles[reference]}", MODELS[model], len(shared), *cells])
    if rows:
        yield EXPLAINED
        yield difference_table(["difference", "model", "seeds", *METRICS.values()], rows)


def _beside_published(results: Results) -> Iterator[Part]:
    """Accuracy with one labelled site beside published figures, and what differs."""
    if not results.settings["one"]:
        return
    yield "**One labelled and nine unlabelled, accuracy in percent,** beside figures that SemiAnAgg (TMLR 2024) reports."
    rows: list[list[object]] = []
    for method, runs in results.settings["one"].items():
        accuracies = [100 * run["scores"]["selected"]["accuracy"] for run in runs.values()]
        rows.append([f"{results.titles[method]} (here)", len(runs), mean_and_spread(accuracies, digits=2)])
    rows += [[f"{name} (published)", None, f"{value:.2f}"] for name, value in PUBLISHED.items()]
    yield markdown_table(["method", "seeds", "accuracy"], rows)
    options = dict(option.split("=", 1) for option in results.configuration["common"])
    yield (
        "The two halves are no comparison. Published: ResNet-18, images divided by a Dirichlet distribution over classes, "
        f"500 rounds. Here: the `compact` network at 64 px, {options['controller.rounds']} rounds, ten sites of the same "
        "mix of classes with lesions kept together, mean over seeds. Accuracy is the share of images whose most probable "
        "class is right."
    )


def _options(results: Results) -> Iterator[Part]:
    """One choice changed at a time, one seed."""
    seeds = results.configuration["settings"]["options"]["seeds"]
    rows = []
    for method, runs in results.settings["options"].items():
        for seed in sorted(runs.keys() & set(seeds)):
            values = [_score(runs[seed], model, metric) for model in ("selected", "last") for metric in ("auc", "f1")]
            rows.append([results.titles[method], *values, *_filtered(runs[seed])])
    if rows:
        yield f"**One choice changed at a time** (seed {', '.join(map(str, seeds))})."
        header = ["AUC, selected", "F1, selected", "AUC, last", "F1, last", "kept", "rows matched"]
        yield markdown_table(["run", *header], rows)


def _filtered(run: dict[str, Any]) -> list[float]:
    """Means over the rounds of the share of kept predictions and of the rows that a batch matches."""
    courses = ([v for v in run["unlabelled"].get(name, []) if v is not None] for name in ("kept", "matched_rows"))
    return [float(np.mean(known)) if known else float("nan") for known in courses]


def _curves(results: Results) -> Iterator[Part]:
    """AUC against the number of labelled and of unlabelled sites, as a table and a figure each."""
    for name, settings, methods, label in CURVES:
        curves: dict[str, dict[int, float]] = {}
        for method in methods:
            for number, setting in settings.items():
                run = results.settings[setting].get(method, Seeds()).get(1)
                if run:
                    curves.setdefault(results.titles[method], {})[number] = _score(run, "selected", "auc")
        if curves:
            yield f"**AUC against the number of {label}** (seed 1, selected round)."
            rows = [[method, *(curve.get(number) for number in settings)] for method, curve in curves.items()]
            yield markdown_table(["method", *map(str, settings)], rows)
            yield Drawing(name, f"AUC against {label}", _score_over_sites(curves, label), 110)


def _score_over_sites(curves: Mapping[str, Mapping[int, float]], label: str) -> Figure:
    """A score against a number of sites, a line for each method (Liu et al., MICCAI 2021, Fig. 2 b and c)."""
    figure, axes = new_axes(5.2, 3.4)
    for name, curve in curves.items():
        numbers = sorted(curve)
        draw_line(axes, looks(list(curves))[name], numbers, [curve[number] for number in numbers], name)
    label_axes(axes, label, "AUC")
    axes.set_xticks(sorted({number for curve in curves.values() for number in curve}))
    draw_legend(axes)
    return figure


def _filter(results: Results) -> Iterator[Part]:
    """What the filter lets through: share, matched rows, and patients of each class."""
    rows: list[list[object]] = []
    for method, runs in {**results.settings["lesion"], **results.settings["options"]}.items():
        for run in [run for run in runs.values() if run.get("unlabelled_support")]:
            last = list(run["unlabelled_support"].values())[-1]
            shown = ["withheld" if count < 0 else count for count in last]
            rows.append([results.titles[method], run["seed"], *_filtered(run), *shown])
    if rows:
        names = next(run["classes"] for runs in results.settings["lesion"].values() for run in runs.values())
        yield (
            "**What the filter keeps:** share of predictions, rows of a batch that have a counterpart (means over rounds), "
            "and the patients (lesions) that unlabelled sites surely took for each class in the last round."
        )
        yield markdown_table(["method", "seed", "kept", "rows matched", *names], rows)


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
        yield Drawing("relations", "Relation matrices", figure, 110)


def _rounds(run: dict[str, Any]) -> list[RelationRound]:
    unknown = [np.nan] * len(run["classes"])

    def matrix(rows: list[list[float] | None]) -> np.ndarray:
        return np.array([unknown if row is None else row for row in rows])

    return sorted(
        RelationRound(int(number), matrix(entry["labelled"]), matrix(entry["unlabelled"]))
        for number, entry in run["relations"].items()
        if entry["unlabelled"] is not None
    )
