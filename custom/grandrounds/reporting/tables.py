"""Tables and figures of the page, scores as their cells, and the templates of pages.

The tables of scores are alike for a run and for a place that never took part: by group, by class, and at thresholds.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, NamedTuple

from grandrounds.evaluation.score import Score, ScoreSheet
from grandrounds.evaluation.within import CONFOUNDED

if TYPE_CHECKING:
    from jinja2 import Template

    from grandrounds.evaluation.clinical.thresholds import FixedPoint
    from grandrounds.evaluation.confidence import OperatingPoint

MISSING = "—"
"""In place of a value."""
MAX_NAMES = 6
SCORE_NAMES = {
    "log_likelihood": "log-likelihood",
    "accuracy": "accuracy",
    "accuracy_one_vs_rest": "accuracy, one against the rest",
    "auc_macro": "macro AUROC",
    "auc_within": "macro AUROC within sites",
    "auc_across": "macro AUROC pooled, of the classes and cases within sites",
    "auroc": "AUROC",
    "average_precision": "average precision",
    "balanced_accuracy": "balanced accuracy",
    "f1_macro": "macro F1",
    "f1_weighted": "weighted F1",
    "precision_macro": "macro precision",
    "precision_weighted": "weighted precision",
    "recall_weighted": "weighted recall",
}
CLASS_NAMES = {
    "sensitivity": "sensitivity",
    "specificity": "specificity",
    "precision": "precision",
    "f1": "F1",
    "auroc": "AUROC",
    "average_precision": "average precision",
    "balanced_accuracy": "balanced accuracy",
}
CONFIDENCE_NAMES = {
    "ece": "ECE",
    "mce": "MCE",
    "aurc": "AURC",
    "coverage_at_risk_0.05": "coverage at risk 0.05",
    "coverage_at_risk_0.1": "coverage at risk 0.1",
}
_MARKUP = re.compile(r"[\\`*_\[\]{}|~!#]")
PLURALS = {"class": "classes", "community": "communities"}


def format_number(value: float | None, digits: int = 2) -> str:
    """A number, or a dash.

    Example:
        >>> format_number(0.123), format_number(None), format_number(float("nan"))
        ('0.12', '—', '—')
    """
    return MISSING if value is None or math.isnan(value) else f"{value:z.{digits}f}"


def format_share(value: float) -> str:
    """A share in whole percent.

    Example:
        >>> format_share(0.254)
        '25 %'
    """
    return f"{value:.0%}".replace("%", " %")


def format_p(value: float) -> str:
    """A p-value; small ones are not zero.

    Example:
        >>> format_p(0.0421), format_p(1e-9), format_p(float("nan"))
        ('0.042', '< 0.001', '—')
    """
    if math.isnan(value):
        return MISSING
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def format_bytes(size: float) -> str:
    """A number of bytes.

    Example:
        >>> format_bytes(950), format_bytes(1_250_000), format_bytes(3.2e9)
        ('950 B', '1.2 MB', '3.2 GB')
    """
    for limit, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if size >= limit:
            return f"{size / limit:.1f} {unit}"
    return f"{size:.0f} B"


def pluralize(count: int, noun: str) -> str:
    """A number of things.

    Example:
        >>> pluralize(1, "site"), pluralize(10, "case"), pluralize(2, "class")
        ('1 site', '10 cases', '2 classes')
    """
    return f"{count} {noun if count == 1 else PLURALS.get(noun, f'{noun}s')}"


def format_items(values: Mapping[str, str]) -> str:
    """Names with their values.

    Example:
        >>> format_items({"nevus": "0.8", "melanoma": "0.7"})
        'nevus 0.8, melanoma 0.7'
    """
    return ", ".join(f"{name} {value}" for name, value in values.items())


def format_list(names: Sequence[str]) -> str:
    """Names with commas; of many the first and how many more.

    Example:
        >>> format_list(["a", "b"]), format_list(list("abcdefgh"))
        ('a, b', 'a, b, c, d, e, f and 2 more')
    """
    if len(names) <= MAX_NAMES:
        return ", ".join(names)
    return f"{', '.join(names[:MAX_NAMES])} and {len(names) - MAX_NAMES} more"


def plain_markdown(text: str) -> str:
    r"""A text that Markdown shows as it is, in one line: no markup, no HTML, no control characters.

    Example:
        >>> plain_markdown("<b>*new*</b>")
        '&lt;b&gt;\\*new\\*&lt;/b&gt;'
    """
    line = "".join(sign if sign.isprintable() else " " for sign in text)
    return escape(_MARKUP.sub(r"\\\g<0>", line), quote=False)


FEW = "*"
"""After a value that rests on fewer than ``MIN_CASES`` cases."""


COLUMN_PIXELS = 560


class Cell(NamedTuple):
    """A cell of a table: a value, its interval in smaller print, or (``missing``) why there is no value."""

    text: str
    interval: str = ""
    missing: bool = False

    @property
    def line(self) -> str:
        """The value with its interval behind it."""
        return f"{self.text} {self.interval}" if self.interval else self.text


class PageTable(NamedTuple):
    """A table of the page; its first columns are text, the others numbers.

    The last ``apart`` rows, such as means and references, stay below the others when a reader sorts it.
    """

    header: Sequence[str]
    rows: Sequence[Sequence[Cell | str]]
    caption: str
    text_columns: int = 1
    apart: int = 0

    @property
    def filled(self) -> PageTable:
        """The table without the columns in which no row has a value."""
        kept = [
            column
            for column in range(len(self.header))
            if not column or any(getattr(row[column], "text", row[column]) not in ("", MISSING) for row in self.rows)
        ]
        return self._replace(
            header=[self.header[column] for column in kept],
            rows=[[row[column] for column in kept] for row in self.rows],
            text_columns=sum(column < self.text_columns for column in kept),
        )


class PageFigure(NamedTuple):
    """A figure of the page: the picture as a ``data:`` address, its width in pixels, alternative text and caption.

    One that is wider than a column, with many small parts, has the whole width of the page.
    """

    source: str
    width: int
    alt: str
    caption: str

    @property
    def wide(self) -> bool:
        """Whether it has the whole width of the page."""
        return self.width > COLUMN_PIXELS


def page_template(name: str, package: str = "grandrounds.reporting") -> Template:
    """A template in the folder ``templates`` of a package; all text that it is given is escaped."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    loader = PackageLoader(package)
    return Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True).get_template(name)


