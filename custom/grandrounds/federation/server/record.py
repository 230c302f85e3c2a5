"""The record of a run: what happened in each round, at which site, and how many bytes travelled.

FLARE's own job status is ABNORMAL for some runs that are fine and RUNNING for some that are dead; this record does not
depend on it. ``events.jsonl`` grows while the run goes on. ``summary.json`` is written after every round, with the last
rounds; when the run ends, it is written with all rounds. What a round costs does not grow with their number.
Both are kept with the run's checkpoints, so a resumed run continues them: after a ``resume`` event, what was written before
it about later rounds is void (:func:`read_events` leaves it out).
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import platform
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from grandrounds import __version__
from grandrounds.errors import CheckpointError, GrandRoundsError, InUseError
from grandrounds.evaluation.clinical.image_moments import training_moments
from grandrounds.evaluation.counts import SiteCounts
from grandrounds.evaluation.metrics import OWN_METRICS, SCORES_OF_IMAGES
from grandrounds.evaluation.record import EvalRecord, received
from grandrounds.federation.machine import graphics_cards, usable_cores
from grandrounds.files import append_line, copy_file, file_digest, is_held, write_bytes
from grandrounds.logs.lines import FIELDS, log_event
from grandrounds.ordering import natural_sorted
from grandrounds.protocol.names import EXECUTOR, OWN_ROUND, PACE_ROUNDS, SPENT
from grandrounds.protocol.problem import Problem
from grandrounds.protocol.refusal import Refusal

if TYPE_CHECKING:  # reports read this module and do without torch
    import numpy as np
    from numpy.typing import NDArray


_logger = logging.getLogger(__name__)

FORMAT = 2
"""Of ``summary.json``: a number that changes when readers must."""
DOWN_GLOBAL = "down.global"
EVENTS = "events.jsonl"
SUMMARY = "summary.json"
SUMMED_RECORDS, CONTRIBUTORS = "summed", "contributors"
"""In the summary: records of all sites' images, of which none is known alone, by model; in each the names of these sites."""
REFERENCES = "references"
"""In the summary of a simulation: models that the run is compared with, by name."""
RUNNING = "running"
STOPPED = "interrupted"
"""State of a run whose record says that it is running although no process works on it."""
JOB_REFUSED = "refused"
"""Note in the download of a job that could not resume a run; the run is unchanged."""
EXPLODED, NO_LOSS = 10.0, 1e4
"""Times the training loss of the first round, or 1, beyond which a training has diverged, and beyond what in any round:
log losses are at most 36, and no weight of a loss here is above 100."""
_DIVERGED = "the training has diverged"
RUNNING_ROUNDS = 10
"""How many of the last rounds the summary of a running run has."""
ROUND_END, SCORE, REMARK = "round_end", "score", "remark"
SERIOUS = frozenset({"dropped", "failed", REMARK})
"""Events that are warnings in a log."""
OF_EVENT = {"event", "seconds", "moved"}
"""What the event of a round has beside its entry in the summary."""
POOLED: Final = "pooled"
MEAN: Final = "mean over sites"
AT_SERVER: Final = "server's images"
"""Of which images a score is."""
OF_SCORE = ("metric", "by", "score", "low", "high", "basis", "mean")
"""What a person who watches a run needs to know of a model's score."""


class Traffic(NamedTuple):
    """Bytes of tensors of a run, over all sites: global models received (also for scoring), all else received, and sent."""

    down_global: int
    down_extra: int
    up: int

    @property
    def moved(self) -> dict[str, int]:
        """Bytes to the sites and from them."""
        return {"down": self.down_global + self.down_extra, "up": self.up}


