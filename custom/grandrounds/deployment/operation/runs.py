"""Runs as an observer sees them: from a server's records, or from the statistics of a running job."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from grandrounds.data.fitness import Finding
from grandrounds.deployment.operation.health import RECENT_SECONDS
from grandrounds.federation.server.record import (
    AT_SERVER,
    EVENTS,
    MEAN,
    OF_SCORE,
    RUNNING,
    STOPPED,
    SUMMARY,
    absences,
    read_events,
    traffic,
    with_true_status,
)
from grandrounds.json_files import read_json_object

LAST_EVENTS = 40
ABSENCES = ("lost", "silent", "paused", "refused")
"""Why a site is not at work in a run."""
PACE_OF = 5
"""The last rounds, of whose durations the time left is computed."""


class SeenRun(NamedTuple):
    """A run.

    Attributes:
        facts: name, status, reason, round, rounds, seconds left, validation scores by round, contributions, sites
            that are not at work, remarks, drops by site, bytes, checkpoints, and seconds since it ended; None while it runs.
        events: the last ones.
        epsilon: spent by site, as far as it is reported.
    """

    facts: dict[str, Any]
    events: list[dict[str, Any]]
    epsilon: dict[str, float]

    @property
    def running(self) -> bool:
        """Whether it goes on; FLARE writes the word in capitals."""
        return str(self.facts["status"]).lower() == RUNNING

    def findings(self) -> Iterator[Finding]:
        """What is wrong with it. A run that has ended warns for a day, and its lost sites no more."""
        name, status = self.facts["name"], self.facts["status"]
        if self.running:
            for site, words in absences(self.facts).items():
                yield Finding("warning", "runs", f"run {name}: {site} is {words}")
            for remark in self.facts["remarks"]:
                yield Finding("warning", "runs", f"run {name}: {remark}")
        ended = self.facts.get("ended")
        if status in ("failed", "aborted", STOPPED) and (ended is None or ended < RECENT_SECONDS):
            yield Finding("warning", "runs", f"run {name} {status}: {self.facts.get('reason', '')}")


def recorded_run(folder: Path) -> SeenRun:
    """A run, from the folder of its record.

    Raises:
        ConfigurationError: if the folder has no summary, or a damaged one.
        KeyError: if the summary is of another form.
    """
    summary = with_true_status(read_json_object(folder / SUMMARY), folder)
    events = read_events(folder) if (folder / EVENTS).is_file() else []
    rounds = summary["configuration"].get("rounds", 0)
    seconds = [entry["round_seconds"] for entry in summary["rounds"][-PACE_OF:]]
    pace = sum(seconds) / len(seconds) if seconds else None
    status, reason, done = summary["status"], summary["reason"], summary["rounds_done"]
    running = status == RUNNING
    facts = {
        "name": str(summary["configuration"].get("run_name", folder.parent.name)),
        "status": status,
        "reason": reason,
        "round": done,
        "rounds": rounds,
        "seconds_left": (rounds - done) * pace if running and pace else None,
        "scores": {str(e["round"]): {k: e[k] for k in OF_SCORE if k in e} for e in events if e["event"] == "score"},
        "contributions": summary["contributions"],
        **{word: summary.get(word, {}) for word in ABSENCES},
        "remarks": summary.get("remarks", []),
        "dropped": [(e["site"], e["reason"]) for e in events if e["event"] == "dropped"],
        "moved": traffic(summary["bytes"]).moved,
        "checkpoints": summary["checkpoints"],
        "ended": None if running else _since(summary),
    }
    epsilon = {site: entry["epsilon"] for site, entry in summary["privacy"].items() if "epsilon" in entry}
    return SeenRun(facts, events[-LAST_EVENTS:], epsilon)


def running_run(name: str, job: str, status: str, statistics: Mapping[str, Any]) -> SeenRun:
    """A run of a job, from the statistics of its controller; nothing while it starts or ends."""
    number, rounds, pace = (
        statistics.get("round") or 0,
        statistics.get("rounds") or 0,
        statistics.get("seconds_per_round"),
    )
    kept = ("scores", "contributions", *ABSENCES, "moved")
    facts: dict[str, Any] = {
        "name": name,
        "job": job,
        "status": status,
        "round": number,
        "rounds": rounds,
        "seconds_left": None if pace is None else max(0, rounds - number + 1) * pace,
        "ended": None,
        "dropped": [],
        "remarks": statistics.get("remarks") or [],
        **{key: statistics.get(key) or {} for key in kept},
    }
    return SeenRun(facts, [], statistics.get("epsilon") or {})


def running_first(runs: list[SeenRun]) -> list[SeenRun]:
    """Running ones first, then those that ended last."""
    return sorted(runs, key=lambda run: (not run.running, run.facts["ended"] or 0.0))


def comparable_scores(scores: Mapping[str, Mapping[str, Any]]) -> dict[int, Mapping[str, Any]]:
    """The scores by round, in order, that are by the same metric and basis as the last one.

    Example:
        >>> old, new = {"by": "accuracy", "basis": "pooled"}, {"by": "log_likelihood", "basis": "pooled"}
        >>> list(comparable_scores({"2": new, "1": old, "10": new}))
        [2, 10]
    """
    if not scores:
        return {}
    last = scores[max(scores, key=int)]
    same = {number: s for number, s in scores.items() if (s["by"], s["basis"]) == (last["by"], last["basis"])}
    return {int(number): same[number] for number in sorted(same, key=int)}


def describe_score(score: Mapping[str, Any]) -> str:
    """A score with its basis and interval, and the mean over sites as the second view.

    Example:
        >>> score = {"metric": "accuracy", "by": "accuracy", "basis": "pooled", "score": 0.7, "mean": 0.5}
        >>> describe_score({**score, "low": 0.6, "high": 0.8})
        'pooled accuracy 0.700 [0.600, 0.800], mean over sites 0.500'
    """
    interval = f" [{score['low']:.3f}, {score['high']:.3f}]" if "low" in score else ""
    text = f"{score['basis']} {_words(score['by'])} {score['score']:.3f}{interval}"
    if score["basis"] in (MEAN, AT_SERVER) or "mean" not in score:
        return text
    metric = "" if score["by"] == score["metric"] else f" of {_words(score['metric'])}"
    return f"{text}, mean over sites{metric} {score['mean']:.3f}"


def _words(name: str) -> str:
    return name.replace("_", " ")


def _since(summary: Mapping[str, Any]) -> float:
    """Seconds since a run wrote its record for the last time."""
    if "written" in summary:
        return max(0.0, time.time() - datetime.fromisoformat(summary["written"]).timestamp())
    begun = datetime.fromisoformat(summary["started"]).timestamp()
    return max(0.0, time.time() - begun - float(summary["seconds"]))
