"""Write the tables and figures of this benchmark from its results.

    python benchmarks/fedirm_ham10000/report.py

Tables go between the markers in ``docs/methods.md``, figures to ``docs/figures/``. It works with whatever results are there;
each row says of how many seeds it is. ``--results`` and ``--out`` try it on other results.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from grandrounds.evaluation.tables import format_interval, markdown_table, mean_and_spread, replace_section
from grandrounds.evaluation.tests import paired_difference
from grandrounds.reporting.figures.relations import (
    RelationRound,
    relation_figure,
    relation_gap,
    score_over_sites_figure,
)

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "methods.md"
CONFIGURATION = json.loads((HERE / "configuration.json").read_text())
SETTINGS: dict[str, dict[str, Any]] = CONFIGURATION["settings"]
TITLES = {method: entry["title"] for method, entry in CONFIGURATION["methods"].items()}
BEGIN, END = "<!-- fedirm_ham10000: begin -->", "<!-- fedirm_ham10000: end -->"
METRICS = {"auc": "AUC", "sensitivity": "sens.", "specificity": "spec.", "accuracy": "accuracy", "f1": "F1"}
MODELS = {"selected": "selected", "last": "last round", "labelled_choice": "chosen by labelled sites"}
MAIN, PROPOSED, CONSISTENCY, LOWER = ("lesion", "one", "image"), "fedirm", "consistency", "fedavg_lower"
REFERENCES = (LOWER, "fedavg_lower_fifth", "silent", CONSISTENCY)
LABELLED = {1: "one", 2: "lesion", 3: "labelled_3", 4: "labelled_4"}
UNLABELLED = {1: "unlabelled_1", 2: "unlabelled_2", 4: "unlabelled_4", 8: "lesion"}
# Published accuracies in percent, one labelled and nine unlabelled clients, ISIC 2018: SemiAnAgg (TMLR 2024).
PUBLISHED = {
    "FedAvg, all ten labelled": 80.78,
    "FedAvg, the labelled client alone": 66.25,
    "RSCFed (CVPR 2022)": 69.85,
    "IsoFed (MICCAI 2023)": 68.49,
    "CBAFed (CVPR 2023)": 69.99,
    "SemiAnAgg (TMLR 2024)": 72.24,
}

Runs = dict[int, dict[str, Any]]
Results = dict[str, dict[str, Runs]]


def main() -> None:
    """Write tables and figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, default=HERE / "results", help="folder of the runs' JSON files")
    parser.add_argument("--page", type=Path, default=PAGE, help="document with the markers")
    arguments = parser.parse_args()
    results = read_results(arguments.results)
    figures = arguments.page.parent / "figures"
    parts = [part for setting in MAIN for part in setting_tables(setting, results[setting])]
    parts += [*beside_published(results["one"]), *options_table(results), *ablations(results, figures)]
    parts += [*filter_table(results), *relation_part(results, figures)]
    text = "\n\n".join(parts) if parts else "There are no results yet."
    arguments.page.write_text(replace_section(arguments.page.read_text(), BEGIN, END, text))


def read_results(folder: Path) -> Results:
    """All results by setting, method and seed; what a setting reuses of another is read from there."""
    found: Results = {}
    for setting, content in SETTINGS.items():
        places = {method: setting for method in content["methods"]} | content.get("reuse", {})
        order = [*content.get("reuse", {}), *content["methods"]]
        for method in order:
            for seed in content["seeds"]:
                path = folder / f"{places[method]}_{method}_{seed}.json"
                if path.is_file():
                    found.setdefault(setting, {}).setdefault(method, {})[seed] = json.loads(path.read_text())
        found.setdefault(setting, {})
    return found


def score(run: dict[str, Any], model: str, metric: str) -> float:
    """A one-against-rest score of a run at its validation-chosen threshold; NaN where the model is not there."""
    values = run["scores"].get(model)
    return float("nan") if values is None else float(values["one_vs_rest"]["validation"][metric])


def _column(runs: Runs, model: str, metric: str) -> str:
    values = [score(run, model, metric) for run in runs.values()]
    return mean_and_spread([value for value in values if not np.isnan(value)])


