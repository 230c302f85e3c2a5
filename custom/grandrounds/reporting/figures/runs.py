"""The figures of a report, with alternative text and caption: of each run, and of all runs together.

Curves come from predictions, or from sites' binned counts where the predictions stayed at the sites.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from grandrounds.evaluation.bootstrap import Cases, joined, joined_questions
from grandrounds.evaluation.clinical.suppression import suppressed
from grandrounds.evaluation.confidence import reliability_points, risk_coverage, top_confidence
from grandrounds.evaluation.curves.binned import CurveCounts, SiteCurves
from grandrounds.evaluation.curves.points import (
    Points,
    area_under,
    exact_counts,
    precision_recall_points,
    risk_points,
    roc_points,
)
from grandrounds.evaluation.curves.summed import sum_curves
from grandrounds.evaluation.history import Curves, RunHistory, round_curve, validation_curves
from grandrounds.evaluation.score import ALWAYS, MIN_CASES, Score, ScoreSheet
from grandrounds.federation.server.record import Traffic
from grandrounds.methods import method_figures
from grandrounds.plotting import (
    COLOURS,
    GREY,
    INK,
    MATRIX_COLOURS,
    PALE,
    SMALL_SIZE,
    Drawing,
    draw_legend,
    draw_line,
    label_axes,
    looks,
    new_axes,
    round_axis,
    rounds_figure,
)
from grandrounds.reporting.comparison import chance_of
from grandrounds.reporting.model import MAX_DETAILED_RUNS, Method, Report, ReportedRun
from grandrounds.reporting.run import RunScores, Spent
from grandrounds.reporting.tables import (
    SCORE_NAMES,
    format_bytes,
    format_estimate,
    format_items,
    format_number,
    format_share,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def training_drawings(history: RunHistory, metric: str | None, sites: Sequence[str]) -> list[Drawing]:
    """The figures that a run's events give, whatever its method; without a metric there are no learning curves.

    ``sites`` are all of the report, so that each has its colour everywhere.
    """
    curves = validation_curves(history.events, history.sites, metric) if metric else {}
    last = {site: format_number(curve[max(curve)]) for site, curve in curves.items()}
    moved = {
        label: {number: size / MEGABYTE for number, size in round_curve(history.events, "moved", direction).items()}
        for direction, label in (("down", "to sites"), ("up", "from sites"))
    }
    learning = drawing_of(
        "learning",
        learning_figure(curves, sites, metric or "", chance=chance_of(metric, len(history.classes))),
        f"{SCORE_NAMES.get(metric or '', metric)} on validation images, last round: {format_items(last)}",
        f"{_progress(curves)} Each site's validation images. They chose the model, so this is not a result. At a site "
        "that lacks classes, always predicting one class scores more than the dotted line.",
    )
    traffic = drawing_of(
        "traffic",
        rounds_figure(moved, list(moved), "MB of tensors, all sites", "Communication so far"),
        "Megabytes transferred by each round",
        "Tensors of all sites so far; what FLARE adds to a message is not counted.",
    )
    return [*learning, *method_figures(history), *traffic]


def _progress(curves: Curves) -> str:
    """The mean over sites in the first and in the last round in which all sites scored."""
    rounds = sorted(set.intersection(*map(set, curves.values()))) if curves else []
    if len(rounds) < 2:
        return ""
    first, last = (fmean(curve[number] for curve in curves.values()) for number in (rounds[0], rounds[-1]))
    return f"Mean over sites: {first:.2f} after round {rounds[0]}, {last:.2f} after round {rounds[-1]}."


def learning_figure(
    curves: Mapping[str, Mapping[int, float]],
    names: Sequence[str],
    metric: str,
    title: str = "Learning curves",
    chance: float | None = None,
) -> Figure | None:
    """Validation score over rounds, a line for each site or method; None without curves.

    ``names`` are all that may have a line, so that each has its colour everywhere; ``chance`` is the score of a guess.
    """
    level = None if chance is None else (chance, "chance")
    return rounds_figure(curves, names, f"{metric.replace('_', ' ')}, validation", title, top=1.02, level=level)


def budget_figure(spent: Sequence[Spent], sites: Sequence[str]) -> Figure | None:
    """Epsilon of each site's ledger over rounds; None where no ledger has a finite epsilon."""
    known = [entry for entry in spent if any(epsilon is not None for _, epsilon in entry.history)]
    if not known:
        return None
    figure, axes = new_axes()
    for entry in known:
        points = [(number, epsilon) for number, epsilon in entry.history if epsilon is not None]
        rounds, epsilons = [float(number) for number, _ in points], [float(epsilon) for _, epsilon in points]
        draw_line(axes, looks(sites)[entry.site], rounds, epsilons, f"{entry.site} (per {entry.protects})")
    axes.set_ylim(bottom=0)
    label_axes(axes, "round", f"epsilon (delta {known[0].delta:g})", "Privacy budget")
    round_axis(axes)
    draw_legend(axes, "best")
    return figure


