"""Which figures a run has in a report, and what each says to those who cannot see it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from grandrounds.evaluation.cases import Cases, joined
from grandrounds.evaluation.curves import SiteCurve, area, curves_together, risk_points, roc_points
from grandrounds.reporting.comparison import METRIC
from grandrounds.reporting.figures.comparison import site_figure, traffic_figure
from grandrounds.reporting.figures.curves import (
    confusion_figure,
    precision_recall_figure,
    reliability_figure,
    risk_figure,
    roc_figure,
    summed_precision_recall_figure,
    summed_reliability_figure,
    summed_risk_figure,
    summed_roc_figure,
)
from grandrounds.reporting.figures.style import Drawing
from grandrounds.reporting.figures.training import budget_figure, learning_figure, validation_curves
from grandrounds.reporting.format import SCORE_NAMES, bytes_words, estimate_words, number_words
from grandrounds.reporting.model import MAX_DETAILED_RUNS, Report, moved
from grandrounds.reporting.run import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OF_METHODS: Mapping[str, tuple[str, str]] = {
    "peer_frequency": ("Peer frequency", "Rows choose, columns are chosen as peers; lines divide communities."),
    "similarity": ("Similarity of models", "How alike the sites' models are after some rounds, and on average."),
    "pseudo_labels": (
        "Pseudo-labels",
        "How many unlabelled images were used, and how many of those labels are right where the truth is known.",
    ),
    "relation": (
        "Relation matrices of sites with labels and of sites without, and their difference",
        "A row is the mean softened prediction for a class's images; grey rows are not known. The closer the two, the more "
        "alike the sites see the classes.",
    ),
    "soft_labels": (
        "Entropy of the soft labels over rounds",
        "How undecided the mean of the sites' predictions for the public images is. At the dotted line it says nothing.",
    ),
    "traffic": (
        "Megabytes that have travelled by each round",
        "Tensors of all sites so far; what FLARE adds to a message is not counted.",
    ),
}
"""Alternative text and caption of the figures that are drawn of a run's events."""

OfMethod = Callable[[Run], Mapping[str, "Figure"]]
"""Figures that a method's record has beyond those of all runs, by name."""


def run_drawings(report: Report, run: Run, of_method: OfMethod) -> list[Drawing]:
    """Figures of one run; with more than ``MAX_DETAILED_RUNS`` runs only the main ones."""
    prefix = "" if not report.several else f"{_slug(run.name)}-"
    full = len(report.runs) <= MAX_DETAILED_RUNS
    found = [*_of_predictions(report, run, full), *(_of_course(report, run, of_method) if full else [])]
    return [drawing._replace(name=f"{prefix}{drawing.name}") for drawing in found if drawing]


def _of_predictions(report: Report, run: Run, full: bool) -> list[Drawing | None]:
    if report.scores[run.name].pooled is None:
        return _of_site_curves(run)
    cases = joined(list(run.places.values()))
    found = [
        drawing_or_none("confusion", confusion_figure(cases.confusion(), run.classes),
                 f"Confusion matrix of {len(cases.labels)} test images. "
                 f"Sensitivity: {_by_class(report, run, 'sensitivity')}",
                 "Rows are true classes, columns predictions; the shade is the share of a row."),
        drawing_or_none("roc", roc_figure(cases, run.classes), f"ROC curves. Area: {_by_class(report, run, 'auroc')}",
                 "All sites' test images together; classes with too few cases are left out."),
        drawing_or_none("reliability", reliability_figure(cases),
                 f"Reliability: expected calibration error {_sureness(report, run.name, 'ece')}, maximum "
                 f"{_sureness(report, run.name, 'mce')}",
                 "On the dotted line the model is right as often as it is sure. A dot's area is its number of images."),
    ]  # fmt: skip
    return [*found, *_more_of_predictions(report, run, cases)] if full else found


def _of_site_curves(run: Run) -> list[Drawing | None]:
    """Curves of the counts that sites have let out."""
    told = curves_together(list(run.curves.values()), run.classes)
    areas = {name: number_words(area(roc_points(curve))) for name, curve in told.classes.items()}
    caption = f"Counts of {', '.join(run.curves)}; each stands for several patients, so the curves are coarse."
    wrong = f"Risk at full coverage {number_words(_share_wrong(told.reliability))}"
    return [
        drawing_or_none("roc", summed_roc_figure(told.classes, run.classes), f"ROC curves. Area: {listed(areas)}", caption),
        drawing_or_none("precision_recall", summed_precision_recall_figure(told.classes, run.classes),
                 f"Precision and recall of {', '.join(told.classes)}", caption),
        drawing_or_none("reliability", summed_reliability_figure(told.reliability),
                 "Share of right predictions by confidence", caption),
        drawing_or_none("risk_coverage", summed_risk_figure(told.reliability), wrong, caption),
    ]  # fmt: skip


