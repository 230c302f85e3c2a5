"""One suppression for all that a data set has released: counts, curves, totals and accuracies of all answers and jobs.

Totals leave in tens. Before an answer leaves, what its tables, curves and numbers say about the images of each class is
written into the ledger, if no hidden count has fewer than three values that agree with it and with all that left before;
else it stays. A sum leaves only if the sums next to it would leave as well, because that it stays is an answer, too
(simulatable auditing: K. Kenthapadi, N. Mishra and K. Nissim, PODS 2005). What the numbers are of, whatever a task calls
it, is in :mod:`grandrounds.privacy.gate.cells`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from torch import Tensor

from grandrounds.evaluation.counts import HIDDEN, IMAGES, PATIENTS
from grandrounds.evaluation.curves.files import CURVE_COUNTS
from grandrounds.evaluation.metrics import OF_CLASSES
from grandrounds.privacy.gate.cells import PartCells, exactly, of_two_kinds
from grandrounds.privacy.gate.inspection import MIN_COUNT, Inspected
from grandrounds.privacy.gate.kinds import Expected
from grandrounds.privacy.gate.policy import SAMPLES_UNIT
from grandrounds.privacy.ledger.entries import DatasetIdentity
from grandrounds.privacy.ledger.ledger import Ledger
from grandrounds.privacy.mechanisms.auditor import (
    AUDIT_SECONDS,
    Contradiction,
    HiddenTable,
    Released,
    Sum,
    Undecided,
    gives_away,
)
from grandrounds.protocol.messages import COUNTS, CURVES, ReleaseKind
from grandrounds.protocol.names import VALIDATION

TENS = 10
"""Totals leave as multiples of it."""
SIZE, WITH_LABEL, NO_LABEL_CELL = "size.", "labelled", "unlabelled"
SIZE_CLASSES = 8
OF_ACCURACY = ("accuracy", "accuracy_one_vs_rest", "recall_weighted")
"""Scores that have the number of correct predictions."""


NEXT, NEXT_TENS = (-2, -1, 1, 2), (-TENS, TENS)
"""How far the sums next to one are, and those next to a total."""


class Item(NamedTuple):
    """What stays or leaves together: its names in the answer, what it says, and how far the sums next to its own are."""

    names: frozenset[str]
    says: Released
    next: tuple[int, ...] = ()

    def has_equals(self, before: Released, deadline: float) -> bool:
        """Whether the sums next to its own would leave as well, after what has left before."""
        new = _to_json(_new(before, self.says))
        return not new or all(_passes(before, self.says.moved(by), deadline, impossible=True) for by in self.next)


def with_totals_in_tens(known: Inspected) -> Inspected:
    """The answer with its totals as multiples of ten; those behind a ciphertext stay exact, because only sums of them open.

    Example:
        >>> with_totals_in_tens(Inspected({}, {"size.256": 44.0, "loss": 0.4}, {}, (), 236)).scalars
        {'size.256': 40.0, 'loss': 0.4}
    """
    if any(rule.kind is ReleaseKind.ENCRYPTED_VALUES for rule, _ in known.releases.values()):
        return known
    scalars = {name: _tens(value) if _is_total(name) else value for name, value in known.scalars.items()}
    scalars = {name: value for name, value in scalars.items() if value > 0 or not _is_total(name)}
    # One sample is no number of images but the weight of a site that does not tell it.
    return replace(known, scalars=scalars, samples=max(int(_tens(known.samples)), min(known.samples, 1)))


def withheld_by_audit(
    ledger: Ledger,
    dataset: DatasetIdentity,
    expected: Expected,
    known: Inspected,
    treated: Mapping[str, Mapping[str, Tensor]],
    seconds: float = AUDIT_SECONDS,
) -> frozenset[str]:
    """The names in an answer that must stay; what the others say of the images is in the ledger when this returns.

    All of them stay where lines of the ledger were lost: what has left before is not known.

    Raises:
        DataError: if the ledger was damaged, altered or truncated, or cannot be written.
    """
    items = _items(expected, known, treated)
    if not items:
        return frozenset()
    if ledger.content().lost(dataset):
        return frozenset().union(*(item.names for item in items))
    withheld: set[str] = set()

    def decide(lines: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
        before = sum(map(_from_json, lines), Released())
        said, deadline = Released(), time.process_time() + seconds
        together = _passes(before, sum((item.says for item in items), Released()), deadline)
        for item in items:
            passes = not item.names & withheld and (together or _passes(before + said, item.says, deadline))
            if passes and item.has_equals(before + said, deadline):
                said = said + item.says
            else:
                withheld.update(item.names)
        return _to_json(_new(before, said))

    ledger.disclose(dataset, decide)
    return frozenset(withheld)


def _passes(before: Released, new: Released, deadline: float, impossible: bool = False) -> bool:
    """Whether nothing hidden is given away; ``impossible`` is the result where no data set could say this."""
    if of_two_kinds(before + new):
        return False
    try:
        return not gives_away(before, new, deadline)
    except Contradiction:
        return impossible
    except Undecided:
        return False


def _items(expected: Expected, known: Inspected, treated: Mapping[str, Mapping[str, Tensor]]) -> list[Item]:
    """In the order in which they are given precedence: counts of classes, numbers of images, tables, accuracies, totals."""
    counts = {name: value for name, value in known.scalars.items() if name.startswith("images.")}
    items = [Item(frozenset(counts), _class_counts(counts, expected))] if counts else []
    single = len(expected.task.answers(expected.classes)) == 1
    for model in COUNTS:
        number = known.scalars.get(f"{model}.n")
        if number is not None:
            items.append(Item(frozenset({f"{model}.n"}), _cells(model, expected).number(int(number)), NEXT))
    for model, release in COUNTS.items():
        if release not in treated:
            continue
        cells = _cells(model, expected)
        beside = frozenset(f"{model}.{score}" for score in OF_CLASSES) & known.scalars.keys()
        items.append(Item(frozenset({release}) | beside, _table(treated[release], cells, None)))
        number, accuracy = (known.scalars.get(f"{model}.{score}", math.nan) for score in ("n", "accuracy"))
        if single and not math.isnan(number * accuracy):
            right = (round(number * accuracy), int(number))
            scores = frozenset(f"{model}.{score}" for score in OF_ACCURACY) & known.scalars.keys()
            items.append(Item(scores, _table(treated[release], cells, right)))
    for model, release in CURVES.items():
        if release in treated:
            table = treated.get(COUNTS[model])
            items.append(Item(frozenset({release}), _curves(treated[release], _cells(model, expected), table)))
    return [*items, *_totals(expected, known)]


def _totals(expected: Expected, known: Inspected) -> list[Item]:
    found = []
    parts = [PartCells(part, expected) for part in (WITH_LABEL, "val", "test")]
    labelled = parts[0].every
    trained = (*labelled, NO_LABEL_CELL)
    samples = known.samples if SAMPLES_UNIT in known.scalars or known.samples > 1 else 0
    # Which images they are is seen from the method, so it is taken as known; a number of other images says nothing here.
    cells = {int(_tens(expected.images)): trained, int(_tens(expected.labelled)): labelled}.get(samples)
    if samples and cells and not parts[0].apart:
        found.append(Item(frozenset({SAMPLES_UNIT}), Released(sums=(_in_tens(cells, samples, 1),)), NEXT_TENS))
    sizes = {name: value for name, value in known.scalars.items() if name.startswith(SIZE)}
    if sizes and not any(part.apart for part in parts):
        every = (*trained, *parts[1].every, *parts[2].every)
        total = _in_tens(every, int(sum(sizes.values())), len(sizes))
        more = (SIZE_CLASSES - len(sizes)) * (MIN_COUNT - 1)
        found.append(Item(frozenset(sizes), Released(sums=(replace(total, high=total.high + more),)), NEXT_TENS))
    return found


def _in_tens(cells: tuple[str, ...], shown: int, numbers: int) -> Sum:
    """What is known of a sum of numbers that were rounded one by one."""
    return Sum(cells, max(0, shown - numbers * TENS // 2), shown + numbers * (TENS // 2 - 1))


def _class_counts(counts: Mapping[str, float], expected: Expected) -> Released:
    said = Released()
    for name, value in counts.items():
        part, _, number = name.removeprefix("images.").partition(".")
        cells = PartCells(part, expected)
        if number.isdecimal() and int(number) < len(cells.names):
            said += exactly(cells.having(cells.names[int(number)]), int(value))
        elif part == NO_LABEL_CELL:
            said += exactly((NO_LABEL_CELL,), int(value))
    return said + _too_few(said, [PartCells(part, expected) for part in (WITH_LABEL, "val", "test")])


def _too_few(shown: Released, parts: Sequence[PartCells]) -> Released:
    """That classes without a number have too few images for one, where each patient has one.

    A job or the site may ask for more images than the gate does, so none has more than the largest of them has. Where no
    class of a part has a number there may be another reason, unless all are smaller than the gate's least count.
    """
    said = Released()
    for cells in parts:
        silent = {cell: cells.images[name] for name in cells.names for cell in cells.having(name)}
        every, silent = len(silent), {cell: number for cell, number in silent.items() if cell not in shown.cells}
        largest = max(silent.values(), default=0)
        if cells.one_image and (len(silent) < every or 0 < largest < MIN_COUNT):
            said += Released(sums=tuple(Sum((cell,), 0, max(largest, MIN_COUNT - 1)) for cell in silent))
    return said


def _table(tensors: Mapping[str, Tensor], cells: PartCells, right: tuple[int, int] | None) -> Released:
    """What a table says; ``right`` are its correct predictions and all of them, where they are known."""
    questions = tensors[IMAGES].tolist()
    said = Released()
    for question, (rows, people) in enumerate(zip(questions, tensors[PATIENTS].tolist(), strict=True)):
        classes = cells.classes(question, len(questions), len(rows))
        hidden = tuple(one for one, row in zip(classes, rows, strict=True) if row[0] == HIDDEN)
        for one, row, patients in zip(classes, rows, people, strict=True):
            if row[0] != HIDDEN:
                said += exactly(one, row[0] + row[1]) + cells.patients(one, *patients[:2])
        correct, false = ([row[column] for row in rows if row[column] != HIDDEN] for column in (0, 2))
        absent = len(rows) - len(false)
        if right is not None and (hidden or absent):
            table = HiddenTable(hidden, right[0] - sum(correct), absent, right[1] - right[0] - sum(false))
            said += Released(tables=(table,))
        elif hidden or absent:
            said += Released(tables=(HiddenTable(hidden, None, absent, None),))
    return said


def _curves(tensors: Mapping[str, Tensor], cells: PartCells, table: Mapping[str, Tensor] | None) -> Released:
    """What curves say: of each class the cases with it and without it, and the correct predictions beside a table."""
    *classes, (correct, wrong) = tensors[CURVE_COUNTS].clamp(min=0).sum(dim=2).tolist()
    said = Released()
    for name, (positive, negative) in zip(cells.names, classes, strict=True):
        if positive or negative:
            said += cells.cases(name, positive, negative)
    if correct or wrong:
        said += cells.patients(cells.every, correct, wrong)
        if cells.one_image:
            said += cells.number(correct + wrong)
        if cells.one_image and table is not None:
            said += _table(table, cells, (correct, correct + wrong))
    return said


def _cells(model: str, expected: Expected) -> PartCells:
    return PartCells("val" if model == VALIDATION else "test", expected)


def _is_total(name: str) -> bool:
    return name == SAMPLES_UNIT or name.startswith(SIZE)


def _tens(value: float) -> float:
    return float(math.floor(value / TENS + 0.5) * TENS)


def _new(before: Released, said: Released) -> Released:
    return Released(
        {cell: value for cell, value in said.cells.items() if cell not in before.cells},
        tuple(one for one in said.sums if one not in before.sums),
        tuple(one for one in said.tables if one not in before.tables),
    )


def _to_json(said: Released) -> dict[str, Any]:
    """Plain values; empty where nothing is said."""
    parts = {"cells": dict(said.cells), "sums": [list(one) for one in map(_values, said.sums)]}
    parts["tables"] = [list(one) for one in map(_values, said.tables)]
    return {name: value for name, value in parts.items() if value}


def _values(one: Sum | HiddenTable) -> tuple[Any, ...]:
    return tuple(vars(one).values())


def _from_json(line: Mapping[str, Any]) -> Released:
    return Released(
        dict(line.get("cells", {})),
        tuple(Sum(tuple(cells), low, high) for cells, low, high in line.get("sums", [])),
        tuple(HiddenTable(tuple(map(_as_cells, classes)), *numbers) for classes, *numbers in line.get("tables", [])),
    )


def _as_cells(one: str | Sequence[str]) -> tuple[str, ...]:
    """The cells of a class; before version 3 a class was one cell."""
    return (one,) if isinstance(one, str) else tuple(one)
