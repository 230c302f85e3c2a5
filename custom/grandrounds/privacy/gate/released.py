"""One suppression for all that a data set has released: counts, totals and accuracies of all answers, jobs and rounds.

Totals leave in tens. Before an answer leaves, what its tables and numbers say about the images of each class is written into
the ledger, if no hidden count has fewer than three values that agree with it and with all that left before; else it stays.

A class has one cell in whatever spelling or kind of task it is asked for. A curve shows the images of its class, so that
curves do not leave beside a table of the same part in which a class is hidden.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from torch import Tensor

from grandrounds.data.keys import canonical
from grandrounds.evaluation.counts import HIDDEN, IMAGES
from grandrounds.privacy.gate.inspection import Inspected
from grandrounds.privacy.gate.kinds import Expected
from grandrounds.privacy.gate.policy import SAMPLES_UNIT
from grandrounds.privacy.ledger.entries import DatasetIdentity
from grandrounds.privacy.ledger.ledger import Ledger
from grandrounds.privacy.mechanisms.auditor import AUDIT_SECONDS, HiddenTable, Released, Sum, Undecided, gives_away
from grandrounds.protocol.messages import COUNTS, CURVES, ReleaseKind
from grandrounds.protocol.names import VALIDATION

TENS = 10
"""Totals leave as multiples of it."""
FEWEST_OF_A_SIZE = 10
"""Images of a size that is reported, see the method ``statistics``."""
SIZE, WITH_LABEL, NO_LABEL_CELL = "size.", "labelled", "unlabelled"
SIZE_CLASSES = 8
CURVED = "curves"
"""In place of a part: whether curves of the part have left."""
OF_ACCURACY = ("accuracy", "accuracy_one_vs_rest", "recall_weighted")
"""Scores that have the number of correct predictions."""


class Item(NamedTuple):
    """What stays or leaves together: its names in the answer, and what it says."""

    names: frozenset[str]
    says: Released


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

    Raises:
        DataError: if the ledger was damaged, altered or truncated, or cannot be written.
    """
    items = _items(expected, known, treated)
    if not items:
        return frozenset()
    withheld: set[str] = set()

    def decide(lines: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
        before = sum(map(_from_json, lines), Released())
        every = sum((item.says for item in items), Released())
        if _passes(before, every, seconds):
            return _to_json(_new(before, every))
        said = Released()
        for item in items:
            if item.names & withheld or not _passes(before + said, item.says, seconds / len(items)):
                withheld.update(item.names)
            else:
                said = said + item.says
        return _to_json(_new(before, said))

    ledger.disclose(dataset, decide)
    return frozenset(withheld)


def _passes(before: Released, new: Released, seconds: float) -> bool:
    if _curved(new) & _hiding(before + new) or _hiding(new) & _curved(before + new):
        return False
    try:
        return not gives_away(before, new, seconds)
    except Undecided:
        return False


def _curved(said: Released) -> set[str]:
    """The parts of which curves are there."""
    return {cell.removeprefix(f"{CURVED}/") for cell in said.cells if cell.startswith(f"{CURVED}/")}


def _hiding(said: Released) -> set[str]:
    """The parts of which a table hides a class."""
    return {cell.partition("/")[0] for table in said.tables for cell in table.cells}


def _items(expected: Expected, known: Inspected, treated: Mapping[str, Mapping[str, Tensor]]) -> list[Item]:
    """In the order in which they are given precedence: counts of classes, numbers of images, tables, accuracies, totals."""
    names = tuple(map(canonical, expected.names)) or tuple(map(str, range(expected.classes)))
    counts = {name: value for name, value in known.scalars.items() if name.startswith("images.")}
    items = [Item(frozenset(counts), Released(_class_counts(counts, names)))] if counts else []
    single = len(expected.task.answers(expected.classes)) == 1
    exclusive = single or expected.one_class
    tables = [(model, name) for model, name in COUNTS.items() if name in treated]
    for model in COUNTS:
        number = known.scalars.get(f"{model}.n")
        if number is not None and exclusive:
            cells = tuple(f"{_part(model)}/{name}" for name in names)
            items.append(Item(frozenset({f"{model}.n"}), Released(sums=(Sum(cells, int(number), int(number)),))))
    for model, release in tables:
        items.append(Item(frozenset({release}), _table(treated[release], _part(model), names, None, exclusive)))
        number, accuracy = (known.scalars.get(f"{model}.{score}", math.nan) for score in ("n", "accuracy"))
        if single and not math.isnan(number * accuracy):
            right = (round(number * accuracy), int(number))
            scores = frozenset(f"{model}.{score}" for score in OF_ACCURACY) & known.scalars.keys()
            items.append(Item(scores, _table(treated[release], _part(model), names, right)))
    curves = [(model, name) for model, name in CURVES.items() if name in treated]
    items += [Item(frozenset({name}), Released({f"{CURVED}/{_part(model)}": 1})) for model, name in curves]
    return [*items, *_totals(expected, known, names)]


def _totals(expected: Expected, known: Inspected, names: Sequence[str]) -> list[Item]:
    found = []
    labelled = tuple(f"{WITH_LABEL}/{name}" for name in names)
    trained = (*labelled, NO_LABEL_CELL)
    samples = known.samples if SAMPLES_UNIT in known.scalars or known.samples > 1 else 0
    # Which images they are is seen from the method, so it is taken as known; a number of other images says nothing here.
    cells = {int(_tens(expected.images)): trained, int(_tens(expected.labelled)): labelled}.get(samples)
    if samples and cells:
        found.append(Item(frozenset({SAMPLES_UNIT}), Released(sums=(_in_tens(cells, samples, 1),))))
    sizes = {name: value for name, value in known.scalars.items() if name.startswith(SIZE)}
    if sizes:
        every = (*trained, *(f"{part}/{name}" for part in ("val", "test") for name in names))
        total = _in_tens(every, int(sum(sizes.values())), len(sizes))
        more = (SIZE_CLASSES - len(sizes)) * (FEWEST_OF_A_SIZE - 1)
        found.append(Item(frozenset(sizes), Released(sums=(replace(total, high=total.high + more),))))
    return found


def _in_tens(cells: tuple[str, ...], shown: int, numbers: int) -> Sum:
    """What is known of a sum of numbers that were rounded one by one."""
    return Sum(cells, max(0, shown - numbers * TENS // 2), shown + numbers * (TENS // 2 - 1))


def _class_counts(counts: Mapping[str, float], names: Sequence[str]) -> dict[str, int]:
    found = {}
    for name, value in counts.items():
        part, _, number = name.removeprefix("images.").partition(".")
        if number.isdecimal() and int(number) < len(names):
            found[f"{part}/{names[int(number)]}"] = int(value)
        elif part == NO_LABEL_CELL:
            found[NO_LABEL_CELL] = int(value)
    return found


def _table(
    tensors: Mapping[str, Tensor],
    part: str,
    names: Sequence[str],
    right: tuple[int, int] | None,
    one_class: bool = False,
) -> Released:
    """What a table says; ``right`` are its correct predictions and all of them, where they are known.

    Where every image has exactly one class, the images with each class add up to those of any question.
    """
    questions = tensors[IMAGES].tolist()
    cells: dict[str, int] = {}
    hiding, sums = [], []
    for question, rows in enumerate(questions):
        known = names if len(questions) == 1 else [f"not {names[question]}", names[question]]
        if len(questions) > 1 and one_class and all(row[0] != HIDDEN for row in rows):
            total = sum(row[0] + row[1] for row in rows)
            sums.append(Sum(tuple(f"{part}/{name}" for name in names), total, total))
        hidden = tuple(f"{part}/{name}" for name, row in zip(known, rows, strict=True) if row[0] == HIDDEN)
        cells |= {f"{part}/{name}": row[0] + row[1] for name, row in zip(known, rows, strict=True) if row[0] != HIDDEN}
        correct, false = ([row[column] for row in rows if row[column] != HIDDEN] for column in (0, 2))
        absent = len(rows) - len(false)
        if right is not None and (hidden or absent):
            hiding.append(HiddenTable(hidden, right[0] - sum(correct), absent, right[1] - right[0] - sum(false)))
        elif hidden or absent:
            hiding.append(HiddenTable(hidden, None, absent, None))
    return Released(cells, tuple(dict.fromkeys(sums)), tuple(hiding))


def _part(model: str) -> str:
    return "val" if model == VALIDATION else "test"


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
    return (list(one.cells), *list(vars(one).values())[1:])


def _from_json(line: Mapping[str, Any]) -> Released:
    return Released(
        dict(line.get("cells", {})),
        tuple(Sum(tuple(cells), low, high) for cells, low, high in line.get("sums", [])),
        tuple(HiddenTable(tuple(cells), *numbers) for cells, *numbers in line.get("tables", [])),
    )
