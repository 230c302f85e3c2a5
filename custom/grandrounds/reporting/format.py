"""Numbers as a reader meets them: with their interval, or with the reason why there is none."""

from __future__ import annotations

import math

from grandrounds.evaluation.estimates import Estimate
from grandrounds.reporting.html import Child, Html, tag

MISSING = "—"
SCORE_NAMES = {
    "accuracy": "accuracy",
    "accuracy_one_vs_rest": "accuracy, one against the rest",
    "auc_macro": "macro AUROC",
    "auroc": "AUROC",
    "auroc_macro": "macro AUROC",
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
}
SURENESS_NAMES = {
    "ece": "ECE",
    "mce": "MCE",
    "aurc": "AURC",
    "coverage_at_risk_0.1": "coverage at risk 0.1",
}


def estimate_words(estimate: Estimate | None) -> str:
    """A score with its interval.

    Example:
        >>> estimate_words(Estimate(0.5, 0.4, 0.6, 50)), estimate_words(Estimate(1.0, 1.0, 1.0, 3))
        ('0.50 [0.40, 0.60]', 'too few (3)')
        >>> estimate_words(Estimate(float("nan"), float("nan"), float("nan"), 0))
        'no case'
    """
    if estimate is None:
        return MISSING
    if not estimate.cases:
        return "no case"
    if not estimate.enough:
        return f"too few ({estimate.cases})"
    if math.isnan(estimate.value):
        return MISSING
    if math.isnan(estimate.low):
        return f"{estimate.value:.2f}"
    return f"{estimate.value:.2f} [{estimate.low:.2f}, {estimate.high:.2f}]"


def estimate_cell(estimate: Estimate | None) -> Child:
    """The same as a cell of a table: the interval is set smaller, what is missing is set pale."""
    text = estimate_words(estimate)
    value, bracket, rest = text.partition(" [")
    if bracket:
        return Html(tag("span", value) + tag("span", f" [{rest}", class_="ci"))
    return tag("span", text, class_="none") if estimate is None or not estimate.enough else text


def number_words(value: float | None, digits: int = 2) -> str:
    """A number, or a dash.

    Example:
        >>> number_words(0.123), number_words(None), number_words(float("nan"))
        ('0.12', '—', '—')
    """
    return MISSING if value is None or math.isnan(value) else f"{value:z.{digits}f}"


def p_words(value: float) -> str:
    """A p-value; small ones are not zero.

    Example:
        >>> p_words(0.0421), p_words(1e-9), p_words(float("nan"))
        ('0.042', '< 0.001', '—')
    """
    if math.isnan(value):
        return MISSING
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def bytes_words(size: float) -> str:
    """A number of bytes.

    Example:
        >>> bytes_words(950), bytes_words(1_250_000), bytes_words(3.2e9)
        ('950 B', '1.2 MB', '3.2 GB')
    """
    for limit, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if size >= limit:
            return f"{size / limit:.1f} {unit}"
    return f"{size:.0f} B"


def counted(count: int, thing: str) -> str:
    """A number of things.

    Example:
        >>> counted(1, "site"), counted(10, "case")
        ('1 site', '10 cases')
    """
    return f"{count} {thing}{'' if count == 1 else 's'}"
