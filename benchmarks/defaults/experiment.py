"""The default at ten hospitals: scores of the selected model, and CPU seconds from image files with empty caches."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from resource import RUSAGE_CHILDREN, RUSAGE_SELF, getrusage
from typing import Any

from benchmarks.experiment import Experiment, Row, Run, tested
from grandrounds.data.partition.make import make_partition
from grandrounds.evaluation.metrics import site_metrics
from grandrounds.federation.site.features import VARIABLE as FEATURES
from grandrounds.protocol.tasks import SINGLE


class Custom(Experiment):
    """Rows that share nothing: neither images nor features that another row has left."""

    def partition(self, row: Row) -> tuple[Path, dict[str, Any]]:
        """Divide the setting's data set, which is in a folder of the root."""
        folder = self.partition_folder(row)
        root = self.root / self.setting(row)["data"]
        return folder, make_partition(root=root, out=folder, seed=row.seed, **self.partition_choices(row))

    def simulated(self, row: Row, sites_dir: Path, partition: Mapping[str, Any]) -> Run:
        """Simulate the row from its beginning; a row whose process was killed begins again, as its time would be wrong."""
        place = self.workspace / "runs" / self.result(row).stem
        shutil.rmtree(place, ignore_errors=True)
        os.environ["GRANDROUNDS_CACHE"] = str(place / "cache")
        os.environ[FEATURES] = str(place / "features")
        before = _cpu_seconds()
        run = super().simulated(row, sites_dir, partition)
        spent = round(_cpu_seconds() - before, 1)
        shutil.rmtree(place / "cache", ignore_errors=True)
        shutil.rmtree(place / "features", ignore_errors=True)
        return replace(run, summary={**run.summary, "cpu_seconds": spent})

    def measures(self, run: Run) -> dict[str, Any]:
        """Scores of the selected model on the test images of all sites together, as the sites have predicted them."""
        labels, probabilities = tested(run)
        return {
            "selected": run.summary["selected"],
            "scores": site_metrics(SINGLE, labels, probabilities),
            "images": len(labels),
            "cpu_seconds": run.summary["cpu_seconds"],
        }


def _cpu_seconds() -> float:
    """Of this process and of those that it has waited for."""
    return sum(used.ru_utime + used.ru_stime for used in map(getrusage, (RUSAGE_SELF, RUSAGE_CHILDREN)))
