"""A job is data: its files, their texts and their size, checked before FLARE reads any of them.

FLARE 2.9 would also read a configuration as HOCON, which includes files and addresses, and puts variables of the machine
into texts with braces. Here a job has JSON only, which FLARE and this package read alike.
"""

from __future__ import annotations

import io
import json
import math
import stat
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZIP_STORED, BadZipFile, ZipFile, ZipInfo

from nvflare.lighter.tool_consts import NVFLARE_SIG_FILE, NVFLARE_SUBMITTER_CRT_FILE

from grandrounds.errors import ConfigurationError
from grandrounds.files import unique_names
from grandrounds.protocol.messages import TASKS

MAX_FILES, MAX_BYTES = 2000, 16 * 1024**2
"""Of a job, unpacked: one with this package in it has about 500 files and 4 MiB, others less than 1 MiB."""
META, MANIFEST = "meta.json", "manifest.json"
"""Of a job, and of an app: what is signed."""
CLIENT_PART, SERVER_PART = "config/config_fed_client.json", "config/config_fed_server.json"
CODE = f"custom/{__package__.partition('.')[0]}/"
"""Where a job that brings its code has this package; a hospital's kit refuses such jobs."""
SIGNATURES = (NVFLARE_SIG_FILE, NVFLARE_SUBMITTER_CRT_FILE)
PARTS: Mapping[str, tuple[str, ...]] = {
    CLIENT_PART: ("executors", "task_data_filters", "task_result_filters", "components"),
    SERVER_PART: ("server", "workflows", "task_data_filters", "task_result_filters", "components"),
}
"""The two files of an app, and their entries that are no numbers."""
ANY_TASK = "*"


def read_files(archive: bytes | Path) -> dict[str, bytes]:
    """The files of a job's archive by name.

    Raises:
        ConfigurationError: if it is no archive, has a link or two files of one name, or is larger than a job.
    """
    try:
        with ZipFile(io.BytesIO(archive) if isinstance(archive, bytes) else archive) as opened:
            entries = opened.infolist()
            if len(entries) > MAX_FILES or sum(entry.file_size for entry in entries) > MAX_BYTES:
                raise ConfigurationError(
                    f"a job has at most {MAX_FILES} files and {MAX_BYTES} bytes; this one has more"
                )
            if others := [entry.filename for entry in entries if entry.compress_type not in (ZIP_STORED, ZIP_DEFLATED)]:
                raise ConfigurationError(f"{others[0]!r} is compressed in another way; submit the job again")
            if links := [entry.filename for entry in entries if stat.S_ISLNK(entry.external_attr >> 16)]:
                raise ConfigurationError(f"{links[0]!r} is a link, which a job does not have")
            files = {entry.filename: _content(opened, entry) for entry in entries if not _is_plain_folder(entry)}
    except (BadZipFile, OSError, RuntimeError, NotImplementedError, ValueError, EOFError, zlib.error) as error:
        raise ConfigurationError(f"the job's archive cannot be read: {error}") from error
    if len(files) != sum(not _is_plain_folder(entry) for entry in entries):
        raise ConfigurationError("two files of the job have one name")
    if any(".." in entry.filename.split("/") for entry in entries):
        raise ConfigurationError("a file of the job has a path outside it")
    return files


def require_app(files: Mapping[str, bytes]) -> None:
    """Check what a party gets of a job: two JSON files, manifest, FLARE's signatures, and of a job with code this package.

    Raises:
        ConfigurationError: naming the file, and the entry in it.
    """
    others = {name for name in files if not _is_signature(name) and not name.startswith(CODE)}
    if unknown := sorted(others - PARTS.keys() - {MANIFEST}):
        raise ConfigurationError(f"{unknown[0]!r} is no file of a job; it has {' and '.join(PARTS)}")
    if missing := [name for name in (*PARTS, MANIFEST) if name not in files]:
        raise ConfigurationError(f"the job lacks {missing[0]}; submit it by grandrounds submit, or build it again")
    for name in PARTS:
        _require_data(strict_json(files[name], name), name)


def require_job(files: Mapping[str, bytes], folder: str) -> None:
    """Check a job as it is submitted: ``meta.json``, signatures and apps below its folder.

    Raises:
        ConfigurationError: as :func:`require_app`, or if a file is in another place.
    """
    apps: dict[str, dict[str, bytes]] = {}
    for name, content in files.items():
        root, _, inside = name.partition("/")
        app, _, rest = inside.partition("/")
        if root != folder or (not rest and inside != META and inside not in SIGNATURES):
            raise ConfigurationError(f"{name!r} is no file of a job")
        if rest:
            apps.setdefault(app, {})[rest] = content
    strict_json(files.get(f"{folder}/{META}", b""), META)
    for inner in apps.values():
        require_app(inner)


def strict_json(content: bytes, name: str) -> dict[str, Any]:
    """An object in JSON that all readers understand alike: UTF-8, no name twice, no number that is none.

    Raises:
        ConfigurationError: naming the file.
    """

    def finite(text: str) -> float:
        if not math.isfinite(number := float(text)):
            raise ValueError(f"{text[:20]} is no number")
        return number

    try:
        read = json.loads(content.decode(), object_pairs_hook=unique_names, parse_constant=finite, parse_float=finite)
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"{name} is not strict JSON: {error}") from error
    if not isinstance(read, dict):
        raise ConfigurationError(f"{name} must be a JSON object, got {type(read).__name__}")
    return read


def _require_data(content: Mapping[str, Any], name: str) -> None:
    """Refuse what FLARE would expand or a server could ask for by name: braces, dollars, parameters, other tasks."""
    for text in _texts(content):
        if any(sign in text for sign in "{}$") or text.startswith("@"):
            raise ConfigurationError(
                f"{name}: FLARE would expand {text[:80]!r}; no text has a brace, a dollar or a first @"
            )
    for entry, value in content.items():
        if entry not in PARTS[name] and not isinstance(value, int | float):
            raise ConfigurationError(f"{name}: {entry!r} is no entry of a job")
    for number, listed in enumerate(_tasks(content)):
        if not isinstance(listed, list) or not {*map(str, listed)} <= {ANY_TASK, *TASKS}:
            raise ConfigurationError(
                f"{name}: tasks are {', '.join(TASKS)} or {ANY_TASK}, got {listed!r} in entry {number}"
            )


def _tasks(content: Mapping[str, Any]) -> Iterator[Any]:
    """The names of tasks in executors and filters."""
    for part in ("executors", "task_data_filters", "task_result_filters"):
        entries = content.get(part, [])
        for entry in entries if isinstance(entries, list) else [entries]:
            yield entry.get("tasks", [ANY_TASK]) if isinstance(entry, dict) else entry


def _texts(content: Any) -> Iterator[str]:
    if isinstance(content, str):
        yield content
    elif isinstance(content, dict):
        yield from content
        for value in content.values():
            yield from _texts(value)
    elif isinstance(content, list):
        for value in content:
            yield from _texts(value)


def _content(archive: ZipFile, entry: ZipInfo) -> bytes:
    """A file's bytes; asked for as many as it states, Python unpacks no more of one that states too few."""
    with archive.open(entry) as stream:
        return stream.read(entry.file_size)


def _is_plain_folder(entry: ZipInfo) -> bool:
    return entry.filename.endswith("/") and not entry.file_size


def _is_signature(name: str) -> bool:
    """Whether a file is FLARE's: of the app itself, of its configuration, or beside code."""
    folder, _, file = name.rpartition("/")
    return file in SIGNATURES and folder in ("", "config", "custom")
