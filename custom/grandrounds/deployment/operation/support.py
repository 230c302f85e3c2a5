"""A support bundle: what helps to find a fault at a server or a site, to be read before it is sent.

Its content is a fixed list of files and keys. No text of a message is in it: of an error only its class, if that is a known
one, and the lines of source where it was raised. Values have a type and a form, and no image, manifest, key, ledger line or
model is ever opened for it.
"""

from __future__ import annotations

import builtins
import io
import json
import platform
import re
import time
import traceback
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from math import isfinite
from pathlib import Path
from typing import Any

from grandrounds import errors
from grandrounds.data.fitness import Finding
from grandrounds.deployment.code_digest import installed_digest
from grandrounds.deployment.kit.cleaning import job_folders
from grandrounds.deployment.kit.doctor import examine_kit
from grandrounds.deployment.kit.overlay import LEDGER_FOLDER
from grandrounds.deployment.kit.read import OWN_PID, Kit, running_processes, supervisor
from grandrounds.deployment.kit.service import CONSOLE
from grandrounds.deployment.operation.metrics import reason_code
from grandrounds.deployment.operation.status import Status, kit_status
from grandrounds.errors import ConfigurationError
from grandrounds.federation.channels import is_job_id
from grandrounds.federation.server.record import SUMMARY, versions
from grandrounds.files import file_digest, read_json_object, write_bytes
from grandrounds.privacy.gate.audit import AUDIT_NAME
from grandrounds.protocol.paths import LOCK, STATES
from grandrounds.protocol.refusal import Reason

LAST_LINES = 300
"""Lines of each log."""
LAST_JOBS = 3
"""Jobs whose log and options are in the bundle."""
TAIL_BYTES = 512 * 1024
"""What is read of the end of a log."""
JSON_LOG = "log.json"
PLAIN = re.compile(r"[\w.@:+-]{1,64}")
"""A name of a run, data set, task, class of this package, or option."""
MODULE = re.compile(r"(nvflare|grandrounds|custom)(\.\w+)*")
LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
FRAME = re.compile(r'File "[^"]*?((?:nvflare|grandrounds|torch)/[\w/.]+\.py)", line (\d+), in (\w+)')
ERROR = re.compile(r"\b[A-Z]\w*(?:Error|Exception)\b")
ERROR_NAMES = frozenset(
    name
    for module in (builtins, errors)
    for name, known in vars(module).items()
    if isinstance(known, type) and issubclass(known, Exception)
)
ENDED = re.compile(r"FLARE ended with status (-?\d+);")
"""What the supervisor says when it starts FLARE again."""
OF_RUN = ("status", "round", "rounds", "seconds_left", "ended", "contributions", "moved")
README_TEMPLATE = Path(__file__).with_name("templates") / "support.txt"


@dataclass(frozen=True)
class Entry:
    """A file of the bundle: its name, what it is, and its bytes."""

    name: str
    meaning: str
    content: bytes


def support_entries(kit: Kit, network: bool = True) -> list[Entry]:
    """What a bundle of this kit has, the README first.

    Args:
        kit: of a server or a site; it is only read.
        network: whether doctor and status may contact the server.
    """
    parts: list[tuple[str, str, Callable[[], Any]]] = [
        ("versions.json", "versions of the programs and of the system", _versions),
        ("kit.json", "role, name, project and port", lambda: _described(kit)),
        ("status.json", "what grandrounds status says", lambda: _status(kit_status(kit, network))),
        ("doctor.json", "what grandrounds doctor says", lambda: _findings(examine_kit(kit, network))),
        ("supervisor.json", "what starts FLARE again after a crash", lambda: _supervisor(kit)),
        ("digests.json", "SHA-256 of the package and of the locked files", lambda: _digests(kit)),
        ("jobs.json", "options of the last jobs", lambda: dict(_jobs(kit))),
    ]
    if kit.kind == "site":
        parts.append(("answers.json", "the last lines of the audit trail", lambda: [*_answers(kit)]))
    entries = [Entry(name, meaning, _guarded(make)) for name, meaning, make in parts]
    for name, lines in _logs(kit):
        content = "".join(f"{json.dumps(_log_line(line, name), ensure_ascii=False)}\n" for line in lines)
        entries.append(Entry(f"logs/{name}.jsonl", f"the last {len(lines)} lines of its log", content.encode()))
    return [_readme(kit, entries), *entries]


def require_new(path: Path) -> None:
    """Check where a bundle is to be written.

    Raises:
        ConfigurationError: if the file exists, or its name does not end in ``.zip``.
    """
    if path.suffix != ".zip":
        raise ConfigurationError(f"--out must end in .zip, got {path}")
    if path.exists():
        raise ConfigurationError(f"{path} exists; name another file, or remove it")


