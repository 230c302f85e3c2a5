"""Joined encoders beside the default: ridge rows as of ``defaults``, with the area under the ROC curve within devices."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from benchmarks.defaults import experiment as defaults
from benchmarks.experiment import BENCHMARKS, Predicted, Row, Run, pooled, read_predictions
from benchmarks.joined_encoders.features import KeptFeatures
from grandrounds.deployment.jobs import Job
from grandrounds.evaluation.auc import auc
from grandrounds.federation.site.features import Features
from grandrounds.plugins import PLUGINS_VARIABLE

PLUGIN = "joined_encoders"
FEWEST = 3
"""Images of a class, and of all others, without which a device's area does not count."""


class Custom(defaults.Custom):
    """Rows as of ``defaults``, with the networks of ``examples/joined_encoders``; they share features, not seconds."""

    def job(self, row: Row, problem: Any) -> Job:
        """The row's job; the processes of the run find the plug-in."""
        folder = str(BENCHMARKS.parent / "examples" / PLUGIN)
        if folder not in sys.path:
            sys.path.append(folder)
        os.environ[PLUGINS_VARIABLE] = PLUGIN
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), folder]))
        return super().job(row, problem)

    def simulated(self, row: Row, sites_dir: Path, partition: Mapping[str, Any]) -> Run:
        """As of ``defaults``, with the features that other divisions have computed and the seconds which these took."""
        self.workspace.mkdir(parents=True, exist_ok=True)
        kept = KeptFeatures(self.workspace / "features.sqlite")
        with mock.patch.object(Features, "_made", kept.around(Features._made)):
            run = super().simulated(row, sites_dir, partition)
        seconds = round(run.summary["cpu_seconds"] + kept.saved, 1)
        return replace(run, summary={**run.summary, "cpu_seconds": seconds, "shared": round(kept.saved, 1)})

    def measures(self, run: Run) -> dict[str, Any]:
        """Also the area within devices."""
        classes, sites = run.partition["classes"], run.partition["sites"]
        by_device: dict[str, list[Predicted]] = {}
        for path in sorted((run.place / "results").glob("*/predictions_common.csv")):
            sources = sites[path.parent.name]["sources"]
            device = max(sources, key=lambda name: sources[name])
            by_device.setdefault(device, []).append(read_predictions(path, classes))
        devices = [pooled({str(number): one for number, one in enumerate(own)}) for own in by_device.values()]
        found = super().measures(run)
        shared = run.summary["shared"]
        return {
            **found,
            "shared_seconds": shared,
            "devices": len(devices),
            "scores": {**found["scores"], "auc_within": within_devices(devices)},
        }


def within_devices(devices: Sequence[Predicted]) -> float:
    """The area under the ROC curve among images of one device: the mean over classes of means over devices.

    A device counts by its images of the class, and where there are at least three of these and of the others.
    """
    areas = []
    for number in range(devices[0].probabilities.shape[1]):
        known = [
            (int(positive.sum()), auc(positive, one.probabilities[:, number]))
            for one in devices
            for positive in [one.labels == number]
            if min(positive.sum(), (~positive).sum()) >= FEWEST
        ]
        if known:
            counts, values = zip(*known, strict=True)
            areas.append(float(np.average(values, weights=counts)))
    return float(np.mean(areas))
