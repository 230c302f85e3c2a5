"""Numbered checkpoints that survive a crash at any moment and refuse to be loaded into another configuration.

Large states that change rarely are files of their own, each written once. They are read whole, or mapped into memory: a
mapped state takes no memory of the process, because the system reads from the file what is used.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from zipfile import BadZipFile, ZipFile

import torch
from torch import Tensor

from grandrounds.errors import CheckpointError
from grandrounds.files import copy_file, replacing
from grandrounds.models.depths import with_risks
from grandrounds.protocol.messages import State
from grandrounds.protocol.names import EXECUTOR

KEPT = 3
CHECKPOINT_FORMAT = 3
"""Of what a checkpoint holds; the one before is read, too, and others are refused."""
BAD = "bad"
PARTS_FOLDER = "parts"
"""The folder of a run's parts, beside its checkpoints."""
SECOND_FOLDER = "second"
"""In that folder: second copies of parts to which several checkpoints refer."""

_logger = logging.getLogger(__name__)


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
        return dict(with_risks(read_saved(self.path(name, version))))

    def mapped(self, name: str, version: int) -> dict[str, Tensor]:
        """A version whose tensors are views of the file; changes to them would not reach it.

        The file may be deleted or replaced meanwhile: what is mapped stays as it was.

        Raises:
            CheckpointError: if the file is missing or no longer whole.
        """
        return read_saved(self.path(name, version), mapped=True)

    def copy_from(self, other: TensorFileStore, name: str, version: int) -> None:
        """Copy another store's version, atomically and to a file of its own, unless there is one."""
        if not self.path(name, version).exists():
            with replacing(self.path(name, version)) as stream, other.path(name, version).open("rb") as source:
                shutil.copyfileobj(source, stream)

    def require_whole(self, name: str, version: int) -> None:
        """Check every byte of a version.

        Raises:
            CheckpointError: if the file is missing or damaged.
        """
        _require_whole(self.path(name, version))

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
            for version in paths.keys() - _newest_before(sorted(paths), rounds):
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
    if not mapped:
        _require_whole(path)
    with _named(path):
        return dict(torch.load(path, map_location="cpu", weights_only=True, mmap=mapped or None))


def _require_whole(path: Path) -> None:
    """Compare each entry with its sum of checks, at which torch does not look: a flipped bit would be another model."""
    with _named(path), ZipFile(path) as entries:
        if (wrong := entries.testzip()) is not None:
            raise BadZipFile(wrong)


