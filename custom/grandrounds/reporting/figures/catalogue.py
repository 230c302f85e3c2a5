"""The figures of a report, with alternative text and caption: of each run, and of all runs together."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from statistics import fmean

from grandrounds.evaluation.bootstrap import Cases, joined, joined_questions
from grandrounds.evaluation.curves import (
    area_under,
    precision_recall_points,
    risk_points,
    roc_points,
    sum_curves,
)
from grandrounds.evaluation.history import Curves, validation_curves
from grandrounds.federation.server.record import Traffic
from grandrounds.plotting import Drawing
from grandrounds.reporting.comparison import METRIC
from grandrounds.reporting.figures.curves import (
    binned_reliability_figure,
    confusion_figure,
    precision_recall_curves,
    precision_recall_figure,
    reliability_figure,
    risk_curve,
    risk_figure,
    roc_curves,
    roc_figure,
)
from grandrounds.reporting.figures.findings import called, confidence_found, constant_accuracy, constants, extremes
from grandrounds.reporting.figures.runs import (
    Utility,
    budget_figure,
    drawing_of,
    learning_figure,
    mean_curves,
    method_figure,
    site_figure,
    traffic_figure,
    training_drawings,
    utility_figure,
)
from grandrounds.reporting.format import SCORE_NAMES, format_bytes, format_estimate, format_items, format_number
from grandrounds.reporting.model import MAX_DETAILED_RUNS, Report, over_seeds, site_estimates
from grandrounds.reporting.run import Run


def run_drawings(report: Report, run: Run) -> list[Drawing]:
    """Figures of one run; with more than ``MAX_DETAILED_RUNS`` runs only the main ones."""
    prefix = f"{file_name(run.name)}-" if report.several else ""
    full = len(report.runs) <= MAX_DETAILED_RUNS
    found = [*_of_predictions(report, run, full), *(_of_training(report, run) if full else [])]
    return [drawing._replace(name=f"{prefix}{drawing.name}") for drawing in found]


def comparison_drawings(report: Report) -> list[Drawing]:
    """Figures of all runs together, seeds of one method as one; none for one run."""
    if not report.several:
        return []
    return [*_of_scores(report), *_utility(report), *_risk(report), *_learning(report), *_communication(report)]


def file_name(name: str) -> str:
    """A run's name as part of a file's name.

    Example:
        >>> file_name("FedPerl, 2 peers/seed 1")
        'FedPerl_2_peers_seed_1'
    """
    return re.sub(r"[^A-Za-z0-9.]+", "_", name).strip("_.") or "run"


def _of_predictions(report: Report, run: Run, full: bool) -> list[Drawing]:
    if run.tests.questions and not run.task.exclusive:
        return _of_findings(report, run)
    if not run.tests.predictions:
        return _of_counts(run)
    cases = joined(list(run.tests.predictions.values()))
    found = [
        *drawing_of(
            "confusion",
            confusion_figure(cases.confusion(), run.classes, run.origin.minimum),
            f"Confusion matrix of {len(cases.labels)} test images. Sensitivity: {_by_class(report, run, 'sensitivity')}",
            f"{called(cases, run.classes)} Rows are true classes, columns predictions; the shade is the share of a row.",
        ),
        *drawing_of(
            "roc",
            roc_figure(roc_curves(cases, run.classes), run.classes),
            f"ROC curves. Area: {_by_class(report, run, 'auroc')}",
            f"{extremes(report, run)} All sites' test images together; classes with too few cases are left out.",
        ),
        *drawing_of(
            "reliability",
            reliability_figure(cases),
            f"Reliability: expected calibration error {_confidence(report, run.name, 'ece')}, maximum "
            f"{_confidence(report, run.name, 'mce')}",
            f"{confidence_found(cases)} On the dotted line accuracy equals confidence. A dot's area is its number of "
            "images.",
        ),
    ]
    return [*found, *_more_of_predictions(report, run, cases)] if full else found


def _more_of_predictions(report: Report, run: Run, cases: Cases) -> list[Drawing]:
    sites = report.scores[run.name].by_site(METRIC)
    found = [
        *drawing_of(
            "precision_recall",
            precision_recall_figure(precision_recall_curves(cases, run.classes), run.classes),
            f"Precision and recall. Average precision: {_by_class(report, run, 'average_precision')}",
            "Precision depends on how common a class is among these images and differs where it is rarer or more common.",
        ),
        *drawing_of(
            "risk_coverage",
            risk_figure({run.name: risk_curve(cases)}, [run.name], constant=constant_accuracy(report, run)),
            f"Risk against coverage: area {_confidence(report, run.name, 'aurc')}, risk at full coverage "
            f"{_confidence(report, run.name, 'risk')}",
            "To the left, the least confident images are left to a physician: a good model's risk falls. The dotted line is "
            "always predicting the most frequent class.",
        ),
    ]
    if report.several:
        return found
    alt = "; ".join(f"{site} {format_estimate(estimate)}" for site, estimate in sites.items())
    figure = site_figure({run.name: sites}, report.sites, METRIC, constants(report), report.chance)
    words = "Each site's test images, with 95 % intervals. Grey bars: always predicting the site's most frequent class."
    return [*found, *drawing_of("sites", figure, alt, words)]


def _of_findings(report: Report, run: Run) -> list[Drawing]:
    """Curves of each finding, and the sites' macro AUROC."""
    together = dict(zip(run.classes, joined_questions(list(run.tests.questions.values())), strict=True))
    roc, recall = (
        {name: found[name] for name, one in together.items() if name in (found := curves(one, ("absent", name)))}
        for curves in (roc_curves, precision_recall_curves)
    )
    sites = report.scores[run.name].by_site(report.metric)
    return [
        *drawing_of(
            "roc",
            roc_figure(roc, run.classes, "ROC of each finding"),
            f"ROC curves. Area: {_by_class(report, run, 'auroc')}",
            f"{extremes(report, run)} All sites' test images together; findings with too few cases are left out.",
        ),
        *drawing_of(
            "precision_recall",
            precision_recall_figure(recall, run.classes),
            f"Precision and recall. Average precision: {_by_class(report, run, 'average_precision')}",
            "Precision depends on how common a finding is among these images.",
        ),
        *drawing_of(
            "sites",
            site_figure({run.name: sites}, report.sites, report.metric, {}, report.chance) if sites else None,
            "; ".join(f"{site} {format_estimate(estimate)}" for site, estimate in sites.items()),
            "Each site's test images, with 95 % intervals; mean over its findings. The dotted line is chance.",
        ),
    ]


