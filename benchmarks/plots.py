"""Draw ``docs/figures/performance_*.png`` from the committed results, as far as there are any.

python -m benchmarks.plots
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from grandrounds.reporting.figures.style import draw_legend, draw_line, label_axes, looks, new_axes

HERE = Path(__file__).parent
FIGURES = HERE.parent / "docs" / "figures"


def main() -> None:
    """Draw what has been measured."""
    for name, (path, draw) in DRAWINGS.items():
        if (HERE / path).is_file():
            draw(json.loads((HERE / path).read_text())).savefig(FIGURES / f"performance_{name}.png")
            print(f"performance_{name}.png")


def scaling(result: dict[str, Any]) -> Figure:
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
    return figure


def memory(result: dict[str, Any]) -> Figure:
    """Memory of a round's mean, in models, over the number of sites."""
    figure, axes = new_axes()
    cases = result["mean_in_order"]
    for millions, look in looks([str(case) for case in dict.fromkeys(case["millions"] for case in cases)]).items():
        chosen = [case for case in cases if str(case["millions"]) == millions]
        models = [case["peak_models_while_adding"] for case in chosen]
        draw_line(axes, look, [case["sites"] for case in chosen], models, f"{float(millions):g} M parameters")
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_ylim(0, 1.2 * max(case["peak_models_while_adding"] for case in cases))
    label_axes(axes, "sites", "models in memory", "The server's memory while updates come in")
    draw_legend(axes, "lower right")
    return figure


def wire(result: dict[str, Any]) -> Figure:
    """Models that travel per site and round, down and up."""
    model, methods = result["model"]["tensor_bytes"], result["methods"]
    figure, axes = new_axes(height=0.9 + 0.32 * len(methods), left=1.9)
    for offset, (way, look) in zip((-0.2, 0.2), looks(["down", "up"]).items(), strict=True):
        sizes = [case[f"{way}_bytes"] / model for case in methods.values()]
        places = [place + offset for place in range(len(methods))]
        axes.barh(places, sizes, height=0.38, color=look.colour, label=way)
    axes.set_yticks(range(len(methods)), list(methods))
    axes.invert_yaxis()
    label_axes(axes, "models per site and round", "", "What travels in a round")
    draw_legend(axes)
    return figure


DRAWINGS: Mapping[str, tuple[str, Callable[[dict[str, Any]], Figure]]] = {
    "scaling": ("scaling/result.json", scaling),
    "server_memory": ("server/result.json", memory),
    "wire": ("wire/result.json", wire),
}


if __name__ == "__main__":
    main()