def drawing_of(name: str, figure: Figure | None, alt: str, caption: str) -> list[Drawing]:
    """A figure with its words; nothing where there is nothing to draw."""
    return [] if figure is None else [Drawing(name, figure, alt, caption)]


MAX_POINTS = 150


def roc_curves(questions: Sequence[Cases], names: Sequence[str]) -> dict[str, Points]:
    """The ROC curve of each class or finding against all else; those with too few cases on a side are left out."""
    return {name: roc_points(exact_counts(positive, scores)) for name, positive, scores in _sides(questions, names)}


def precision_recall_curves(questions: Sequence[Cases], names: Sequence[str]) -> dict[str, Points]:
    """Precision against recall of each class or finding; those with too few cases are left out."""
    counts = {name: exact_counts(positive, scores) for name, positive, scores in _sides(questions, names)}
    return {name: precision_recall_points(of_class) for name, of_class in counts.items()}


def risk_curve(cases: Cases) -> Points | None:
    """Risk against coverage from ``MIN_CASES`` images on; None without probabilities or with too few cases."""
    if cases.probabilities is None or cases.count < MIN_CASES:
        return None
    confidence, correct = top_confidence(cases.labels, cases.probabilities)
    curve = risk_coverage(confidence, correct)
    start = min(MIN_CASES, len(curve.risk)) - 1
    return Points(curve.coverage[start:], curve.risk[start:])


def roc_figure(
    curves: Mapping[str, Points], classes: Sequence[str], title: str = "ROC, each class against the others"
) -> Figure | None:
    """A ROC curve for each class; None without curves."""
    if not curves:
        return None
    figure, axes = new_axes()
    axes.plot([0, 1], [0, 1], color=PALE, linewidth=1, linestyle=":")
    label_axes(axes, "1 - specificity", "sensitivity", title)
    return _draw_classes(figure, axes, curves, classes, "lower right")


def precision_recall_figure(
    curves: Mapping[str, Points], classes: Sequence[str], title: str = "Precision and recall"
) -> Figure | None:
    """Precision against recall for each class; None without curves."""
    if not curves:
        return None
    figure, axes = new_axes()
    label_axes(axes, "recall (sensitivity)", "precision", title)
    return _draw_classes(figure, axes, curves, classes, "best")


def risk_figure(
    curves: Mapping[str, Points | None],
    names: Sequence[str],
    title: str = "Risk and coverage",
    constant: tuple[str, float] | None = None,
) -> Figure | None:
    """Share of wrong predictions if the least confident are left to a physician, a line for each run.

    ``names`` are all runs of the report, in its order; ``constant`` is a reference and its accuracy. None where nothing can
    be drawn.
    """
    known = {name: points for name, points in curves.items() if points}
    if not known:
        return None
    figure, axes = new_axes()
    for name, points in known.items():
        draw_line(axes, looks(names)[name], *_thinned(points), name)
    if constant:
        axes.axhline(1 - constant[1], color=GREY, linewidth=1, linestyle=":", label=constant[0])
    label_axes(axes, "coverage: share that the model decides", "risk: share of wrong predictions", title)
    axes.set_xlim(0, 1.02)
    axes.set_ylim(bottom=0)
    if len(curves) > 1 or constant:
        draw_legend(axes, "best")
    return figure


