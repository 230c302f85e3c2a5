"""What a site keeps on disk between tasks: state by round, its best model, its models at the end, and the run's identity.

A simulator with fewer threads than sites starts a new process for every task, and a real site may be restarted, so nothing
may live in memory alone.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from grandrounds.csv_files import write_csv
from grandrounds.errors import CheckpointError
from grandrounds.federation.checkpoints import CheckpointFolder, require_same_configuration, save_models
from grandrounds.files import write_json
from grandrounds.protocol.paths import OWN_SCORES

MARKER = "run.json"
DIGESTS = "image_digests.json"
"""The digests of a site's images, beside its predictions."""


class SiteStore:
    """One site's folder of one run.

    Args:
        folder: the site's own folder for the run's name.
        run_id: identifies this start of the run. What another start has left under the same name is thrown away.
        configuration: plain values that must not change within a run: the problem and the executor's options.
    """

    def __init__(self, folder: Path, run_id: str, configuration: Mapping[str, Any]) -> None:
        self.folder, self.run_id = folder, run_id
        self._marker = folder / MARKER
        self._wanted = {"run_id": run_id, "configuration": json.loads(json.dumps(configuration))}
        self._seen: tuple[int, int] | None = None
        self._states = CheckpointFolder(folder / "state", configuration)
        self._staged = CheckpointFolder(folder / "staged", configuration)
        self._best = CheckpointFolder(folder / "best", configuration)
        self.claim()

    def claim(self) -> None:
        """Make sure before a task that the folder is still this run's: its marker is read again if it is another file.

        Raises:
            CheckpointError: if what is there belongs to another configuration, or the marker is damaged.
        """
        if self._seen is not None and self._seen == _identity(self._marker):
            return
        wanted = self._wanted
        clear_other_run(self.folder, self.run_id)
        marked = _marked(self._marker)
        if marked is None:
            write_json(self._marker, wanted)
        elif marked != wanted:
            require_same_configuration(wanted["configuration"], marked["configuration"], self._marker)
        self._seen = _identity(self._marker)

    def load_state(self, round_number: int) -> dict[str, Any]:
        """The state as it was before this round; empty when there is none.

        A state of this round or a later one is older than it looks: the server has gone back to a checkpoint.

        Raises:
            CheckpointError: if it is damaged or belongs to another configuration.
        """
        if self._keeps_nothing():
            return {}
        self._staged.discard_from(0)
        self._states.discard_from(round_number)
        checkpoint = self._states.load()
        return checkpoint.content if checkpoint else {}

    def stage_state(self, round_number: int, state: Mapping[str, Any]) -> None:
        """Write the state after this round, without effect until :meth:`commit`; an empty state needs no file."""
        if not self._keeps_nothing():
            self._staged.discard_from(0)
        if state:
            self._staged.save(round_number, state)

    def staged_state(self) -> dict[str, Any]:
        """The state that was staged; empty when there is none."""
        checkpoint = self._staged.load()
        return checkpoint.content if checkpoint else {}

    def commit(self, needed: Collection[int] | None = None) -> None:
        """Keep the staged state: what it was made for has left the site; ``needed`` as in :meth:`CheckpointFolder.save`."""
        if self._keeps_nothing():
            return
        for round_number in self._staged.rounds():
            self._states.adopt(self._staged, round_number, needed)

    def offer_best(
        self, model_round: int, score: float, state: Mapping[str, Tensor], needed: Collection[int] | None = None
    ) -> None:
        """Keep the model of a round if it scores at least as well as the best so far (ties go to the later, as in FedPerl).

        ``needed`` are rounds of models before which the server may go on, see :meth:`CheckpointFolder.save`.
        """
        self._best.discard_from(model_round)
        best = self._best.load(with_parts=False)
        if best is None or score >= best.content["score"]:
            self._best.save(model_round, {"score": score}, {"model": (model_round, state)}, needed)

    def best(self) -> tuple[int, dict[str, Tensor]] | None:
        """The round and the model that scored best here, or None before the first score."""
        checkpoint = self._best.load()
        return checkpoint.parts["model"] if checkpoint else None

    def best_round(self) -> int | None:
        """The round of :meth:`best`, without its model."""
        return max(self._best.rounds(), default=None)

    def write_model(self, name: str, state: Mapping[str, Tensor], description: Mapping[str, Any]) -> None:
        """Write a model for the site's own use: ``<name>.pt``, a state dictionary, and ``<name>.json``, how to build it."""
        save_models(self.folder, {name: state})
        write_json(self.folder / f"{name}.json", description)

    def write_predictions(self, name: str, header: list[str], rows: list[list[str]]) -> None:
        """Write predictions as CSV; they stay at the site."""
        write_csv(self.folder / f"{name}.csv", header, rows, private=True)

    def write_scores(self, models: Mapping[str, Mapping[str, float]]) -> None:
        """Write the scores of tested models on the site's own test images; they stay at the site."""
        write_json(self.folder / OWN_SCORES, models, private=True)

    def first_question(self, name: str, question: str) -> str:
        """The first question of a name in this run; unlike a state it stays when the server goes back to a checkpoint."""
        path = self.folder / f"{name}_question.json"
        if not path.exists():
            write_json(path, {"question": question}, private=True)
        return str(json.loads(path.read_text())["question"])

    def write_digests(self, digests: Sequence[str]) -> None:
        """Write digests of the site's images, by which a later evaluation finds images of the run; they stay at the site."""
        write_json(self.folder / DIGESTS, {"images": sorted(digests)}, private=True)

    def _keeps_nothing(self) -> bool:
        """Whether no state was ever written here, as with most methods: then there is no folder to search."""
        return not (os.path.exists(self._staged.folder) or os.path.exists(self._states.folder))


def clear_other_run(folder: Path, run_id: str) -> None:
    """Remove a site's folder if another start of the run has left it.

    Raises:
        CheckpointError: if its marker is damaged.
    """
    marked = _marked(folder / MARKER)
    if marked and marked.get("run_id") != run_id:
        # Aside first: half a removed folder must not look like this run's.
        old = folder.with_name(f".{folder.name}.{hashlib.sha256(str(marked.get('run_id')).encode()).hexdigest()[:16]}")
        folder.rename(old)
        shutil.rmtree(old)


def _marked(path: Path) -> dict[str, Any] | None:
    """The content of a folder's marker; None if there is none."""
    if not path.is_file():
        return None
    try:
        content: dict[str, Any] = json.loads(path.read_text())
    except ValueError as error:
        raise CheckpointError(f"{path} is damaged: move the folder away, and the site begins anew") from error
    return content


def _identity(path: Path) -> tuple[int, int] | None:
    """What distinguishes a file from its replacement; None if there is no file."""
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_mtime_ns


def copy_to_cpu(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A detached, contiguous copy of a state that later training will not change."""
    return {
        name: value.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
        for name, value in state.items()
    }
