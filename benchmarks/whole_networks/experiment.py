"""Whole networks that start from the ridge head: a row has this head's scores on the same images, too, and its curve."""

from __future__ import annotations

import base64
import zlib
from typing import Any

import numpy as np

from benchmarks.defaults import experiment as defaults
from benchmarks.experiment import Run, pooled, read_predictions, tested
from grandrounds.evaluation.metrics import site_metrics
from grandrounds.files import read_json_object
from grandrounds.protocol.tasks import SINGLE

THOUSANDTH = 1000


class Custom(defaults.Custom):
    """Rows as of ``defaults``, whose seconds are of the whole: head, rounds and scores."""

    def measures(self, run: Run) -> dict[str, Any]:
        """Also the scores of the head that training starts from, predictions of both, and validation scores by round."""
        test = tested(run)
        results = run.place / "results"
        paths = sorted(results.glob("*/predictions_ridge.csv"))
        head = pooled({path.parent.name: read_predictions(path, run.partition["classes"]) for path in paths})
        if not np.array_equal(head.labels, test.labels):
            raise ValueError(f"{results}: the head was tested on other images than the trained network")
        controller, executor = (run.job.options(part) for part in ("controller", "executor"))
        return {
            **super().measures(run),
            "labels": packed(test.labels),
            "predictions": packed(np.rint(THOUSANDTH * test.probabilities)),
            "decided": packed(test.decided),
            "ridge": {
                "scores": site_metrics(SINGLE, *head),
                "predictions": packed(np.rint(THOUSANDTH * head.probabilities)),
                "decided": packed(head.decided),
                "cpu_seconds": read_json_object(run.place / "reference.json")["entry"]["cpu_seconds"],
            },
            "steps": controller["rounds"] * executor["steps"] * len(run.sites),
            "curve": {event["round"]: {event["metric"]: event["score"]} for event in run.events("score")},
        }


def packed(numbers: np.ndarray) -> str:
    """Whole numbers below 65,536 as text: little-endian, two bytes each, compressed, in base 64."""
    return base64.b64encode(zlib.compress(numbers.astype("<u2").tobytes(), 9)).decode()


def unpacked(text: str) -> np.ndarray:
    """The numbers that :func:`packed` made a text of, in one row."""
    return np.frombuffer(zlib.decompress(base64.b64decode(text)), "<u2")