def _of_counts(run: Run) -> list[Drawing]:
    """Curves from the sites' binned counts."""
    counts = sum_curves(list(run.tests.curves.values()), run.classes)
    roc = {name: roc_points(found) for name, found in counts.classes.items()}
    recall = {name: precision_recall_points(found) for name, found in counts.classes.items()}
    risk = risk_points(counts.reliability) if counts.reliability else None
    areas = {name: format_number(area_under(points)) for name, points in roc.items()}
    caption = f"Counts of {', '.join(run.tests.curves)}; each stands for several patients, so the curves are coarse."
    source = "from the sites' counts"
    return [
        *drawing_of(
            "roc", roc_figure(roc, run.classes, f"ROC {source}"), f"ROC curves. Area: {format_items(areas)}", caption
        ),
        *drawing_of(
            "precision_recall",
            precision_recall_figure(recall, run.classes, f"Precision and recall {source}"),
            f"Precision and recall of {', '.join(counts.classes)}",
            caption,
        ),
        *drawing_of(
            "reliability",
            binned_reliability_figure(counts.reliability),
            "Share of right predictions by confidence",
            caption,
        ),
        *drawing_of(
            "risk_coverage",
            risk_figure({"": risk}, [""], f"Risk and coverage {source}"),
            f"Risk at full coverage {format_number(float(risk.up[-1]) if risk else None)}",
            caption,
        ),
    ]


def _of_training(report: Report, run: Run) -> list[Drawing]:
    moved = run.log.traffic
    budgets = format_items({spent.site: format_number(spent.epsilon) for spent in run.origin.spent})
    found = drawing_of(
        "budget",
        budget_figure(run.origin.spent, report.sites),
        f"Epsilon spent: {budgets}",
        "The privacy loss of all releases of a site so far.",
    )
    if not report.several:
        found += drawing_of(
            "communication",
            traffic_figure({run.name: moved}),
            f"{format_bytes(moved.down_global)} of global models and {format_bytes(moved.down_extra)} of all else to the "
            f"sites, {format_bytes(moved.up)} from them",
            "Tensors only; what FLARE adds to a message is not counted.",
        )
    metric = report.metric if report.multi else METRIC
    return [*training_drawings(run.history, metric, report.sites), *found]