def setting_tables(setting: str, methods: dict[str, Runs]) -> Iterator[str]:
    """Scores of a setting at the selected and at the last round, and what FedIRM gains on the others."""
    if not methods:
        return
    yield f"**{SETTINGS[setting]['title']}.** Mean ± standard deviation over seeds, threshold chosen on validation images."
    for model in ("selected", "last"):
        yield f"Model: {MODELS[model]}."
        rows = [
            [TITLES[method], len(runs), *(_column(runs, model, metric) for metric in METRICS)]
            for method, runs in methods.items()
        ]
        yield markdown_table(["method", "seeds", *METRICS.values()], rows)
    yield from _choices(methods)
    yield from _differences(methods)


def _choices(methods: dict[str, Runs]) -> Iterator[str]:
    yield (
        "The selected round and its threshold are chosen with the labels of all sites' validation images, those without "
        "training labels as well. Where the labelled sites' validation images alone choose both (any round but the last):"
    )
    rows = [
        [TITLES[method], len(runs), *(_column(runs, "labelled_choice", metric) for metric in METRICS)]
        for method, runs in methods.items()
    ]
    yield markdown_table(["method", "seeds", *METRICS.values()], rows)
    yield "AUC of each seed (selected round):"
    seeds = sorted({seed for runs in methods.values() for seed in runs})
    rows = [
        [TITLES[m], *(score(runs[seed], "selected", "auc") if seed in runs else None for seed in seeds)]
        for m, runs in methods.items()
    ]
    yield markdown_table(["method", *(f"seed {seed}" for seed in seeds)], rows)


def _differences(methods: dict[str, Runs]) -> Iterator[str]:
    rows = []
    for reference in REFERENCES:
        shared = sorted(methods.get(PROPOSED, {}).keys() & methods.get(reference, {}).keys())
        for model in ("selected", "last") if shared else ():
            row: list[object] = [f"{TITLES[PROPOSED]} - {TITLES[reference]}", MODELS[model], len(shared)]
            for metric in METRICS:
                ours, theirs = (
                    [score(methods[m][seed], model, metric) for seed in shared] for m in (PROPOSED, reference)
                )
                found = paired_difference(ours, theirs)
                row.append(format_interval(found.mean, found.low, found.high))
            rows.append(row)
    if rows:
        yield "Differences paired by seed, with the 95 % Student interval (none below three seeds):"
        yield markdown_table(["difference", "model", "seeds", *METRICS.values()], rows)


def beside_published(methods: dict[str, Runs]) -> Iterator[str]:
    """Accuracy with one labelled site beside published figures, and what differs."""
    if not methods:
        return
    yield "**One labelled and nine unlabelled, accuracy in percent,** beside figures that SemiAnAgg (TMLR 2024) reports."
    rows: list[list[object]] = [
        [
            f"{TITLES[method]} (here)",
            len(runs),
            _percent([run["scores"]["selected"]["accuracy"] for run in runs.values()]),
        ]
        for method, runs in methods.items()
    ]
    rows += [[f"{name} (published)", None, f"{value:.2f}"] for name, value in PUBLISHED.items()]
    yield markdown_table(["method", "seeds", "accuracy"], rows)
    rounds = next(option for option in CONFIGURATION["common"] if option.startswith("controller.rounds=")).split("=")[1]
    yield (
        "The two halves are no comparison. Published: ResNet-18, images divided by a Dirichlet distribution over classes, "
        f"500 rounds. Here: the `compact` network at 64 px, {rounds} rounds, ten sites of the same mix of classes with "
        "lesions kept together, mean over seeds. Accuracy is the share of images whose most probable class is right."
    )


def _percent(values: Sequence[float]) -> str:
    return mean_and_spread([100 * value for value in values], digits=2)


def options_table(results: Results) -> Iterator[str]:
    """One choice changed at a time, one seed."""
    seeds = SETTINGS["options"]["seeds"]
    rows = []
    for method, runs in results["options"].items():
        for seed in sorted(runs.keys() & set(seeds)):
            values = [score(runs[seed], model, metric) for model in ("selected", "last") for metric in ("auc", "f1")]
            rows.append([TITLES[method], *values, *_filtered(runs[seed])])
    if rows:
        yield f"**One choice changed at a time** (seed {', '.join(map(str, seeds))})."
        header = ["AUC, selected", "F1, selected", "AUC, last", "F1, last", "kept", "rows matched"]
        yield markdown_table(["run", *header], rows)


