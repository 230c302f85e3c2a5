"""Figures of this benchmark: accuracy by noise and by site, what was confused, and which labels were wrong."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from matplotlib.figure import Figure

from benchmarks.report import Drawing
from benchmarks.results import Methods
from grandrounds.ordering import natural_sorted
from grandrounds.plotting import draw_legend, label_axes, looks, new_axes
from grandrounds.reporting.figures.curves import confusion_figure

Settings = Mapping[str, Methods]
KINDS = {"symmetric": "symmetric flips", "pair": "pair flips"}


def figures(results: Settings, titles: Mapping[str, str], shown: tuple[str, ...]) -> Iterator[Drawing]:
    """All figures, each with a name and a description."""
    for kind, name in KINDS.items():
        curves = accuracy_by_noise(results, kind)
        if curves:
            title = f"Accuracy by share of wrong labels, {name}, of the seeds that all shares have"
            yield Drawing(f"accuracy_{kind}", title, _noise_figure(curves, titles, name), tight=True)
    setting = next(iter(results))
    yield Drawing("sites", "Accuracy of each site", _site_figure(results[setting], titles), tight=True)
    runs = results[setting]
    for method in (method for method in shown if method in runs):
        pooled = np.sum([list(run["confusion"].values()) for run in runs[method].values()], axis=(0, 1))
        classes = next(iter(runs[method].values()))["classes"]
        yield Drawing(
            f"confusion_{method}", f"Confusion of {titles[method]}", confusion_figure(pooled, classes), tight=True
        )
    run = next(iter(next(iter(runs.values())).values()))
    if run["noise_matrices"]:
        figure = confusion_figure(np.sum(list(run["noise_matrices"].values()), axis=0), run["classes"])
        label_axes(figure.axes[0], "label in training", "true class", "Labels of all sites (images)")
        yield Drawing("noise", "Which labels the sites train with", figure, tight=True)


def accuracy_by_noise(results: Settings, kind: str) -> dict[str, dict[float, list[float]]]:
    """By method and rate of a kind of noise (no noise is rate zero), the accuracy of each seed: a mean over sites.

    Only methods that were run at several rates, and of these the seeds that all rates have: a curve compares nothing else.
    """
    found: dict[str, dict[float, dict[int, float]]] = {}
    for methods in results.values():
        for method, runs in methods.items():
            for seed, run in runs.items():
                if run["partition"]["noise"] in (kind, "none"):
                    scores = [scores["own.accuracy"] for scores in run["test"].values()]
                    points = found.setdefault(method, {}).setdefault(run["partition"]["noise_rate"], {})
                    points[seed] = float(np.mean(scores))
    curves: dict[str, dict[float, list[float]]] = {}
    for method, rates in found.items():
        seeds = set.intersection(*(set(points) for points in rates.values()))
        if len(rates) > 1 and seeds:
            curves[method] = {rate: [points[seed] for seed in sorted(seeds)] for rate, points in rates.items()}
    return curves


def _noise_figure(curves: Mapping[str, Mapping[float, list[float]]], titles: Mapping[str, str], name: str) -> Figure:
    figure, axes = new_axes()
    drawn = looks(list(titles))
    for method, points in curves.items():
        rates = sorted(points)
        means = [float(np.mean(points[rate])) for rate in rates]
        spread = [float(np.std(points[rate], ddof=1)) if len(points[rate]) > 1 else 0.0 for rate in rates]
        look = drawn[method]
        axes.errorbar(
            rates, means, spread, label=titles[method], capsize=2, linewidth=1.4,
            color=look.colour, marker=look.marker, linestyle=look.dash, markersize=4,
        )  # fmt: skip
    label_axes(axes, f"share of wrong labels ({name})", "accuracy (mean of sites)", "")
    axes.set_ylim(top=axes.get_ylim()[1] + 0.25 * np.ptp(axes.get_ylim()))  # room for the legend
    draw_legend(axes, columns=2)
    return figure


def _site_figure(methods: Methods, titles: Mapping[str, str]) -> Figure:
    backbones = next(run for runs in methods.values() for run in runs.values())["backbones"]
    sites = natural_sorted(backbones)
    figure, axes = new_axes(width=6.4)
    drawn = looks(list(titles))
    width = 0.8 / len(methods)
    for number, (method, runs) in enumerate(methods.items()):
        scores = np.array([[run["test"][site]["own.accuracy"] for site in sites] for run in runs.values()])
        places = np.arange(len(sites)) - 0.4 + (number + 0.5) * width
        axes.bar(places, scores.mean(axis=0), width, label=titles[method], color=drawn[method].colour)
    axes.set_xticks(range(len(sites)), [f"{site}: {backbones[site]}" for site in sites])
    label_axes(axes, "", "accuracy", "")
    axes.set_ylim(top=1.35 * axes.get_ylim()[1])  # room for the legend
    draw_legend(axes, place="upper center", columns=4)
    return figure