def _of_scores(report: Report) -> list[Drawing]:
    means = {name: mean for name in report.methods if (mean := over_seeds(report, name)) and mean.enough}
    tested = {name: found for name in report.methods if (found := site_estimates(report, name))}
    return [
        *drawing_of(
            "methods",
            method_figure(_of_seeds(report, means), means, report.metric, {"chance": report.chance}) if means else None,
            f"{SCORE_NAMES[report.metric]}: {'; '.join(f'{name} {format_estimate(mean)}' for name, mean in means.items())}",
            "Grey dots are seeds. Of three seeds or more the line is the interval of their mean, of one seed that of its "
            "test cases.",
        ),
        *drawing_of(
            "sites",
            site_figure(tested, report.sites, report.metric, constants(report), report.chance) if tested else None,
            f"{SCORE_NAMES[report.metric]} of each method at each site; the table below has the numbers",
            "A mark is the score of a method at a site, of several seeds their mean, the line its 95 % interval; the grey "
            "bar is always predicting the site's most frequent class, the dotted line is chance. "
            "Overlapping intervals do not mean that methods are equal: see the paired differences below.",
        ),
    ]


def _utility(report: Report) -> list[Drawing]:
    points = _utilities(report)
    units = sorted({point.unit for point in points if point.unit})
    note = "" if len(units) == 1 else f" Epsilons per {' and per '.join(units)} are guarantees of different kinds."
    return drawing_of(
        "utility_privacy",
        utility_figure(points, report.metric, report.chance),
        f"{SCORE_NAMES[report.metric]}: {'; '.join(map(_format_utility, points))}",
        f"The largest epsilon of a method's ledgers; without a ledger nothing is guaranteed.{note}",
    )


def _utilities(report: Report) -> list[Utility]:
    found = []
    for name, runs in report.methods.items():
        score, spent = over_seeds(report, name), [entry for run in runs for entry in run.origin.spent]
        worst = max((math.inf if entry.epsilon is None else entry.epsilon for entry in spent), default=math.inf)
        unit = spent[0].unit if math.isfinite(worst) else ""
        counts = spent or any(run.log.traffic.up for run in runs)  # where nothing leaves a site, privacy is no question
        if counts and score and score.enough:
            found.append(Utility(runs[0].log.method, unit, worst, score.value))
    return found


def _format_utility(point: Utility) -> str:
    budget = f"at epsilon {point.epsilon:.3g} per {point.unit}" if point.unit else "without a guarantee"
    return f"{point.method} {format_number(point.score)} {budget}"


def _risk(report: Report) -> list[Drawing]:
    together = {
        name: risk_curve(joined([cases for run in runs for cases in run.tests.predictions.values()]))
        for name, runs in report.methods.items()
        if any(run.tests.predictions for run in runs)
    }
    return drawing_of(
        "risk_coverage",
        risk_figure(together, list(report.methods), constant=constant_accuracy(report, report.runs[0])),
        f"Area under risk against coverage (lower is better): {format_items(_areas(report))}",
        "To the left, the least confident images are left to a physician: a good model's risk falls. Of several seeds all "
        "test images are taken together. The dotted line is always predicting the most frequent class.",
    )


def _learning(report: Report) -> list[Drawing]:
    curves = mean_curves({name: _curves_of(runs, report.metric) for name, runs in report.methods.items()})
    return drawing_of(
        "learning",
        learning_figure(curves, list(report.methods), report.metric, "Learning curves, mean over sites", report.chance),
        f"{SCORE_NAMES[report.metric]} on validation images over rounds",
        "Mean over sites and seeds that scored. Validation images chose the model, so this is not a result.",
    )


def _communication(report: Report) -> list[Drawing]:
    traffic = {
        name: Traffic(*(round(fmean(sizes)) for sizes in zip(*(run.log.traffic for run in runs), strict=True)))
        for name, runs in report.methods.items()
    }
    return drawing_of(
        "communication",
        traffic_figure(traffic),
        "; ".join(f"{name}: {format_bytes(sum(entry))}" for name, entry in traffic.items()),
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
        for site, curve in validation_curves(run.log.events, run.log.sites, metric).items()
    }


def _areas(report: Report) -> dict[str, str]:
    """Area under risk against coverage of each method, mean over its seeds."""
    found = {
        name: [
            pooled.confidence["aurc"]
            for run in runs
            if (pooled := report.scores[run.name].pooled) and pooled.confidence
        ]
        for name, runs in report.methods.items()
    }
    return {name: format_number(fmean(areas)) for name, areas in found.items() if areas}


def _by_class(report: Report, run: Run, key: str) -> str:
    pooled = report.scores[run.name].pooled
    scores = zip(run.classes, pooled.classes, strict=True) if pooled else ()
    return "; ".join(f"{name} {format_estimate(found[key])}" for name, found in scores if key in found)


def _confidence(report: Report, name: str, key: str) -> str:
    pooled = report.scores[name].pooled
    return format_number(pooled.confidence.get(key) if pooled else None)
