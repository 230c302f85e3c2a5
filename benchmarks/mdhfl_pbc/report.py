"""Tables and figures of MDH-FL on blood cells. Every row states its number of seeds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np
from matplotlib.figure import Figure

from benchmarks.report import Drawing, Part
from benchmarks.results import EXPLAINED, Content, Methods, Pair, Results, Seeds, difference_table, shared_seeds
from benchmarks.tables import markdown_table, mean_and_spread
from grandrounds.ordering import natural_sorted
from grandrounds.plotting import draw_legend, label_axes, looks, new_axes
from grandrounds.reporting.figures.curves import confusion_figure

METRICS = {"accuracy": "accuracy", "balanced_accuracy": "balanced accuracy", "f1_macro": "macro-F1"}
COMPARED = (
    *(
        ("mdhfl", "local_sce"),
        ("mdhfl_ce", "local_ce"),
        ("mdhfl", "mdhfl_ce"),
        ("mdhfl", "fedmd"),
        ("mdhfl_ce", "fedmd"),
    ),
    *(("mdhfl", "feddf"), ("mdhfl", "rhfl"), ("rhfl_plus", "mdhfl")),
)
SHOWN = ("local_sce", "mdhfl", "rhfl_plus")
Rounds = dict[str, dict[str, dict[str, float]]]


def parts(results: Results) -> Iterator[Part]:
    """Everything between the markers of the page."""
    report = Report(results)
    for section in (
        *(report.scores, report.moments, report.ensembles, report.differences),
        *(report.per_site, report.per_class, report.traffic),
    ):
        yield from section()
    yield from figures(report.settings, results.titles, SHOWN)


class Report:
    """The tables, with noise and method in the first columns of most."""

    def __init__(self, results: Results) -> None:
        self.titles = results.titles
        names = {name: content["title"] for name, content in results.configuration["settings"].items()}
        self.settings = {
            setting: {method: runs[method] for method in self.titles if method in runs}
            for setting, runs in results.settings.items()
            if runs
        }
        self.noise = {setting: names[setting] for setting in self.settings}
        self.first = next(
            run for methods in self.settings.values() for runs in methods.values() for run in runs.values()
        )

    def _rows(
        self, cells: Callable[[Seeds], list[object]], wanted: Callable[[Seeds], bool] = bool
    ) -> list[list[object]]:
        """A row of a table for each setting and method."""
        return [
            [self.noise[setting], self.titles[method], len(runs), *cells(runs)]
            for setting, methods in self.settings.items()
            for method, runs in methods.items()
            if wanted(runs)
        ]

    def scores(self) -> Iterator[Part]:
        """The last round and the last five."""
        yield (
            "Mean over the four sites, then mean and standard deviation over seeds; the labels of the test images are "
            "clean. *Five*: mean of the last five rounds."
        )
        header = ["noise", "method", "seeds", *METRICS.values(), *(f"{title}, five" for title in METRICS.values())]
        yield markdown_table(
            header,
            self._rows(
                lambda runs: [
                    mean_and_spread([_mean(of(run, metric)) for run in runs.values()])
                    for of in (last, _last_five)
                    for metric in METRICS
                ]
            ),
        )

    def moments(self) -> Iterator[Part]:
        """Scores after alignment and after local training."""

        def cells(runs: Seeds) -> list[object]:
            aligned = [_mean(_over_rounds(run["aligned_rounds"], "accuracy")) for run in runs.values()]
            own = [_mean(_over_rounds(run["last_rounds"], "accuracy", without_end=True)) for run in runs.values()]
            return [mean_and_spread(aligned), mean_and_spread(own)]

        rows = self._rows(cells, lambda runs: all(run["aligned_rounds"] for run in runs.values()))
        if rows:
            yield (
                "The same models at two moments of a round: accuracy after learning from the others, and after the training "
                "on own labels that follows (the last round, which ends with the former, is left out of the latter):"
            )
            yield markdown_table(["noise", "method", "seeds", "after the others", "after own labels"], rows)

    def ensembles(self) -> Iterator[Part]:
        """The mean of the sites' predictions."""
        yield "Accuracy of the mean of the four sites' predictions (last round), which no site has by itself:"
        rows = [
            [title, *(mean_and_spread(_ensemble_accuracy(m.get(method, {}))) for m in self.settings.values())]
            for method, title in self.titles.items()
        ]
        yield markdown_table(["method", *self.noise.values()], rows)

    def differences(self) -> Iterator[Part]:
        """Paired by seed, for each kind of noise and over all kinds."""
        yield (
            f"Mean over sites, last round. {EXPLAINED} The last rows are means over the kinds of noise that all pairs have:"
        )
        rows, means = [], []
        for pair in COMPARED:
            title = " - ".join(self.titles[method] for method in pair)
            found = {s: shared_seeds(*(m.get(method, {}) for method in pair)) for s, m in self.settings.items()}
            shared = {setting: seeds for setting, seeds in found.items() if seeds}
            for setting, seeds in shared.items():
                rows.append([title, self.noise[setting], len(seeds), *self._pairs(pair, [setting], seeds)])
            seeds = sorted(set().union(*shared.values()))
            whole = [setting for setting, having in shared.items() if having == seeds]
            if len(whole) > 1:
                means.append([title, f"mean of {len(whole)}", len(seeds), *self._pairs(pair, whole, seeds)])
        yield difference_table(["difference", "noise", "seeds", *METRICS.values()], rows + means)

    def _pairs(self, pair: tuple[str, str], settings: list[str], seeds: list[int]) -> list[Pair]:
        return [
            Pair(
                *(
                    [float(np.mean([last(self.settings[s][method][seed], metric) for s in settings])) for seed in seeds]
                    for method in pair
                )
            )
            for metric in METRICS
        ]

    def per_site(self) -> Iterator[Part]:
        """Accuracy of each site, which has a network of its own."""
        backbones = self.first["backbones"]
        header = [f"{site}: {backbones[site]}" for site in natural_sorted(backbones)]
        yield "Accuracy of each site (last round, mean over seeds):"
        rows = self._rows(lambda runs: np.mean([last(run, "accuracy") for run in runs.values()], axis=0).tolist())
        yield markdown_table(["noise", "method", "seeds", *header], rows)

    def per_class(self) -> Iterator[Part]:
        """Recall of each class."""
        yield "Recall of each class over the predictions of all sites and seeds (last round):"
        rows = []
        for setting, methods in self.settings.items():
            for method in (method for method in SHOWN if method in methods):
                pooled = pooled_confusion(methods[method])
                recall = np.diag(pooled) / np.maximum(pooled.sum(axis=1), 1)
                rows.append([self.noise[setting], self.titles[method], *recall.tolist()])
        yield markdown_table(["noise", "method", *self.first["classes"]], rows)

    def traffic(self) -> Iterator[Part]:
        """Bytes and seconds."""
        yield "Bytes of tensors per site and run, by the ledger, and seconds of a run (mean):"
        rows = []
        for method, title in self.titles.items():
            runs = [run for m in self.settings.values() for run in m.get(method, Seeds()).values()]
            if runs:
                sizes = [round(_mean([_bytes(run, way) for run in runs])) for way in ("up.", "down.")]
                rows.append([title, *sizes, round(_mean([run["seconds"] for run in runs]))])
        yield markdown_table(["method", "up", "down", "seconds"], rows)


