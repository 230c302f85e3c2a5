"""The annex for data protection: what left which site, in which round, under which rule and epsilon."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from examples.paper.tables import NOT_RECORDED, PaperTable
from grandrounds.evaluation.history import Event
from grandrounds.federation.server.record import traffic
from grandrounds.protocol.names import SPENT
from grandrounds.reporting.page import NO_PRIVACY
from grandrounds.reporting.run import ReadRun, Spent

NO_RULE = "none reported"
SCALARS = "numbers"
ANNEX = ("run", "site", "round", "task", "what left", "kind", "bytes", "rule", "epsilon so far")


def annex_tables(runs: Sequence[ReadRun]) -> list[PaperTable]:
    """What left each site: the sums of each run, and every answer."""
    header = [
        "run",
        "site",
        "rounds",
        "dropped in",
        "parts",
        "bytes of tensors sent",
        "bytes received",
        "rules",
        "epsilon",
    ]
    sums = [row for run in runs for row in _sums(run)]
    answers = [row for run in runs for event in run.log.events for row in _of_event(run, event)]
    return [
        PaperTable(
            "annex_sites",
            "Data protection: what each site sent in the whole run. Rules are the treatments that the site's gate reports; "
            "bytes are of tensors, without numbers and what FLARE adds to a message.",
            header,
            sums,
            5,
        ),
        PaperTable(
            "annex_rounds",
            "Data protection: what left each site in each round. Numbers are scores, losses and counts of images; a message "
            "is not counted in bytes for them.",
            ANNEX,
            answers,
            6,
        ),
    ]


def guarantees(run: ReadRun) -> str:
    """The privacy of a run in a sentence: budgets of ledgers, what gates have reported, or that there is no guarantee."""
    parts = [_budget(one) for one in run.origin.spent]
    reported = {site: entry["epsilon"] for site, entry in run.log.privacy.items() if "epsilon" in entry}
    if not parts and reported:
        parts = [f"{site} reports epsilon {epsilon:.3g}" for site, epsilon in reported.items()]
    rules = _rules(run)
    if rules:
        parts.append(f"rules of the gates: {', '.join(rules)}")
    if not run.log.traffic.up and not parts:
        return "no tensor left a site."
    return f"{'; '.join(parts)}." if parts else f"no treatment by a gate is recorded. {NO_PRIVACY}"


def _rules(run: ReadRun) -> list[str]:
    rules = [f"{name} {rule}" for entry in run.log.privacy.values() for name, rule in entry.get("treated", {}).items()]
    return list(dict.fromkeys(rules))


def _budget(spent: Spent) -> str:
    epsilon = "infinite" if spent.epsilon is None else f"{spent.epsilon:.3g}"
    return f"{spent.site}: epsilon {epsilon}, delta {spent.delta:g}, per {spent.protects}"


def _sums(run: ReadRun) -> Iterator[list[str]]:
    dropped, log = run.log.dropped(), run.log
    for site in log.sites:
        parts = log.bytes.get(site, {})
        moved = traffic({site: parts})
        sent = ", ".join(
            f"{name.removeprefix('up.')} {size} B" for name, size in parts.items() if name.startswith("up.")
        )
        privacy = log.privacy.get(site, {})
        rules = ", ".join(f"{name}: {rule}" for name, rule in privacy.get("treated", {}).items())
        rounds = str(log.contributions.get(site, 0)) if log.contributions else NOT_RECORDED
        missed = ", ".join(map(str, dropped.get(site, []))) or "none"
        sizes = [str(moved.up), str(moved.down_global + moved.down_extra)]
        yield [
            run.name,
            run.site_name(site),
            rounds,
            missed,
            sent or "no tensors",
            *sizes,
            rules or NO_RULE,
            _spent(run, site),
        ]


def _spent(run: ReadRun, site: str) -> str:
    booked = [_booked(entry) for entry in run.origin.spent if entry.site == site]
    if booked:
        return "; ".join(booked)
    epsilon = run.log.privacy.get(site, {}).get("epsilon")
    return NOT_RECORDED if epsilon is None else f"{epsilon:.4g}"


def _booked(one: Spent) -> str:
    return (
        f"{'infinite' if one.epsilon is None else format(one.epsilon, '.4g')} (delta {one.delta:g}, per {one.protects})"
    )


def _of_event(run: ReadRun, event: Event) -> Iterator[list[str]]:
    """The rows of one answer: each release, and the numbers beside them."""
    if event["event"] != "answer":
        return
    site, number = str(event["site"]), int(event["round"])
    leading = [run.name, run.site_name(site), str(number), str(event["task"])]
    epsilon = _epsilon(run, event, site, number)
    for name, value in event.get("released", {}).items():
        yield [*leading, name, str(value["kind"]), str(value["bytes"]), value.get("treated") or NO_RULE, epsilon]
    # A record of before releases were noted in answers has the bytes of the whole run alone.
    if "released" not in event and any(name.startswith("up.") for name in run.log.bytes.get(site, {})):
        older = not any("released" in entry for entry in run.log.events)
        if older:
            yield [*leading, NOT_RECORDED, NOT_RECORDED, NOT_RECORDED, NOT_RECORDED, epsilon]
    metrics: Mapping[str, Any] = event.get("metrics", {})
    if metrics:
        yield [*leading, ", ".join(sorted(metrics)), SCALARS, NOT_RECORDED, NO_RULE, epsilon]


def _epsilon(run: ReadRun, event: Event, site: str, number: int) -> str:
    """What the site has reported with its answer, else what its ledger has booked up to the round."""
    reported = event.get("metrics", {}).get(SPENT)
    if reported is not None and math.isfinite(reported):
        return f"{reported:.4g}"
    history = [one for spent in run.origin.spent if spent.site == site for one in spent.history if one[0] <= number]
    if not history:
        return NOT_RECORDED
    return "infinite" if history[-1][1] is None else f"{history[-1][1]:.4g}"
