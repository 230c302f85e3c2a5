"""The model of a run, a model file beside its summary, or its sites' own models as an ensemble, with the run's problem."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from grandrounds.checks import as_path
from grandrounds.errors import ConfigurationError
from grandrounds.federation.server.record import SUMMARY
from grandrounds.json_files import read_json_object
from grandrounds.models.received_models import read_site_models
from grandrounds.models.site_model import OWN
from grandrounds.models.trained import SavedNetwork
from grandrounds.ordering import natural_sorted
from grandrounds.protocol.names import SERVER
from grandrounds.protocol.problem import Problem
from grandrounds.reporting.run import FINISHED
from grandrounds.reporting.runs import RECORD_PLACES, SELECTED

Ensemble = bool | Sequence[Path | str]
"""Whether the sites' own models are an ensemble: those in the run's folder, or these files, which sites have handed over."""


@dataclass(frozen=True)
class TrainedModel:
    """What predicts: one network, or several whose probabilities are averaged.

    Attributes:
        record: the folder with the run's summary.
        problem: of the run; its classes are in the order of the outputs.
        networks: at least one.
        image_moments: of the run's training images, see
            :func:`~grandrounds.evaluation.clinical.image_moments.training_moments`.
    """

    record: Path
    problem: Problem
    networks: tuple[SavedNetwork, ...]
    image_moments: Mapping[str, Any] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        """The folder that has a folder for each site: the results, or the state of a run that was killed."""
        return self.record.parent if self.record.name == SERVER else self.record

    @property
    def is_ensemble(self) -> bool:
        """Whether several networks are averaged."""
        return len(self.networks) > 1

    @property
    def files(self) -> dict[str, Path]:
        """The file of each network: ``model``, of an ensemble ``model 1`` and so on."""
        paths = [network.path for network in self.networks]
        return {f"model {number}" if self.is_ensemble else "model": path for number, path in enumerate(paths, 1)}

    @property
    def members(self) -> str:
        """The networks of an ensemble in words, each by its site's folder or its file's name."""
        paths = [network.path for network in self.networks]
        return ", ".join(path.parent.name if path.stem == OWN else path.stem for path in paths)


def trained_model(path: Path, ensemble: Ensemble = False) -> TrainedModel:
    """Find what predicts: of a run's workspace or results the selected model, or a model file beside ``summary.json``.

    Args:
        path: of the run, or of its model file.
        ensemble: whether it is the average of the sites' own models in place of that.

    Raises:
        ConfigurationError: if there is no such file or folder, no summary, the summary is damaged, the run has left
            no model, or fewer than two sites have; the message says what was looked for.
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
    if ensemble is False and not weights.is_file():
        raise ConfigurationError(f"{folder} has no {SELECTED}: {_why_not(summary)}")
    content = summary.get("configuration", {}).get("problem")
    if not isinstance(content, dict):
        raise ConfigurationError(f"{folder / SUMMARY} does not say what the model was trained for; run the job again")
    problem, moments = Problem.from_dict(content), summary.get("image_moments", {})
    if ensemble is False:
        seed = summary["configuration"].get("seed")
        network = SavedNetwork(problem.model_spec(pretrained=False), weights, seed)
        return TrainedModel(folder, problem, (network,), moments)
    files = _members(ensemble, path, folder, summary)
    return TrainedModel(folder, problem, read_site_models(files, problem, summary.get("run_id", "")), moments)


def _members(ensemble: Ensemble, path: Path, folder: Path, summary: dict[str, Any]) -> list[Path]:
    """The files of an ensemble, at least two."""
    if isinstance(ensemble, bool):
        where, files = f"{path} has", _own_models(path, folder, summary)
    else:
        given = ensemble if isinstance(ensemble, Sequence) and not isinstance(ensemble, str) else [ensemble]
        where, files = "given were", [as_path(file, "a model of the ensemble") for file in given]
    if len(files) < 2:
        raise ConfigurationError(
            f"an ensemble needs the own models of two sites or more, and {where} {len(files)}: sites release them with "
            f"executor.release_model of a job with model=own, or hand over {OWN}.pt and {OWN}.json (--member)"
        )
    return files


def _own_models(path: Path, folder: Path, summary: dict[str, Any]) -> list[Path]:
    """The own models that sites have released into a run's record, else those that a simulation has left."""
    simulated = path / "state" / str(summary["configuration"].get("run_name"))
    for place in (folder, simulated):
        sites = natural_sorted(file.parent.name for file in place.glob(f"*/{OWN}.json"))
        if sites:
            return [place / site / f"{OWN}.pt" for site in sites]
    return []


def _why_not(summary: dict[str, Any]) -> str:
    status = summary.get("status")
    if status != FINISHED:
        return f"the run is not finished (status {status}); the same command goes on with it"
    method = summary.get("configuration", {}).get("method", "its method")
    return (
        f"{method} has no common model, every site kept its own; take --ensemble where the sites' models are here, or a "
        "run of another method"
    )