def confusion_figure(confusion: NDArray[np.int64], classes: Sequence[str], minimum: int = 1) -> Figure:
    """Confusion matrix: the share of a row as shade, the number of images as text.

    Counts below ``minimum``, and those from which they would follow, are neither written nor shaded.
    """
    side = max(3.2, 0.48 * len(classes) + 1.0)
    margin = 0.35 + 0.075 * max(len(name) for name in classes)
    figure, axes = new_axes(side + margin + 0.3, side + margin + 0.3, bottom=margin + 0.3, left=margin + 0.4)
    true = confusion.sum(axis=1, keepdims=True)
    shares = np.divide(confusion, true, out=np.zeros(confusion.shape), where=true > 0)
    hidden = suppressed(confusion, minimum)
    axes.imshow(np.where(hidden, np.nan, shares), cmap=MATRIX_COLOURS, vmin=0, vmax=1)
    axes.set_facecolor(PALE)
    for row, column in np.ndindex(confusion.shape):
        count = int(confusion[row, column])
        if not hidden[row, column]:
            colour = "white" if shares[row, column] > 0.55 else "black"
            axes.text(column, row, str(count), ha="center", va="center", fontsize=SMALL_SIZE, color=colour)
    axes.set_xticks(range(len(classes)), classes, rotation=90, fontsize=SMALL_SIZE)
    axes.set_yticks(range(len(classes)), classes, fontsize=SMALL_SIZE)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    label_axes(axes, "predicted", "true", "Confusion (images)")
    return figure


def _sides(
    questions: Sequence[Cases], names: Sequence[str]
) -> Iterator[tuple[str, NDArray[np.bool_], NDArray[np.float64]]]:
    """Name, positives and scores of the classes with enough cases on both sides."""
    left = iter(names)
    for cases in questions:
        behind = np.minimum(cases.positives(), cases.negatives())
        for number, name in zip(cases.rows, left, strict=False):
            if cases.probabilities is not None and behind[number] >= MIN_CASES:
                yield name, cases.labels == number, cases.probabilities[:, number]


def _draw_classes(
    figure: Figure, axes: Axes, curves: Mapping[str, Points], classes: Sequence[str], place: str
) -> Figure:
    for name, points in curves.items():
        draw_line(axes, looks(classes)[name], *_thinned(points), name)
    axes.set_xlim(-0.02, 1.02)
    axes.set_ylim(-0.02, 1.02)
    draw_legend(axes, place)
    return figure


def _thinned(points: Points) -> tuple[list[float], list[float]]:
    """At most ``MAX_POINTS`` points of a curve, ends included."""
    across, up = points
    if len(across) > MAX_POINTS:
        rows = np.unique(np.linspace(0, len(across) - 1, MAX_POINTS).round().astype(np.int64))
        across, up = across[rows], up[rows]
    return across.tolist(), up.tolist()


def reliability_figure(cases: Cases) -> Figure | None:
    """Accuracy over confidence in adaptive bins, a dot's area its number of images; None where nothing can be drawn."""
    if cases.probabilities is None or cases.count < MIN_CASES:
        return None
    confidence, correct = top_confidence(cases.labels, cases.probabilities)
    points = reliability_points(confidence, correct)
    figure, axes = _reliability_axes("Reliability")
    centres, shares = [point.confidence for point in points], [point.accuracy for point in points]
    axes.vlines(centres, centres, shares, color=PALE, linewidth=3)
    sizes = [20 + 300 * point.n / len(correct) for point in points]
    axes.scatter(centres, shares, s=sizes, color=COLOURS[0], edgecolors=INK, linewidths=0.6, zorder=3)
    axes.text(0.03, 0.93, "underconfident", fontsize=SMALL_SIZE, color=GREY, va="top")
    axes.text(0.97, 0.07, "overconfident", fontsize=SMALL_SIZE, color=GREY, ha="right")
    return figure


def binned_reliability_figure(counts: CurveCounts | None) -> Figure | None:
    """Accuracy over confidence from sites' counts, a step for each bin; None without counts."""
    if counts is None:
        return None
    figure, axes = _reliability_axes("Reliability from the sites' counts")
    together = counts.positives + counts.negatives
    shares = np.divide(counts.positives, together, out=np.full(together.shape, np.nan), where=together > 0)
    axes.stairs(shares, counts.edges, color=COLOURS[0], linewidth=1.6, baseline=None)
    return figure


def _reliability_axes(title: str) -> tuple[Figure, Axes]:
    figure, axes = new_axes()
    axes.plot([0, 1], [0, 1], color=GREY, linewidth=1, linestyle=":")
    axes.set_xlim(0, 1.02)
    axes.set_ylim(0, 1.02)
    label_axes(axes, "probability of the most probable class", "share of images that are of it", title)
    return figure, axes


MEGABYTE = 1e6


MIN_RANGE = 0.1


END = 4
"""Runs without a finite epsilon are drawn at this multiple of the largest one."""


HATCHES = ("", "//", "\\\\")


