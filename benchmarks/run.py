"""Run the rows of an experiment that have no result yet.

    python benchmarks/run.py fedirm_ham10000 --jobs 2
    python benchmarks/run.py mdhfl_pbc --only 'symmetric_20_*' --seed 1 --minutes 60
    python benchmarks/run.py fedperl_ham10000 --only ssfl --seed 1 --set controller.rounds=1

``benchmarks/NAME/configuration.json`` has the rows and their options. Each row runs in a process of its own with one CPU
thread and writes ``benchmarks/NAME/results/ROW_SEED.json`` at its end. An interrupted row is resumed. With ``--set`` the
results are written to ``trial/`` in the workspace. The plan comes first: the rows and the CPU time that committed rows of
their kind have taken.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

if not __package__:  # run as a script
    sys.path[0] = str(Path(__file__).resolve().parents[1])
from benchmarks.experiment import BENCHMARKS, DATA, Experiment, Row, experiment_class
from benchmarks.processes import cpu_seconds, run_all
from grandrounds.errors import ConfigurationError, GrandRoundsError
from grandrounds.files import exclusive


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", help="folder of the benchmark")
    parser.add_argument("--root", type=Path, help="folder of the data set; default: in $GRANDROUNDS_DATA")
    parser.add_argument("--workspace", type=Path, help="folder of the runs; default: runs/NAME")
    parser.add_argument("--out", type=Path, help="folder of the results")
    parser.add_argument("--only", nargs="+", default=[], metavar="ROW", help="rows or patterns, such as 'lesion_*'")
    parser.add_argument("--seed", nargs="+", type=int, default=[], metavar="S", help="only these seeds")
    parser.add_argument("--minutes", type=float, default=math.inf, help="start no row after so many minutes")
    parser.add_argument(
        "--cpu-hours", type=float, default=math.inf, help="start no row after so much CPU time of all rows"
    )
    parser.add_argument(
        "--mixed", action="store_true", help="let rows stand beside those of another origin, and mark them"
    )
    parser.add_argument("--jobs", type=int, default=1, help="number of rows that run in parallel")
    parser.add_argument("--set", nargs="+", default=[], metavar="OPTION=VALUE", help="options to try")
    parser.add_argument("--list", action="store_true", help="only list the rows without a result")
    parser.add_argument("--here", action="store_true", help="run in this process")
    arguments = parser.parse_args()
    try:
        run(arguments, experiment_of(arguments))
    except GrandRoundsError as error:
        sys.exit(f"error: {error}")


def experiment_of(arguments: argparse.Namespace) -> Experiment:
    make = experiment_class(arguments.name)
    workspace = arguments.workspace or Path("runs") / arguments.name
    results = arguments.out or (workspace / "trial" if arguments.set else BENCHMARKS / arguments.name / "results")
    found = make(arguments.name, Path(), workspace, results, arguments.set, arguments.mixed)
    found.root = arguments.root or DATA / found.configuration["data"]
    return found


def run(arguments: argparse.Namespace, experiment: Experiment) -> None:
    chosen = list(experiment.rows(arguments.only, arguments.seed))
    if not chosen:
        raise SystemExit(f"no row of {arguments.name} has such a name and seed; --list shows them")
    rows = [row for row in chosen if not experiment.result(row).exists()]
    if arguments.list:
        print("\n".join(_names(experiment, rows)))
    elif arguments.here:
        for row, name in zip(rows, _names(experiment, rows), strict=True):
            # Two processes that ran one row at the same time would write one incomplete result.
            with exclusive(experiment.workspace / "rows" / name, "another runner is at this row"):
                if not experiment.result(row).exists():
                    experiment.run(row)
    else:
        refused = _refused(experiment, rows)
        accepted = [row for row in rows if (row.setting, row.seed) not in refused]
        print("\n".join([*refused.values(), *plan(experiment, accepted, arguments)]), flush=True)
        command = [sys.executable, __file__, arguments.name, "--here", "--root", experiment.root]
        command += ["--workspace", experiment.workspace, "--out", experiment.results]
        command += ["--set", *arguments.set] if arguments.set else []
        command += ["--mixed"] if arguments.mixed else []
        each = ([*command, "--only", experiment.row_name(row), "--seed", row.seed] for row in accepted)
        begun, spent = time.monotonic(), cpu_seconds()

        def more() -> bool:
            minutes, hours = (time.monotonic() - begun) / 60, (cpu_seconds() - spent) / 3600
            return minutes < arguments.minutes and hours < arguments.cpu_hours

        try:
            run_all(([str(part) for part in parts] for parts in each), arguments.jobs, more)
        finally:
            left = [row for row in rows if not experiment.result(row).exists()]
            print(f"rows left: {', '.join(_names(experiment, left)) or 'none'}", flush=True)
        if refused:
            groups = ", ".join(f"{setting} with seed {seed}" for setting, seed in refused)
            raise ConfigurationError(f"no row was added to {groups}, see above")


def _refused(experiment: Experiment, rows: Sequence[Row]) -> dict[tuple[str, int], str]:
    """Why no row may be added to a group, by the group's setting and seed."""
    found = {}
    for group, row in {(row.setting, row.seed): row for row in rows}.items():
        try:
            experiment.beside(row)
        except ConfigurationError as error:
            found[group] = str(error)
    return found


