"""The state as numbers for Prometheus, in its text format: names of sites, runs and data sets, and no text of a message."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

from grandrounds.deployment.operation.status import Status, comparable_scores
from grandrounds.errors import Fault
from grandrounds.protocol.refusal import Reason

BY_LEVEL = ("ok", "warning", "critical")
UNREAD = "# HELP grandrounds_up Whether the state could be read.\n# TYPE grandrounds_up gauge\ngrandrounds_up 0\n"
"""The text where the state cannot be read."""
BEGINNINGS: Mapping[str, str] = {
    "no answer": "silent",
    "no sign of life": "silent",
    "FLARE closed": "closed",
    "the site replied": "failed",
    "its answer cannot be used": "invalid",
    "the run was aborted": "aborted",
}
"""Of the server's own words for why a site is dropped."""

ESCAPED = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
"""Signs of a label that the format knows in another form."""


class Sample(NamedTuple):
    """A number with its name and its labels."""

    name: str
    value: float
    labels: Mapping[str, str]


METRIC_HELP: Mapping[str, str] = {
    "up": "Whether the state could be read.",
    "level": "0 fine, 1 a warning, 2 a failure.",
    "findings": "Findings of a check by level.",
    "disk_free_bytes": "Bytes free on the disk of the kit.",
    "certificate_days": "Days until the first certificate of the kit expires.",
    "epsilon": "Epsilon spent, by data set at a site, by site at a run.",
    "last_seen_seconds": "Seconds since the server heard of a site.",
    "answer_age_seconds": "Seconds since the last release, or the last refusal, of the site.",
    "run_running": "Whether the run goes on.",
    "run_round": "Rounds that are complete, or the one that runs.",
    "run_rounds": "Rounds of the run.",
    "run_score": "Last released validation score by which models are selected.",
    "run_scored_rounds": "Rounds with a released validation score.",
    "run_answers": "Rounds to which a site has contributed.",
    "run_lost": "Round of the last answer of a site that is lost.",
    "run_dropped": "Rounds in which a site was dropped, by reason.",
    "run_bytes": "Bytes of tensors that have travelled.",
}


def exposition(status: Status, now: datetime | None = None) -> str:
    """The state in Prometheus' text format; ``now`` is the time, None for the clock's.

    Example:
        >>> print(exposition(Status("hospital-a", "site", free=1024)).splitlines()[-1])
        grandrounds_disk_free_bytes{participant="hospital-a",kind="site"} 1024
    """
    common = {"participant": status.name, "kind": status.kind}
    lines: list[str] = []
    samples = list(_samples(status, now or datetime.now(UTC)))
    for name, text in METRIC_HELP.items():
        if own := [sample for sample in samples if sample.name == name]:
            lines += [f"# HELP grandrounds_{name} {text}", f"# TYPE grandrounds_{name} gauge"]
            lines += [f"grandrounds_{name}{_labels({**common, **sample.labels})} {sample.value:.15g}" for sample in own]
    return "\n".join(lines) + "\n"


def reason_code(reason: str) -> str:
    """A word for why a site was dropped, which has nothing of a message.

    Example:
        >>> reason_code("privacy budget spent"), reason_code("no answer within 25 s"), reason_code("patient 7: odd")
        ('refused_budget', 'silent', 'other')
    """
    known = [f"refused_{entry.name.lower()}" for entry in Reason if entry.value == reason]
    known += [f"fault_{entry.name.lower()}" for entry in Fault if entry.value == reason]
    known += [code for beginning, code in BEGINNINGS.items() if reason.startswith(beginning)]
    return known[0] if known else "other"


def _samples(status: Status, now: datetime) -> Iterator[Sample]:
    yield Sample("up", 1, {})
    yield Sample("level", BY_LEVEL.index(status.level), {})
    for (check, level), number in Counter((finding.check, finding.level) for finding in status.findings).items():
        yield Sample("findings", number, {"check": check, "level": level})
    if status.free is not None:
        yield Sample("disk_free_bytes", status.free, {})
    if status.certificate_days is not None:
        yield Sample("certificate_days", status.certificate_days, {})
    for name, epsilon in status.epsilon.items():
        yield Sample("epsilon", epsilon, {"of": name})
    for site, facts in status.sites.items():
        if facts.get("last_seen") is not None:
            yield Sample("last_seen_seconds", facts["last_seen"], {"site": site})
    for outcome, line in (("released", status.released), ("refused", status.refused)):
        if line:
            age = (now - datetime.fromisoformat(str(line["time"]))).total_seconds()
            yield Sample("answer_age_seconds", age, {"outcome": outcome})
    for run in status.runs:
        yield from _of_run(run)


def _of_run(run: Mapping[str, Any]) -> Iterator[Sample]:
    named = {"run": str(run["name"])} | ({"job": str(run["job"])} if "job" in run else {})
    yield Sample("run_running", str(run["status"]).lower() == "running", named)
    yield Sample("run_round", run["round"], named)
    yield Sample("run_rounds", run["rounds"], named)
    scores = comparable_scores(run["scores"])
    if scores:
        last = scores[max(scores)]
        yield Sample("run_score", last["score"], {**named, "metric": str(last["by"]), "basis": str(last["basis"])})
    yield Sample("run_scored_rounds", len(run["scores"]), named)
    for site, number in run["contributions"].items():
        yield Sample("run_answers", number, {**named, "site": site})
    for site, number in run["lost"].items():
        yield Sample("run_lost", number, {**named, "site": site})
    for (site, code), number in Counter((site, reason_code(why)) for site, why in run["dropped"]).items():
        yield Sample("run_dropped", number, {**named, "site": site, "reason": code})
    for direction, size in run["moved"].items():
        yield Sample("run_bytes", size, {**named, "direction": direction})


def _labels(labels: Mapping[str, str]) -> str:
    return "{" + ",".join(f'{name}="{value.translate(ESCAPED)}"' for name, value in labels.items()) + "}"