def method_figure(
    values: Mapping[str, Sequence[float]], means: Mapping[str, Score], metric: str, chance: float
) -> Figure:
    """A score of each method: its seeds as small dots, their mean as a mark, its interval (if not NaN) as a line.

    ``chance`` is the score of a guess, drawn as a vertical line.
    """
    left = 0.4 + 0.075 * max(len(name) for name in values)
    figure, axes = new_axes(height=1.1 + 0.34 * max(len(values), 2), left=left)
    for row, (name, of_method) in enumerate(values.items()):
        mean, look = means[name], looks(list(values))[name]
        axes.plot([mean.low, mean.high], [row, row], color=look.colour, linewidth=1.6)
        axes.plot(mean.value, row, look.marker, color=look.colour, markersize=6)
        if len(of_method) > 1:
            axes.plot(of_method, [row + 0.22] * len(of_method), ".", color=GREY, markersize=4)
    axes.axvline(chance, color=GREY, linewidth=1.2, linestyle=":")
    place = axes.get_xaxis_transform()
    axes.text(
        chance, 0.5, "chance", fontsize=SMALL_SIZE, color=GREY, rotation=90, ha="right", va="center", transform=place
    )
    axes.set_yticks(range(len(values)), list(values), fontsize=SMALL_SIZE)
    axes.set_ylim(len(values) - 0.4, -0.6)
    low, high = axes.get_xlim()
    missing = max(0.0, MIN_RANGE - (high - low)) / 2  # or a hundredth fills the picture
    axes.set_xlim(low - missing, high + missing)
    axes.locator_params(axis="x", nbins=5)
    axes.grid(axis="x", color=PALE, linewidth=0.5)
    axes.set_axisbelow(True)
    label_axes(axes, f"{metric.replace('_', ' ')}, test", "", "Methods, 95 % intervals")
    return figure


