"""The section of a report on a place that never took part: tables and figures from the result of its evaluation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, NamedTuple

from grandrounds.evaluation.clinical.results import Adapted, Calibration, GroupResult, Recalibrated
from grandrounds.evaluation.clinical.suppression import count_text
from grandrounds.evaluation.clinical.thresholds import DecisionCurve
from grandrounds.evaluation.curves.binned import CurveCounts
from grandrounds.evaluation.curves.points import roc_points
from grandrounds.evaluation.score import Score
from grandrounds.evaluation.within import WITHIN
from grandrounds.plotting import (
    BLUE,
    GREY,
    INK,
    PALE,
    SMALL_SIZE,
    VERMILION,
    Drawing,
    draw_legend,
    label_axes,
    new_axes,
)
from grandrounds.reporting.external.result import Appearance, ExternalResult
from grandrounds.reporting.figures.runs import drawing_of
from grandrounds.reporting.tables import (
    MISSING,
    Cell,
    PageFigure,
    PageTable,
    class_table,
    confidence_tables,
    estimate_cell,
    format_estimate,
    format_list,
    groups_table,
    operating_table,
    within_table,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure


CALIBRATION_NAMES = {
    "slope": "calibration slope (1 is calibrated)",
    "intercept": "calibration intercept (0 is calibrated)",
    "ece": "calibration error of this probability, ten bins",
    "brier": "Brier score",
}


class ExternalSection(NamedTuple):
    """One place: its name, a line of facts, caveats, tables and figures."""

    name: str
    note: str
    caveats: Sequence[str]
    tables: Sequence[PageTable]
    figures: Sequence[PageFigure]


def external_section(result: ExternalResult, figures: Sequence[PageFigure]) -> ExternalSection:
    """The section of one place."""
    digests = ", ".join(f"{name} {digest[:12]}" for name, digest in result.model.sha256.items())
    note = (
        f"Model of the run {result.model.run} ({result.model.method}), tested on {result.model.date[:10]} with Grand Rounds "
        f"{result.model.version}. SHA-256: {digests}. Command: {result.model.command}"
    )
    return ExternalSection(result.place, note, result.caveats, tables_of(result), figures)


def tables_of(result: ExternalResult) -> list[PageTable]:
    """All tables of one place."""
    pooled, group = result.scores.pooled, result.group
    tables = [_images_table(result)]
    if result.appearance and result.appearance.figures:
        tables.append(_appearance_table(result.appearance))
    if pooled:
        several = result.scores.sites if len(result.scores.sites) > 1 else {}
        groups = {"the model": pooled, **{f"site {name}": sheet for name, sheet in several.items()}}
        together = f"Scores of all {result.tested.labels} together, with 95 % intervals, and those of a constant answer"
        within = {"within sites": {"auc_macro": pooled.best(WITHIN)}} if pooled.within else {}
        tables.append(groups_table(result.place, groups, {**within, **pooled.references}, together))
        tables += confidence_tables(result.place, groups)
        each = f"Each {result.tested.noun} against all others, with 95 % intervals"
        tables.append(class_table(result.tested.noun, pooled, result.scores.sites.values(), each))
        tables += [within_table(result.tested.noun, pooled)] if pooled.within else []
    if result.adapted:
        tables += _adaptation_tables(result.adapted)
    if not group:
        return tables
    tables.append(_group_table(group))
    if group.operating:
        fixed, scores = group.operating.fixed, group.operating
        test = {"sensitivity": scores.sensitivity, "specificity": scores.specificity}
        points = {group.positive: (fixed, test)}
        tables.append(operating_table("positive group", points, f"Operating point, from {fixed.source}"))
    if group.recalibration:
        tables.append(_recalibration_table(group.positive, group.recalibration))
    return [*tables, *([_subgroup_table(result)] if result.subgroups else [])]


def drawings_of(result: ExternalResult) -> list[Drawing]:
    """ROC curve, reliability and net benefit of the positive group, as far as there are enough cases."""
    group = result.group
    if not group:
        return []
    drawings: list[Drawing] = []
    if group.roc:
        drawings += _roc_drawing(group)
    if group.reliability and group.calibration:
        calibration = group.calibration
        drawings += drawing_of(
            "reliability",
            _calibration_figure(group.reliability, group.positive),
            f"Reliability of the probability of {group.positive}: slope {format_estimate(calibration.slope)}, intercept "
            f"{format_estimate(calibration.intercept)}",
            f"{calibration.finding} On the dotted line risks are as often right as they say.",
        )
    if group.decision:
        benefit = _benefit(group.decision)
        drawings += drawing_of(
            "net_benefit",
            _decision_figure(group.decision, group.positive),
            f"Net benefit of calling {group.positive}. {benefit}",
            f"{benefit} A threshold of t weighs one false alarm as t / (1 - t) missed cases, at the prevalence of this "
            f"place ({group.prevalence:.1%}).",
        )
    return drawings


def _roc_drawing(group: GroupResult) -> list[Drawing]:
    point, area = group.operating, format_estimate(group.auroc)
    known = point and point.specificity.enough and point.sensitivity.enough
    cross, phrase = None, ""
    if point and known:
        cross = point.specificity.value, point.sensitivity.value
        phrase = f"; at the operating point sensitivity {cross[1]:.2f}, specificity {cross[0]:.2f}"
    where = " The cross is the operating point, fixed on the training sites' validation images." if point else ""
    return drawing_of(
        "roc",
        _roc_figure(group.roc, cross) if group.roc else None,
        f"ROC curve of {group.positive}: area {area}{phrase}",
        f"{group.positive} against all other classes: area {area}. {_against_chance(group.auroc)}{where}",
    )


def _images_table(result: ExternalResult) -> PageTable:
    minimum, total = result.tested.minimum, result.tested.images
    shown = [
        [name, count_text(count, minimum), f"{count / total:.1%}" if count is not None and total else MISSING]
        for name, count in result.tested.classes.items()
    ]
    counted, cases = (f"fewer than {minimum}" if one is None else str(one) for one in (total, result.tested.cases))
    of_cases = "" if result.tested.case == "image" else f" of {cases} cases ({result.tested.case})"
    unreadable = f"; {result.tested.unreadable} cannot be read and are left out" if result.tested.unreadable else ""
    unknown = f". {result.appearance.finding}" if result.appearance and result.appearance.unavailable else ""
    caption = f"{result.place}: {counted} test images{of_cases} by class{unreadable}{unknown}"
    return PageTable([result.tested.noun, "images", "prevalence"], shown, caption)


def _appearance_table(appearance: Appearance) -> PageTable:
    rows = [[figure.name, *figure.shown, f"{figure.deviations:+.1f}"] for figure in appearance.figures]
    header = ["figure", "here", "in training", "difference in deviations of the training images"]
    return PageTable(header, rows, f"Means over images, without labels. {appearance.finding}")


def _group_table(group: GroupResult) -> PageTable:
    counts = f"{count_text(group.images.positive)} and {count_text(group.images.other)}"
    rows: list[list[Cell | str]] = [["images, positive and other", counts], ["AUROC", estimate_cell(group.auroc)]]
    for number, values in enumerate(group.operating.at_prevalence if group.operating else ()):
        at = f"at a prevalence of {values.prevalence:.1%}{' (this place)' if number == 0 else ''}"
        rows.append([f"positive predictive value {at}", estimate_cell(values.ppv)])
        rows.append([f"negative predictive value {at}", estimate_cell(values.npv)])
    if group.calibration:
        rows += _calibration_rows(group.calibration)
    members = f" ({', '.join(group.classes)})" if group.classes != (group.positive,) else ""
    return PageTable(["", "value"], rows, f"Positive group {group.positive}{members} against all others")


def _calibration_rows(*calibrations: Calibration) -> list[list[Cell | str]]:
    """A row for each measure, a column for each calibration."""
    return [
        [CALIBRATION_NAMES[one.name], *(estimate_cell(getattr(calibration, one.name)) for calibration in calibrations)]
        for one in fields(Calibration)
    ]


def _recalibration_table(positive: str, fit: Recalibrated) -> PageTable:
    caption = (
        f"Recalibration fitted on {fit.share:.0%} of the cases drawn at random ({fit.fitted_images} images): "
        f"intercept {fit.intercept:.2f}, temperature {fit.temperature:.2f}; the columns are of the other "
        f"{fit.tested_images} images. AUROC does not change"
    )
    return PageTable([positive, "before", "after"], _calibration_rows(fit.before, fit.after), caption)


def _adaptation_tables(adapted: Adapted) -> Iterator[PageTable]:
    without = {None: ", without the images whose labels were used", 0: ""}
    named = without.get(adapted.fitted, f", without the {adapted.fitted} images whose labels were used")
    caption = f"Adapted to this place: {adapted.how}. Scores of all images together{named}, with 95 % intervals"
    both = {"as it is": adapted.before, "adapted": adapted.after}
    yield groups_table("model", both, {}, caption)
    yield from confidence_tables("model", both)


def _subgroup_table(result: ExternalResult) -> PageTable:
    rows: list[list[Cell | str]] = [
        [
            subgroup.column,
            subgroup.value,
            *(count_text(count, result.tested.minimum) for count in (subgroup.positive, subgroup.other)),
            *(estimate_cell(score) for score in (subgroup.auroc, subgroup.sensitivity, subgroup.specificity)),
        ]
        for subgroup in result.subgroups
    ]
    header = ["column", "subgroup", "positive", "other", "AUROC", "sensitivity", "specificity"]
    caption = (
        f"Subgroups, {result.group.positive if result.group else ''} against all others. There are {len(rows)} of them and "
        "intervals are not adjusted: a difference between two is a question, not a finding"
    )
    return PageTable(header, rows, caption, text_columns=2)


def _against_chance(auroc: Score | None) -> str:
    if auroc and auroc.high < 0.5:
        return "The interval is below 0.5: the model is worse than chance here, and labels may be exchanged."
    if auroc is None or not auroc.low > 0.5:
        return "The interval includes 0.5: it is not shown that the model is better than chance here."
    return "The interval is above 0.5, the area of chance."


def _benefit(decision: DecisionCurve) -> str:
    useful = [f"{threshold:.0%}" for threshold in decision.useful]
    if not useful:
        return "At no threshold is the model's interval above both calling all images positive and calling none."
    return f"At thresholds of {format_list(useful)} the model's interval is above calling all images positive, or none."


def _roc_figure(counts: CurveCounts, point: tuple[float, float] | None) -> Figure:
    """The ROC curve at the bins' edges, chance, and the operating point (specificity, sensitivity) if there is one."""
    figure, axes = new_axes()
    curve = roc_points(counts)
    axes.plot([0, 1], [0, 1], color=GREY, linewidth=1, linestyle=":", label="chance")
    axes.plot(curve.across, curve.up, color=BLUE, marker="o", markersize=3, linewidth=1.6, label="model")
    if point:
        axes.plot(1 - point[0], point[1], "X", color=VERMILION, markersize=10, label="operating point")
    axes.set_xlim(-0.02, 1.02)
    axes.set_ylim(-0.02, 1.02)
    label_axes(axes, "1 - specificity", "sensitivity", "ROC of the positive group")
    draw_legend(axes, "lower right")
    return figure


