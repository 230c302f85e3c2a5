"""An append-only file of JSON lines as a hash chain: changes and truncation are detected.

Every line contains its SHA-256 hash and that of the previous line, so that no line can be altered, removed or exchanged
without changing all later ones (Haber & Stornetta, "How to Time-Stamp a Digital Document", J. Cryptology 1991). A second
small file, the head, contains the number of lines and the last hash, so that truncation is detected. A line is on disk
before the head, and both before :meth:`Extension.append` returns. A process that dies leaves at most one line too many, or
an incomplete line that has not been used.

Every line has a random number that never leaves: a head, which does, can be compared with no guess of a line.

A party that can write both files can forge both; a head that was noted elsewhere detects that (:meth:`Chain.require_head`).
Every new head is also sent to the system's log (syslog), which may forward it to another machine.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import secrets
import syslog
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grandrounds.errors import ConfigurationError, DataError
from grandrounds.files import read_json_object, write_json

START = "0" * 64
LOCK_SECONDS = 60.0
SYSTEM_LOG = "grandrounds ledger"
"""How the lines of the system log begin that name a head."""
RESTORE = "nothing may be released before the file is restored from a backup, or its loss is declared (ledger repair)"
LOST_LINES = "loss"
"""The kind of a line that names heads of lines which are gone, in ``heads``."""


@dataclass(frozen=True)
class Chain:
    """The verified lines of a file; ``interrupted`` if a process died while writing and left an incomplete one."""

    path: Path
    lines: tuple[Mapping[str, Any], ...]
    interrupted: bool

    @property
    def head(self) -> str:
        """The hash of the last line."""
        return str(self.lines[-1]["hash"]) if self.lines else START

    @property
    def known_heads(self) -> set[str]:
        """All hashes that a head can have been of this file, those of lines that were declared lost included."""
        declared = (head for line in self.lines if line.get("kind") == LOST_LINES for head in line["heads"])
        return {START, *(str(line["hash"]) for line in self.lines), *declared}

    def require_head(self, noted: str) -> None:
        """Check that the file still contains a line whose hash was noted earlier as its head, or says that it was lost.

        Nothing was noted, if it is empty.

        Raises:
            DataError: if it does not: the file was replaced by another or an older one.
        """
        if noted and noted not in self.known_heads:
            raise DataError(
                f"{self.path}: no line has the noted hash {noted}: another or an older file is in its place"
            )


class ChainedFile:
    """A file of chained lines, and its head, which is beside it and ends in ``.head.json``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.head_path = path.with_suffix(".head.json")

    def create(self, first: Mapping[str, Any]) -> None:
        """Create the file with its first line, if there is none.

        Raises:
            DataError: if there is a head without a file, or the disk is full.
        """
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self.head_path.exists() and not self.path.exists():
            raise DataError(f"{self.path} is missing, but {self.head_path.name} is there: {RESTORE}")
        with self._opened(os.O_RDWR | os.O_CREAT, fcntl.LOCK_EX) as file:
            chain, size = self._read(file, creating=True)
            if not chain.lines:
                self._append(file, chain, size, first)
            elif not self.head_path.exists():  # the process that created the file died before writing the head
                with self._writing():
                    self._write_head(1, chain.head)

    def read(self) -> Chain:
        """Read and verify all lines.

        Raises:
            ConfigurationError: if there is no file.
            DataError: if a line is damaged (its number is named) or lines are missing.
        """
        with self._opened(os.O_RDONLY, fcntl.LOCK_SH) as file:
            return self._complete(self._read(file)[0])

    @contextmanager
    def extending(self) -> Iterator[Extension]:
        """Lock the file, so that the appended line can depend on the existing ones.

        Raises:
            ConfigurationError: if there is no file, or another process locks it for more than a minute.
            DataError: if a line is damaged or lines are missing.
        """
        with self._opened(os.O_RDWR, fcntl.LOCK_EX) as file:
            chain, size = self._read(file)
            yield Extension(self, file, self._complete(chain), size)

    @contextmanager
    def recovering(self) -> Iterator[Extension]:
        """Lock a file that was set back or is damaged; the next line comes after the last undamaged one.

        Raises:
            ConfigurationError: if there is no file, or another process locks it for more than a minute.
            DataError: if not even the first line is undamaged.
        """
        with self._opened(os.O_RDWR, fcntl.LOCK_EX) as file:
            content = os.pread(file, os.fstat(file).st_size, 0)
            lines: list[Mapping[str, Any]] = []
            size = 0
            for text in content.split(b"\n")[:-1]:
                try:
                    lines.append(_verified(text, lines[-1]["hash"] if lines else START, str(self.path)))
                except DataError:
                    break
                size += len(text) + 1
            chain = Chain(self.path, tuple(lines), interrupted=size < len(content))
            yield Extension(self, file, self._complete(chain), size)

    def last_head(self) -> set[str]:
        """The hash in the head's file, if it can be read."""
        try:
            return {str(json.loads(self.head_path.read_text(encoding="utf-8"))["hash"])}
        except (OSError, ValueError, KeyError, TypeError):
            return set()

    @contextmanager
    def _opened(self, flags: int, lock: int) -> Iterator[int]:
        try:
            file = os.open(self.path, flags | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:
            raise ConfigurationError(f"{self.path}: there is no ledger; was it never created, or moved?") from None
        try:
            self._lock(file, lock)
            yield file
        finally:
            os.close(file)

    def _lock(self, file: int, lock: int) -> None:
        deadline = time.monotonic() + LOCK_SECONDS
        while True:
            try:
                fcntl.flock(file, lock | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise ConfigurationError(
                        f"{self.path}: another process has locked the file for {LOCK_SECONDS:.0f} s; is a process hanging?"
                    ) from None
                time.sleep(0.01)

    def _read(self, file: int, creating: bool = False) -> tuple[Chain, int]:
        """The verified lines and the number of their bytes; an incomplete last line is ignored."""
        content = os.pread(file, os.fstat(file).st_size, 0)
        size = content.rfind(b"\n") + 1
        lines: list[Mapping[str, Any]] = []
        for number, text in enumerate(content[:size].splitlines(), start=1):
            lines.append(_verified(text, lines[-1]["hash"] if lines else START, f"{self.path}: line {number}"))
        chain = Chain(self.path, tuple(lines), interrupted=size < len(content))
        self._require_all(chain, creating)
        return chain, size

    def _complete(self, chain: Chain) -> Chain:
        if not chain.lines:
            raise DataError(f"{self.path} is empty; {RESTORE}, or create it again if it is new")
        return chain

    def _require_all(self, chain: Chain, creating: bool) -> None:
        """Compare with the head. A process that died before it wrote the head leaves more lines than the head counts.

        Only a file that is being created may have no head; otherwise a single line could be all that is left of many.
        """
        try:
            head = json.loads(self.head_path.read_text(encoding="utf-8"))
            count, last = int(head["lines"]), str(head["hash"])
        except FileNotFoundError:
            if len(chain.lines) > (1 if creating else 0):
                raise DataError(
                    f"{self.head_path} is missing, so missing lines cannot be detected; {RESTORE}"
                ) from None
            return
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(f"{self.head_path} is damaged ({error}); {RESTORE}") from error
        if len(chain.lines) < count:
            raise DataError(
                f"{self.path} has {len(chain.lines)} lines, but {count} were written: it was truncated; {RESTORE}"
            )
        if count < 1 or chain.lines[count - 1]["hash"] != last:
            raise DataError(f"{self.path}: line {count} does not have the hash in {self.head_path.name}; {RESTORE}")

    def _append(self, file: int, chain: Chain, size: int, content: Mapping[str, Any]) -> Mapping[str, Any]:
        line = _sealed({**content, "salt": secrets.token_hex(16)}, chain.head)
        with self._writing():
            if chain.interrupted:
                os.ftruncate(file, size)
            _write_all(file, _canonical(line) + b"\n", size)
            os.fsync(file)
            self._write_head(len(chain.lines) + 1, line["hash"])
        # In another folder than the file, so that an older copy of both files can be recognised by a head that it lacks.
        head = f"line {len(chain.lines) + 1}, head {line['hash']}"
        syslog.syslog(syslog.LOG_NOTICE | syslog.LOG_USER, f"{SYSTEM_LOG}: {self.path}: {head}")
        return line

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise DataError(
                f"{self.path} cannot be written: {error.strerror or error}; nothing may be released"
            ) from error

    def _write_head(self, count: int, last: str) -> None:
        for leftover in self.head_path.parent.glob(f".{self.head_path.name}.*"):
            leftover.unlink()
        write_json(self.head_path, {"lines": count, "hash": last}, private=True)
        folder = os.open(self.head_path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)  # so that the names of both files are on disk, too
        finally:
            os.close(folder)


class Extension:
    """A locked file that this process may extend; see :meth:`ChainedFile.extending`."""

    def __init__(self, chained: ChainedFile, file: int, chain: Chain, size: int) -> None:
        self.chain = chain
        self._chained, self._file, self._size = chained, file, size

    def append(self, content: Mapping[str, Any]) -> None:
        """Append one line per extension, of plain JSON values; it is on disk when this returns.

        Raises:
            DataError: if it cannot be written, for example because the disk is full.
        """
        self._chained._append(self._file, self.chain, self._size, content)


def _canonical(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def _sealed(content: Mapping[str, Any], previous: str) -> dict[str, Any]:
    body = {**content, "previous": previous}
    return {**body, "hash": hashlib.sha256(_canonical(body)).hexdigest()}


def _verified(text: bytes, previous: str, where: str) -> Mapping[str, Any]:
    """The object in a line; its text must be canonical, so that all readers parse the same object."""
    try:
        content = json.loads(text)
        body = {key: value for key, value in content.items() if key not in ("previous", "hash")}
        sealed = _sealed(body, previous)
        sound = _canonical(sealed) == text
    except (ValueError, AttributeError) as error:
        raise DataError(f"{where} is damaged ({error}); {RESTORE}") from error
    if not sound:
        raise DataError(f"{where} is damaged or out of place: its hash does not match; {RESTORE}")
    return sealed


def _write_all(file: int, data: bytes, offset: int) -> None:
    """Write at the end of the file; after an error the file is truncated to its previous length."""
    try:
        written = 0
        while written < len(data):
            written += os.pwrite(file, data[written:], offset + written)
    except OSError:
        os.ftruncate(file, offset)
        raise


NOTED_HEAD = "ledger_head.json"
"""In a kit's folder of states."""


def note_head(states: Path, head: str) -> None:
    """Keep a head that came with a task; without one nothing is written, and what is noted stays.

    Raises:
        OSError: if the disk does not take it.
    """
    if head and noted_head(states) != head:
        write_json(states / NOTED_HEAD, {"head": head})


def noted_head(states: Path) -> str:
    """The head that was noted last; empty if none was, or the file cannot be read."""
    try:
        return str(read_json_object(states / NOTED_HEAD)["head"])
    except (OSError, ValueError, KeyError):
        return ""