def site_figure(
    scores: Mapping[str, Mapping[str, Score]],
    sites: Sequence[str],
    metric: str,
    constant: Mapping[str, float],
    chance: float,
) -> Figure:
    """Test score at each site with its interval, a mark for each run or method; too few cases are not drawn.

    Args:
        scores: by run or method and site.
        sites: all of the report.
        metric: which score.
        constant: at each site the score of always answering its commonest class, drawn as a grey bar.
        chance: the score of a guess, drawn as a dotted line.
    """
    below = 0.19 * ((len(scores) + 1) // 2) if len(scores) > 1 else 0.0
    height = 1.1 + below + max(len(sites), 2) * (0.24 + 0.07 * len(scores))
    left = 0.3 + 0.075 * max(len(site) for site in sites)
    figure, axes = new_axes(height=height, left=left, bottom=0.55 + below)
    step = 0.8 / len(scores)
    for number, (name, of_method) in enumerate(scores.items()):
        look = looks(list(scores))[name]
        offset = (number - (len(scores) - 1) / 2) * step
        for row, site in enumerate(sites):
            estimate = of_method.get(site)
            if estimate is None or not estimate.known:
                continue
            colour = looks(sites)[site].colour if len(scores) == 1 else look.colour
            axes.plot([estimate.low, estimate.high], [row + offset] * 2, color=colour, linewidth=1.3)
            axes.plot(estimate.value, row + offset, look.marker, color=colour, markersize=4)
        axes.plot([], [], look.marker, color=look.colour, markersize=4, label=name)
    for row, site in enumerate(sites):
        if site in constant:
            axes.plot([constant[site]] * 2, [row - 0.42, row + 0.42], color=GREY, linewidth=2)
    axes.axvline(chance, color=GREY, linewidth=1, linestyle=":")
    axes.set_yticks(range(len(sites)), sites, fontsize=SMALL_SIZE)
    axes.set_ylim(len(sites) - 0.5, -0.5)
    axes.set_xlim(0, 1)
    axes.grid(axis="x", color=PALE, linewidth=0.5)
    axes.set_axisbelow(True)
    label_axes(axes, metric.replace("_", " "), "", "Test images of each site, 95 % interval")
    if len(scores) > 1:
        figure.legend(loc="lower left", bbox_to_anchor=(0.02, 0), ncols=2, fontsize=SMALL_SIZE, frameon=False)
    return figure


def mean_curves(runs: Mapping[str, Curves]) -> dict[str, dict[int, float]]:
    """Mean over the sites that have a value, for each round; by run or method."""
    means = {}
    for name, curves in runs.items():
        rounds = {number for curve in curves.values() for number in curve}
        means[name] = {
            number: fmean(curve[number] for curve in curves.values() if number in curve) for number in rounds
        }
    return means


class Utility(NamedTuple):
    """The test score of a method at a privacy budget per ``unit``; epsilon is infinite (and unit empty) without a ledger."""

    method: str
    unit: str
    epsilon: float
    score: float


def utility_figure(points: Sequence[Utility], metric: str, chance: float) -> Figure | None:
    """A score against the privacy budget, a line for each method and unit; what has no guarantee is at the right end.

    ``chance`` is the score of random guessing. None where no epsilon is finite, or there is one point alone.
    """
    finite = sorted({point.epsilon for point in points if math.isfinite(point.epsilon)})
    if not finite or len(points) == 1:
        return None
    figure, axes = new_axes()
    names = list(dict.fromkeys((point.method, point.unit) for point in points))
    look, end = looks([", per ".join(filter(None, name)) for name in names]), finite[-1] * END
    for name, (method, unit) in zip(look, names, strict=True):
        own = sorted((min(point.epsilon, end), point.score) for point in points if point[:2] == (method, unit))
        label = name if unit else f"{name}, no guarantee"
        draw_line(axes, look[name], [epsilon for epsilon, _ in own], [score for _, score in own], label)
    axes.axhline(chance, color=GREY, linewidth=1, linestyle=":", label="a guess")
    axes.set_xscale("log")
    ticks = [epsilon for epsilon, before in zip(finite, [0.0, *finite], strict=False) if epsilon > 1.2 * before]
    axes.set_xticks([*ticks, end], [*(f"{epsilon:.2g}" for epsilon in ticks), "none"])
    axes.minorticks_off()
    axes.set_xlim(finite[0] / 1.5, end * 1.5)
    axes.set_ylim(0, 1.02)
    label_axes(axes, "epsilon", f"{metric.replace('_', ' ')}, test", "Utility against privacy")
    draw_legend(axes, "best")
    return figure


def traffic_figure(moved: Mapping[str, Traffic]) -> Figure | None:
    """Megabytes of tensors to and from the sites, a bar for each run or method; None if nothing was sent."""
    if not any(sum(entry) for entry in moved.values()):
        return None
    left = 0.4 + 0.075 * max(len(name) for name in moved)
    figure, axes = new_axes(height=1.4 + 0.32 * len(moved), left=left, bottom=0.8)
    starts = np.zeros(len(moved))
    parts = zip(
        ("global models, to sites", "all else, to sites", "from sites"), zip(*moved.values(), strict=True), strict=True
    )
    for number, (label, sizes) in enumerate(parts):
        values = np.array(sizes) / MEGABYTE
        axes.barh(
            range(len(moved)), values, left=starts, height=0.6, color=(COLOURS[0], COLOURS[4], COLOURS[5])[number],
            hatch=HATCHES[number], edgecolor=INK, linewidth=0.5, label=label,
        )  # fmt: skip
        starts += values
    axes.set_yticks(range(len(moved)), list(moved), fontsize=SMALL_SIZE)
    axes.set_ylim(len(moved) - 0.5, -0.5)
    label_axes(axes, "MB of tensors, all sites and rounds", "", "Communication")
    figure.legend(fontsize=SMALL_SIZE, frameon=False, loc="lower left", ncols=3, handlelength=1.2, columnspacing=0.8)
    return figure


def run_drawings(report: Report, reported: ReportedRun) -> list[Drawing]:
    """Figures of one run; with more than ``MAX_DETAILED_RUNS`` runs only the main ones."""
    full, tests, sites = len(report.runs) <= MAX_DETAILED_RUNS, reported.run.tests, report.sites
    drawings = _of_predictions(reported, full) if tests.questions else _of_counts(tests.curves, reported.run.classes)
    if tests.questions and not report.several:
        scores = reported.scores.by_site(report.metric)
        levels = _constants([reported.scores], report.metric), report.chance
        drawings += drawing_of(
            "sites",
            site_figure({reported.run.name: scores}, sites, report.metric, *levels) if scores else None,
            "; ".join(f"{site} {format_estimate(score)}" for site, score in scores.items()),
            "Each site's test images, with 95 % intervals. Grey bars: always predicting the site's most frequent class; the "
            "dotted line is chance.",
        )
    if full:
        drawings += training_drawings(reported.run.history, report.metric, sites)
        drawings += _of_budgets(reported.run.origin.spent, sites)
    if full and not report.several:
        drawings += _of_traffic(reported.run.name, reported.run.log.traffic)
    prefix = f"{file_name(reported.run.name)}-" if report.several else ""
    return [drawing._replace(name=f"{prefix}{drawing.name}") for drawing in drawings]


def comparison_drawings(report: Report) -> list[Drawing]:
    """Figures of all runs together, seeds of one method as one; none for one run."""
    if not report.several:
        return []
    methods, metric = report.methods, report.metric
    scored = {name: method for name, method in methods.items() if method.score and method.score.known}
    return [
        *_of_scores(scored, metric, report.chance),
        *_of_sites(report),
        *_utility([_utility_of(method) for method in scored.values() if _is_private(method)], metric, report.chance),
        *_risk(methods, report.first.scores.pooled),
        *_learning(methods, metric, report.chance),
        *_communication(methods),
    ]


def file_name(name: str) -> str:
    """A run's name as part of a file's name.

    Example:
        >>> file_name("FedPerl, 2 peers/seed 1")
        'FedPerl_2_peers_seed_1'
    """
    return re.sub(r"[^A-Za-z0-9.]+", "_", name).strip("_.") or "run"


def _of_predictions(reported: ReportedRun, full: bool) -> list[Drawing]:
    names, task, pooled = reported.run.classes, reported.run.task, reported.scores.pooled
    questions = joined_questions(list(reported.run.tests.questions.values()))
    left_out = f"All sites' test images together; {task.nouns} with too few cases are left out."
    drawings = drawing_of(
        "roc",
        roc_figure(roc_curves(questions, names), names, f"ROC of each {task.noun}"),
        f"ROC curves. Area: {_of_classes(pooled, 'auroc')}",
        f"{_extremes(pooled)} {left_out}",
    )
    if len(questions) == 1:
        drawings = [*_confusion(questions[0], reported), *drawings, *_reliability(questions[0], pooled)]
    if full:
        drawings += drawing_of(
            "precision_recall",
            precision_recall_figure(precision_recall_curves(questions, names), names),
            f"Precision and recall. Average precision: {_of_classes(pooled, 'average_precision')}",
            f"Precision depends on how common a {task.noun} is among these images and differs where it is rarer or more "
            "common.",
        )
    return [*drawings, *(_risk_of_run(questions[0], reported) if full and len(questions) == 1 else [])]


def _confusion(cases: Cases, one: ReportedRun) -> list[Drawing]:
    names = one.run.classes
    return drawing_of(
        "confusion",
        confusion_figure(cases.confusion(), names, one.run.origin.minimum),
        f"Confusion matrix of {len(cases.labels)} test images. Sensitivity: {_of_classes(one.scores.pooled, 'sensitivity')}",
        f"{_called(cases, names)} Rows are true classes, columns predictions; the shade is the share of a row.",
    )


def _reliability(cases: Cases, pooled: ScoreSheet | None) -> list[Drawing]:
    return drawing_of(
        "reliability",
        reliability_figure(cases),
        f"Reliability: expected calibration error {_of_confidence(pooled, 'ece')}, maximum {_of_confidence(pooled, 'mce')}",
        f"{_confidence_gap(cases)} On the dotted line both are equal. A dot's area is its number of images.",
    )


def _risk_of_run(cases: Cases, reported: ReportedRun) -> list[Drawing]:
    name, pooled = reported.run.name, reported.scores.pooled
    return drawing_of(
        "risk_coverage",
        risk_figure({name: risk_curve(cases)}, [name], constant=_constant_accuracy(pooled)),
        f"Risk against coverage: area {_of_confidence(pooled, 'aurc')}, risk at full coverage "
        f"{_of_confidence(pooled, 'risk')}",
        "To the left, the least confident images are left to a physician: a good model's risk falls. The dotted line is "
        "always predicting the most frequent class.",
    )


def _of_counts(sites: Mapping[str, SiteCurves], names: Sequence[str]) -> list[Drawing]:
    """Curves from the sites' binned counts."""
    counts = sum_curves(list(sites.values()), names)
    roc = {name: roc_points(of_class) for name, of_class in counts.classes.items()}
    recall = {name: precision_recall_points(of_class) for name, of_class in counts.classes.items()}
    risk = risk_points(counts.reliability) if counts.reliability else None
    areas = {name: format_number(area_under(points)) for name, points in roc.items()}
    caption = f"Counts of {', '.join(sites)}; each stands for several patients, so the curves are coarse."
    source = "from the sites' counts"
    recall_figure = precision_recall_figure(recall, names, f"Precision and recall {source}")
    at_full = format_number(float(risk.up[-1]) if risk else None)
    drawn = {
        "roc": (roc_figure(roc, names, f"ROC {source}"), f"ROC curves. Area: {format_items(areas)}"),
        "precision_recall": (recall_figure, f"Precision and recall of {', '.join(counts.classes)}"),
        "reliability": (binned_reliability_figure(counts.reliability), "Share of right predictions by confidence"),
        "risk_coverage": (
            risk_figure({"": risk}, [""], f"Risk and coverage {source}"),
            f"Risk at full coverage {at_full}",
        ),
    }
    return [one for name, (figure, alt) in drawn.items() for one in drawing_of(name, figure, alt, caption)]


def _of_budgets(spent: Sequence[Spent], sites: Sequence[str]) -> list[Drawing]:
    budgets = format_items({entry.site: format_number(entry.epsilon) for entry in spent})
    words = "The privacy loss of all releases of a site so far."
    return drawing_of("budget", budget_figure(spent, sites), f"Epsilon spent: {budgets}", words)


def _of_traffic(name: str, moved: Traffic) -> list[Drawing]:
    return drawing_of(
        "communication",
        traffic_figure({name: moved}),
        f"{format_bytes(moved.down_global)} of global models and {format_bytes(moved.down_extra)} of all else to the "
        f"sites, {format_bytes(moved.up)} from them",
        "Tensors only; what FLARE adds to a message is not counted.",
    )


def _of_scores(methods: Mapping[str, Method], metric: str, chance: float) -> list[Drawing]:
    means = {name: method.score for name, method in methods.items() if method.score}
    seeds = {name: [score.value for score in method.seeds] for name, method in methods.items()}
    return drawing_of(
        "methods",
        method_figure(seeds, means, metric, chance) if means else None,
        f"{SCORE_NAMES[metric]}: {'; '.join(f'{name} {format_estimate(mean)}' for name, mean in means.items())}",
        "Grey dots are seeds. Of three seeds or more the line is the interval of their mean, of one seed that of its test "
        "cases.",
    )


def _of_sites(report: Report) -> list[Drawing]:
    tested = {name: method.sites for name, method in report.methods.items() if method.sites}
    levels = _constants([run.scores for run in report.runs.values()], report.metric), report.chance
    return drawing_of(
        "sites",
        site_figure(tested, report.sites, report.metric, *levels) if tested else None,
        f"{SCORE_NAMES[report.metric]} of each method at each site; the table below has the numbers",
        "A mark is the score of a method at a site, of several seeds their mean, the line its 95 % interval; the grey bar "
        "is always predicting the site's most frequent class, the dotted line is chance. Overlapping intervals do not mean "
        "that methods are equal: see the paired differences below.",
    )


def _is_private(method: Method) -> bool:
    """Whether privacy is a question: there is a ledger, or something leaves a site."""
    return any(reported.run.origin.spent or reported.run.log.traffic.up for reported in method.runs)


def _utility_of(method: Method) -> Utility:
    spent = [entry for reported in method.runs for entry in reported.run.origin.spent]
    worst = max((math.inf if entry.epsilon is None else entry.epsilon for entry in spent), default=math.inf)
    unit = spent[0].unit if math.isfinite(worst) else ""
    return Utility(method.runs[0].run.log.method, unit, worst, method.score.value if method.score else math.nan)


def _utility(points: Sequence[Utility], metric: str, chance: float) -> list[Drawing]:
    units = sorted({point.unit for point in points if point.unit})
    note = "" if len(units) == 1 else f" Epsilons per {' and per '.join(units)} are guarantees of different kinds."
    return drawing_of(
        "utility_privacy",
        utility_figure(points, metric, chance),
        f"{SCORE_NAMES[metric]}: {'; '.join(map(_format_utility, points))}",
        f"The largest epsilon of a method's ledgers; without a ledger nothing is guaranteed.{note}",
    )


def _format_utility(point: Utility) -> str:
    budget = f"at epsilon {point.epsilon:.3g} per {point.unit}" if point.unit else "without a guarantee"
    return f"{point.method} {format_number(point.score)} {budget}"


def _risk(methods: Mapping[str, Method], first: ScoreSheet | None) -> list[Drawing]:
    predictions = {
        name: [cases for reported in method.runs for cases in reported.run.tests.predictions.values()]
        for name, method in methods.items()
    }
    curves = {name: risk_curve(joined(cases)) for name, cases in predictions.items() if cases}
    return drawing_of(
        "risk_coverage",
        risk_figure(curves, list(methods), constant=_constant_accuracy(first)),
        f"Area under risk against coverage (lower is better): {format_items(_areas(methods))}",
        "To the left, the least confident images are left to a physician: a good model's risk falls. Of several seeds all "
        "test images are taken together. The dotted line is always predicting the most frequent class.",
    )


def _areas(methods: Mapping[str, Method]) -> dict[str, str]:
    """Area under risk against coverage of each method, mean over its seeds."""
    sheets = {name: [run.scores.pooled for run in method.runs] for name, method in methods.items()}
    by_method = {
        name: [seed.confidence["aurc"] for seed in seeds if seed and seed.confidence] for name, seeds in sheets.items()
    }
    return {name: format_number(fmean(areas)) for name, areas in by_method.items() if areas}


def _learning(methods: Mapping[str, Method], metric: str, chance: float) -> list[Drawing]:
    curves = mean_curves({name: _curves_of(method, metric) for name, method in methods.items()})
    return drawing_of(
        "learning",
        learning_figure(curves, list(methods), metric, "Learning curves, mean over sites", chance),
        f"{SCORE_NAMES[metric]} on validation images over rounds",
        "Mean over sites and seeds that scored. Validation images chose the model, so this is not a result.",
    )


def _curves_of(method: Method, metric: str) -> Curves:
    """Validation curves of all sites of all seeds."""
    logs = {reported.run.name: reported.run.log for reported in method.runs}
    return {
        f"{name} {site}": curve
        for name, log in logs.items()
        for site, curve in validation_curves(log.events, log.sites, metric).items()
    }


def _communication(methods: Mapping[str, Method]) -> list[Drawing]:
    moved = {name: method.traffic for name, method in methods.items()}
    return drawing_of(
        "communication",
        traffic_figure(moved),
        "; ".join(f"{name}: {format_bytes(sum(entry))}" for name, entry in moved.items()),
        "Mean of a method's runs. Tensors only; what FLARE adds to a message is not counted.",
    )


def _called(cases: Cases, classes: Sequence[str]) -> str:
    """Which class is predicted most, beside its share of the labels."""
    counts = np.bincount(cases.predicted, minlength=len(classes))
    most = int(counts.argmax())
    share, true = counts[most] / len(cases.labels), (cases.labels == most).mean()
    return f"{classes[most]} is predicted for {share:.0%} of the images; {true:.0%} are of it."


def _extremes(pooled: ScoreSheet | None) -> str:
    """The classes that are separated best and worst."""
    classes = pooled.classes if pooled else {}
    areas = {
        name: scores["auroc"].value for name, scores in classes.items() if "auroc" in scores and scores["auroc"].enough
    }
    if not areas:
        return ""
    best, worst = max(areas, key=lambda name: areas[name]), min(areas, key=lambda name: areas[name])
    if best == worst:
        return f"{best}: area {areas[best]:.2f}; the dotted line is chance."
    return (
        f"{best} is separated best (area {areas[best]:.2f}), {worst} worst ({areas[worst]:.2f}); the dotted line is chance "
        "(0.50)."
    )


def _confidence_gap(cases: Cases) -> str:
    """Whether the model is more or less confident than it is right, over all images."""
    if cases.probabilities is None:
        return ""
    confidence, right = top_confidence(cases.labels, cases.probabilities)
    return (
        f"The most probable class has a probability of {confidence.mean():.2f} on average and is right for "
        f"{format_share(float(right.mean()))} of the images."
    )


def _of_classes(pooled: ScoreSheet | None, key: str) -> str:
    """A score of each class."""
    classes = pooled.classes if pooled else {}
    return "; ".join(f"{name} {format_estimate(scores[key])}" for name, scores in classes.items() if key in scores)


def _of_confidence(pooled: ScoreSheet | None, key: str) -> str:
    """A measure of calibration or risk."""
    return format_number(pooled.confidence.get(key) if pooled else None)


def _constant_accuracy(pooled: ScoreSheet | None) -> tuple[str, float] | None:
    """Always predicting the most frequent class of all test images, and its accuracy; None where it is not known."""
    return (f"{ALWAYS}{pooled.majority}", pooled.always["accuracy"]) if pooled and pooled.always else None


def _constants(runs: Iterable[RunScores], metric: str) -> dict[str, float]:
    """At each site the score of always predicting its most frequent class."""
    constants: dict[str, float] = {}
    for scores in runs:
        for site, sheet in scores.sites.items():
            if metric in sheet.always:
                constants.setdefault(site, sheet.always[metric])
    return constants
