"""Write the tables and figures of this benchmark from its results.

    python benchmarks/mdhfl_pbc/report.py

Tables go between the markers in ``docs/methods.md``, figures to ``figures/`` beside it. It works with whatever results are
there; each row says of how many seeds it is. ``--results`` and ``--page`` try it on other results.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from figures import figures

from grandrounds.evaluation.tables import format_interval, markdown_table, mean_and_spread, replace_section
from grandrounds.evaluation.tests import paired_difference
from grandrounds.files import replacing
from grandrounds.ordering import natural_sorted

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "methods.md"
CONFIGURATION = json.loads((HERE / "configuration.json").read_text())
SETTINGS = {name: entry["title"] for name, entry in CONFIGURATION["settings"].items()}
TITLES = {name: entry["title"] for name, entry in CONFIGURATION["methods"].items()}
BEGIN, END = "<!-- mdhfl_pbc: begin -->", "<!-- mdhfl_pbc: end -->"
METRICS = {"accuracy": "accuracy", "balanced_accuracy": "balanced accuracy", "f1_macro": "macro-F1"}
COMPARED = (
    ("mdhfl", "local_sce"),
    ("mdhfl_ce", "local_ce"),
    ("mdhfl", "mdhfl_ce"),
    ("mdhfl", "fedmd"),
    ("mdhfl_ce", "fedmd"),
    ("mdhfl", "feddf"),
    ("mdhfl", "rhfl"),
    ("rhfl_plus", "mdhfl"),
)
SHOWN = ("local_sce", "mdhfl", "rhfl_plus")

Run = dict[str, Any]
Results = dict[str, dict[str, dict[int, Run]]]
"""Runs by setting, method and seed."""


def main() -> None:
    """Write tables and figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=HERE / "results", help="folder of the runs' JSON files")
    parser.add_argument("--page", type=Path, default=PAGE, help="the document with the markers")
    arguments = parser.parse_args()
    results = _read(arguments.results)
    parts = [*tables(results), *_drawn(results, arguments.page.parent / "figures")]
    content = "\n\n".join(parts) or "There are no results yet."
    text = replace_section(arguments.page.read_text(), BEGIN, END, content)
    with replacing(arguments.page) as stream:
        stream.write(text.encode())


def _drawn(results: Results, folder: Path) -> Iterator[str]:
    """Save the figures and refer to them."""
    for name, description, figure in figures(results, TITLES, SHOWN) if results else ():
        folder.mkdir(exist_ok=True)
        figure.savefig(folder / f"mdhfl_pbc_{name}.png", bbox_inches="tight")
        yield f"![{description}](figures/mdhfl_pbc_{name}.png)"


def _read(folder: Path) -> Results:
    results: Results = {setting: {} for setting in SETTINGS}
    for setting in SETTINGS:
        for method in TITLES:
            for path in sorted(folder.glob(f"{setting}_{method}_[0-9]*.json")):
                run = json.loads(path.read_text())
                results[setting].setdefault(method, {})[run["seed"]] = run
    return {setting: methods for setting, methods in results.items() if methods}


def tables(results: Results) -> Iterator[str]:
    """All parts of the report; nothing without results."""
    if results:
        for part in (_scores, _moments, _ensembles, _differences, _per_site, _per_class, _traffic):
            yield from part(results)


def last(run: Run, metric: str) -> list[float]:
    """The last round's test score of each site."""
    return [run["test"][site][f"own.{metric}"] for site in natural_sorted(run["test"])]


def last_five(run: Run, metric: str) -> list[float]:
    """The mean over the tested rounds of each site, at the moment with which the run ends."""
    return _over_rounds(run["aligned_rounds"] or run["last_rounds"], metric)


def _over_rounds(found: dict[str, dict[str, dict[str, float]]], metric: str, drop: str | None = None) -> list[float]:
    """Of each site, the mean over its rounds but one."""
    return [
        float(np.mean([scores[metric] for number, scores in found[site].items() if number != drop]))
        for site in natural_sorted(found)
    ]


def _scores(results: Results) -> Iterator[str]:
    yield (
        "Mean over the four sites, then mean and standard deviation over seeds; the labels of the test images are clean. "
        "*Five*: mean of the last five rounds."
    )
    parts = (last, last_five)
    header = ["noise", "method", "seeds", *METRICS.values(), *(f"{title}, five" for title in METRICS.values())]
    rows = [
        [SETTINGS[setting], TITLES[method], len(runs)]
        + [mean_and_spread([_mean(of(run, metric)) for run in runs.values()]) for of in parts for metric in METRICS]
        for setting, methods in results.items()
        for method, runs in methods.items()
    ]
    yield markdown_table(header, rows)


def _moments(results: Results) -> Iterator[str]:
    rows = [
        [
            SETTINGS[setting],
            TITLES[method],
            len(runs),
            mean_and_spread([_mean(_over_rounds(run["aligned_rounds"], "accuracy")) for run in runs.values()]),
            mean_and_spread([_mean(_over_rounds(*_before_the_end(run))) for run in runs.values()]),
        ]
        for setting, methods in results.items()
        for method, runs in methods.items()
        if all(run["aligned_rounds"] for run in runs.values())
    ]
    if rows:
        yield (
            "The same models at two moments of a round: accuracy after learning from the others, and after the training on "
            "own labels that follows (the last round, which ends with the former, is left out of the latter):"
        )
        yield markdown_table(["noise", "method", "seeds", "after the others", "after own labels"], rows)


