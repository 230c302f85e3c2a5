"""How the scripts of this folder measure: time in turn, memory in a process of its own, and under what circumstances.

Scripts that use it run as modules from the repository's root, for example ``python -m benchmarks.server.run``. Times are
pairs of wall and processor time: on a machine with other work the second is the one to trust.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
MEBIBYTE = 2**20


class Cost(NamedTuple):
    """Seconds that something took: on the clock and of the processor."""

    wall: float
    cpu: float


def clocked(work: Callable[[], Any]) -> tuple[Cost, Any]:
    """What a call costs, and what it returns."""
    wall, cpu = time.perf_counter(), time.process_time()
    returned = work()
    return Cost(time.perf_counter() - wall, time.process_time() - cpu), returned


def in_turn(steps: Mapping[str, Callable[[], Any]], repeats: int) -> dict[str, list[Cost]]:
    """Costs of several steps, taken in turn, so that what else the machine does meets all of them; one turn warms up."""
    costs: dict[str, list[Cost]] = {name: [] for name in steps}
    for turn in range(repeats + 1):
        for name, step in steps.items():
            cost, _ = clocked(step)
            if turn:
                costs[name].append(cost)
    return costs


def spread(values: Sequence[float], digits: int = 4) -> dict[str, float]:
    """Median, range and number."""
    found = {"median": statistics.median(values), "lowest": min(values), "highest": max(values)}
    return {**{name: round(value, digits) for name, value in found.items()}, "count": len(values)}


def milliseconds(costs: Sequence[Cost], digits: int = 3) -> dict[str, dict[str, float]]:
    """Spread of wall and processor time in milliseconds."""
    return {kind: spread([1000 * getattr(cost, kind) for cost in costs], digits) for kind in Cost._fields}


def resident_mib() -> float:
    """Resident memory of this process now, in mebibytes."""
    return _status("VmRSS")


def peak_mib() -> float:
    """Greatest resident memory of this process so far, in mebibytes.

    Not ``ru_maxrss``, which a process takes over from the one that started it.
    """
    return _status("VmHWM")


def _status(field: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(field))


def in_child(module: str, *arguments: object) -> Any:
    """Run ``python -m module arguments`` in a process of its own; its last line of output is JSON.

    Raises:
        SystemExit: if it fails, with what it wrote.
    """
    command = [sys.executable, "-m", module, *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command[1:])} failed:\n{done.stdout[-1000:]}{done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def emit(content: Any) -> None:
    """Print what :func:`in_child` reads."""
    print(json.dumps(content))


def arguments_of(description: str, result: Path, **more: Mapping[str, Any]) -> argparse.Namespace:
    """Read the options that all scripts share, and more: ``name=dict(type=..., default=...)``."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="least sizes, to see that it works; nothing is written")
    parser.add_argument("--out", type=Path, default=result, help="JSON file of the result")
    for name, options in more.items():
        parser.add_argument(f"--{name.replace('_', '-')}", **options)
    return parser.parse_args()


def report(result: Mapping[str, Any], options: argparse.Namespace, load_before: float) -> None:
    """Write the result as JSON with the circumstances; with ``--quick`` only print it."""
    from benchmarks.processes import machine
    from grandrounds.federation.server.record import versions
    from grandrounds.files import write_json

    load = {"load_before": round(load_before, 2), "load_after": round(os.getloadavg()[0], 2)}
    whole = {**result, "threads": 1, "versions": versions(), "machine": {**machine(), **load}}
    if options.quick:
        print(json.dumps(whole, indent=1))
    else:
        write_json(options.out, whole)
        print(f"written: {options.out.name}")