def _filtered(run: dict[str, Any]) -> list[float]:
    """Means over the rounds of the share of kept predictions and of the rows that a batch matches."""
    means = []
    for name in ("kept", "matched_rows"):
        known = [value for value in run["unlabelled"].get(name, []) if value is not None]
        means.append(float(np.mean(known)) if known else float("nan"))
    return means


def ablations(results: Results, figures: Path) -> Iterator[str]:
    """AUC against the number of labelled and of unlabelled sites, as a table and a figure each."""
    for name, settings, methods, label in (
        ("labelled", LABELLED, (PROPOSED, LOWER), "sites with labels (of ten)"),
        ("unlabelled", UNLABELLED, (PROPOSED, CONSISTENCY), "sites without labels, beside two with"),
    ):
        curves: dict[str, dict[int, float]] = {}
        for method in methods:
            for number, setting in settings.items():
                run = results[setting].get(method, {}).get(1)
                if run:
                    curves.setdefault(TITLES[method], {})[number] = score(run, "selected", "auc")
        if not curves:
            continue
        yield f"**AUC against the number of {label}** (seed 1, selected round)."
        yield markdown_table(
            ["method", *map(str, settings)], [[m, *(c.get(n) for n in settings)] for m, c in curves.items()]
        )
        yield _saved(score_over_sites_figure(curves, label, "AUC"), figures, name, f"AUC against {label}")


def filter_table(results: Results) -> Iterator[str]:
    """What the filter lets through: share, matched rows, and patients of each class."""
    rows, classes = [], None
    for method, runs in {**results["lesion"], **results["options"]}.items():
        for run in [run for run in runs.values() if run.get("unlabelled_support")]:
            classes = classes or len(next(iter(run["unlabelled_support"].values())))
            last = list(run["unlabelled_support"].values())[-1]
            shown = ["withheld" if count < 0 else count for count in last]
            rows.append([TITLES[method], run["seed"], *_filtered(run), *shown])
    if rows and classes:
        names = next(run["classes"] for runs in results["lesion"].values() for run in runs.values())
        yield (
            "**What the filter keeps:** share of predictions, rows of a batch that have a counterpart (means over rounds), "
            "and the patients (lesions) that unlabelled sites surely took for each class in the last round."
        )
        yield markdown_table(["method", "seed", "kept", "rows matched", *names], rows)


def relation_part(results: Results, figures: Path) -> Iterator[str]:
    """Relation matrices with and without the loss."""
    with_it, without = (results["lesion"].get(method, {}) for method in (PROPOSED, CONSISTENCY))
    for seed in sorted(with_it.keys() & without.keys())[:1]:
        runs = [_rounds(with_it[seed]), _rounds(without[seed])]
        common = sorted({entry.round_number for entry in runs[0]} & {entry.round_number for entry in runs[1]})
        if not common:
            return
        shown = sorted({common[0], common[len(common) // 2], common[-1]})
        classes = with_it[seed]["classes"]
        yield (
            f"**Relation matrices** (seed {seed}; grey rows are withheld or unknown). Mean absolute difference of labelled "
            f"and unlabelled sites over the rounds drawn: {np.nanmean([relation_gap(e) for e in runs[0]]):.4f} with "
            f"relation matching, {np.nanmean([relation_gap(e) for e in runs[1]]):.4f} without."
        )
        yield _saved(relation_figure(runs[0], shown, classes, runs[1]), figures, "relations", "Relation matrices")


def _rounds(run: dict[str, Any]) -> list[RelationRound]:
    classes = len(run["classes"])
    made = [
        RelationRound(int(number), _matrix(entry["labelled"], classes), _matrix(entry["unlabelled"], classes))
        for number, entry in run["relations"].items()
        if entry["unlabelled"] is not None
    ]
    return sorted(made)


def _matrix(rows: list[list[float] | None], classes: int) -> np.ndarray:
    return np.array([[np.nan] * classes if row is None else row for row in rows])


def _saved(figure: Any, folder: Path, name: str, title: str) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    figure.savefig(folder / f"fedirm_ham10000_{name}.png", dpi=110)
    return f"![{title}](figures/fedirm_ham10000_{name}.png)"


if __name__ == "__main__":
    main()