@contextmanager
def _named(path: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise CheckpointError(f"{path} is missing; was it deleted?") from error
    except Exception as error:
        raise CheckpointError(f"{path} is damaged ({type(error).__name__})") from error


def mapped_copy(state: State) -> dict[str, Tensor]:
    """The same values in a temporary file (``$TMPDIR``) without a name: its space is free when the last tensor is gone."""
    with TemporaryDirectory(prefix="grandrounds-") as folder:
        path = Path(folder) / "state.pt"
        torch.save(dict(state), path)
        return read_saved(path, mapped=True)


def _newest_before(versions: list[int], wanted: Collection[int]) -> set[int]:
    """For each wanted round the last of the ascending ``versions`` that is not after it, if there is one.

    Example:
        >>> sorted(_newest_before([2, 5, 9], [1, 6, 7, 9]))
        [5, 9]
    """
    positions = (bisect_right(versions, number) for number in wanted)
    return {versions[position - 1] for position in positions if position}


def _version(path: Path) -> int:
    return int(path.stem.rpartition("@")[2])


@dataclass(frozen=True)
class Checkpoint:
    """What was saved after a round; a large state is read from its file when it is looked up among ``parts``.

    ``remarks`` says what was damaged, and what was done about it.
    """

    round_number: int
    content: dict[str, Any]
    parts: Mapping[str, tuple[int, dict[str, Tensor]]]
    remarks: tuple[str, ...] = ()


class CheckpointFolder:
    """The last checkpoints of one party (the server or a site) of one run.

    Each file holds the round, the configuration it belongs to and the content (nested dictionaries and lists of tensors
    and plain values). It is written under a temporary name, flushed to disk and renamed. The last ``KEPT`` are kept, or
    those that another party's checkpoints refer to. A large state to which two checkpoints refer is in two files, so that no
    file that is lost takes both.

    Args:
        folder: where the files are; made when first needed.
        configuration: plain JSON values that must be equal when a checkpoint is loaded again. The architecture fingerprint
            belongs here too.
    """

    def __init__(self, folder: Path, configuration: Mapping[str, Any]) -> None:
        self.folder = folder
        self._configuration = dict(configuration)
        self._parts = TensorFileStore(folder / PARTS_FOLDER)
        self._second = TensorFileStore(folder / PARTS_FOLDER / SECOND_FOLDER)

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
            needed: rounds after which a run may be resumed: the newest checkpoint of each of these rounds or before is kept,
                and this one. None keeps the last ``KEPT``.

        Raises:
            CheckpointError: if a part that should be on disk is not.
        """
        versions = {name: version for name, (version, _) in (parts or {}).items()}
        for name, (version, state) in (parts or {}).items():
            if self._parts.path(name, version).exists():
                if version < round_number:  # the checkpoint before refers to it, too
                    self._second.copy_from(self._parts, name, version)
                continue
            if state is None:
                raise CheckpointError(f"{self._parts.path(name, version)} is missing; was it deleted?")
            self._parts.save(name, version, state)
        identity = {"format": CHECKPOINT_FORMAT, "round": round_number, "configuration": self._configuration}
        saved = {**identity, "content": dict(content)}
        with replacing(self._path(round_number)) as stream:
            torch.save({**saved, "parts": versions}, stream)
        self._prune(versions, needed)

    def size(self) -> int:
        """Bytes of the newest checkpoint and of the large states that were saved with it; 0 if there is none."""
        rounds = self.rounds()
        if not rounds:
            return 0
        parts = (self.folder / PARTS_FOLDER).glob(f"*@{rounds[-1]:05d}.pt")
        return sum(path.stat().st_size for path in (self._path(rounds[-1]), *parts))

    def adopt(self, other: CheckpointFolder, round_number: int, needed: Collection[int] | None = None) -> None:
        """Take over another folder's checkpoint, which has no parts, and drop the oldest as in :meth:`save`."""
        self.folder.mkdir(parents=True, exist_ok=True)
        os.replace(other._path(round_number), self._path(round_number))
        self._prune((), needed)

    def rounds(self) -> list[int]:
        """Rounds with a checkpoint that is not marked bad, ascending."""
        return self._numbers("pt")

    def bad_rounds(self) -> list[int]:
        """The rounds whose checkpoint was marked bad, ascending; one may have been made anew since."""
        return self._numbers(BAD)

    def mark_bad(self) -> list[int]:
        """Mark the newest checkpoint, so that the next start goes on from the one before; the oldest is never marked.

        If it had been marked earlier and was made anew, the one before is marked too.

        Returns:
            The marked rounds, ascending; empty if there is no earlier checkpoint to go back to.
        """
        rounds = self.rounds()
        count = 2 if rounds and rounds[-1] in self.bad_rounds() else 1
        marked = rounds[1:][-count:]
        for number in marked:
            os.replace(self._path(number), self._bad_path(number))
        return marked

    def load(self, with_parts: bool = True, round_number: int | None = None) -> Checkpoint | None:
        """Load a checkpoint, with or without its large states; None when there is none.

        A damaged one is marked bad, and the one before is taken.

        Args:
            with_parts: with its large states.
            round_number: of which round, marked bad or not, and no other; None for the newest that is not marked.

        Raises:
            CheckpointError: if there is none of this round, all are damaged, or it is of another format or belongs to
                another configuration (the first difference is named).
        """
        if round_number is not None:
            self._require_kept(round_number)
        rounds = self.rounds() if round_number is None else [round_number]
        if not rounds:
            return None
        path, saved, remarks = self._newest_whole(rounds, with_parts)
        if saved.get("format") not in (CHECKPOINT_FORMAT - 1, CHECKPOINT_FORMAT):
            raise CheckpointError(
                f"{path}: the checkpoint has format {saved.get('format', 1)}, and this version reads format "
                f"{CHECKPOINT_FORMAT}; use another run_name, or resume=never to start again"
            )
        require_same_configuration(self._configuration, saved["configuration"], path)
        parts = SavedParts(self._parts, saved["parts"] if with_parts else {})
        return Checkpoint(saved["round"], with_risks(saved["content"]), parts, tuple(remarks))

    def _newest_whole(self, rounds: list[int], with_parts: bool) -> tuple[Path, dict[str, Any], list[str]]:
        """The newest of these checkpoints that is whole, and what is to say of those after it, which are marked bad."""
        damaged: dict[int, str] = {}
        for number in reversed(rounds):
            try:
                saved = read_saved(self._path(number))
                mended = self._mended(saved["parts"]) if with_parts else []
            except CheckpointError as error:
                damaged[number] = str(error)
                continue
            for bad in damaged:
                os.replace(self._path(bad), self._bad_path(bad))
            damages = [
                f"the checkpoint after round {bad} is marked bad: {reason}; the run goes on after round {number}"
                for bad, reason in damaged.items()
            ]
            # The record of a run is read at other places, where the folder means nothing.
            remarks = [line.replace(f"{self.folder}{os.sep}", "") for line in (*damages, *mended)]
            for line in remarks:
                _logger.warning(f"{self.folder}: {line}")
            return self._path(number), saved, remarks
        others = "no earlier one is kept" if rounds == self.rounds() else "choose another round"
        raise CheckpointError(f"{'; '.join(damaged.values())}: {others}, or start again by resume=never")

    def _mended(self, versions: Mapping[str, int]) -> list[str]:
        """Check each part, and put its second copy in the place of one that is damaged; return what was replaced."""
        remarks = []
        for name, version in versions.items():
            try:
                self._parts.require_whole(name, version)
            except CheckpointError as error:
                try:
                    self._second.require_whole(name, version)
                except CheckpointError:
                    raise error from None
                self._parts.discard(name, version)
                self._parts.copy_from(self._second, name, version)
                remarks.append(f"{error}; its second copy has taken its place")
        return remarks

    def discard_from(self, round_number: int) -> None:
        """Delete checkpoints of this round and later, and what a crash has left half written. Marks stay, empty."""
        for half in self.folder.glob(".round_*.pt.*"):
            half.unlink(missing_ok=True)
        for number in self.rounds():
            if number >= round_number:
                self._path(number).unlink(missing_ok=True)
        for number in self.bad_rounds():
            if number >= round_number:
                self._bad_path(number).write_bytes(b"")
        self._parts.discard_from(round_number)
        self._second.discard_from(round_number)

    def _path(self, round_number: int) -> Path:
        return self.folder / f"round_{round_number:05d}.pt"

    def _bad_path(self, round_number: int) -> Path:
        return self._path(round_number).with_suffix(f".{BAD}")

    def _numbers(self, suffix: str) -> list[int]:
        matches = (re.fullmatch(rf"round_(\d+)\.{suffix}", path.name) for path in self.folder.glob(f"round_*.{suffix}"))
        return sorted(int(match.group(1)) for match in matches if match)

    def _require_kept(self, round_number: int) -> None:
        """Make sure that there is a checkpoint of this round; one that is marked bad loses its mark."""
        path, bad = self._path(round_number), self._bad_path(round_number)
        if not path.exists() and bad.exists() and bad.stat().st_size:
            os.replace(bad, path)
        if not path.exists():
            kept = [
                n
                for n in {*self.rounds(), *self.bad_rounds()}
                if self._path(n).exists() or self._bad_path(n).stat().st_size
            ]
            raise CheckpointError(
                f"{self.folder} has no checkpoint of round {round_number}; kept are "
                f"{', '.join(map(str, sorted(kept))) or 'none'}"
            )

    def _prune(self, names: Collection[str], needed: Collection[int] | None) -> None:
        rounds = self.rounds()
        kept = set(rounds[-KEPT:]) if needed is None else {*_newest_before(rounds, needed), *rounds[-1:]}
        for old in set(rounds) - kept:
            self._path(old).unlink(missing_ok=True)
        bad = self.bad_rounds()
        for old in bad:
            if rounds and old < rounds[-1]:  # a later round was completed: the mark has done its work
                self._bad_path(old).unlink(missing_ok=True)
        self._parts.prune(names, {*kept, *bad})
        self._second.prune(names, {*kept, *bad})


def require_same_configuration(mine: Mapping[str, Any], saved: Mapping[str, Any], path: Path) -> None:
    """Check that what was saved belongs to this configuration; options of sites count where both state them.

    Raises:
        CheckpointError: naming the first option that differs; a fingerprint comes last.
    """
    now, then = _flat(mine), _flat(saved)
    for key in sorted(now.keys() | then.keys(), key=lambda name: (name == "architecture", name)):
        if key.startswith(f"{EXECUTOR}.") and not (key in now and key in then):  # of another version
            continue
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
    """Write each model's state dictionary as ``<folder>/<name>.pt``, atomically, and return the files' names.

    One that has two names is written once; the two may be one file.
    """
    written: dict[int, Path] = {}
    for name, state in models.items():
        path = folder / f"{name}.pt"
        if id(state) in written:
            copy_file(written[id(state)], path, may_link=True)
            continue
        with replacing(path) as stream:
            torch.save(dict(state), stream)
        written[id(state)] = path
    return [f"{name}.pt" for name in models]
