"""Train a model of 200 MB with one hospital behind a line of 1 MB/s: does the run end, and what does a person see meanwhile?

A server and two hospitals from startup kits train a MobileNetV2 with a wide hidden layer on phantoms, one step per round.
One hospital reaches the server through the rehearsal's proxy. Deadlines are the defaults. The result has the seconds of each
round, the bytes that passed the line, the largest resident memory of each kind of process, and each line that the researcher
was shown, with its second.

    python -m benchmarks.wire.large_model
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from benchmarks.federation import new_federation
from benchmarks.measure import MEBIBYTE, run, table
from benchmarks.processes import resident_bytes
from benchmarks.rehearsal.federated_run import MODULES, free_port, started_run
from benchmarks.rehearsal.link import Quality, SlowLink
from benchmarks.wire.slow_link import reach_through
from grandrounds.deployment.jobs import load_job

SITES, SLOW = ("hospital-a", "hospital-b"), "hospital-b"
LINE = Quality(megabits=8, latency=20)
HIDDEN, SMALL = 38_000, 1_000
"""Widths of the hidden layer: with MobileNetV2's 1,280 features 204 MB, and as a trial 14 MB."""
ROUNDS = 2


def measured(options: argparse.Namespace) -> dict[str, Any]:
    hidden = SMALL if options.quick else HIDDEN
    port = free_port()
    federation, link = new_federation(options.workspace, SITES, port), SlowLink(port)
    link.start()
    link.set(LINE)
    reach_through(federation, SLOW, link.port)
    job = load_job("fedavg").with_values(
        {
            ("controller", "run_name"): "large",
            ("controller", "rounds"): ROUNDS,
            ("controller", "min_sites"): len(SITES),
            ("problem", "backbone"): "mobilenetv2",
            ("problem", "head"): f"mlp:{hidden}",
            ("executor", "steps"): 1,
            ("executor", "batch_size"): 4,
            ("executor", "device"): "cpu",
            ("executor", "cpu_threads"): 1,
        }
    )
    peaks: dict[str, float] = defaultdict(float)
    shown: list[dict[str, Any]] = []
    with started_run(federation, job) as found:
        begun = time.monotonic()
        while found.is_active(1.0):
            for kind in MODULES:
                held = [resident_bytes(process) for process in found.processes(kind)]
                peaks[kind] = max(peaks[kind], *held, 0)
            seconds = round(time.monotonic() - begun)
            shown += [{"second": seconds, "line": line} for line in found.messages[len(shown) :]]
    shown += [{"second": round(time.monotonic() - begun), "line": line} for line in found.messages[len(shown) :]]
    link.stop()
    moved = [round(count / MEBIBYTE, 1) for count in link.carried]
    rounds = [
        {"round": one["round"], "seconds": one["round_seconds"], "answered": one["answered"]} for one in found.rounds()
    ]
    return {
        "hidden": hidden,
        "megabits": LINE.megabits,
        "latency_ms": LINE.latency,
        "finished": found.outcome is not None and found.outcome.finished,
        "submissions": 0 if found.outcome is None else len(found.outcome.jobs),
        "seconds": round(time.monotonic() - begun),
        "rounds": rounds,
        "mib_to_server": moved[0],
        "mib_to_site": moved[1],
        "peak_mib": {kind: round(peak / MEBIBYTE) for kind, peak in peaks.items()},
        "shown": shown,
    }


def tables(result: dict[str, Any]) -> str:
    rounds = table({"round": "round", "s": "seconds"}, result["rounds"], 0)
    peaks = table(
        {"process": "kind", "largest MiB": "peak"},
        [{"kind": kind, "peak": peak} for kind, peak in result["peak_mib"].items()],
        0,
    )
    ended = "finished" if result["finished"] else "not finished"
    moved = f"{result['mib_to_site']:.0f} MiB to the hospital, {result['mib_to_server']:.0f} MiB from it"
    return f"The run has {ended} after {result['seconds']} s; {moved}.\n\n{rounds}\n\n{peaks}"


if __name__ == "__main__":
    workspace = {"type": Path, "default": Path("runs/large_model"), "help": "is emptied first"}
    run(__file__, measured, tables, workspace=workspace)
