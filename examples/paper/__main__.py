"""Write what an article needs of finished runs.

All of it is from the runs' records; what is not in them is called "not recorded", or in a checklist "to be completed by
the authors". A RUN is what ``grandrounds report`` takes. Runs that differ in their seed alone are one row, with mean and
standard deviation.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from examples.paper.folder import write_paper
from grandrounds.console.output import notes
from grandrounds.console.progress import steps_on
from grandrounds.errors import GrandRoundsError
from grandrounds.reporting.runs import split_argument


def main() -> None:
    """Write the folder that the command line asks for, and say how many files there are."""
    parser = argparse.ArgumentParser(prog="python -m examples.paper", description=__doc__)
    parser.add_argument("runs", nargs="+", metavar="[NAME=]RUN", help="finished runs")
    parser.add_argument("--out", type=Path, required=True, help="folder of the files; it must be empty or not exist")
    parser.add_argument("--reference", help="the method to compare with; default: local training, else the first")
    parser.add_argument("--model", choices=("common", "own"), help="whose scores: one common model, or each site's own")
    parser.add_argument("--word", metavar="TITLE", help="write Word documents too, with this title; needs python-docx")
    given = parser.parse_args()
    runs = [(None, Path(text)) if Path(text).exists() else split_argument(text) for text in given.runs]
    try:
        with steps_on(notes()) as step:
            paths = write_paper(
                runs, given.out, word=given.word, reference=given.reference, model=given.model, step=step
            )
    except GrandRoundsError as error:
        parser.exit(1, f"error: {error}\n")
    print(f"{len(paths)} files: {given.out}")


if __name__ == "__main__":
    main()
