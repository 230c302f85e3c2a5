"""Upgrade a server and three sites one after another in the middle of a run, and record what happens.

The kits are made and started by an older commit of this repository. A run of 20 rounds is submitted, and at four moments a
party is stopped, gets this version's overlay and starts with this version: the server, then each site, the next one four
rounds later, or as soon as the run stands still. Where its submission ends, the same command is given again after the next
upgrade, and at the end by this version. Versions are folders of source, not wheels.

python -m benchmarks.upgrade.run
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from signal import SIGKILL, SIGTERM
from typing import Any

from benchmarks.measure import ROOT, run, table
from benchmarks.rehearsal.federated_run import free_port
from grandrounds.deployment.kit.read import processes_of
from grandrounds.deployment.local_federation import Federation, load, stop_federation
from grandrounds.deployment.processes import await_end, signal_processes

OLD = {
    "00c88870": "before versions were told apart by their messages",
    "2722c293": "the first with the table of versions",
}
"""Older commits, and what they are."""
SITES = ("hospital-a", "hospital-b", "hospital-c")
ROUNDS, EVERY, STANDS_STILL, STARTS = 20, 4, 120.0, 400.0
NAME = "upgraded"
SETTINGS = (
    *(f"controller.run_name={NAME}", f"controller.rounds={ROUNDS}", "controller.min_sites=2", "controller.grace=60"),
    *("controller.round_timeout=300", "executor.steps=2", "executor.batch_size=8", "executor.device=cpu"),
    "executor.cpu_threads=1",
)
PREPARE = """
import sys
from pathlib import Path
from grandrounds.deployment.kit.overlay import Settings
from grandrounds.deployment.local_federation import prepare
folder, port, *sites = sys.argv[1:]
prepare(Path(folder), sites, int(port), {site: Settings() for site in sites})
"""
START = """
import sys
from pathlib import Path
from grandrounds.deployment.local_federation import load, start_participant
start_participant(load(Path(sys.argv[1])), sys.argv[2])
"""


class Upgraded:
    """A federation, a submission to it, and which version each party has."""

    def __init__(self, folder: Path, old: Path, new: Path) -> None:
        self.folder, self.versions, self.begun = folder, {"old": old, "new": new}, time.monotonic()
        self.happened: list[dict[str, Any]] = []
        self.lines: list[str] = []
        self._python("old", "-c", PREPARE, folder, free_port(), *SITES)
        self.federation: Federation = load(folder)
        self.record = self.federation.kits / self.federation.server / "grandrounds" / NAME / "server"
        self._submission: subprocess.Popen[str] | None = None

    def start(self, version: str, party: str) -> None:
        """Start a party with a version."""
        self._python(version, "-c", START, self.folder, party)

    def upgrade(self, party: str) -> None:
        """Stop a party, apply this version's overlay to its kit, and start it."""
        kit = self.federation.kits / party
        self.note(f"{'server' if party == self.federation.server else party} is upgraded")
        for number, seconds in ((SIGTERM, 20.0), (SIGKILL, 5.0)):
            signal_processes(processes_of(kit), number)
            await_end(lambda: bool(processes_of(kit)), seconds, 0.5)
        self._python("new", "-m", "grandrounds.cli", "overlay", kit)
        self.start("new", party)

    def submit(self, version: str) -> None:
        """Submit the run, or take it up, with a version's command."""
        kit = self.federation.kits / self.federation.researcher
        out, log = self.folder / "results", self.folder / "logs" / "submission.txt"
        command = ["submit", "fedavg", "--kit", kit, "--out", out, "--resume", "auto", "--attempts", "50"]
        assignments = [part for setting in SETTINGS for part in ("--set", setting)]
        self._submission = subprocess.Popen(
            [sys.executable, "-m", "grandrounds.cli", *map(str, command), *assignments],
            env=self._environment(version),
            stdout=log.open("a"),
            stderr=subprocess.STDOUT,
            text=True,
        )

    @property
    def submitted(self) -> bool:
        """Whether the submission goes on."""
        return self._submission is not None and self._submission.poll() is None

    def events(self, kind: str) -> list[dict[str, Any]]:
        """Of the run's record, also of rounds that were done again."""
        path = self.record / "events.jsonl"
        lines = path.read_text(errors="replace").splitlines() if path.is_file() else []
        return [event for line in lines if line.endswith("}") and (event := json.loads(line))["event"] == kind]

    def await_rounds(self, number: int) -> bool:
        """Wait for this round's end; False if no round ends for a long time or the submission has ended."""
        seen, moved = -1, time.monotonic()
        while time.monotonic() - moved < (STANDS_STILL if self.done() else STARTS):
            done = len(self.events("round_end"))
            if self.done() >= number:
                return True
            if done != seen:
                seen, moved = done, time.monotonic()
            if not self.submitted:
                break
            time.sleep(1.0)
        return self.done() >= number

    def done(self) -> int:
        """The number of the last complete round."""
        return max((event["round"] for event in self.events("round_end")), default=0)

    def note(self, what: str) -> None:
        """Something has happened now."""
        self.happened.append({"second": round(time.monotonic() - self.begun), "rounds": self.done(), "what": what})
        print(self.happened[-1], flush=True)

    def stop(self) -> None:
        """End the submission and all parties."""
        if self._submission is not None and self.submitted:
            self._submission.terminate()
            self._submission.wait(60)
        stop_federation(self.federation)

    def said(self) -> list[str]:
        """Each line of the submission once, with shorter paths."""
        text = (self.folder / "logs" / "submission.txt").read_text()
        return [
            *dict.fromkeys(line.replace(str(self.folder), "").strip() for line in text.splitlines() if line.strip())
        ]

    def _python(self, version: str, *arguments: object) -> None:
        command = [sys.executable, *map(str, arguments)]
        subprocess.run(command, env=self._environment(version), check=True, timeout=600)

    def _environment(self, version: str) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": str(self.versions[version] / "custom"), "COLUMNS": "500"}


