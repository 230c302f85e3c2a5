"""The figures of a report, with alternative text and caption: of each run, and of all runs together."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean

import numpy as np

from grandrounds.evaluation.bootstrap import Cases, joined, joined_questions
from grandrounds.evaluation.curves.binned import SiteCurves, sum_curves
from grandrounds.evaluation.curves.points import area_under, precision_recall_points, risk_points, roc_points
from grandrounds.evaluation.history import Curves, validation_curves
from grandrounds.evaluation.score import ALWAYS, ScoreSheet
from grandrounds.federation.server.record import Traffic
from grandrounds.plotting import Drawing
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
from grandrounds.reporting.figures.methods import (
    Utility,
    mean_curves,
    method_figure,
    site_figure,
    traffic_figure,
    utility_figure,
)
from grandrounds.reporting.figures.runs import budget_figure, drawing_of, learning_figure, training_drawings
from grandrounds.reporting.format import SCORE_NAMES, format_bytes, format_items, format_number
from grandrounds.reporting.model import MAX_DETAILED_RUNS, Method, Report, ReportedRun
from grandrounds.reporting.parts import format_estimate
from grandrounds.reporting.run import Spent
from grandrounds.reporting.scores import RunScores


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
        f"{_confidence_gap(cases)} On the dotted line accuracy equals confidence. A dot's area is its number of images.",
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
    return [
        *drawing_of(
            "roc", roc_figure(roc, names, f"ROC {source}"), f"ROC curves. Area: {format_items(areas)}", caption
        ),
        *drawing_of(
            "precision_recall",
            precision_recall_figure(recall, names, f"Precision and recall {source}"),
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
    gap = float(cases.probabilities.max(axis=1).mean() - (cases.predicted == cases.labels).mean())
    word = "higher" if gap > 0 else "lower"
    return f"Confidence is on average {abs(gap):.2f} {word} than accuracy."


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
