"""Which figures a report of several runs has: methods beside each other, seeds of one method taken together."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import fmean

from grandrounds.evaluation.cases import joined
from grandrounds.evaluation.communication import Traffic
from grandrounds.reporting.figures.catalogue import drawing_or_none, listed
from grandrounds.reporting.figures.comparison import (
    Utility,
    mean_learning_figure,
    method_figure,
    site_figure,
    traffic_figure,
    utility_figure,
)
from grandrounds.reporting.figures.curves import risk_figure
from grandrounds.reporting.figures.style import Drawing
from grandrounds.reporting.figures.training import Curves, validation_curves
from grandrounds.reporting.format import SCORE_NAMES, bytes_words, estimate_words, number_words
from grandrounds.reporting.model import Report, moved, over_seeds, site_estimates
from grandrounds.reporting.run import Run


def shared_drawings(report: Report) -> list[Drawing]:
    """Figures of all runs together; none for one run."""
    if not report.several:
        return []
    found = [*_of_scores(report), _utility(report), _risk(report), _learning(report), _communication(report)]
    return [drawing for drawing in found if drawing]


def _of_scores(report: Report) -> list[Drawing | None]:
    means = {name: mean for name in report.methods if (mean := over_seeds(report, name)) and mean.enough}
    tested = {name: found for name in report.methods if (found := site_estimates(report, name))}
    return [
        drawing_or_none(
            "methods",
            method_figure(_of_seeds(report, means), means, report.metric) if means else None,
            f"{SCORE_NAMES[report.metric]}: {'; '.join(f'{name} {estimate_words(mean)}' for name, mean in means.items())}",
            "Grey dots are seeds. Of three seeds or more the line is the interval of their mean, of one seed that of its "
            "test cases.",
        ),
        drawing_or_none(
            "sites",
            site_figure(tested, report.sites, report.metric) if tested else None,
            f"{SCORE_NAMES[report.metric]} of each method at each site; the table below has the numbers",
            "A mark is the score of a method at a site, of several seeds their mean, the line its 95 % interval. "
            "Overlapping intervals do not mean that methods are equal: the paired differences below say more.",
        ),
    ]


def _utility(report: Report) -> Drawing | None:
    points = _utilities(report)
    units = sorted({point.unit for point in points if point.unit})
    apart = "" if len(units) == 1 else f" Epsilons per {' and per '.join(units)} are promises of different kinds."
    return drawing_or_none(
        "utility_privacy",
        utility_figure(points, report.metric, report.chance),
        f"{SCORE_NAMES[report.metric]}: {'; '.join(map(_utility_words, points))}",
        f"The largest epsilon of a method's ledgers; without a ledger nothing is guaranteed.{apart}",
    )


def _utilities(report: Report) -> list[Utility]:
    found = []
    for name, runs in report.methods.items():
        score, spent = over_seeds(report, name), [entry for run in runs for entry in run.spent]
        worst = max((math.inf if entry.epsilon is None else entry.epsilon for entry in spent), default=math.inf)
        unit = spent[0].unit if math.isfinite(worst) else ""
        told = spent or any(moved(run).up for run in runs)  # of runs in which nothing leaves there is nothing to hide
        if told and score and score.enough:
            found.append(Utility(runs[0].method, unit, worst, score.value))
    return found


def _utility_words(point: Utility) -> str:
    budget = f"at epsilon {point.epsilon:.3g} per {point.unit}" if point.unit else "without a guarantee"
    return f"{point.method} {number_words(point.score)} {budget}"


def _risk(report: Report) -> Drawing | None:
    together = {
        name: joined([cases for run in runs for cases in run.places.values()])
        for name, runs in report.methods.items()
        if any(run.places for run in runs)
    }
    return drawing_or_none(
        "risk_coverage",
        risk_figure(together, list(report.methods)),
        f"Area under risk against coverage (lower is better): {listed(_areas(report))}",
        "Going left, the least sure images are left to a physician: a good model's risk falls. Of several seeds all test "
        "images are taken together.",
    )


def _learning(report: Report) -> Drawing | None:
    curves = {name: _curves_of(runs, report.metric) for name, runs in report.methods.items()}
    return drawing_or_none(
        "learning",
        mean_learning_figure(curves, list(report.methods), report.metric),
        f"{SCORE_NAMES[report.metric]} on validation images over rounds",
        "Mean over sites and seeds that scored; validation images chose the model, so this is no result.",
    )


def _communication(report: Report) -> Drawing | None:
    traffic = {name: _mean_traffic(runs) for name, runs in report.methods.items()}
    return drawing_or_none(
        "communication",
        traffic_figure(traffic),
        "; ".join(f"{name}: {bytes_words(sum(entry))}" for name, entry in traffic.items()),
        "Mean of a method's runs. Tensors only; what FLARE adds to a message is not counted.",
    )


def _of_seeds(report: Report, methods: Iterable[str]) -> dict[str, list[float]]:
    scores = {
        name: [report.scores[run.name].headline(report.metric) for run in report.methods[name]] for name in methods
    }
    return {name: [found.value for found in of_runs if found and found.enough] for name, of_runs in scores.items()}


def _curves_of(runs: Sequence[Run], metric: str) -> Curves:
    """Validation curves of all sites of all seeds."""
    return {
        f"{run.name} {site}": curve
        for run in runs
        for site, curve in validation_curves(run.events, run.sites, metric).items()
    }


def _mean_traffic(runs: Sequence[Run]) -> Traffic:
    return Traffic(*(round(fmean(sizes)) for sizes in zip(*(moved(run) for run in runs), strict=True)))


def _areas(report: Report) -> dict[str, str]:
    """Area under risk against coverage of each method, mean over its seeds."""
    found = {
        name: [place.sureness["aurc"] for run in runs if (place := report.scores[run.name].pooled) and place.sureness]
        for name, runs in report.methods.items()
    }
    return {name: number_words(fmean(areas)) for name, areas in found.items() if areas}
