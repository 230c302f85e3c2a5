"""Ridge regression with penalties chosen in two ways, and with sums that only all sites together open."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.defaults.experiment import Custom as Shared
from benchmarks.experiment import Predicted, Run, tested
from grandrounds.evaluation.metrics import site_metrics
from grandrounds.protocol.tasks import SINGLE

CHOSEN = ("penalty", "temperature")


class Custom(Shared):
    """Rows share images and features; each has scores of all sites' test images, and what the run has chosen."""

    def measures(self, run: Run) -> dict[str, Any]:
        """Scores as the sites have predicted, penalty and temperature."""
        test = tested(run)
        notes = {name: value for entry in run.summary["rounds"] for name, value in entry["ridge"].items()}
        return {
            "scores": site_metrics(SINGLE, *test),
            "images": len(test.labels),
            **{name: notes[name] for name in CHOSEN},
            "beside": self._beside_plain(run, test),
        }

    def _beside_plain(self, run: Run, test: Predicted) -> dict[str, float] | None:
        """How far probabilities are from those of plain sums and the same rule, and how many decisions differ."""
        plain = run.row._replace(method=self.method(run.row).get("plain", run.row.method))
        if plain == run.row:
            return None
        place = self.run_folder(plain)
        others = tested(Run(plain, run.job, place, run.sites_dir, run.partition, run.sites, run.summary))
        return {
            "difference": float(np.abs(test.probabilities - others.probabilities).max()),
            "other_decisions": int((test.decided != others.decided).sum()),
        }
