"""Numbered checkpoints that survive a crash at any moment and refuse to be loaded into something else."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from grandrounds.errors import CheckpointError
from grandrounds.federation.server.tensor_files import PARTS, SavedParts, TensorFileStore, newest_before, read_saved
from grandrounds.files import replacing
from grandrounds.protocol.messages import State

KEPT = 3


@dataclass(frozen=True)
class Checkpoint:
    """What was saved after a round; a large state is read from its file when it is looked up among ``parts``."""

    round_number: int
    content: dict[str, Any]
    parts: Mapping[str, tuple[int, dict[str, Tensor]]]


class CheckpointFolder:
    """The last checkpoints of one party (the server or a site) of one run.

    Each file holds the round, the configuration it belongs to and the content (nested dictionaries and lists of tensors
    and plain values). It is written under a temporary name, flushed to disk and renamed. The last ``KEPT`` are kept, or
    those that another party's checkpoints need.

    Args:
        folder: where the files are; made when first needed.
        configuration: plain JSON values that must be equal when a checkpoint is loaded again. The architecture fingerprint
            belongs here too.
    """

    def __init__(self, folder: Path, configuration: Mapping[str, Any]) -> None:
        self.folder = folder
        self._configuration = dict(configuration)
        self._parts = TensorFileStore(folder / PARTS)

    def save(
        self,
        round_number: int,
        content: Mapping[str, Any],
        parts: Mapping[str, tuple[int, State | None]] | None = None,
        needed: Collection[int] | None = None,
    ) -> None:
        """Save the state after a round and drop the oldest files.

        Args:
            round_number: the round that is complete.
            content: nested dictionaries and lists of tensors and plain values.
            parts: large states that change rarely, by name, each with the round it is from; one that is on disk already
                is not written again, and may be None.
            needed: rounds after which somebody may go on: the newest checkpoint of each of these rounds or before is kept,
                and this one. None keeps the last ``KEPT``.

        Raises:
            CheckpointError: if a part that should be on disk is not.
        """
        versions = {name: version for name, (version, _) in (parts or {}).items()}
        for name, (version, state) in (parts or {}).items():
            if self._parts.path(name, version).exists():
                continue
            if state is None:
                raise CheckpointError(f"{self._parts.path(name, version)} is missing: has somebody deleted it?")
            self._parts.save(name, version, state)
        saved = {"round": round_number, "configuration": self._configuration, "content": dict(content)}
        with replacing(self._path(round_number)) as stream:
            torch.save({**saved, "parts": versions}, stream)
        self._prune(versions, needed)

    def adopt(self, other: CheckpointFolder, round_number: int, needed: Collection[int] | None = None) -> None:
        """Take over another folder's checkpoint, which has no parts, and drop the oldest as in :meth:`save`."""
        self.folder.mkdir(parents=True, exist_ok=True)
        os.replace(other._path(round_number), self._path(round_number))
        self._prune((), needed)

    def rounds(self) -> list[int]:
        """The rounds of which a checkpoint exists, ascending."""
        found = (re.fullmatch(r"round_(\d+)\.pt", path.name) for path in self.folder.glob("round_*.pt"))
        return sorted(int(match.group(1)) for match in found if match)

    def load(self, with_parts: bool = True) -> Checkpoint | None:
        """Load the newest checkpoint, with or without its large states; None when there is none.

        Raises:
            CheckpointError: if the file is damaged or belongs to another configuration (the first difference is named).
        """
        rounds = self.rounds()
        if not rounds:
            return None
        path = self._path(rounds[-1])
        saved = read_saved(path)
        require_same_configuration(self._configuration, saved["configuration"], path)
        parts = SavedParts(self._parts, saved["parts"] if with_parts else {})
        return Checkpoint(round_number=saved["round"], content=saved["content"], parts=parts)

    def discard_from(self, round_number: int) -> None:
        """Delete checkpoints of this round and later: the server has gone back to before them."""
        for number in self.rounds():
            if number >= round_number:
                self._path(number).unlink(missing_ok=True)
        self._parts.discard_from(round_number)

    def _path(self, round_number: int) -> Path:
        return self.folder / f"round_{round_number:05d}.pt"

    def _prune(self, names: Collection[str], needed: Collection[int] | None) -> None:
        rounds = self.rounds()
        kept = set(rounds[-KEPT:]) if needed is None else {*newest_before(rounds, needed), *rounds[-1:]}
        for old in set(rounds) - kept:
            self._path(old).unlink(missing_ok=True)
        self._parts.prune(names, kept)


def require_same_configuration(mine: Mapping[str, Any], saved: Mapping[str, Any], path: Path) -> None:
    """Check that what was saved belongs to this configuration.

    Raises:
        CheckpointError: naming the first option that differs; a fingerprint, which tells a reader nothing, comes last.
    """
    now, then = _flat(mine), _flat(saved)
    for key in sorted(now.keys() | then.keys(), key=lambda name: (name == "architecture", name)):
        if now.get(key) != then.get(key):
            raise CheckpointError(
                f"{path}: the checkpoint is of another configuration: {key} was {then.get(key)!r}, is {now.get(key)!r}; use "
                "another run_name, or resume=never to start again"
            )


def _flat(content: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in content.items():
        if isinstance(value, Mapping):
            flat.update(_flat(value, f"{prefix}{key}."))
        else:
            flat[prefix + key] = list(value) if isinstance(value, tuple) else value
    return flat


def save_models(folder: Path, models: Mapping[str, State]) -> list[str]:
    """Write each model's state dictionary as ``<folder>/<name>.pt``, atomically, and return the files' names."""
    for name, state in models.items():
        with replacing(folder / f"{name}.pt") as stream:
            torch.save(dict(state), stream)
    return [f"{name}.pt" for name in models]
