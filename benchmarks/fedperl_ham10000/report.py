"""Write the tables and the figure of this benchmark from its committed results.

    python benchmarks/ham10000_devices/report.py

Tables go between the markers in ``docs/methods.md``, the figure to ``docs/figures/``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from grandrounds.evaluation.paired import paired_difference
from grandrounds.evaluation.tables import format_interval, markdown_table
from grandrounds.methods.fedperl.peers import chance_within_group, pick_matrix, within_group_share
from grandrounds.ordering import natural_sorted

HERE = Path(__file__).parent
DOCS = HERE.parents[1] / "docs"
CONFIGURATION = json.loads((HERE / "configuration.json").read_text())
METRICS = {"f1_weighted": "weighted F1", "balanced_accuracy": "balanced accuracy"}
BEGIN, END = "<!-- ham10000_devices: begin -->", "<!-- ham10000_devices: end -->"


def main() -> None:
    """Write tables and figure."""
    results = {
        (method, seed): json.loads((HERE / "results" / f"{method}_{seed}.json").read_text())
        for method in CONFIGURATION["methods"]
        for seed in CONFIGURATION["seeds"]
    }
    text = "\n\n".join([*_means(results), *_differences(results), *_per_site(results), *_peers(results)])
    page = DOCS / "methods.md"
    before, _, rest = page.read_text().partition(BEGIN)
    after = rest.partition(END)[2]
    page.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}")


def _values(results: dict[Any, Any], method: str, model: str, metric: str) -> np.ndarray:
    """Shape ``(seeds, sites)``."""
    rows = [results[method, seed]["test"] for seed in CONFIGURATION["seeds"]]
    return np.array([[row[site][f"{model}.{metric}"] for site in natural_sorted(row)] for row in rows])


def _model(method: str) -> str:
    """The model that a method is judged by beside each site's own choice: sites that exchange nothing have no other."""
    return "own" if method == "local" else "common"


def _means(results: dict[Any, Any]) -> Iterator[str]:
    yield "Mean over sites and seeds, with the standard deviation over seeds of the mean over sites:"
    header = ["method"] + [f"{title}, {model}" for model in ("own", "common") for title in METRICS.values()]
    rows = []
    for method, entry in CONFIGURATION["methods"].items():
        row: list[object] = [entry["title"]]
        for model in ("own", "common"):
            for metric in METRICS:
                if model == "common" and method == "local":
                    row.append(float("nan"))
                    continue
                means = _values(results, method, model, metric).mean(axis=1)
                row.append(f"{means.mean():.3f} ± {means.std(ddof=1):.3f}")
        rows.append(row)
    yield markdown_table(header, rows)


def _differences(results: dict[Any, Any]) -> Iterator[str]:
    yield (
        "Paired differences of FedPerl to each other method (mean over seeds per site, ten pairs, 95 % Student interval; "
        "`own` model):"
    )
    rows = []
    for method, entry in CONFIGURATION["methods"].items():
        if method == "fedperl":
            continue
        row: list[object] = [f"FedPerl - {entry['title']}"]
        for metric in METRICS:
            ours = _values(results, "fedperl", "own", metric).mean(axis=0)
            theirs = _values(results, method, "own", metric).mean(axis=0)
            difference = paired_difference(ours.tolist(), theirs.tolist())
            row.append(format_interval(difference.mean, difference.low, difference.high))
        rows.append(row)
    yield markdown_table(["difference", *METRICS.values()], rows)


def _per_site(results: dict[Any, Any]) -> Iterator[str]:
    first = results["fedperl", CONFIGURATION["seeds"][0]]
    sites = natural_sorted(first["test"])
    for metric, title in METRICS.items():
        yield f"{title.capitalize()} per site (mean over seeds, `own` model):"
        values = {method: _values(results, method, "own", metric).mean(axis=0) for method in CONFIGURATION["methods"]}
        header = ["site", "device", *(CONFIGURATION["methods"][method]["title"] for method in values)]
        rows = [
            [site, first["devices"][site], *(float(column[number]) for column in values.values())]
            for number, site in enumerate(sites)
        ]
        yield markdown_table(header, rows)


def _peers(results: dict[Any, Any]) -> Iterator[str]:
    shares, chances, matrices = [], [], []
    for seed in CONFIGURATION["seeds"]:
        result = results["fedperl", seed]
        devices = result["devices"]
        sites = natural_sorted(devices)
        picks = [
            (site, peer) for chosen in result["peers"].values() for site, peers in chosen.items() for peer in peers
        ]
        matrices.append(pick_matrix(picks, sites))
        share, chance = within_group_share(picks, devices), chance_within_group(devices)
        for site in sites:
            if chance[site] > 0 and not np.isnan(share[site]):
                shares.append(share[site])
                chances.append(chance[site])
    difference = paired_difference(shares, chances)
    yield (
        f"Peers of the own device: {np.mean(shares):.3f} of the picks (mean over {len(shares)} pairs of site and seed; the "
        f"site that has its device for itself cannot pick one), by chance {np.mean(chances):.3f}; difference "
        f"{format_interval(difference.mean, difference.low, difference.high)}."
    )
    yield "Share of each site's picks (mean over seeds), rows choose, columns are chosen:"
    mean = np.mean(matrices, axis=0)
    yield markdown_table(
        ["", *sites],
        [[f"{site} ({devices[site]})", *map(float, row)] for site, row in zip(sites, mean, strict=True)],
        2,
    )
    yield "![Share of peer picks](figures/ham10000_devices_peers.png)"
    _draw(mean, sites, devices)


def _draw(matrix: np.ndarray, sites: list[str], devices: dict[str, str]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7.5, 6), layout="constrained")
    picture = axes.imshow(matrix, cmap="Blues", vmin=0, vmax=max(0.5, float(matrix.max())))
    labels = [f"{site}\n{devices[site]}" for site in sites]
    axes.set_xticks(range(len(sites)), labels, rotation=60, ha="right", fontsize=7)
    axes.set_yticks(range(len(sites)), labels, fontsize=7)
    axes.set_xlabel("peer")
    axes.set_ylabel("site that gets the peer")
    for row in range(len(sites)):
        for column in range(len(sites)):
            dark = matrix[row, column] > 0.6 * picture.norm.vmax
            colour = "white" if dark else "black"
            axes.text(column, row, f"{matrix[row, column]:.2f}", ha="center", va="center", fontsize=7, color=colour)
    previous = None
    for number, site in enumerate(sites):
        if previous is not None and devices[site] != previous:
            axes.axhline(number - 0.5, color="black", linewidth=1)
            axes.axvline(number - 0.5, color="black", linewidth=1)
        previous = devices[site]
    figure.colorbar(picture, label="share of the site's picks (mean over seeds)")
    folder = DOCS / "figures"
    folder.mkdir(exist_ok=True)
    figure.savefig(folder / "ham10000_devices_peers.png", dpi=130)


if __name__ == "__main__":
    main()
