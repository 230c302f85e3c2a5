"""The report of a run with many sites: CPU seconds and bytes of the page, by the number of sites.

The record is that of a short simulation of four sites, each of which is copied under other names, so that nothing but the
number of sites grows. ``--before`` names a checkout of an earlier state, whose folder ``custom`` is imported in its place,
in turn. Other programs may run meanwhile: their share is in the result.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.commands.run import cpu_seconds, grandrounds
from benchmarks.measure import run, table
from grandrounds.deployment.processes import variables_set

FEW, COUNTS, ROUNDS = 4, (50, 200, 1000), 20


def measured(options: argparse.Namespace) -> dict[str, Any]:
    """Each number of sites in either state."""
    states = {"now": None, **({"before": options.before} if options.before else {})}
    cases: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        short = ["simulate", "fedavg", "--sites", str(FEW), "--rounds", str(ROUNDS), "--workers", "1"]
        steps = ["--set", "executor.steps=1", "--workspace", str(folder / "few")]
        cpu_seconds(grandrounds(*short, *steps))
        for count in COUNTS[:1] if options.quick else COUNTS:
            multiply(folder / "few" / "results", folder / str(count) / "results", count)
            for state, checkout in states.items():
                if state == "before" and count > options.most_before:
                    continue
                out = folder / f"report-{state}-{count}"
                code = {"PYTHONPATH": str(checkout / "custom")} if checkout else {}
                with variables_set(code):
                    seconds = cpu_seconds(grandrounds("report", str(folder / str(count)), "--out", str(out)))
                size = sum(path.stat().st_size for path in out.glob("*.html")) / 1e6
                earlier = [case for case in cases if case["state"] == state]
                slope = exponent(earlier[-1], count, seconds) if earlier else ""
                cases.append(
                    {"state": state, "sites": count, "cpu_seconds": seconds, "html_mb": size, "exponent": slope}
                )
    return {"cases": cases}


def exponent(earlier: dict[str, Any], sites: int, seconds: float) -> float:
    """By which the time has grown with the number of sites."""
    return math.log(seconds / earlier["cpu_seconds"]) / math.log(sites / earlier["sites"])


def multiply(results: Path, out: Path, count: int) -> None:
    """Copy a run's results, each of its ``FEW`` sites as often as makes ``count``."""
    out.mkdir(parents=True)
    summary = json.loads((results / "summary.json").read_text())
    (out / "summary.json").write_text(json.dumps(grown(summary, count)))
    with (out / "events.jsonl").open("w") as stream:
        for line in (results / "events.jsonl").read_text().splitlines():
            event = json.loads(line)
            names = copies(event["site"], count) if event.get("site") in few() else [event.get("site")]
            for site in names:
                own = {**event, "site": site} if site else event
                stream.write(json.dumps({key: grown(value, count) for key, value in own.items()}) + "\n")
    shutil.copy(results / "provenance.json", out)
    for site in few():
        for copy in copies(site, count):
            shutil.copytree(results / site, out / copy)


def few() -> list[str]:
    return [f"site-{number}" for number in range(1, FEW + 1)]


def copies(site: str, count: int) -> list[str]:
    return [f"site-{number}" for number in range(int(site.rpartition("-")[2]), count + 1, FEW)]


def grown(value: Any, count: int) -> Any:
    """With an entry for each copy wherever there is one for each site."""
    if isinstance(value, dict):
        inner = {key: grown(one, count) for key, one in value.items()}
        if value and set(value) <= set(few()):
            return {copy: inner[site] for site in inner for copy in copies(site, count)}
        return inner
    if isinstance(value, list):
        if value and set(map(str, value)) <= set(few()):
            return [copy for site in value for copy in copies(site, count)]
        return [grown(one, count) for one in value]
    return value


def tables(result: dict[str, Any]) -> str:
    columns = {
        "sites": "sites", "state": "state", "CPU s": "cpu_seconds", "MB of HTML": "html_mb",
        "exponent from the row before": "exponent",
    }  # fmt: skip
    return table(columns, sorted(result["cases"], key=lambda case: case["state"], reverse=True), 2)


if __name__ == "__main__":
    more: dict[str, Any] = {"before": {"type": Path}, "most_before": {"type": int, "default": 200}}
    run(__file__, measured, tables, timed=False, **more)
