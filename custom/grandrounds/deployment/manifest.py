"""What the signature of a job binds: one manifest of its files, for whom it is, and until when.

FLARE signs the content of each file alone, so parts of several jobs, or an old job, would pass. The manifest is one signed
file that names all others by their digests, the code that they are for, and a number that a site takes once.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import secrets
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Self

from grandrounds.deployment.code_digest import UNREVIEWED, installed_digest
from grandrounds.errors import ConfigurationError
from grandrounds.federation.job_files import MANIFEST, META, SERVER_PART, SIGNATURES, strict_json
from grandrounds.files import owners_alone, read_json_object, require_object, write_json

LONGEST_DAYS = 366
"""For how long a manifest may be valid."""
EVERY_SITE, OF_STUDY = "@ALL", "default"
"""FLARE's names of all sites, and of the study of a job that names none."""
USED = "jobs.jsonl"
"""Beside a site's ledger: the numbers that were taken, with FLARE's ids of their jobs."""
APPROVED = "approved_jobs.json"
"""In a kit's folder ``local``: what the hospital has approved, by :attr:`Manifest.content`."""


@dataclass(frozen=True)
class Manifest:
    """One for each app of a job.

    Attributes:
        job: its name.
        id: drawn by the submitter; sites note FLARE's id beside it.
        number: used once.
        study: FLARE's.
        policy: the name of the policy that sites are to apply; empty for their default.
        dataset: that sites train on.
        sites: for which it is; ``@ALL`` for all.
        code: the digest of the package.
        expires: when it stops to be valid, in ISO 8601 with the zone.
        files: SHA-256 of each file by name, without FLARE's signatures and the manifest.
    """

    job: str
    id: str
    number: str
    study: str
    policy: str
    dataset: str
    sites: list[str]
    code: str
    expires: str
    files: dict[str, str]

    @classmethod
    def read(cls, content: bytes) -> Self:
        """Read one.

        Raises:
            ConfigurationError: if it has another form.
        """
        entry = require_object(strict_json(content, MANIFEST), MANIFEST, list(cls.__dataclass_fields__))
        texts = {name: value for name, value in entry.items() if name not in ("sites", "files")}
        sites, files = entry["sites"], entry["files"]
        known = isinstance(sites, list) and isinstance(files, dict)
        if not known or not all(isinstance(text, str) for text in (*texts.values(), *sites, *files.values())):
            raise ConfigurationError(f"{MANIFEST}: expected texts, a list of sites and digests of files by name")
        return cls(**entry)

    @property
    def content(self) -> str:
        """The digest of what would run: code, files and policy, not who has signed them or how often."""
        return hashlib.sha256(json.dumps([self.code, self.policy, self.files], sort_keys=True).encode()).hexdigest()

    def refusal(self, files: Mapping[str, bytes], meta: Mapping[str, Any], site: str, now: datetime) -> str:
        """Why a site must not run what came with this manifest; empty if it may.

        Args:
            files: that came, by name.
            meta: FLARE's, which no one has signed.
            site: its name.
            now: with its zone.
        """
        stated = [(self.job, meta.get("name"), "job"), (self.policy, meta.get("scope") or "", "policy")]
        stated.append((self.study, meta.get("study") or OF_STUDY, "study"))
        for signed, said, what in stated:
            if signed != said:
                return f"the server calls the {what} {said!r}, the signed manifest {signed!r}"
        if self.files != digests_of(files):
            return "the files of the job are not those of its signed manifest"
        if site not in self.sites and EVERY_SITE not in self.sites:
            return f"the job is signed for {', '.join(self.sites)}, not for {site}"
        if self.code != installed_digest():
            return "the job is signed for another version of the package than is installed here"
        try:
            left = datetime.fromisoformat(self.expires) - now
        except (TypeError, ValueError):
            return f"{MANIFEST}: {self.expires!r} is no date with a zone"
        if not timedelta(0) < left < timedelta(days=LONGEST_DAYS):
            return f"the job's manifest is valid until {self.expires}; submit the job again"
        return ""


