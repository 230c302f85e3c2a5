"""Numbers and lists as text, and the names of scores."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from html import escape

MISSING = "—"
"""In place of a value."""
MAX_NAMES = 6
SCORE_NAMES = {
    "log_likelihood": "log-likelihood",
    "accuracy": "accuracy",
    "accuracy_one_vs_rest": "accuracy, one against the rest",
    "auc_macro": "macro AUROC",
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