def _before_the_end(run: Run) -> tuple[dict[str, dict[str, dict[str, float]]], str, str]:
    found = run["last_rounds"]
    return found, "accuracy", max(next(iter(found.values())), key=int)


def _ensembles(results: Results) -> Iterator[str]:
    yield "Accuracy of the mean of the four sites' predictions (last round), which no site has by itself:"
    rows = [
        [title, *(mean_and_spread(_ensemble_accuracy(m.get(method, {}))) for m in results.values())]
        for method, title in TITLES.items()
    ]
    yield markdown_table(["method", *(SETTINGS[setting] for setting in results)], rows)


def _ensemble_accuracy(runs: dict[int, Run]) -> list[float]:
    return [run["ensemble"]["accuracy"] for run in runs.values()]


def _mean(values: list[float]) -> float:
    return float(np.mean(values))


def _differences(results: Results) -> Iterator[str]:
    yield (
        "Differences paired by seed (mean over sites, last round), with the 95 % Student interval (none below three seeds). "
        "The last rows are means over those kinds of noise that all pairs have:"
    )
    rows = []
    for first, second in COMPARED:
        title, shared = f"{TITLES[first]} - {TITLES[second]}", _shared(results, first, second)
        for setting, seeds in shared.items():
            rows.append([title, SETTINGS[setting], len(seeds), *_intervals(results, first, second, [setting], seeds)])
    for first, second in COMPARED:
        shared = _shared(results, first, second)
        seeds = sorted(set.union(*map(set, shared.values()))) if shared else []
        whole = [setting for setting, having in shared.items() if having == seeds]
        if len(whole) > 1:
            title = f"{TITLES[first]} - {TITLES[second]}"
            rows.append([title, f"mean of {len(whole)}", len(seeds), *_intervals(results, first, second, whole, seeds)])
    yield markdown_table(["difference", "noise", "seeds", *METRICS.values()], rows)


def _shared(results: Results, first: str, second: str) -> dict[str, list[int]]:
    """By setting the seeds that two methods both have."""
    found = {s: sorted(m.get(first, {}).keys() & m.get(second, {}).keys()) for s, m in results.items()}
    return {setting: seeds for setting, seeds in found.items() if seeds}


def _intervals(results: Results, first: str, second: str, settings: list[str], seeds: list[int]) -> list[str]:
    cells = []
    for metric in METRICS:
        ours, theirs = (
            [float(np.mean([last(results[s][method][seed], metric) for s in settings])) for seed in seeds]
            for method in (first, second)
        )
        found = paired_difference(ours, theirs)
        cells.append(format_interval(found.mean, found.low, found.high))
    return cells


def _per_site(results: Results) -> Iterator[str]:
    backbones = next(run for m in results.values() for runs in m.values() for run in runs.values())["backbones"]
    sites = natural_sorted(backbones)
    yield "Accuracy of each site (last round, mean over seeds):"
    rows = []
    for setting, methods in results.items():
        for method, runs in methods.items():
            means = np.mean([last(run, "accuracy") for run in runs.values()], axis=0).tolist()
            rows.append([SETTINGS[setting], TITLES[method], len(runs), *means])
    yield markdown_table(["noise", "method", "seeds", *(f"{site}: {backbones[site]}" for site in sites)], rows)


def _per_class(results: Results) -> Iterator[str]:
    classes = next(run for m in results.values() for runs in m.values() for run in runs.values())["classes"]
    yield "Recall of each class over the predictions of all sites and seeds (last round):"
    rows: list[list[object]] = []
    for setting, methods in results.items():
        for method in (method for method in SHOWN if method in methods):
            pooled = np.sum([list(run["confusion"].values()) for run in methods[method].values()], axis=(0, 1))
            recall = np.diag(pooled) / np.maximum(pooled.sum(axis=1), 1)
            rows.append([SETTINGS[setting], TITLES[method], *recall.tolist()])
    yield markdown_table(["noise", "method", *classes], rows)


def _traffic(results: Results) -> Iterator[str]:
    yield "Bytes of tensors per site and run, by the ledger, and seconds of a run (mean):"
    rows = []
    for method, title in TITLES.items():
        runs = [run for m in results.values() for run in m.get(method, {}).values()]
        if runs:
            up, down = (float(np.mean([_bytes(run, way) for run in runs])) for way in ("up.", "down."))
            rows.append([title, round(up), round(down), round(float(np.mean([run["seconds"] for run in runs])))])
    yield markdown_table(["method", "up", "down", "seconds"], rows)


def _bytes(run: Run, way: str) -> float:
    counted = sum(n for site in run["bytes"].values() for part, n in site.items() if part.startswith(way))
    return float(counted / len(run["test"]))


if __name__ == "__main__":
    main()
