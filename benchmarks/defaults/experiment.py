"""The default at ten hospitals: scores of the selected model, and CPU seconds from image files with empty caches."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.experiment import Experiment, Row, Run, tested
from benchmarks.processes import cpu_seconds
from grandrounds.data.manifest import read_manifest
from grandrounds.data.partition.files import write_partition
from grandrounds.data.partition.schemes import make_partition
from grandrounds.data.site import locate_dataset
from grandrounds.deployment.simulate import choose_sites
from grandrounds.evaluation.metrics import site_metrics
from grandrounds.federation.site.features import VARIABLE as FEATURES
from grandrounds.protocol.tasks import SINGLE

POOLED = "pooled"


class Custom(Experiment):
    """Rows that share nothing, neither images nor features that another row has left, unless setting or method ``shares``.

    Rows that share have no CPU seconds: the first of them would pay for the others.
    """

    def partition(self, row: Row) -> tuple[Path, dict[str, Any]]:
        """Divide the setting's data set, which is in a folder of the root; ``training: pooled`` puts it together again."""
        folder = self.partition_folder(row)
        root = self.root / self.setting(row)["data"]
        made = make_partition(root=root, out=folder, seed=row.seed, **self.partition_choices(row))
        if self.method(row).get("training") != POOLED:
            return folder, made
        sites, together = choose_sites(None, folder)[0], folder.with_name(f"{folder.name}_{POOLED}")
        records = [record for site in sites for record in read_manifest(folder / site / "manifest.csv")]
        name = made["dataset_name"]
        images = locate_dataset(sites[0], name, [folder]).root
        return together, write_partition({POOLED: records}, together, name, images, made["classes"], {"seed": row.seed})

    def resumed(self, row: Row) -> bool:
        """No row is, see :meth:`simulated`."""
        return False

    def simulated(self, row: Row, sites_dir: Path, partition: Mapping[str, Any]) -> Run:
        """Simulate the row from its beginning; a row whose process was killed begins again, as its time would be wrong."""
        place = self.run_folder(row)
        shutil.rmtree(place, ignore_errors=True)
        if self.setting(row).get("shares") or self.method(row).get("shares"):
            os.environ["GRANDROUNDS_CACHE"] = str(self.workspace / "cache")
            os.environ[FEATURES] = str(self.workspace / f"features_{row.seed}")
            run = super().simulated(row, sites_dir, partition)
            return replace(run, summary={**run.summary, "cpu_seconds": None})
        os.environ["GRANDROUNDS_CACHE"] = str(place / "cache")
        os.environ[FEATURES] = str(place / "features")
        before = cpu_seconds()
        run = super().simulated(row, sites_dir, partition)
        spent = round(cpu_seconds() - before, 1)
        shutil.rmtree(place / "cache", ignore_errors=True)
        shutil.rmtree(place / "features", ignore_errors=True)
        return replace(run, summary={**run.summary, "cpu_seconds": spent})

    def measures(self, run: Run) -> dict[str, Any]:
        """Scores of the selected model on the test images of all sites together, as the sites have predicted them."""
        test = tested(run)
        return {
            "selected": run.summary["selected"],
            "scores": site_metrics(SINGLE, *test),
            "images": len(test.labels),
            "cpu_seconds": run.summary["cpu_seconds"],
        }
