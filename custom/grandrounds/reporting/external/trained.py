"""The model of a run, or a model file beside its summary, with the problem that it was trained for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grandrounds.errors import ConfigurationError
from grandrounds.federation.server.record import SUMMARY
from grandrounds.json_files import read_json_object
from grandrounds.protocol.names import SERVER
from grandrounds.protocol.problem import Problem
from grandrounds.reporting.run import FINISHED
from grandrounds.reporting.runs import RECORD_PLACES, SELECTED


@dataclass(frozen=True)
class TrainedModel:
    """A run's model: the file of its state dictionary, the problem (classes in the order of the outputs) and the seed."""

    weights: Path
    problem: Problem
    seed: int | None

    @property
    def folder(self) -> Path:
        """The folder that has a folder for each site: the results, or the state of a run that was killed."""
        return self.weights.parent.parent if self.weights.parent.name == SERVER else self.weights.parent


def trained_model(path: Path) -> TrainedModel:
    """Find a model: of a run's workspace or results the selected one, or a model file beside ``summary.json``.

    Raises:
        ConfigurationError: if there is no such file or folder, no summary, the summary is damaged, or the run has left
            no model; the message says what was looked for.
    """
    if not path.exists():
        raise ConfigurationError(f"{path} does not exist; name a run's workspace or a model file beside its {SUMMARY}")
    folder = path.parent if path.is_file() else path
    if path.is_dir():
        folder = next((path / place for place in RECORD_PLACES if (path / place / SUMMARY).is_file()), path)
    if not (folder / SUMMARY).is_file():
        raise ConfigurationError(
            f"there is no {folder / SUMMARY}, which says what the model was trained for; name the workspace of a finished "
            f"run, or a model file beside its {SUMMARY}"
        )
    summary = read_json_object(folder / SUMMARY)
    weights = path if path.is_file() else folder / SELECTED
    if not weights.is_file():
        raise ConfigurationError(f"{folder} has no {SELECTED}: {_why_not(summary)}")
    problem = summary.get("configuration", {}).get("problem")
    if not isinstance(problem, dict):
        raise ConfigurationError(f"{folder / SUMMARY} does not say what the model was trained for; run the job again")
    return TrainedModel(weights, Problem.from_dict(problem), summary["configuration"].get("seed"))


def _why_not(summary: dict[str, Any]) -> str:
    status = summary.get("status")
    if status != FINISHED:
        return f"the run is not finished (status {status}); the same command goes on with it"
    method = summary.get("configuration", {}).get("method", "its method")
    return f"{method} has no common model, every site kept its own; take a run of another method"