def _names(experiment: Experiment, rows: Sequence[Row]) -> list[str]:
    return [f"{experiment.row_name(row)}_{row.seed}" for row in rows]


def plan(experiment: Experiment, rows: Sequence[Row], arguments: argparse.Namespace) -> Iterator[str]:
    """What will run: the rows by name, with the CPU hours that they are expected to take, and the budget.

    Raises:
        ConfigurationError: if the weights from which they start have not been made yet.
    """
    if rows and "start" in experiment.configuration:
        yield f"start: {experiment.start}"
    hours, unknown = 0.0, 0
    for (setting, method), group in groupby(sorted(rows), lambda row: row[:2]):
        seeds = [row.seed for row in group]
        first = Row(setting, method, seeds[0])
        expected = expected_seconds(experiment, first)
        told = f"{len(seeds) * expected / 3600:.2f} CPU hours" if expected else "time unknown"
        hours, unknown = hours + len(seeds) * (expected or 0) / 3600, unknown + (0 if expected else len(seeds))
        yield f"  {experiment.row_name(first)}, seeds {', '.join(map(str, seeds))}: {told}"
    budget = f"{arguments.cpu_hours:g} CPU hours, {arguments.minutes:g} minutes".replace("inf", "any number of")
    yield f"rows: {len(rows)}; expected: {hours:.2f} CPU hours, unknown: {unknown}; budget: {budget}"


def expected_seconds(experiment: Experiment, row: Row) -> float | None:
    """Median CPU seconds of committed rows of its method in its setting, else in others, else of its job; None without."""
    committed = experiment_class(experiment.name)(experiment.name, results=BENCHMARKS / experiment.name / "results")
    job = committed.method(row)["job"]
    same = [other for other in committed.rows() if committed.method(other)["job"] == job]
    method = [other for other in same if other.method == row.method]
    for group in ([other for other in method if other.setting == row.setting], method, same):
        paths = [path for other in group if (path := committed.result(other)).is_file()]
        known = [seconds for path in paths if (seconds := seconds_of(json.loads(path.read_text())))]
        if known:
            return statistics.median(known)
    return None


def seconds_of(content: Mapping[str, Any]) -> float | None:
    """CPU seconds of a result; of an older row the wall-clock time of its runs, which is all that it knows."""
    runs = content.get("models", {}).values()
    known = [content.get(name) for name in ("row_cpu_seconds", "cpu_seconds", "seconds")]
    return next(filter(None, [*known, sum(run["seconds"] for run in runs)]), None)


if __name__ == "__main__":
    main()
