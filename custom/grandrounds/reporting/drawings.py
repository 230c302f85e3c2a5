"""Which figures a report has, and what each says to those who cannot see it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from grandrounds.evaluation.cases import joined
from grandrounds.reporting.comparison import METRIC
from grandrounds.reporting.content import Report, headline, moved
from grandrounds.reporting.course_figures import (
    budget_figure,
    learning_figure,
    matrix_figure,
    mean_learning_figure,
    site_figure,
    traffic_figure,
    validation_curves,
)
from grandrounds.reporting.curve_figures import (
    confusion_figure,
    precision_recall_figure,
    reliability_figure,
    risk_figure,
    roc_figure,
)
from grandrounds.reporting.rendering import Drawing
from grandrounds.reporting.run import Run
from grandrounds.reporting.words import SCORE_NAMES, bytes_words, estimate_words, number_words

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_DETAILED_RUNS = 4

OfMethod = Callable[[Run], Mapping[str, "Figure"]]
"""Figures that a method's record has beyond those of all runs, by name."""


def shared_drawings(report: Report) -> list[Drawing]:
    """Figures of all runs together; none for one run."""
    if not report.several:
        return []
    names = [run.name for run in report.runs]
    words = SCORE_NAMES[METRIC]
    means = {name: headline(report.scores[name]) for name in names}
    told = "; ".join(f"{name} {estimate_words(estimate)}" for name, estimate in means.items() if estimate)
    tested = {name: report.scores[name] for name in names if report.scores[name].sites}
    together = {run.name: joined(list(run.places.values())) for run in report.runs if run.places}
    areas = {name: _sureness(report, name, "aurc") for name in together}
    curves = {run.name: validation_curves(run, METRIC) for run in report.runs}
    found = [
        _drawing("sites", site_figure(tested, report.sites, METRIC) if tested else None, f"{words}, mean over sites: {told}",
                 "A mark is the score of a method at a site, the line its 95 % interval. Overlapping intervals do not mean "
                 "that methods are equal: the paired differences below say more."),
        _drawing("risk_coverage", risk_figure(together, names),
                 f"Area under risk against coverage (lower is better): {_listed(areas)}",
                 "Going left, the least sure images are left to a physician: a good model's risk falls."),
        _drawing("learning", mean_learning_figure(curves, names, METRIC), f"{words} on validation images over rounds",
                 "Mean over the sites that scored; validation images chose the model, so this is no result."),
        _drawing("communication", traffic_figure({run.name: run for run in report.runs}),
                 "; ".join(f"{run.name}: {bytes_words(sum(moved(run)))}" for run in report.runs),
                 "Tensors only; what FLARE adds to a message is not counted."),
    ]  # fmt: skip
    return [drawing for drawing in found if drawing]


def run_drawings(report: Report, run: Run, of_method: OfMethod) -> list[Drawing]:
    """Figures of one run; with more than ``MOST_DETAILED_RUNS`` runs only the main ones."""
    prefix = "" if not report.several else f"{_slug(run.name)}-"
    full = len(report.runs) <= MOST_DETAILED_RUNS
    found = [*_of_predictions(report, run, full), *(_of_course(report, run, of_method) if full else [])]
    return [drawing._replace(name=f"{prefix}{drawing.name}") for drawing in found if drawing]