def _calibration_figure(counts: CurveCounts, name: str) -> Figure:
    """The share of positive cases in each bin of the probability, at its centre; a dot's area is its number of cases."""
    figure, axes = new_axes()
    together = counts.positives + counts.negatives
    kept = together > 0
    centres = ((counts.edges[1:] + counts.edges[:-1]) / 2)[kept]
    shares = (counts.positives[kept] / together[kept]).tolist()
    axes.plot([0, 1], [0, 1], color=GREY, linewidth=1, linestyle=":")
    axes.hlines(shares, counts.edges[:-1][kept], counts.edges[1:][kept], color=PALE, linewidth=3)
    sizes = 20 + 300 * together[kept] / together.sum()
    axes.scatter(centres, shares, s=sizes, color=BLUE, edgecolors=INK, linewidths=0.6, zorder=3)
    axes.text(0.03, 0.95, "risk too low", fontsize=SMALL_SIZE, color=GREY, va="top")
    axes.text(0.97, 0.05, "risk too high", fontsize=SMALL_SIZE, color=GREY, ha="right")
    axes.set_xlim(0, 1.02)
    axes.set_ylim(0, 1.02)
    label_axes(axes, f"probability of {name}", "share that is positive", "Reliability of the positive group")
    return figure


def _decision_figure(decision: DecisionCurve, name: str) -> Figure:
    """Net benefit over thresholds with its interval, beside calling all images positive, and none."""
    figure, axes = new_axes(left=0.8)
    across, everybody = decision.thresholds, decision.treat_all
    axes.fill_between(across, decision.low, decision.high, color=BLUE, alpha=0.18, linewidth=0)
    axes.plot(across, decision.model, color=BLUE, marker="o", markersize=3, linewidth=1.6, label="model")
    axes.plot(across, everybody, color=VERMILION, linestyle="--", linewidth=1.3, label="call all positive")
    axes.axhline(0, color=INK, linewidth=1, linestyle=":", label="call none positive")
    top = max(decision.high.max(), everybody.max(), 0.01)
    axes.set_ylim(max(decision.low.min(), -top), 1.15 * top)
    label_axes(axes, f"threshold for {name}", "net benefit per image", "Net benefit, 95 % interval")
    draw_legend(axes, "upper right")
    return figure
