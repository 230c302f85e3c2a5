"""What a finished run has left for use: its model and the problem that it was trained for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grandrounds.errors import ConfigurationError
from grandrounds.federation.server.record import SUMMARY
from grandrounds.files import read_json_object
from grandrounds.protocol.problem import Problem

SELECTED = "selected.pt"
RESULTS = "results"


@dataclass(frozen=True)
class TrainedModel:
    """A run's model.

    Attributes:
        weights: file with its state dictionary.
        problem: what it was trained for; its vocabulary is the order of the model's outputs.
    """

    weights: Path
    problem: Problem


def trained_model(path: Path) -> TrainedModel:
    """Find the model of a run.

    Args:
        path: a run's workspace, its folder of results (the selected model is taken), or a model's file beside the run's
            ``summary.json``.

    Raises:
        ConfigurationError: if there is no such file or folder, no summary, the summary is damaged, or the run has left
            no model; the message says what was looked for.
    """
    if not path.exists():
        raise ConfigurationError(f"{path} does not exist; name a run's workspace or a model file beside its {SUMMARY}")
    folder = _folder_of(path)
    summary = _read_summary(folder / SUMMARY)
    weights = path if path.is_file() else folder / SELECTED
    if not weights.is_file():
        raise ConfigurationError(f"{folder} has no {SELECTED}: {_why_not(summary)}")
    problem = summary.get("configuration", {}).get("problem")
    if not isinstance(problem, dict):
        raise ConfigurationError(f"{folder / SUMMARY} does not say what the model was trained for; run the job again")
    return TrainedModel(weights, Problem.from_dict(problem))


def _folder_of(path: Path) -> Path:
    if path.is_file():
        return path.parent
    return path / RESULTS if (path / RESULTS / SUMMARY).is_file() else path


def _read_summary(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise ConfigurationError(
            f"there is no {path}, which says what the model was trained for; name the workspace of a finished run, or a "
            f"model file beside its {SUMMARY}"
        )
    return read_json_object(path)


def _why_not(summary: dict[str, Any]) -> str:
    status = summary.get("status")
    if status != "finished":
        return f"the run is not finished (status {status}); the same command goes on with it"
    method = summary.get("configuration", {}).get("method", "its method")
    return f"{method} has no common model, every site kept its own; take a run of another method"
