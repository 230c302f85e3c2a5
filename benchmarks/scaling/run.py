"""Many sites in one process: time and memory of each, and where it bends.

Federated averaging over 10, 100 and 500 sites that all have the same few images, each number in a process of its own:
once with a vector of a hundred numbers and no training, which is the federation's own cost, and once with the network
``compact`` and one step of two images. About two minutes of processor time.

    python -m benchmarks.scaling.run
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.measure import arguments_of, emit, in_child, milliseconds, peak_mib, report, resident_mib
from benchmarks.report import Drawing
from grandrounds.reporting.figures.style import draw_legend, draw_line, label_axes, looks, new_axes

RESULT = Path(__file__).with_name("result.json")
SITES = (10, 100, 500)
KINDS = ("no training", "compact")
PARAMETERS = 100


def main() -> None:
    """Measure every number of sites in a process of its own, print a table and write ``result.json``."""
    options = arguments_of(
        __doc__,
        RESULT,
        kind={"choices": KINDS, "help": "measure this case alone and print it"},
        sites={"type": int, "default": 10},
        rounds={"type": int, "default": 5},
    )
    if options.kind:
        emit(measured(options))
        return
    load = os.getloadavg()[0]
    rounds = 4 if options.quick else options.rounds
    counts = (3, 6) if options.quick else SITES
    module = "benchmarks.scaling.run"
    cases = [
        in_child(module, "--kind", kind, "--sites", count, "--rounds", rounds) for kind in KINDS for count in counts
    ]
    result = {"cases": cases}
    print(tables(result))
    report(result, options, load)


def measured(options: argparse.Namespace) -> dict[str, Any]:
    """Costs of a site and round, and memory before the run, after its last round's start and at its peak."""
    from benchmarks.parties import one_set_of_images, run_clocked, site_names, trained_job, trivial_job

    if options.kind == "compact":
        job = trained_job(options.rounds, "executor.steps=1", "executor.batch_size=2")
    else:
        job = trivial_job(PARAMETERS, options.rounds)
    with tempfile.TemporaryDirectory() as folder:
        images = one_set_of_images(Path(folder) / "images")
        before = resident_mib()
        clock, summary = run_clocked(job, Path(folder) / "run", site_names(options.sites), images)
    if summary["contributions"] != dict.fromkeys(site_names(options.sites), options.rounds):
        raise SystemExit("not every site has taken part in every round")
    rounds = clock.rounds()
    return {
        "kind": options.kind,
        "sites": options.sites,
        "rounds": len(rounds),
        "milliseconds_per_round": milliseconds(rounds),
        "milliseconds_per_site_and_round": milliseconds(
            [type(c)(c.wall / options.sites, c.cpu / options.sites) for c in rounds]
        ),
        "mib_before": round(before, 1),
        "mib_with_all_sites": round(clock.resident[-1], 1),
        "mib_per_site": round((clock.resident[-1] - before) / options.sites, 3),
        "peak_mib": round(peak_mib(), 1),
    }


def tables(result: dict[str, Any]) -> str:
    """The result for a reader."""
    from grandrounds.evaluation.tables import markdown_table

    header = [
        "what a site does",
        "sites",
        "ms per site and round",
        "of the processor",
        "s per round",
        "MiB per site",
        "peak MiB",
    ]
    rows = [
        [
            *(case["kind"], case["sites"]),
            *(case["milliseconds_per_site_and_round"][clock]["median"] for clock in ("wall", "cpu")),
            case["milliseconds_per_round"]["wall"]["median"] / 1000,
            *(case["mib_per_site"], case["peak_mib"]),
        ]
        for case in result["cases"]
    ]
    return markdown_table(header, rows, 2)


def drawing(result: dict[str, Any]) -> Drawing:
    """Time of a site and round over the number of sites."""
    figure, axes = new_axes()
    kinds = list(dict.fromkeys(case["kind"] for case in result["cases"]))
    for kind, look in looks(kinds).items():
        cases = [case for case in result["cases"] if case["kind"] == kind]
        times = [case["milliseconds_per_site_and_round"]["cpu"]["median"] for case in cases]
        draw_line(axes, look, [case["sites"] for case in cases], times, kind)
    for axis, scale in ((axes.xaxis, axes.set_xscale), (axes.yaxis, axes.set_yscale)):
        scale("log")
        axis.set_major_formatter("{x:g}")
        axis.set_minor_formatter("")
    label_axes(axes, "sites in one process", "ms of the processor per site and round", "Many sites in one process")
    draw_legend(axes)
    return Drawing("scaling", "Time per site and round over the number of sites", figure)


if __name__ == "__main__":
    main()