def _share_wrong(sureness: SiteCurve | None) -> float | None:
    return float(risk_points(sureness).risk[-1]) if sureness else None


def _more_of_predictions(report: Report, run: Run, cases: Cases) -> list[Drawing | None]:
    sites = report.scores[run.name].by_site(METRIC)
    return [
        drawing_or_none("precision_recall", precision_recall_figure(cases, run.classes),
                 f"Precision and recall. Average precision: {_by_class(report, run, 'average_precision')}",
                 "Precision depends on how common a class is among these images: elsewhere it is another."),
        drawing_or_none("risk_coverage", risk_figure({run.name: cases}, [run.name]),
                 f"Risk against coverage: area {_sureness(report, run.name, 'aurc')}, risk at full coverage "
                 f"{_sureness(report, run.name, 'risk')}",
                 "Going left, the least sure images are left to a physician: a good model's risk falls."),
        None if report.several else drawing_or_none("sites", site_figure({run.name: sites}, report.sites, METRIC),
                 "; ".join(f"{site} {estimate_words(estimate)}" for site, estimate in sites.items()),
                 "Each site's test images, with 95 % intervals."),
    ]  # fmt: skip


def _of_course(report: Report, run: Run, of_method: OfMethod) -> list[Drawing | None]:
    curves = validation_curves(run.events, run.sites, METRIC)
    last = {site: number_words(curve[max(curve)]) for site, curve in curves.items()}
    found = [
        drawing_or_none("learning", learning_figure(curves, report.sites, METRIC),
                 f"{SCORE_NAMES[METRIC]} on validation images, last round: {listed(last)}",
                 "Each site's validation images; they chose the model, so this is no result."),
        None if report.several else drawing_or_none("communication", traffic_figure({run.name: moved(run)}),
                 f"{bytes_words(moved(run).down_global)} of global models and {bytes_words(moved(run).down_extra)} of all "
                 f"else to the sites, {bytes_words(moved(run).up)} from them",
                 "Tensors only; what FLARE adds to a message is not counted."),
        drawing_or_none("budget", budget_figure(run.spent, report.sites),
                 f"Epsilon spent: {listed({spent.site: number_words(spent.epsilon) for spent in run.spent})}",
                 "What all releases of a site so far amount to together."),
    ]  # fmt: skip
    pictures = of_method(run)
    return [
        *found,
        *(drawing_or_none(name, pictures[name], *words) for name, words in OF_METHODS.items() if name in pictures),
    ]


def drawing_or_none(name: str, figure: Figure | None, alt: str, caption: str) -> Drawing | None:
    """A figure with its words, where there is something to draw."""
    return None if figure is None else Drawing(name, figure, alt, caption)


def _by_class(report: Report, run: Run, key: str) -> str:
    pooled = report.scores[run.name].pooled
    scores = zip(run.classes, pooled.classes, strict=True) if pooled else ()
    return "; ".join(f"{name} {estimate_words(found[key])}" for name, found in scores if key in found)


def _sureness(report: Report, name: str, key: str) -> str:
    pooled = report.scores[name].pooled
    return number_words(pooled.sureness.get(key) if pooled else None)


def listed(values: Mapping[str, str]) -> str:
    """Names and what belongs to them.

    Example:
        >>> listed({"nevus": "0.8", "melanoma": "0.7"})
        'nevus 0.8, melanoma 0.7'
    """
    return ", ".join(f"{name} {value}" for name, value in values.items())


def _slug(name: str) -> str:
    """A name as part of a file's name.

    Example:
        >>> _slug("FedPerl, 2 peers/seed 1")
        'FedPerl_2_peers_seed_1'
    """
    return re.sub(r"[^A-Za-z0-9.]+", "_", name).strip("_.") or "run"


def unique_names(names: Sequence[str]) -> None:
    """Refuse names whose files would overwrite each other.

    Raises:
        ConfigurationError: naming two of them.
    """
    from grandrounds.errors import ConfigurationError

    seen: dict[str, str] = {}
    for name in names:
        earlier = seen.setdefault(_slug(name).casefold(), name)
        if earlier != name:
            raise ConfigurationError(
                f"the runs {earlier!r} and {name!r} would have the same files; name them otherwise"
            )
