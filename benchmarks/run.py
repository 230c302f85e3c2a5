"""Run the rows of an experiment that have no result yet.

    python benchmarks/run.py fedirm_ham10000 --jobs 2
    python benchmarks/run.py mdhfl_pbc --only 'symmetric_20_*' --seed 1 --minutes 60
    python benchmarks/run.py fedperl_ham10000 --only ssfl --seed 1 --set controller.rounds=1

``benchmarks/NAME/configuration.json`` has the rows and their options. Each row runs in a process of its own with one CPU
thread and writes ``benchmarks/NAME/results/ROW_SEED.json`` at its end. An interrupted row is resumed. With ``--set`` the
results are written to ``trial/`` in the workspace.
"""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path

if not __package__:  # run as a script
    sys.path[0] = str(Path(__file__).resolve().parents[1])
from benchmarks.experiment import BENCHMARKS, DATA, Experiment, experiment_class
from benchmarks.processes import run_all
from grandrounds.errors import GrandRoundsError
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
    found = make(arguments.name, Path(), workspace, results, arguments.set)
    found.root = arguments.root or DATA / found.configuration["data"]
    return found


def run(arguments: argparse.Namespace, experiment: Experiment) -> None:
    chosen = list(experiment.rows(arguments.only, arguments.seed))
    if not chosen:
        raise SystemExit(f"no row of {arguments.name} has such a name and seed; --list shows them")
    rows = [row for row in chosen if not experiment.result(row).exists()]
    if arguments.list:
        print("\n".join(experiment.result(row).stem for row in rows))
    elif arguments.here:
        for row in rows:
            # Two processes that ran one row at the same time would write one incomplete result.
            with exclusive(experiment.workspace / "rows" / experiment.result(row).stem):
                if not experiment.result(row).exists():
                    experiment.run(row)
    else:
        command = [sys.executable, __file__, arguments.name, "--here", "--root", experiment.root]
        command += ["--workspace", experiment.workspace, "--out", experiment.results]
        command += ["--set", *arguments.set] if arguments.set else []
        each = ([*command, "--only", experiment.row_name(row), "--seed", row.seed] for row in rows)
        run_all(([str(part) for part in parts] for parts in each), arguments.jobs, 60 * arguments.minutes)


if __name__ == "__main__":
    main()
