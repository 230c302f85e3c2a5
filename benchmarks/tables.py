"""Results as Markdown tables; what was not measured is a dash."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from grandrounds.evaluation.confusion import confusion_scores

MISSING = "—"


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[object]], digits: int = 3) -> str:
    """A table; floating-point numbers are rounded to so many digits, NaN and None are a dash.

    Example:
        >>> print(markdown_table(["site", "F1"], [["site-1", 0.7468], ["site-2", float("nan")]]))
        | site | F1 |
        | --- | --- |
        | site-1 | 0.747 |
        | site-2 | — |
    """
    cells = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cell(value, digits) for value in row) + " |" for row in cells)


def format_interval(mean: float, low: float, high: float, digits: int = 3) -> str:
    """A mean with its confidence interval.

    Example:
        >>> format_interval(0.0118, -0.0018, 0.0254), format_interval(0.01, float("nan"), float("nan"))
        ('0.012 [-0.002, 0.025]', '0.010 [—, —]')
    """
    return f"{cell(mean, digits)} [{cell(low, digits)}, {cell(high, digits)}]"


def mean_and_spread(values: Sequence[float], digits: int = 3) -> str:
    """The mean over seeds with their standard deviation; of one seed the value alone, of none a dash.

    Example:
        >>> mean_and_spread([0.1, 0.2, 0.3]), mean_and_spread([0.1]), mean_and_spread([])
        ('0.200 ± 0.100', '0.100', '—')
    """
    if not len(values):
        return MISSING
    spread = f" ± {cell(float(np.std(values, ddof=1)), digits)}" if len(values) > 1 else ""
    return cell(float(np.mean(values)), digits) + spread


def reference_rows(
    true: Sequence[NDArray[np.integer]], classes: Sequence[str], metrics: Iterable[str]
) -> Iterator[list[object]]:
    """Rows of always predicting the most frequent class, and of guessing: a name, the seeds, and the metrics over seeds.

    ``true`` are the test images of each class, one array for each seed.

    Example:
        >>> rows = reference_rows([np.array([30, 10])], ["nevus", "melanoma"], ["accuracy", "balanced_accuracy"])
        >>> list(rows)
        [['always nevus', 1, '0.750', '0.500'], ['chance', 1, '0.500', '0.500']]
    """
    frequent = int(np.sum(true, axis=0).argmax())
    always = np.eye(len(classes))[frequent]
    for name, share in ((f"always {classes[frequent]}", always), ("chance", np.full(len(classes), 1 / len(classes)))):
        found = [confusion_scores(counts[:, None] * share) for counts in true]
        yield [name, len(true), *(mean_and_spread([float(one[metric]) for one in found]) for metric in metrics)]


def replace_section(text: str, name: str, content: str) -> str:
    r"""Replace the text between a document's two markers; the markers stay.

    Example:
        >>> replace_section("a <!-- x: begin --> old <!-- x: end --> b", "x", "new")
        'a <!-- x: begin -->\n\nnew\n\n<!-- x: end --> b'
    """
    before, begin, rest = text.partition(f"<!-- {name}: begin -->")
    _, end, after = rest.partition(f"<!-- {name}: end -->")
    if not end:
        raise ValueError(f"the section {name} has no end")
    return f"{before}{begin}\n\n{content}\n\n{end}{after}"


def cell(value: object, digits: int) -> str:
    if value is None:
        return MISSING
    if isinstance(value, (float, np.floating)):
        # "z": a small negative difference is not shown as minus zero.
        return MISSING if math.isnan(value) else f"{float(value):z.{digits}f}"
    return " ".join(str(value).split()).replace("|", "\\|")
