"""What the gate knows of a site's data sets; each image has one budget, in whatever file, archive or data set it lies.

The gate must not rely on a method for this, and reads no manifest and no image itself: a process of its own does, which ends
before the task is admitted (:mod:`grandrounds.privacy.inventory`). An answer of that process holds as long as the files that
it was made from are as they were: the site's own description and manifests by their content, images by what the system says
of their files. This is looked at whenever a task comes.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import select
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from grandrounds.errors import DataError, GrandRoundsError
from grandrounds.files import require_object
from grandrounds.privacy.gate.audit import write_audit
from grandrounds.privacy.ledger.ledger import DIGEST_FOLDER, PATIENT, Ledger
from grandrounds.privacy.ledger.lines import DatasetIdentity
from grandrounds.protocol.names import STORED_BYTES

READER = "grandrounds.privacy.inventory"
"""The module that the process runs."""
MOST_BYTES = 1 << 30
"""Of an answer: several million images."""
SILENT_SECONDS, MOST_SECONDS = 600, 24 * 3600
"""How long its process may read one image, and all."""
KEPT_ANSWERS = 64
"""Answers that a process keeps; one about each site and data set, and a simulation has many sites."""
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
_HASH = re.compile(r"[0-9a-f]{64}")
_DIGEST = re.compile(r"[a-z0-9-]{1,16}:[0-9a-f]{32}")
_kept: dict[InventoryRequest, Inventory] = {}


class DatasetFacts(NamedTuple):
    """A data set of the site.

    Attributes:
        identity: its name and fingerprint.
        patients: number of patients (else lesions, else images) in ``train``, ``labelled``, ``val`` and ``test``.
        images: number of training images.
        people: its patients, of images whose patient is known; empty where the ledger has them.
        state: a SHA-256 that changes when files or manifest do.
        digests: by which its images are known; None where the ledger has them.
        content: a SHA-256 of what is in each image, by name; empty without digests.
        backbone: of the network that the site chooses for it; empty if it leaves that to the job.
    """

    identity: DatasetIdentity
    patients: Mapping[str, int]
    images: int
    people: frozenset[str]
    state: str
    digests: frozenset[str] | None = None
    content: str = ""
    backbone: str = ""


class InventoryRequest(NamedTuple):
    """Which data sets of a site a request is about.

    Attributes:
        site: its name.
        folders: in which its ``grandrounds.json`` is looked for.
        cache: the folder in which phantoms are drawn.
        dataset: that the task is about.
        public: the data set whose images the task calls public; None if it names none.
        private: whether all private data sets of the site are asked about, too.
    """

    site: str
    folders: tuple[str, ...]
    cache: str
    dataset: str
    public: str | None = None
    private: bool = False


class Inventory(NamedTuple):
    """The answer.

    Attributes:
        datasets: what is known of each by name; one beside the task's that cannot be read is missing.
        described: the names of all private data sets, if they were asked about.
        public_rows: images of the public data set.
        read: files on whose content it depends.
        seen: files on whose state it depends.
        stamp: of both, see :func:`stamp`.
    """

    datasets: Mapping[str, DatasetFacts]
    described: tuple[str, ...]
    public_rows: int
    read: tuple[str, ...]
    seen: tuple[str, ...]
    stamp: str

    @property
    def is_current(self) -> bool:
        """Whether all files are as they were."""
        return stamp(self.read, self.seen) == self.stamp

    def is_of(self, known: Mapping[str, str]) -> bool:
        """Whether a ledger that knows data sets in these states has all of them as they are."""
        return all(known.get(name) == facts.state for name, facts in self.datasets.items())


def stamp(read: Sequence[str], seen: Sequence[str]) -> str:
    """A SHA-256 of the content of some files, and of what the system says of others: place, size and times.

    A file that is missing or cannot be read has a stamp of its own.
    """
    digest = hashlib.sha256()
    for path in read:
        with contextlib.suppress(OSError):
            digest.update(hashlib.sha256(Path(path).read_bytes()).digest())
        digest.update(f"{path}\n".encode())
    for path in seen:
        with contextlib.suppress(OSError, ValueError):
            status = os.stat(path)
            digest.update(
                repr((status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)).encode()
            )
        digest.update(f"{path}\n".encode())
    return digest.hexdigest()


def take_inventory(question: InventoryRequest, ledger: Ledger, folder: Path) -> Inventory:
    """Ask about data sets, and let the ledger know their images and patients.

    They are read whenever files or manifest have changed. Of the private data sets beside the task's, one that cannot be
    read or recorded is passed over: it gives no answer either.

    Args:
        question: about which.
        ledger: of the site.
        folder: of the ledger.

    Raises:
        GrandRoundsError: if the data set of the task cannot be read, files change meanwhile, or the ledger cannot be used.
        Refused: if the audit trail cannot be written.
    """
    known = {line.dataset.name: line.state for line in ledger.content().known}
    inventory = _kept.get(question)
    if inventory is None or not inventory.is_current or not inventory.is_of(known):
        inventory = ask(question, known)
    for name, facts in inventory.datasets.items():
        with contextlib.suppress(*([] if name == question.dataset else [GrandRoundsError])):
            record(ledger, folder, facts)
    if set(inventory.described) <= inventory.datasets.keys():
        if len(_kept) >= KEPT_ANSWERS:
            _kept.clear()
        recorded = {
            name: facts._replace(people=frozenset(), digests=None) for name, facts in inventory.datasets.items()
        }
        _kept[question] = inventory._replace(datasets=recorded)
    return inventory


def ask(question: InventoryRequest, known: Mapping[str, str]) -> Inventory:
    """Have data sets read by a process of its own; of one whose state is known its images are not read.

    Raises:
        DataError: if they cannot be read, have changed meanwhile, or the answer has another form.
    """
    text = json.dumps({**question._asdict(), "known": dict(known)})
    # What it prints on its way may name patients, and the site's log may be sent to the server.
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", READER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        # With one thread: walls are of the thread that raises them, and of those that it starts.
        env={**os.environ, **dict.fromkeys(THREADS, "1"), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    with process:
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(text.encode())
            process.stdin.close()
        try:
            answer = _all_of(process)
        except DataError:
            process.kill()
            raise
    if process.returncode:
        raise DataError(f"the process that reads the data sets has ended with {process.returncode}")
    try:
        content = _object(json.loads(answer))
        inventory = _inventory(content) if content.keys() != {"error"} else None
    except (ValueError, RecursionError) as error:
        raise DataError(f"the inventory of the data sets has another form: {error}") from error
    if inventory is None:
        raise DataError(str(content["error"]))
    if question.dataset not in inventory.datasets or not inventory.is_current:
        raise DataError("files of the data sets have changed while they were read")
    return inventory


def _all_of(process: subprocess.Popen[bytes]) -> bytearray:
    """What a process prints until it ends.

    Raises:
        DataError: if it takes too long, or prints too much.
    """
    assert process.stdout is not None
    answer, ends = bytearray(), time.monotonic() + MOST_SECONDS
    waiting = select.poll()
    waiting.register(process.stdout, select.POLLIN)
    while len(answer) <= MOST_BYTES and time.monotonic() < ends and waiting.poll(1000 * SILENT_SECONDS):
        came = os.read(process.stdout.fileno(), 1 << 20)
        if not came:
            return answer
        answer += came
    raise DataError(
        f"the process that reads the data sets was ended: {SILENT_SECONDS} s without an image, {MOST_SECONDS} s in all or "
        f"{MOST_BYTES} bytes are the most; look for what is slow by grandrounds doctor"
    )


def record(ledger: Ledger, folder: Path, facts: DatasetFacts) -> None:
    """Let the ledger know the images and patients of a data set.

    Digests of another scheme, and those in files of earlier versions beside the ledger, join what is known. Images with
    another content than before under the same manifest are a line of the audit trail.

    Raises:
        DataError: if the ledger cannot be used, or lacks what was not read again.
        Refused: if the audit trail cannot be written.
    """
    _join_earlier(ledger, folder)
    content = ledger.content()
    latest = content.latest(facts.identity.name)
    if latest is not None and latest.state == facts.state:
        return
    if facts.digests is None:
        raise DataError(f"the ledger has no images of data set {facts.identity.name!r} in this state")
    # With the ledger's own random identity, so that nobody else can try names.
    salt = content.opening.identity
    people = {f"{PATIENT}:{hashlib.sha256(f'{salt} {key}'.encode()).hexdigest()[:32]}" for key in facts.people}
    ledger.join(facts.identity, facts.state, facts.digests | people, facts.content)
    if ledger.content().changes(facts.identity.name) > content.changes(facts.identity.name):
        write_audit(folder, "changed", {"dataset": facts.identity.name})


def _join_earlier(ledger: Ledger, folder: Path) -> None:
    """Take in the digests of bytes that earlier versions wrote into files beside the ledger, by lines of the ledger."""
    known = {name for line in ledger.content().known for name in (f"{line.file}.json", line.state)}
    for path in sorted((folder / DIGEST_FOLDER).glob("*.json")):
        if path.name in known:
            continue
        try:
            content = json.loads(path.read_bytes())
            name, digests = content["name"], {f"{STORED_BYTES}:{digest}" for digest in content["images"]}
        except (OSError, ValueError, KeyError, TypeError):  # a file of no line: a process died before it wrote the line
            continue
        ledger.join(DatasetIdentity(name, path.stem), path.name, digests)


def _inventory(content: Any) -> Inventory:
    """Check an answer.

    Raises:
        ValueError: if it has another form.
        ConfigurationError: if a key is missing or unknown.
    """
    entry = require_object(content, "the answer", Inventory._fields)
    datasets = {_text(name): _facts(name, facts) for name, facts in _object(entry["datasets"]).items()}
    described, read, seen = (
        tuple(_text(value) for value in _list(entry[key])) for key in ("described", "read", "seen")
    )
    return Inventory(datasets, described, _whole(entry["public_rows"]), read, seen, _text(entry["stamp"], _HASH))


def _facts(name: str, content: Any) -> DatasetFacts:
    entry = require_object(content, name, {"fingerprint", *DatasetFacts._fields} - {"identity"})
    digests = entry["digests"]
    return DatasetFacts(
        DatasetIdentity(name, _text(entry["fingerprint"], _HASH)),
        {_text(part): _whole(number) for part, number in _object(entry["patients"]).items()},
        _whole(entry["images"]),
        frozenset(_text(person) for person in _list(entry["people"])),
        _text(entry["state"], _HASH),
        None if digests is None else frozenset(_text(digest, _DIGEST) for digest in _list(digests)),
        _text(entry["content"]),
        _text(entry["backbone"]),
    )


def _object(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"expected an object, got a {type(value).__name__}")
    return value


def _list(value: Any) -> Sequence[Any]:
    if not isinstance(value, list):
        raise ValueError(f"expected a list, got a {type(value).__name__}")
    return value


def _whole(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"expected a number of images, got a {type(value).__name__}")
    return value


def _text(value: Any, form: re.Pattern[str] | None = None) -> str:
    if type(value) is not str or (form is not None and not form.fullmatch(value)):
        raise ValueError(f"expected a text, got a {type(value).__name__}")
    return value