def write_bundle(entries: Sequence[Entry], path: Path) -> None:
    """Write a bundle whole or not at all, for its owner alone.

    Raises:
        ConfigurationError: as :func:`require_new` says.
    """
    require_new(path)
    now = time.localtime()[:6]
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for entry in entries:
            about = zipfile.ZipInfo(entry.name, now)
            about.compress_type, about.external_attr = zipfile.ZIP_DEFLATED, 0o600 << 16
            archive.writestr(about, entry.content)
    write_bytes(path, made.getvalue(), private=True)


def _readme(kit: Kit, entries: Sequence[Entry]) -> Entry:
    width = max(len(entry.name) for entry in entries)
    files = "\n".join(f"{entry.name:<{width}}  {len(entry.content):>8} bytes  {entry.meaning}" for entry in entries)
    text = README_TEMPLATE.read_text(encoding="utf-8").format(
        name=kit.name,
        kind=kit.kind,
        project=kit.project,
        version=versions()["grandrounds"],
        time=datetime.now(UTC).isoformat(timespec="seconds"),
        files=files,
    )
    return Entry("README.txt", "what is in the bundle, and what is not", text.encode())


def _guarded(make: Callable[[], Any]) -> bytes:
    """A part as JSON; one that cannot be made says by which error, and the others go on."""
    try:
        content = make()
    except Exception:  # a kit that needs support may have any form
        content = _fault(traceback.format_exc())
    return (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode()


def _fault(text: Any) -> dict[str, Any]:
    """Of a message or a traceback the known classes of errors in it, and the lines of source."""
    names = [name for name in ERROR.findall(str(text)) if name in ERROR_NAMES]
    return {"errors": names, "where": [f"{file}:{line} {name}" for file, line, name in FRAME.findall(str(text))]}


def _findings(findings: Sequence[Finding]) -> list[dict[str, str]]:
    return [{"level": finding.level, "check": finding.check} for finding in findings]


def _log_line(line: Mapping[str, Any], log: str) -> dict[str, Any]:
    """A line of a log, of FLARE's form or of this package's; the log of a job is named by its id."""
    level, logger = _first(line, "level", "levelname"), _first(line, "logger", "fullName")
    job = re.search(r"\brun=([0-9a-f-]{36})\b", str(line.get("fl_ctx", "")))
    return {
        "time": _moment(_first(line, "time", "asctime")),
        "level": level if level in LOG_LEVELS else None,
        "job": _plain(line.get("job")) or (job[1] if job else log if is_job_id(log) else None),
        "round": line.get("round") if type(line.get("round")) is int else None,
        "event": _plain(line.get("event")),
        "logger": logger if MODULE.fullmatch(str(logger)) else None,
        **_fault(f"{line.get('message', '')}\n{line.get('traceback', '')}"),
    }


def _versions() -> dict[str, str]:
    return {**versions(), "system": platform.system(), "kernel": platform.release(), "machine": platform.machine()}


def _described(kit: Kit) -> dict[str, Any]:
    return {"kind": kit.kind, "name": kit.name, "project": kit.project, "port": kit.port}


def _status(status: Status) -> dict[str, Any]:
    """The state, field by field; scores and events stay."""
    failed = [
        {**_task({**task, "run": name}), **_fault(task.get("cause"))} for name, task in status.failed_tasks.items()
    ]
    refused = {**_task(status.refused), "reason": _sentence(status.refused.get("reason"))} if status.refused else {}
    return {
        "name": status.name,
        "kind": status.kind,
        "level": status.level,
        "version": status.version,
        "free": status.free,
        "certificate_days": status.certificate_days,
        "epsilon": {_plain(name): value if isfinite(value) else None for name, value in status.epsilon.items()},
        "sites": {_plain(name): facts for name, facts in status.sites.items()},
        "findings": _findings(status.findings),
        "runs": [_run(run) for run in status.runs],
        "released": _task(status.released) if status.released else {},
        "refused": refused,
        "failed_tasks": failed,
    }


def _run(run: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "name": _plain(run["name"]),
        **{name: run.get(name) for name in OF_RUN},
        **{name: run.get(name) or {} for name in ("lost", "silent", "paused")},
        "refused": {site: reason_code(str(reason)) for site, reason in (run.get("refused") or {}).items()},
        "dropped": [[site, reason_code(str(reason))] for site, reason in run.get("dropped") or ()],
    }


def _task(line: Mapping[str, Any]) -> dict[str, Any]:
    named = {name: _plain(line.get(name)) for name in ("job", "run", "task", "dataset")}
    number = line.get("round")
    return {"time": _moment(line.get("time")), **named, "round": number if type(number) is int else None}


def _answers(kit: Kit) -> Iterator[dict[str, Any]]:
    """Lines of the audit trail without what has left."""
    for line in _tail(kit.local / LEDGER_FOLDER / AUDIT_NAME):
        yield {**_task(line), "outcome": _plain(line.get("outcome")), "reason": _sentence(line.get("reason"))}


def _supervisor(kit: Kit) -> dict[str, Any]:
    """Processes by number, and with which status FLARE has ended under the supervisor."""
    pid, console = kit.folder / OWN_PID, kit.folder / CONSOLE
    text = _end(console).decode(errors="replace") if console.is_file() else ""
    return {
        "supervisor": supervisor(kit),
        "processes": running_processes(kit),
        "started_seconds_ago": round(time.time() - pid.stat().st_mtime) if pid.is_file() else None,
        "ended_with": [int(status) for status in ENDED.findall(text)],
    }


def _digests(kit: Kit) -> dict[str, Any]:
    lock = kit.own_file(LOCK)
    pinned = {name: _plain(value) for name, value in lock.get("package", {}).items() if isinstance(value, str)}
    now = {name: file_digest(kit.local / name) for name in _locked(lock) if (kit.local / name).is_file()}
    return {"installed": installed_digest(), "pinned": pinned, "locked": _locked(lock), "now": now}


def _locked(lock: Mapping[str, Any]) -> dict[str, str]:
    return {name: digest for name, digest in lock.get("files", {}).items() if re.fullmatch(r"[\w.]+", name)}


def _jobs(kit: Kit) -> Iterator[tuple[str, Any]]:
    """By id, the options of the parts of the last jobs; at a server, which keeps no folders of jobs, those of runs."""
    summaries = sorted((kit.folder / STATES).glob(f"*/server/{SUMMARY}"), key=lambda path: -path.stat().st_mtime)
    for path in summaries[:LAST_JOBS] if kit.kind == "server" else ():
        yield str(_plain(path.parts[-3])), _options(read_json_object(path).get("configuration", {}))
    for folder in _last_jobs(kit):
        parts: dict[str, Any] = {}
        for path in sorted(folder.glob("app_*/config/config_fed_*.json")):
            content = read_json_object(path)
            named = [entry["executor"] for entry in content.get("executors", ())] + content.get("workflows", [])
            parts |= {str(_plain(part.get("path"))): _options(part.get("args", {})) for part in named}
        yield folder.name, parts


def _options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options by name: switches, numbers and short words, and of all else how much it is."""
    return {name: _option(name, value) for name, value in options.items() if _plain(name)}


def _option(name: str, value: Any) -> Any:
    if isinstance(value, bool | int | float | None):
        return value
    if isinstance(value, str):
        return _plain(value)
    if name == "problem" and isinstance(value, Mapping):
        return _options(value)
    return f"{len(value)} entries" if isinstance(value, Mapping | list) else None


def _logs(kit: Kit) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """The last lines of FLARE's log of this participant, and of its last jobs."""
    for name, folder in ((kit.kind, kit.folder), *((folder.name, folder) for folder in _last_jobs(kit))):
        if lines := _tail(folder / JSON_LOG):
            yield name, lines


def _last_jobs(kit: Kit) -> list[Path]:
    """The folders of the last jobs, the newest first."""
    return sorted(job_folders(kit), key=lambda folder: -folder.stat().st_mtime)[:LAST_JOBS]


def _tail(path: Path) -> list[dict[str, Any]]:
    """The last objects of a file of JSON lines; none where there is no such file."""
    try:
        text = _end(path).decode(errors="replace")
    except OSError:
        return []
    entries = []
    for line in text.splitlines()[-LAST_LINES:]:
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        entries += [entry] if isinstance(entry, dict) else []
    return entries


def _end(path: Path) -> bytes:
    with path.open("rb") as stream:
        stream.seek(max(0, stream.seek(0, io.SEEK_END) - TAIL_BYTES))
        return stream.read()


def _first(line: Mapping[str, Any], *names: str) -> Any:
    return next((line[name] for name in names if name in line), None)


def _plain(value: Any) -> str | None:
    """A short name without spaces and slashes; None for everything else."""
    return value if isinstance(value, str) and PLAIN.fullmatch(value) else None


def _moment(value: Any) -> str | None:
    return value if isinstance(value, str) and re.fullmatch(r"\d[\dT:., +-]{9,34}Z?", value) else None


def _sentence(value: Any) -> str | None:
    """A reason of a refusal, which is one of a fixed list."""
    return str(value) if value in {str(reason) for reason in Reason} else None
