"""What stays at a site although a rule names it: tables with a small count, and scores that would give the count away.

A total minus the counts that are shown gives one that is hidden (240 - 162 - 53 - 24 = 1). So nothing is hidden within a
table: it leaves whole or not at all. Counts of zero leave.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection
from dataclasses import replace

from grandrounds.evaluation.metrics import OF_CLASSES
from grandrounds.privacy.gate.audit import Reason, refusing
from grandrounds.privacy.gate.inspection import Inspected
from grandrounds.privacy.gate.policy import SAMPLES_UNIT
from grandrounds.protocol.messages import COUNTS
from grandrounds.protocol.names import VALIDATION

TENS = 10
"""Totals leave as multiples of it."""
SIZE = "size."
CLASS_COUNT = re.compile(r"(images\.\w+)\.(\d+)")
"""The number of images of a class in a part of the data set: its table, and the class."""


def with_totals_in_tens(known: Inspected) -> Inspected:
    """The answer with its totals as multiples of ten.

    Example:
        >>> with_totals_in_tens(Inspected({}, {"size.256": 44.0, "loss": 0.4}, {}, (), 236)).scalars
        {'size.256': 40.0, 'loss': 0.4}
    """
    scalars = {name: _tens(value) if _is_total(name) else value for name, value in known.scalars.items()}
    scalars = {name: value for name, value in scalars.items() if value > 0 or not _is_total(name)}
    # One sample is no number of images but the weight of a site that does not tell it.
    return replace(known, scalars=scalars, samples=max(int(_tens(known.samples)), min(known.samples, 1)))


def without_small_tables(known: Inspected, classes: int) -> Inspected:
    """Without tables in which a count is too small to leave, and without numbers of images that lack a class.

    Args:
        known: the checked answer, whose small numbers of images are withheld already.
        classes: how many there are.

    Raises:
        Refused: if a release does not have the form that its treatment needs.

    Example:
        >>> numbers = {"images.val.0": 40.0, "images.test.0": 0.0, "images.test.1": 12.0}
        >>> without_small_tables(Inspected({}, numbers, {}, (), 1), classes=2).scalars
        {'images.test.0': 0.0, 'images.test.1': 12.0}
    """
    with refusing(Reason.VALUES, ValueError):
        releases = {name for name, (rule, tensors) in known.releases.items() if rule.treatment.withholds(tensors)}
    matches = {name: CLASS_COUNT.fullmatch(name) for name in known.scalars}
    counts = {name: (match[1], int(match[2])) for name, match in matches.items() if match}
    shown = Counter(table for table, number in {*counts.values()} if number < classes)
    return known.without(releases | {name for name, (table, _) in counts.items() if shown[table] != classes})


def without_scores_of_classes(known: Inspected, tables: Collection[str]) -> Inspected:
    """Without exact scores of single classes of a model whose table stays: they say much of a class of few patients.

    A model without a table in the answer keeps none where the policy lets tables of its part of the data set out: whether
    its table would stay is not known.

    Args:
        known: the checked answer.
        tables: the names of counts that the policy lets out.
    """
    kept = set()
    for name in known.scalars:
        model, _, score = name.rpartition(".")
        part = {table for key, table in COUNTS.items() if (key == VALIDATION) == (model == VALIDATION)}
        if model and score in OF_CLASSES and part & set(tables) and COUNTS.get(model) not in known.releases:
            kept.add(name)
    return known.without(kept)


def _is_total(name: str) -> bool:
    return name == SAMPLES_UNIT or name.startswith(SIZE)


def _tens(value: float) -> float:
    return float(math.floor(value / TENS + 0.5) * TENS)
