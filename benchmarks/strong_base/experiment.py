"""Methods beside the head in closed form: rows of a seed share decoded images and kept features."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch

from benchmarks.defaults import experiment as defaults
from benchmarks.experiment import Row, Run, read_predictions
from benchmarks.mdhfl_pbc.experiment import ensemble
from grandrounds.data.site import CONFIG_NAME
from grandrounds.files import write_json
from grandrounds.models.registry import build_model
from grandrounds.protocol.problem import ModelSpec


class Custom(defaults.Custom):
    """As of ``defaults``, with sites that have networks of their own."""

    def partition(self, row: Row) -> tuple[Path, dict[str, Any]]:
        """As of ``defaults``; the setting's ``networks`` are those of sites with a network of their own."""
        networks = self.setting(row).get("networks", {})
        if networks:  # a folder with other files than those of the division would be refused
            shutil.rmtree(self.partition_folder(row), ignore_errors=True)
        folder, made = super().partition(row)
        for site, backbone in networks.items():
            path = folder / site / CONFIG_NAME
            content = json.loads(path.read_text())
            model = {"backbone": backbone, "weights": str(self._random_layers(backbone))}
            write_json(path, content | {"models": {made["dataset_name"]: model}})
        return folder, made

    def _random_layers(self, backbone: str) -> Path:
        """A file with random weights of a network, the same for all rows."""
        path = (self.workspace / "networks" / f"{backbone}.pt").absolute()
        if not path.is_file():
            path.parent.mkdir(parents=True, exist_ok=True)
            network = build_model(ModelSpec(backbone, 2), seed=0)
            torch.save({"state_dict": network.state_dict(), "intensities": "scaled"}, path)
        return path

    def measures(self, run: Run) -> dict[str, Any]:
        """Also the scores of the mean of the sites' predictions, where these have networks of their own."""
        found = super().measures(run)
        if "networks" not in self.setting(run.row):
            return found
        files = sorted((run.place / "results").glob("*/predictions_own.csv"))
        predicted = {path.parent.name: read_predictions(path, run.partition["classes"]) for path in files}
        return {**found, "ensemble": ensemble(predicted)}
