"""Committed results of an experiment, read by setting, method and seed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.experiment import BENCHMARKS, Row, experiment_class
from benchmarks.tables import format_interval
from grandrounds.evaluation.tests import paired_difference

Content = dict[str, Any]
Seeds = dict[int, Content]
Methods = dict[str, Seeds]


class Results:
    """What has been run of an experiment.

    Args:
        name: of the benchmark.
        folder: of the result files; None takes the committed ones.
    """

    def __init__(self, name: str, folder: Path | None = None) -> None:
        self.folder = folder or BENCHMARKS / name / "results"
        self._experiment = experiment_class(name)(name, results=self.folder)
        self.configuration = self._experiment.configuration
        self.titles = {method: entry["title"] for method, entry in self.configuration["methods"].items()}
        self.settings: dict[str, Methods] = {setting: self._read(setting) for setting in self.configuration["settings"]}

    def _read(self, setting: str) -> Methods:
        """Results by method and seed; what a setting reuses of another is read from there."""
        content, found = self.configuration["settings"][setting], Methods()
        reused = content.get("reuse", {})
        for method in [*reused, *content["methods"]]:
            for seed in content["seeds"]:
                path = self._experiment.result(Row(reused.get(method, setting), method, seed))
                if path.is_file():
                    found.setdefault(method, {})[seed] = json.loads(path.read_text())
        return found

    def __bool__(self) -> bool:
        return any(self.settings.values())


def paired(ours: Sequence[float], theirs: Sequence[float], digits: int = 3) -> str:
    """Mean paired difference with its 95 % Student interval."""
    found = paired_difference(ours, theirs)
    return format_interval(found.mean, found.low, found.high, digits)


def shared_seeds(*runs: Mapping[int, Content]) -> list[int]:
    """The seeds that all methods have."""
    return sorted(set.intersection(*map(set, runs)))
