"""The README's first steps on real images: scores of the selected model."""

from __future__ import annotations

from typing import Any

from benchmarks.experiment import Experiment, Run, tested
from grandrounds.evaluation.metrics import site_metrics
from grandrounds.protocol.tasks import SINGLE


class Custom(Experiment):
    """Rows of one division."""

    def measures(self, run: Run) -> dict[str, Any]:
        """Scores of the selected model on the test images of all sites together, and the round that made it."""
        test = tested(run)
        return {
            "selected": run.summary["selected"],
            "scores": site_metrics(SINGLE, *test),
            "validation": {entry["round"]: entry["score"] for entry in run.events("score")},
        }