def format_estimate(estimate: Score | None) -> str:
    """A score with its interval.

    Example:
        >>> format_estimate(Score(0.5, 0.4, 0.6, 50)), format_estimate(Score(1.0, 0.4, 1.0, 3))
        ('0.50 [0.40, 0.60]', '1.00* [0.40, 1.00]')
        >>> format_estimate(Score(0.5, 0.4, 0.6, 50, of="3 of 5 classes"))
        '0.50 (3 of 5 classes) [0.40, 0.60]'
        >>> from grandrounds.evaluation.score import no_score
        >>> format_estimate(no_score("no image of a class"))
        'no image of a class'
        >>> format_estimate(Score(1.0, 0.9982, 1.0, 2600))
        '1.000 [0.998, 1.000]'
    """
    return estimate_cell(estimate).line


def estimate_cell(estimate: Score | None) -> Cell:
    """A score and its interval as a cell of a table."""
    if estimate is None:
        return Cell(MISSING, missing=True)
    if not estimate.known:
        return Cell(estimate.reason or MISSING, missing=True)
    mark = f"{FEW if estimate.few else ''}{f' ({estimate.of})' if estimate.of else ''}"
    if math.isnan(estimate.low):
        return Cell(f"{estimate.value:.2f}{mark}")
    # An interval must not look like a point.
    same = f"{estimate.low:.2f}" == f"{estimate.high:.2f}" and estimate.low < estimate.high
    digits = 3 if same else 2
    low, high = f"{estimate.low:.{digits}f}", f"{estimate.high:.{digits}f}"
    if same and low == high:
        low, high = f"{math.floor(estimate.low * 1000) / 1000:.3f}", f"{math.ceil(estimate.high * 1000) / 1000:.3f}"
    return Cell(f"{estimate.value:.{digits}f}{mark}", f"[{low}, {high}]")


TABLE_SCORES = ("auc_macro", "balanced_accuracy", "accuracy", "f1_weighted", "f1_macro", "precision_weighted")
"""Scores over all classes; a table has those that the task defines."""
OF_WITHIN = (
    "Within sites only images of one site are compared with each other, so that knowing the site does not help. Each {noun} "
    "has the mean of the sites with images of both kinds, weighted by their cases of it; cases at other sites are lost. "
    "Pooled is of the same cases against the images of all sites; a difference above {confounded} is a sign of confounding: "
    "the model recognises the site, and the sites differ in how common the {noun} is. None of fewer than ten cases is here."
)
OF_CONFIDENCE = (
    "Calibration and triage: the probability of each image's most probable class, and whether the image is of it. A model "
    "may decide for another class; accuracy and sensitivity are of its decisions"
)
AT_THRESHOLD = ("sensitivity", "specificity", "precision")
LESIONS = {
    "ak": "actinic keratosis",
    "akiec": "actinic keratosis, Bowen's disease",
    "bcc": "basal cell carcinoma",
    "bkl": "benign keratosis",
    "df": "dermatofibroma",
    "mel": "melanoma",
    "nv": "nevus",
    "scc": "squamous cell carcinoma",
    "vasc": "vascular lesion",
}
"""What the classes of HAM10000 and the ISIC challenges stand for."""
Row = list[Cell | str]


