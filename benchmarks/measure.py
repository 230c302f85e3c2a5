"""Measure costs: time in turn, memory in a process of its own, and the circumstances.

A measurement is a script with ``measured(options)``, which returns the result as JSON, and ``tables(result)``; its
``main`` is :func:`run`. Scripts run as modules, for example ``python -m benchmarks.server.run``. Times are pairs of
wall-clock and CPU time; use the second on a machine with other work.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
MEBIBYTE = 2**20
CORES_OF_OTHERS = 0.1
Steps = dict[str, Callable[[], Any]]


class Cost(NamedTuple):
    """Seconds of wall-clock and of CPU time."""

    wall: float
    cpu: float

    def over(self, parts: int) -> Cost:
        """The cost of one of several equal parts."""
        return Cost(self.wall / parts, self.cpu / parts)


def clocked(work: Callable[[], Any]) -> tuple[Cost, Any]:
    """The cost of a call, and what it returns."""
    wall, cpu = time.perf_counter(), time.process_time()
    returned = work()
    return Cost(time.perf_counter() - wall, time.process_time() - cpu), returned


def in_turn(steps: Mapping[str, Callable[[], Any]], repeats: int) -> dict[str, list[Cost]]:
    """Costs of several steps, taken in turn, so that the machine's other work affects all alike; one turn warms up."""
    turns = [{name: clocked(step)[0] for name, step in steps.items()} for _ in range(repeats + 1)]
    return {name: [turn[name] for turn in turns[1:]] for name in steps}


def spread(values: Sequence[float], digits: int = 4) -> dict[str, float]:
    found = {"median": statistics.median(values), "lowest": min(values), "highest": max(values)}
    return {**{name: round(value, digits) for name, value in found.items()}, "count": len(values)}


def milliseconds(costs: Sequence[Cost], digits: int = 3) -> dict[str, dict[str, float]]:
    return {kind: spread([1000 * getattr(cost, kind) for cost in costs], digits) for kind in Cost._fields}


def seconds_of_others() -> float:
    """CPU time that this machine has spent on programs other than this one and those that it has started and waited for."""
    import psutil

    busy = psutil.cpu_times()
    return busy.user + busy.nice + busy.system + busy.irq + busy.softirq - sum(os.times()[:4])


def resident_mib() -> float:
    return _status("VmRSS")


def peak_mib() -> float:
    """Maximum resident memory of this process; ``ru_maxrss`` would be inherited from the process that started it."""
    return _status("VmHWM")


def bytes_written() -> int:
    """What this process has handed to the system for writing, to files and to others."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("wchar"))


def _status(field: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(field))


def in_child(function: str, **arguments: Any) -> Any:
    """Call ``module.function(**arguments)`` in a process of its own; it must return JSON."""
    return output_of([sys.executable, "-m", "benchmarks.measure", function, json.dumps(arguments)])


def output_of(command: Sequence[str]) -> Any:
    """Run a program, with one thread, whose last line of output is JSON.

    Raises:
        SystemExit: if it fails, with its output.
    """
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command[1:])} failed:\n{done.stdout[-1000:]}{done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def table(columns: Mapping[str, str], cases: Iterable[Mapping[str, Any]], digits: int) -> str:
    """A Markdown table with a row for each case; ``columns`` has the path of each title's value, with dots."""
    from benchmarks.tables import markdown_table  # its numpy would count in what is measured

    rows = [
        [reduce(lambda found, key: found[key], path.split("."), case) for path in columns.values()] for case in cases
    ]
    return markdown_table(list(columns), rows, digits)


def run(
    script: str,
    measured: Callable[[argparse.Namespace], dict[str, Any]],
    tables: Callable[[dict[str, Any]], str],
    timed: bool = True,
    **more: Mapping[str, Any],
) -> None:
    """Measure, print the tables and write the result with its circumstances; ``--quick`` only prints.

    If it is ``timed``, nothing is written where other programs have used more than :data:`CORES_OF_OTHERS` meanwhile.

    The result of a script ``run.py`` is ``result.json``, that of another has the script's name. ``more`` has further
    options of the command line: ``name=dict(type=..., default=...)``.
    """
    import torch

    from benchmarks.processes import machine
    from grandrounds.federation.server.record import versions
    from grandrounds.files import write_json

    name = Path(script).stem
    result = Path(script).with_name("result.json" if name == "run" else f"{name}.json")
    parser = argparse.ArgumentParser(description=sys.modules["__main__"].__doc__)
    parser.add_argument("--quick", action="store_true", help="smallest sizes, as a trial; nothing is written")
    parser.add_argument("--out", type=Path, default=result, help="JSON file of the result")
    for option, choices in more.items():
        parser.add_argument(f"--{option.replace('_', '-')}", **choices)
    options = parser.parse_args()
    torch.set_num_threads(1)
    began, before = time.perf_counter(), seconds_of_others()
    found = measured(options)
    others = (seconds_of_others() - before) / (time.perf_counter() - began)
    # A thread that watches a run may keep FLARE's messages off standard output.
    print(tables(found), file=sys.__stdout__, flush=True)
    if options.quick:
        return
    if timed and others > CORES_OF_OTHERS:
        raise SystemExit(
            f"other programs used {others:.2f} cores meanwhile: nothing is written; measure when they are idle"
        )
    circumstances = {**machine(), "cores_of_others": round(others, 2)}
    write_json(options.out, {**found, "threads": 1, "versions": versions(), "machine": circumstances})


if __name__ == "__main__":
    module, _, called = sys.argv[1].rpartition(".")
    print(json.dumps(getattr(import_module(module), called)(**json.loads(sys.argv[2]))))
