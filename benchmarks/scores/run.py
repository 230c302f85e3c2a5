"""Measure the scores of a report with their intervals: CPU time and memory for many images, and for many classes.

Predictions are drawn. Each case is a process of its own; memory is the peak above what it has when they are there.
"""

from __future__ import annotations

import argparse
from typing import Any

from benchmarks.measure import clocked, in_child, peak_mib, resident_mib, run, spread, table

CASES = ((100_000, 7), (20_000, 1000))


def measured(options: argparse.Namespace) -> dict[str, Any]:
    """All cases, in turn."""
    sizes = [(500, 3)] if options.quick else CASES
    turns = [
        [in_child("benchmarks.scores.run.cost", images=images, classes=classes) for images, classes in sizes]
        for _ in range(options.repeats)
    ]
    cases = [
        {
            "images": images,
            "classes": classes,
            "cpu_seconds": spread([turn[case]["cpu_seconds"] for turn in turns], 3),
            "mib": spread([turn[case]["mib"] for turn in turns], 1),
        }
        for case, (images, classes) in enumerate(sizes)
    ]
    return {"cases": cases}


def cost(images: int, classes: int) -> dict[str, float]:
    """CPU seconds of all scores of one model, and the peak of memory above the start."""
    import numpy as np

    from grandrounds.evaluation.bootstrap import questions_of
    from grandrounds.evaluation.record import EvalRecord
    from grandrounds.protocol.tasks import SINGLE

    draw = np.random.default_rng(0)
    labels, chances = draw.integers(0, classes, images), draw.random((images, classes))
    chances[np.arange(images), labels] += 0.5
    chances /= chances.sum(axis=1, keepdims=True)
    names = [str(number) for number in range(classes)]
    questions = questions_of(SINGLE, labels, chances)
    before = resident_mib()
    spent, _ = clocked(lambda: _scores(EvalRecord.of(SINGLE, names, questions)))
    return {"cpu_seconds": spent.cpu, "mib": max(peak_mib() - before, 0.0)}


def _scores(record: Any) -> Any:
    return record.scores, record.classes, record.references


def tables(result: dict[str, Any]) -> str:
    columns = {"images": "images", "classes": "classes", "s of CPU": "cpu_seconds.median"}
    columns |= {"highest": "cpu_seconds.highest", "MiB above the start": "mib.median"}
    return table(columns, result["cases"], 1)


if __name__ == "__main__":
    run(__file__, measured, tables, repeats={"type": int, "default": 3})