def _of_predictions(report: Report, run: Run, full: bool) -> list[Drawing | None]:
    scores = report.scores[run.name]
    if scores.pooled is None:
        return []
    cases = joined(list(run.places.values()))
    classes = {
        key: "; ".join(
            f"{name} {estimate_words(found[key])}" for name, found in zip(run.classes, scores.pooled.classes, strict=True)
            if key in found
        )
        for key in ("auroc", "average_precision", "sensitivity")
    }  # fmt: skip
    found = [
        _drawing("confusion", confusion_figure(cases.confusion(), run.classes),
                 f"Confusion matrix of {len(cases.labels)} test images. Sensitivity: {classes['sensitivity']}",
                 "Rows are true classes, columns predictions; the shade is the share of a row."),
        _drawing("roc", roc_figure(cases, run.classes), f"ROC curves. Area: {classes['auroc']}",
                 "All sites' test images together; classes with too few cases are left out."),
        _drawing("reliability", reliability_figure(cases),
                 f"Reliability: expected calibration error {_sureness(report, run.name, 'ece')}, maximum "
                 f"{_sureness(report, run.name, 'mce')}",
                 "On the dotted line the model is right as often as it is sure. A dot's area is its number of images."),
    ]  # fmt: skip
    if not full:
        return found
    return [
        *found,
        _drawing("precision_recall", precision_recall_figure(cases, run.classes),
                 f"Precision and recall. Average precision: {classes['average_precision']}",
                 "Precision depends on how common a class is among these images: elsewhere it is another."),
        _drawing("risk_coverage", risk_figure({run.name: cases}, [run.name]),
                 f"Risk against coverage: area {_sureness(report, run.name, 'aurc')}, risk at full coverage "
                 f"{_sureness(report, run.name, 'risk')}",
                 "Going left, the least sure images are left to a physician: a good model's risk falls."),
        None if report.several else _drawing("sites", site_figure({run.name: scores}, report.sites, METRIC),
                 "; ".join(f"{site} {estimate_words(place.scores[METRIC])}" for site, place in scores.sites.items()),
                 "Each site's test images, with 95 % intervals."),
    ]  # fmt: skip


def _of_course(report: Report, run: Run, of_method: OfMethod) -> list[Drawing | None]:
    curves = validation_curves(run, METRIC)
    last = {site: number_words(curve[max(curve)]) for site, curve in curves.items()}
    found = [
        _drawing("learning", learning_figure(curves, report.sites, METRIC),
                 f"{SCORE_NAMES[METRIC]} on validation images, last round: {_listed(last)}",
                 "Each site's validation images; they chose the model, so this is no result."),
        None if report.several else _drawing("communication", traffic_figure({run.name: run}),
                 f"{bytes_words(moved(run).down_global)} of global models and {bytes_words(moved(run).down_extra)} of all "
                 f"else to the sites, {bytes_words(moved(run).up)} from them",
                 "Tensors only; what FLARE adds to a message is not counted."),
        _drawing("budget", budget_figure(run.spent, report.sites),
                 f"Epsilon spent: {_listed({spent.site: number_words(spent.epsilon) for spent in run.spent})}",
                 "What all releases of a site so far amount to together."),
        _relation(run),
    ]  # fmt: skip
    named = {
        "peer_frequency": ("Peer frequency", "Rows choose, columns are chosen as peers; lines divide communities."),
        "similarity": ("Similarity of models", "How alike the sites' models are after some rounds, and on average."),
        "pseudo_labels": ("Pseudo-labels", "How many unlabelled images were used, and how many of those labels are right "
                          "where the truth is known."),
    }  # fmt: skip
    pictures = of_method(run)
    return [*found, *(_drawing(name, pictures[name], *words) for name, words in named.items() if name in pictures)]


def _relation(run: Run) -> Drawing | None:
    """The relation matrix that FedIRM's sites were sent last."""
    known = [event for event in run.events if event["event"] == "relation" and event.get("matrix")]
    if not known:
        return None
    last = known[-1]
    matrix = np.array(last["matrix"], dtype=np.float64)
    support = np.array(last.get("support", []), dtype=np.float64)
    if support.shape == (len(matrix),):
        matrix[support == 0] = np.nan
    figure = matrix_figure(matrix, run.classes, f"Relation of classes, round {last['round']}")
    diagonal = {name: number_words(value) for name, value in zip(run.classes, np.diag(matrix).tolist(), strict=True)}
    return Drawing(
        "relation",
        figure,
        f"Relation matrix after round {last['round']}; on its diagonal: {_listed(diagonal)}",
        "A row is the mean softened prediction for a class's images at sites with labels; grey rows are not known.",
    )


def _drawing(name: str, figure: Figure | None, alt: str, caption: str) -> Drawing | None:
    return None if figure is None else Drawing(name, figure, alt, caption)


def _sureness(report: Report, name: str, key: str) -> str:
    pooled = report.scores[name].pooled
    return number_words(pooled.sureness.get(key) if pooled else None)


def _listed(values: Mapping[str, str]) -> str:
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