def groups_table(
    what: str, groups: Mapping[str, ScoreSheet], others: Mapping[str, Mapping[str, Score | float]], caption: str
) -> PageTable:
    """Scores of groups of images, a row each, with the constant answer that each group's model must exceed.

    Args:
        what: the groups are.
        groups: scores by name of the group.
        others: further rows of scores alone, such as means and references.
        caption: of the table.
    """
    sheets = groups.values()
    names = _known(TABLE_SCORES, [sheet.scores for sheet in sheets])
    constant = ["always: accuracy", "always: balanced"] if any(sheet.majority for sheet in sheets) else []
    rows: list[Row] = []
    for name, sheet in groups.items():
        leading = [name, count_cell(sheet.images), count_cell(sheet.cases), *(_always(sheet) if constant else [])]
        rows.append([*leading, *(estimate_cell(sheet.best(score)) for score in names)])
    for name, scores in others.items():
        cells = [score_cell(scores.get(score)) for score in names]
        rows.append([name, "", "", *[""] * len(constant), *cells])
    header = [what, "images", "cases", *constant, *(SCORE_NAMES[name] for name in names)]
    return PageTable(header, rows, caption, apart=len(others))


def confidence_tables(what: str, groups: Mapping[str, ScoreSheet]) -> Iterator[PageTable]:
    """Calibration and triage of groups of images, a row each; nothing where no group has probabilities."""
    known = {name: sheet.confidence for name, sheet in groups.items() if sheet.confidence}
    rows = [[name, *(format_number(of.get(key)) for key in CONFIDENCE_NAMES)] for name, of in known.items()]
    if rows:
        yield PageTable([what, *CONFIDENCE_NAMES.values()], rows, OF_CONFIDENCE)


def class_titles(classes: Sequence[str]) -> dict[str, str]:
    """The classes as a reader sees them, by name; skin lesions with their full names, if all classes are some.

    Example:
        >>> class_titles(["mel", "nv"]), class_titles(["mel", "other"])
        ({'mel': 'mel (melanoma)', 'nv': 'nv (nevus)'}, {'mel': 'mel', 'other': 'other'})
    """
    lesions = all(name in LESIONS for name in classes)
    return {name: f"{name} ({LESIONS[name]})" if lesions else name for name in classes}


def class_table(noun: str, sheet: ScoreSheet, sites: Iterable[ScoreSheet], caption: str) -> PageTable:
    """Scores of each class, all images together; ``sites`` are those that the images are of."""
    known = _known(CLASS_NAMES, sheet.classes.values())
    of_sites, titles = list(sites), class_titles(list(sheet.classes))
    rows: list[Row] = []
    for name, scores in sheet.classes.items():
        at = sum(site.classes[name]["sensitivity"].known for site in of_sites)
        leading = [
            titles[name],
            count_cell(scores["sensitivity"].cases),
            str(at),
            format_number(sheet.shares.get(name)),
        ]
        rows.append([*leading, *(estimate_cell(scores[key]) if key in scores else MISSING for key in known)])
    return PageTable([noun, "cases", "sites", "share", *(CLASS_NAMES[key] for key in known)], rows, caption)


def within_table(noun: str, sheet: ScoreSheet) -> PageTable:
    """The area of each class within sites beside the pooled one, with the cases and sites that it rests on."""
    rows: list[Row] = [
        [
            class_titles(list(sheet.classes))[name],
            estimate_cell(one.score),
            format_number(one.across),
            f"{one.across - one.score.value:+z.2f}",
            count_cell(one.score.cases),
            count_cell(one.lost),
            str(one.sites),
        ]
        for name, one in sheet.within.items()
    ]
    header = [noun, "AUROC within sites", "pooled", "difference", "cases", "cases lost", "sites"]
    return PageTable(header, rows, OF_WITHIN.format(noun=noun, confounded=CONFOUNDED))


def operating_table(
    noun: str, points: Mapping[str, tuple[OperatingPoint | FixedPoint, Mapping[str, Score]]], caption: str
) -> PageTable:
    """Thresholds that were fixed on other images, by name, and their scores on test images."""
    known = _known(AT_THRESHOLD, [test for _, test in points.values()])
    rows: list[Row] = []
    for name, (point, test) in points.items():
        fixed = [f"{point.threshold:.3g}", format_number(point.sensitivity), format_number(point.specificity)]
        rows.append([name, *fixed, *(estimate_cell(test[key]) for key in known)])
    header = [noun, "threshold", "validation: sensitivity", "specificity", *(f"test: {key}" for key in known)]
    return PageTable(header, rows, caption)


def count_cell(count: int | None) -> str:
    """A number of images or cases, or a dash where it is not shown."""
    return MISSING if count is None else str(count)


def score_cell(score: Score | float | None) -> Cell | str:
    """A score, or a reference without an interval."""
    return estimate_cell(score) if isinstance(score, Score) else format_number(score)


def _known(names: Iterable[str], scores: Collection[Mapping[str, object]]) -> list[str]:
    """The scores that at least one group has."""
    return [name for name in names if any(name in group for group in scores)]


def _always(sheet: ScoreSheet) -> list[str]:
    if not sheet.always:
        return ["", MISSING]
    accuracy, balanced = sheet.always["accuracy"], sheet.always.get("balanced_accuracy")
    return [f"{accuracy:.2f} ({sheet.majority})", format_number(balanced)]