def last(run: Content, metric: str) -> list[float]:
    """The last round's test score of each site."""
    return [run["test"][site][f"own.{metric}"] for site in natural_sorted(run["test"])]


def pooled_confusion(runs: Seeds) -> np.ndarray:
    """Confusion matrix over all sites and seeds."""
    found: np.ndarray = np.sum([list(run["confusion"].values()) for run in runs.values()], axis=(0, 1))
    return found


def _last_five(run: Content, metric: str) -> list[float]:
    """The mean over the tested rounds of each site, at the moment with which the run ends."""
    return _over_rounds(run["aligned_rounds"] or run["last_rounds"], metric)


def _over_rounds(found: Rounds, metric: str, without_end: bool = False) -> list[float]:
    """Of each site, the mean over its rounds."""
    end = max(next(iter(found.values())), key=int) if without_end else None
    return [
        _mean([scores[metric] for number, scores in found[site].items() if number != end])
        for site in natural_sorted(found)
    ]


def _ensemble_accuracy(runs: Seeds) -> list[float]:
    return [run["ensemble"]["accuracy"] for run in runs.values()]


def _mean(values: list[float]) -> float:
    return float(np.mean(values))


def _bytes(run: Content, way: str) -> float:
    counted = sum(n for site in run["bytes"].values() for part, n in site.items() if part.startswith(way))
    return float(counted / len(run["test"]))


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