class RunRecord:
    """Collects events, bytes and metrics of a run and writes them to the run's folder.

    Args:
        folder: the run's result folder at the server.
        configuration: the controller's options, as they will appear in the summary.
    """

    def __init__(self, folder: Path, configuration: Mapping[str, Any]) -> None:
        self.folder = folder
        self.configuration = dict(configuration)
        self.run_id = ""
        self._started = time.time()
        self.rounds: list[dict[str, Any]] = []
        self._contributions: dict[str, int] = defaultdict(int)
        self._last_answered: dict[str, int] = {}
        self._silent: dict[str, int] = {}
        self._late: dict[str, list[int]] = defaultdict(list)
        self._samples: dict[str, float] = {}
        self._losses: dict[int, dict[str, float]] = defaultdict(dict)
        self.bytes: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
        self.selected: dict[str, Any] = {}
        self.tests: dict[str, dict[str, EvalRecord]] = {}
        self.image_moments: dict[str, Any] = {}
        self.own_rounds: dict[str, int] = {}
        self.untested: list[str] = []
        self.registered: dict[str, dict[str, Any]] = {}
        self.refused: dict[str, str] = {}
        self.refusals: dict[str, Refusal] = {}
        self.final = False
        self.privacy: dict[str, dict[str, Any]] = {}
        self.void: list[str] = []
        self.summed: dict[str, Any] = {}
        self.models: dict[str, str] = {}
        self.connected: list[str] = []
        self.scores: dict[int, dict[str, Any]] = {}
        self.checkpoints: list[int] = []
        self.bad_checkpoints: list[int] = []
        self.paused: dict[str, int] = {}
        self._remarks: list[str] = []

    def event(self, kind: str, **content: Any) -> None:
        """Append one event with the time since the start, and write it to the log."""
        append_line(self.folder / EVENTS, {"event": kind, "seconds": round(time.time() - self._started, 3), **content})
        fields = {name: content[name] for name in ("round", *FIELDS) if name in content}
        words = ": ".join(str(fields[name]) for name in FIELDS if fields.get(name)) or str(content.get("text", ""))
        level = logging.WARNING if kind in SERIOUS else logging.INFO
        log_event(_logger, kind, ": ".join(filter(None, (kind.replace("_", " "), words))), level, **fields)

    def remark(self, text: str, **about: Any) -> None:
        """Note once what a reader of the run must know: a sentence for terminals, pages and reports.

        ``about`` are plain values for its event; one that is true of a round has ``round``, because a run that goes back
        before it takes it back.
        """
        if text not in self._remarks:
            self._remarks.append(text)
            self.event(REMARK, text=text, **about)

    @property
    def remarks(self) -> list[str]:
        """All of them, and the sites that were dropped by time more than once."""
        return [*self._remarks, *(self._lateness(site) for site, rounds in self._late.items() if len(rounds) > 1)]

    def _lateness(self, site: str) -> str:
        known = sum(self._samples.values())
        share = f"{self._samples[site] / known:.0%}" if site in self._samples and known else "an unknown share"
        rounds = ", ".join(map(str, self._late[site]))
        return (
            f"{site}, with {share} of the training images that sites have reported, was dropped by time in rounds {rounds}: "
            "the result depends on deadlines"
        )

    def note_training(self, site: str, number: int, metrics: Mapping[str, float]) -> None:
        """Note what a site reports of its training in a round: its images and its loss, where its policy lets them out."""
        if "samples" in metrics:
            self._samples[site] = metrics["samples"]
        if "loss" in metrics:
            self._losses[number][site] = metrics["loss"]

    def note_score(self, number: int, metric: str, compared: Mapping[str, Any]) -> None:
        """Note the score of the model after a round.

        ``compared`` is what :meth:`~grandrounds.federation.server.selection.ModelSelection.offer` returns; its ``metric``
        becomes ``by``, because ``metric`` is what the run asked for and ``mean`` is of.
        """
        scores = {"metric": metric, **{"by" if name == "metric" else name: value for name, value in compared.items()}}
        self.scores[number] = {name: scores[name] for name in OF_SCORE if name in scores}
        self.event(SCORE, round=number, **scores)

    def note_tests(
        self,
        problem: Problem,
        metrics: Mapping[str, Mapping[str, float]],
        counts: Mapping[str, Mapping[str, SiteCounts]],
    ) -> None:
        """Note the evaluation records of the models that sites have tested, and which round's model each site has chosen."""
        known = {*SCORES_OF_IMAGES, *OWN_METRICS.all()}
        for site in natural_sorted(metrics):
            scores = dict(metrics[site])
            if OWN_ROUND in scores:
                self.own_rounds[site] = int(scores.pop(OWN_ROUND))
            # A policy may let out a score without the number of images.
            parts = [name.rpartition(".") for name in scores]
            models = dict.fromkeys(model for model, _, score in parts if model and score in known)
            self.tests[site] = {
                model: received(problem.kind, problem.classes, model, scores, counts.get(site, {}).get(model))
                for model in models
            }

    def note_void(self, names: Sequence[str]) -> None:
        """Note what is not known of this run, because single sites are not."""
        self.void += [name for name in names if name not in self.void]

    def note_summed(self, records: Mapping[str, EvalRecord], contributors: Sequence[str]) -> None:
        """Note the records of models on all images of these sites together."""
        sites = natural_sorted(contributors)
        self.summed = {model: {**record.to_json(), CONTRIBUTORS: sites} for model, record in records.items()}

    @property
    def tested(self) -> set[str]:
        """The sites whose images a model was tested on."""
        return {*self.tests, *(site for record in self.summed.values() for site in record[CONTRIBUTORS])}

    def note_moments(self, sites: Mapping[str, NDArray[np.float64]]) -> None:
        """Note the moments of the training images of the sites that have released them."""
        self.image_moments = training_moments({site: sites[site] for site in natural_sorted(sites)}, self._samples)

    def progress(self) -> dict[str, Any]:
        """The state of the run in plain values, for a person who watches it."""
        seconds = [entry["round_seconds"] for entry in self.rounds[-PACE_ROUNDS:]]
        return {
            "seconds_per_round": median(seconds) if seconds else None,
            "contributions": dict(self._contributions),
            **self.absent(),
            "refused": dict(self.refused),
            "remarks": self.remarks,
            "scores": {str(number): score for number, score in self.scores.items()},
            "epsilon": {site: entry["epsilon"] for site, entry in self.privacy.items() if "epsilon" in entry},
            "moved": self._moved(),
        }

    def _moved(self) -> dict[str, int]:
        return traffic({site: dict(parts) for site, parts in list(self.bytes.items())}).moved

    def count_bytes(self, site: str, direction: str, parts: Mapping[str, int]) -> None:
        """Add the bytes of a message's named parts; ``direction`` is ``down`` (to the site) or ``up``."""
        for name, size in parts.items():
            self.bytes[site][f"{direction}.{name}"] += size

    def note_privacy(self, site: str, treated: Mapping[str, str], metrics: Mapping[str, float]) -> None:
        """Note the treatments that a site's gate reports, and the epsilon that its data set has spent if it is reported."""
        treatments = {name: treatment for name, treatment in treated.items() if treatment}
        if treatments:
            entry = self.privacy.setdefault(site, {"treated": {}})
            entry["treated"] |= treatments
            entry |= {"epsilon": metrics[SPENT]} if SPENT in metrics else {}

    def note_models(self, names: Sequence[str]) -> None:
        """Note the SHA-256 of models' files in the run's folder, as ``sha256sum`` prints it."""
        for name in names:
            self.models[name] = file_digest(self.folder / name)

    def close_round(self, entry: dict[str, Any]) -> None:
        """Add a finished round to the record; its event has the bytes that have travelled so far."""
        self._add_round(entry)
        number = entry["round"]
        for site in entry.get("silent", ()):
            if len(self._late[site]) > 1:
                self.event(REMARK, text=self._lateness(site), round=number, late=site)
        if remark := self._divergence(number):
            self.remark(remark, round=number)
        self.event(ROUND_END, **entry, moved=self._moved())

    def _divergence(self, number: int) -> str:
        """A remark if a round's training loss is far above that of the first, or of any training; empty if noted."""
        if number not in self._losses or divergence(self._remarks):
            return ""
        first = min(self._losses)
        now, then = (fmean(self._losses[of_round].values()) for of_round in (number, first))
        if now <= min(EXPLODED * max(then, 1.0), NO_LOSS):
            return ""
        before = f" ({then:.3g} in round {first})" if number > first else ""
        return (
            f"{_DIVERGED}: the mean training loss is {now:.3g} in round {number}{before}; lower executor.learning_rate"
        )

    def restart(self) -> None:
        """Forget what an earlier start of the run has written."""
        (self.folder / EVENTS).unlink(missing_ok=True)

    def exists(self) -> bool:
        """Whether an earlier start of the run has left a summary."""
        return (self.folder / SUMMARY).exists()

    def close(self, status: str, reason: str, begun: bool) -> bool:
        """Write how a start of the run has ended; what the run has achieved stays in the record.

        Args:
            status: as in :meth:`write`.
            reason: why.
            begun: whether this start had taken up the run, so that this object has all of the record.

        Returns:
            Whether the record says so now; it does not where an earlier start had finished the run.
        """
        kept = {} if begun else self._kept()
        if kept.get("status") == "finished":
            return False
        if kept:
            ended = {"status": status, "reason": reason, **self._refusals()}
            self._write({**kept, "rounds": self._noted_rounds(kept), **ended})
        else:
            self.write(status, reason)
        return True

    def refuse(self, error: GrandRoundsError, folder: Path) -> None:
        """Write the summary of a job that could not take up the run into another folder; the run is as it was.

        It has the run's rounds, and not its results, which are not this job's, and says whether another job has the run.
        """
        other = RunRecord(folder, {})
        if kept := self._kept():
            results: dict[str, Any] = {name: {} for name in ("records", "models")}
            in_use = isinstance(error, InUseError)
            other._write(
                {**kept, **results, "status": JOB_REFUSED, "reason": str(error), "in_use": in_use, "final": False}
            )
        else:
            other.write(JOB_REFUSED, str(error))

    def _kept(self) -> dict[str, Any]:
        """The summary of an earlier start; empty if there is none, or a damaged one."""
        try:
            summary = json.loads((self.folder / SUMMARY).read_bytes())
        except (OSError, ValueError):
            return {}
        return summary if isinstance(summary, dict) and "rounds_done" in summary else {}

    def _noted_rounds(self, kept: Mapping[str, Any]) -> list[dict[str, Any]]:
        """All rounds of an earlier start; the summary of a running run has only the last."""
        events = read_events(self.folder) if (self.folder / EVENTS).exists() else []
        rounds = [_of_round(event) for event in events if event["event"] == ROUND_END]
        return rounds if len(rounds) == kept["rounds_done"] else list(kept["rounds"])

    def finished_before(self) -> bool:
        """Whether an earlier start has finished the run, with these very options of the sites."""
        kept = self._kept()
        asked = self.configuration.get(EXECUTOR)
        return kept.get("status") == "finished" and kept["configuration"].get(EXECUTOR) == asked

    def publish_again(self, folder: Path) -> None:
        """Copy the record of a run that was finished before, as :meth:`publish` does; a remark says so."""
        kept = self._kept()
        self.publish(folder, [name for name in kept["models"] if (self.folder / name).is_file()])
        text = f"the run was finished before, on {kept['written']}: nothing was trained or tested again"
        RunRecord(folder, {})._write({**kept, "remarks": [*kept["remarks"], text]})

    def checkpoints_before(self) -> list[int]:
        """The rounds of the checkpoints that an earlier start of the run had when it last wrote its summary, ascending."""
        return [entry["round"] for entry in self._kept().get("checkpoints", ()) if not entry["bad"]]

    def write(self, status: str, reason: str = "") -> None:
        """Write ``summary.json``; while the run goes on in one line and with the last rounds only.

        Args:
            status: ``running``, ``finished``, ``failed``, ``aborted`` or ``refused``.
            reason: why, when it did not finish or ended before its last round.
        """
        content = {
            "format": FORMAT,
            "status": status,
            "reason": reason,
            "run_id": self.run_id,
            "rounds_done": len(self.rounds),
            "contributions": dict(self._contributions),
            "registered": {site: self.registered[site] for site in natural_sorted(self.registered)},
            "refused": self.refused,
            **self._refusals(),
            "selected": self.selected,
            "models": self.models,
            "records": {
                site: {name: record.to_json() for name, record in records.items()}
                for site, records in self.tests.items()
            },
            "image_moments": self.image_moments,
            "own_rounds": self.own_rounds,
            "untested": self.untested,
            **self.absent(),
            "remarks": self.remarks,
            "checkpoints": self._kept_checkpoints(),
            "bytes": {site: dict(parts) for site, parts in self.bytes.items()},
            "privacy": self.privacy,
            "void": self.void,
            SUMMED_RECORDS: self.summed,
            "configuration": self.configuration,
            "configuration_sha256": hashlib.sha256(json.dumps(self.configuration, sort_keys=True).encode()).hexdigest(),
            "versions": versions(),
            "machine": server_machine(),
            "started": datetime.fromtimestamp(self._started, UTC).isoformat(timespec="seconds"),
            "seconds": round(time.time() - self._started, 3),
        }
        self._write({**content, "rounds": self.rounds[-RUNNING_ROUNDS:] if status == RUNNING else self.rounds})

    def _refusals(self) -> dict[str, Any]:
        """What sites refuse, and whether that ends the run however often it is submitted."""
        return {
            "refusals": {site: asdict(self.refusals[site]) for site in natural_sorted(self.refusals)},
            "final": self.final,
        }

    def _write(self, content: dict[str, Any]) -> None:
        dated = {**content, "written": datetime.now(UTC).isoformat(timespec="seconds")}
        text = json.dumps(dated, indent=None if content["status"] == RUNNING else 2)
        write_bytes(self.folder / SUMMARY, (text + "\n").encode())

    def absent(self) -> dict[str, dict[str, int]]:
        """Sites that are not at work, by what is known of them; see :func:`absences`.

        ``lost`` gave updates and are not connected, with the round of the last one. ``silent`` are connected and were last
        dropped by time, with the first of these rounds. ``paused`` are connected and not asked, with the round in which they
        are asked again.
        """
        connected = set(self.connected)
        last = {site: number for site, number in self._last_answered.items() if site not in connected}
        silent = {site: number for site, number in self._silent.items() if site in connected}
        paused = {site: number for site, number in self.paused.items() if site in connected}
        return {
            word: {site: reasons[site] for site in natural_sorted(reasons) if site not in self.tested}
            for word, reasons in (("lost", last), ("silent", silent), ("paused", paused))
        }

    def _kept_checkpoints(self) -> list[dict[str, Any]]:
        """The checkpoints from which the run can go on, each with the validation score of its model if it has one."""
        kept = [(number, False) for number in self.checkpoints] + [(number, True) for number in self.bad_checkpoints]
        return [
            {"round": number, "score": self.scores.get(number, {}).get("score"), "bad": bad}
            for number, bad in sorted(kept)
        ]

    def publish(self, folder: Path, models: list[str], may_link: bool = False) -> None:
        """Copy the record and these models of the run's folder to where FLARE's job download finds them.

        ``may_link`` is of the models, see :func:`~grandrounds.files.copy_file`: events are appended to their file.
        """
        for name in (SUMMARY, EVENTS, *models):
            if (self.folder / name).is_file():  # a run that failed early has no events
                copy_file(self.folder / name, folder / name, may_link and name in models)

    def sync(self) -> None:
        """Flush the events to disk, which a checkpoint that is saved next relies on."""
        if (self.folder / EVENTS).exists():
            with (self.folder / EVENTS).open("ab") as stream:
                os.fsync(stream.fileno())

    def state_dict(self) -> dict[str, Any]:
        """Plain values for a checkpoint; the rounds and their scores are in the events."""
        state = {"bytes": self.bytes, "privacy": self.privacy, "seconds": time.time() - self._started}
        return {**json.loads(json.dumps(state)), "rounds_done": len(self.rounds)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over the record of the rounds before the interruption; what its events have lost may be in the summary.

        Raises:
            CheckpointError: if both lack some of these rounds.
        """
        self._started -= state["seconds"]
        done = state["rounds_done"]
        events = read_events(self.folder) if (self.folder / EVENTS).exists() else []
        noted = {event["round"]: _of_round(event) for event in events if event["event"] == ROUND_END}
        kept = {entry["round"]: entry for entry in self._kept().get("rounds", ())}
        known = {number: entry for number, entry in sorted({**kept, **noted}.items()) if number <= done}
        for entry in known.values():
            self._add_round(entry)
        for event in events:
            if event.get("round", 0) <= done:
                self._take_over(event)
        if len(self.rounds) != done:
            raise CheckpointError(
                f"{self.folder / EVENTS} has {len(self.rounds)} of the {done} rounds before the checkpoint; put the file "
                "back, or start again with resume=never"
            )
        self.privacy = dict(state["privacy"])
        for site, parts in state["bytes"].items():
            self.bytes[site].update(parts)
        for number in known.keys() - noted.keys():
            self.event(ROUND_END, **known[number], moved=self._moved())
            self.remark(f"events of round {number} were damaged; its entry is that of the summary")

    def _take_over(self, event: Mapping[str, Any]) -> None:
        if event["event"] == SCORE:
            self.scores[event["round"]] = {name: event[name] for name in OF_SCORE if name in event}
        elif event["event"] == REMARK and "late" not in event:
            self._remarks.append(event["text"])
        elif event["event"] == "answer" and event.get("task") == "train":
            self.note_training(event["site"], event["round"], event["metrics"])

    def _add_round(self, entry: dict[str, Any]) -> None:
        self.rounds.append(entry)
        self._last_answered |= dict.fromkeys(entry["answered"], entry["round"])
        silent = entry.get("silent", ())
        self._silent = {
            **{site: number for site, number in self._silent.items() if site not in entry["asked"] or site in silent},
            **{site: entry["round"] for site in silent if site not in self._silent},
        }
        for site in silent:
            self._late[site].append(entry["round"])
        for site in entry["answered"]:
            self._contributions[site] += 1


def _of_round(event: Mapping[str, Any]) -> dict[str, Any]:
    """The entry of a round in the summary, from its event."""
    return {name: value for name, value in event.items() if name not in OF_EVENT}


@cache
def versions() -> dict[str, str]:
    """Versions of what computes the result; looked up once, because the record is written in every round."""
    versions = {"grandrounds": __version__, "python": platform.python_version()}
    for name in ("torch", "nvflare", "numpy"):
        try:
            versions[name] = version(name)
        except PackageNotFoundError:  # a BYOC job runs where a package may lack its metadata
            versions[name] = "unknown"
    return versions


@cache
def server_machine() -> dict[str, Any]:
    """The machine of the server, in a simulation of all sites: system, processor, usable cores, and graphics cards."""
    return {
        "system": platform.system(),
        "processor": platform.machine(),
        "cores": usable_cores(),
        "graphics": graphics_cards(),
    }


def with_true_status(summary: dict[str, Any], folder: Path) -> dict[str, Any]:
    """A summary as every reader takes it: a run on which no process works any more is not running.

    Args:
        summary: as it was read.
        folder: where it is; a copy in another place is taken as it is.
    """
    if summary.get("status") != RUNNING or is_held(folder) is not False:
        return summary
    done = summary.get("rounds_done", 0)
    reason = f"no process works on it since round {done}; submit the job again under the same run_name"
    return {**summary, "status": STOPPED, "reason": reason}


def read_events(folder: Path) -> list[dict[str, Any]]:
    """Read a run's events in order, without those that a resumed run has done again, and without half a line of a crash."""
    events: list[dict[str, Any]] = []
    with (folder / EVENTS).open(encoding="utf-8", errors="replace") as stream:
        for line in stream:
            try:
                event = json.loads(line)
            except ValueError:
                continue
            if event["event"] == "resume":
                events = [earlier for earlier in events if earlier.get("round", 0) <= event["after_round"]]
            events.append(event)
    return events


def divergence(remarks: Iterable[str]) -> str:
    """The one among a run's remarks that says that its training has diverged; empty if none does.

    Example:
        >>> divergence(["site-2 was late", "the training has diverged: lower the rate"])
        'the training has diverged: lower the rate'
    """
    return next((remark for remark in remarks if remark.startswith(_DIVERGED)), "")


def absences(summary: Mapping[str, Any]) -> dict[str, str]:
    """The sites that a summary, or the state of a running run, calls lost, silent, paused or refused, each in words.

    Example:
        >>> absences({"silent": {"b": 3}, "paused": {"b": 5, "c": 6}})
        {'b': 'silent: no answer since round 3, asked again in round 5', 'c': 'paused: asked again in round 6'}
    """
    lost, silent, paused = (summary.get(word) or {} for word in ("lost", "silent", "paused"))
    again = {site: f"asked again in round {number}" for site, number in paused.items()}
    return {
        **{site: f"refused: {reason}" for site, reason in (summary.get("refused") or {}).items()},
        **{site: f"lost: not connected, last update in round {number}" for site, number in lost.items()},
        **{
            site: ", ".join([f"silent: no answer since round {number}", *([again[site]] if site in again else [])])
            for site, number in silent.items()
        },
        **{site: f"paused: {text}" for site, text in again.items() if site not in silent},
    }


def traffic(sizes: Mapping[str, Mapping[str, int]]) -> Traffic:
    """Add up the bytes of a run's record, by site and by ``down.NAME`` or ``up.NAME``.

    Raises:
        ValueError: if a name begins with neither.

    Example:
        >>> traffic({"site-1": {"down.global": 40, "down.peer-1": 10, "up.update": 20}})
        Traffic(down_global=40, down_extra=10, up=20)
    """
    down_global, down_extra, up = 0, 0, 0
    for site, parts in sizes.items():
        for name, size in parts.items():
            if name == DOWN_GLOBAL:
                down_global += size
            elif name.startswith("down."):
                down_extra += size
            elif name.startswith("up."):
                up += size
            else:
                raise ValueError(f"{site}: expected down.NAME or up.NAME, got {name!r}")
    return Traffic(down_global, down_extra, up)