def measured(options: argparse.Namespace) -> dict[str, Any]:
    shutil.rmtree(options.workspace, ignore_errors=True)
    new = _source("HEAD", options.workspace / "new")
    chosen = {name: what for name, what in OLD.items() if options.only in (None, name)}
    cases = [case(name, what, options.workspace, new) for name, what in chosen.items()]
    return {"sites": len(SITES), "rounds": ROUNDS, "cases": cases}


def case(commit: str, what: str, workspace: Path, new: Path) -> dict[str, Any]:
    """A run that begins with the parties of an older commit and ends with those of this one."""
    found = Upgraded(workspace / commit / "federation", _source(commit, workspace / commit / "source"), new)
    try:
        for party in (found.federation.server, *SITES):
            found.start("old", party)
        found.submit("old")
        found.note("the run is submitted")
        for number, party in enumerate((found.federation.server, *SITES), start=1):
            if not found.await_rounds(EVERY * number):
                found.note("no round ends" if found.submitted else "the submission has ended")
            found.upgrade(party)
            if not found.submitted and found.done() < ROUNDS:
                found.submit("old")
                found.note("the same command is given again")
        if not found.await_rounds(ROUNDS):
            found.note("no round ends" if found.submitted else "the submission has ended")
            if not found.submitted:
                found.submit("new")
                found.note("the same command is given again, by the new version")
                found.await_rounds(ROUNDS)
        deadline = time.monotonic() + STANDS_STILL
        while found.submitted and time.monotonic() < deadline:
            time.sleep(1.0)
        found.note("the end")
        return {"old": commit, "what": what, "new": _commit("HEAD"), **outcome(found)}
    finally:
        found.stop()


def outcome(found: Upgraded) -> dict[str, Any]:
    """What the record and the submission say."""
    ends = found.events("round_end")
    last = {end["round"]: set(end["answered"]) for end in ends}
    times = Counter(end["round"] for end in ends)
    summary = found.record / "summary.json"
    return {
        "status": json.loads(summary.read_text())["status"] if summary.is_file() else None,
        "rounds": len(last),
        "repeated": sum(times.values()) - len(times),
        "missed": {site: sum(site not in answered for answered in last.values()) for site in SITES},
        "dropped": sorted({f"{e['site']}: {e['reason']}" for e in found.events("dropped")}),
        "happened": found.happened,
        "said": [line for line in found.said() if line.startswith(("[", "error"))],
    }


def _source(commit: str, folder: Path) -> Path:
    """This repository's files at a commit."""
    folder.mkdir(parents=True)
    archive = subprocess.run(["git", "archive", commit], cwd=ROOT, check=True, capture_output=True).stdout
    subprocess.run(["tar", "-x", "-C", str(folder)], input=archive, check=True)
    return folder


def _commit(name: str) -> str:
    return subprocess.run(
        ["git", "rev-parse", "--short=8", name], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.strip()


def tables(result: dict[str, Any]) -> str:
    columns = {
        "from": "old",
        "which is": "what",
        "to": "new",
        "status": "status",
        "rounds": "rounds",
        "done again": "repeated",
    }
    cases: Sequence[dict[str, Any]] = [{**one, "lost": sum(one["missed"].values())} for one in result["cases"]]
    rows = [
        {**event, **one} | {"what": event["what"], "done": event["rounds"]}
        for one in cases
        for event in one["happened"]
    ]
    steps = table({"from": "old", "to": "new", "s": "second", "complete rounds": "done", "what": "what"}, rows, 0)
    return f"{table({**columns, 'missed, of sites': 'lost'}, cases, 0)}\n\n{steps}"


if __name__ == "__main__":
    workspace = {"type": Path, "default": Path("runs/upgrade"), "help": "is emptied first"}
    run(__file__, measured, tables, timed=False, workspace=workspace, only={"default": None, "help": "an old commit"})
