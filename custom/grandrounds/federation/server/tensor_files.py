"""Large states of a run as files of their own, each written once, and read whole or mapped into memory when needed.

A mapped state takes no memory of the process: the system reads from the file what is used, and forgets it again.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from grandrounds.errors import CheckpointError
from grandrounds.files import replacing
from grandrounds.protocol.messages import State

PARTS = "parts"
"""The folder of a run's parts, beside its checkpoints."""


class TensorFileStore:
    """States by name and version, the round that they are from.

    Args:
        folder: where the files are; made when first needed.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, name: str, version: int) -> Path:
        """Where this version is, or would be."""
        return self.folder / f"{name}@{version:05d}.pt"

    def save(self, name: str, version: int, state: State) -> None:
        """Write a version, atomically; an older file of the same name and version is replaced."""
        with replacing(self.path(name, version)) as stream:
            torch.save(dict(state), stream)

    def read(self, name: str, version: int) -> dict[str, Tensor]:
        """A version, read into memory.

        Raises:
            CheckpointError: if the file is missing or damaged.
        """
        return read_saved(self.path(name, version))

    def mapped(self, name: str, version: int) -> dict[str, Tensor]:
        """A version whose tensors are views of the file; changes to them would not reach it.

        The file may be deleted or replaced meanwhile: what is mapped stays as it was.

        Raises:
            CheckpointError: if the file is missing or no longer whole.
        """
        return read_saved(self.path(name, version), mapped=True)

    def discard(self, name: str, version: int) -> None:
        """Delete a version, if it is there."""
        self.path(name, version).unlink(missing_ok=True)

    def discard_from(self, version: int) -> None:
        """Delete this version and later ones of all names."""
        for path in self.folder.glob("*@*.pt"):
            if _version(path) >= version:
                path.unlink(missing_ok=True)

    def prune(self, names: Collection[str], rounds: Collection[int]) -> None:
        """Of these names keep what checkpoints of these rounds refer to: the newest version of each round or before."""
        for name in names:
            paths = {_version(path): path for path in self.folder.glob(f"{name}@*.pt")}
            for version in paths.keys() - newest_before(sorted(paths), rounds):
                paths[version].unlink(missing_ok=True)


class SavedParts(Mapping[str, tuple[int, dict[str, Tensor]]]):
    """The parts of a checkpoint, each read from its file when it is looked up.

    Args:
        files: where they are.
        versions: of each part.
    """

    def __init__(self, files: TensorFileStore, versions: Mapping[str, int]) -> None:
        self._files = files
        self._versions = dict(versions)

    def __getitem__(self, name: str) -> tuple[int, dict[str, Tensor]]:
        version = self._versions[name]
        return version, self._files.read(name, version)

    def __iter__(self) -> Iterator[str]:
        return iter(self._versions)

    def __len__(self) -> int:
        return len(self._versions)


def read_saved(path: Path, mapped: bool = False) -> dict[str, Any]:
    """Read what ``torch.save`` has written, on the CPU and without running any code of the file.

    Raises:
        CheckpointError: if the file is missing or damaged; of a mapped one only its outline is looked at.
    """
    try:
        return dict(torch.load(path, map_location="cpu", weights_only=True, mmap=mapped or None))
    except FileNotFoundError as error:
        raise CheckpointError(f"{path} is missing: has somebody deleted it?") from error
    except Exception as error:
        raise CheckpointError(
            f"{path}: the checkpoint is damaged ({type(error).__name__}); without it the run goes on from the one before"
        ) from error


def mapped_copy(state: State) -> dict[str, Tensor]:
    """The same values in a temporary file (``$TMPDIR``) without a name: its space is free when the last tensor is gone."""
    with TemporaryDirectory(prefix="grandrounds-") as folder:
        path = Path(folder) / "state.pt"
        torch.save(dict(state), path)
        return read_saved(path, mapped=True)


def newest_before(versions: list[int], wanted: Collection[int]) -> set[int]:
    """For each wanted round the last of the ascending ``versions`` that is not after it, if there is one.

    Example:
        >>> sorted(newest_before([2, 5, 9], [1, 6, 7, 9]))
        [5, 9]
    """
    positions = (bisect_right(versions, number) for number in wanted)
    return {versions[position - 1] for position in positions if position}


def _version(path: Path) -> int:
    return int(path.stem.rpartition("@")[2])