def take_number(folder: Path, manifest: Manifest, job: str) -> str:
    """Note that a manifest's number is taken by FLARE's ``job``; why it may not be, if another one has it.

    Args:
        folder: of the site's ledger.
        manifest: that was found valid.
        job: FLARE's id.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with open(folder / USED, "a+b", opener=owners_alone) as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        stream.seek(0)
        lines = stream.read()
        # A piece of a line is of a full disk, or of a process that died: its job was not taken.
        stream.truncate(whole := lines.rfind(b"\n") + 1)
        for line in lines[:whole].splitlines():
            taken = json.loads(line)
            if taken["number"] == manifest.number and taken["job"] == job:
                return ""  # the same job, taken up again
            if manifest.number == taken["number"] or job == taken["job"]:
                return f"the job's manifest was used at {taken['time']}, or FLARE's id was; submit the job again"
        now = datetime.now(UTC).isoformat(timespec="seconds")
        entry = {"number": manifest.number, "id": manifest.id, "job": job, "name": manifest.job, "time": now}
        stream.write(json.dumps(entry).encode() + b"\n")
        stream.flush()
        os.fsync(stream.fileno())
    return ""


def approved(local: Path) -> dict[str, Any]:
    """The names of the jobs that a site has approved, by content."""
    return read_json_object(local / APPROVED) if (local / APPROVED).is_file() else {}


def digests_of(files: Mapping[str, bytes]) -> dict[str, str]:
    """The SHA-256 of each file but FLARE's signatures, the manifest, and caches of the interpreter."""
    return {
        name: hashlib.sha256(content).hexdigest()
        for name, content in sorted(files.items())
        if name != MANIFEST
        and name.rpartition("/")[2] not in SIGNATURES
        and not any(part in name for part in UNREVIEWED)
    }


VALID_DAYS = 30
"""For how long a manifest is valid."""


def add_manifests(folder: Path) -> Path:
    """Write a manifest into each app of a job's folder, in place of an earlier one: FLARE signs it when it submits the job.

    Returns:
        The folder, which can be submitted once.

    Raises:
        ConfigurationError: if it is no job.
    """
    meta = read_json_object(folder / META)
    until = datetime.now(UTC) + timedelta(days=VALID_DAYS)
    identity = str(uuid.uuid4())
    for app, sites in meta["deploy_map"].items():
        inside = {path.relative_to(folder / app).as_posix(): path for path in sorted((folder / app).rglob("*"))}
        files = {name: path.read_bytes() for name, path in inside.items() if path.is_file()}
        made = Manifest(
            meta["name"],
            identity,
            secrets.token_hex(16),
            meta.get("study") or OF_STUDY,
            meta.get("scope") or "",
            _dataset(files.get(SERVER_PART, b"{}")),
            list(sites),
            installed_digest(),
            until.isoformat(timespec="seconds"),
            digests_of(files),
        )
        write_json(folder / app / MANIFEST, asdict(made))
    return folder


def approve(local: Path, folder: Path) -> Manifest:
    """Approve what a job's folder would run at the site, as often as it comes; other code or policy make another job.

    Args:
        local: the site's own folder.
        folder: of the job, or of one of its apps, with a manifest.

    Raises:
        ConfigurationError: if the folder has no manifest, or its files are not those of it.
    """
    found = next((path for path in (folder / MANIFEST, *folder.glob(f"*/{MANIFEST}")) if path.is_file()), None)
    if found is None:
        raise ConfigurationError(f"{folder} has no {MANIFEST}; ask for the folder that grandrounds build has written")
    manifest = Manifest.read(found.read_bytes())
    inside = {path.relative_to(found.parent).as_posix(): path for path in found.parent.rglob("*") if path.is_file()}
    if manifest.files != digests_of({name: path.read_bytes() for name, path in inside.items()}):
        raise ConfigurationError(f"the files of {found.parent} are not those of its manifest; ask for the folder again")
    contents = approved(local)
    write_json(local / APPROVED, {**contents, manifest.content: manifest.job})
    return manifest


def _dataset(server_part: bytes) -> str:
    try:
        return str(json.loads(server_part)["workflows"][0]["args"]["problem"]["dataset"])
    except (ValueError, LookupError, TypeError):
        return ""
