"""Draw the README's picture from committed results: python docs/picture.py writes alone-and-together.svg."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import fmean

from grandrounds.plotting import COLOURS, NORMAL_SIZE, SMALL_SIZE, Drawing, new_figure
from grandrounds.reporting.page import svg_of

RESULTS = Path(__file__).parents[1] / "benchmarks" / "defaults" / "results"
PICTURE = Path(__file__).with_name("alone-and-together.svg")
DIVISIONS = (4, 5, 6)
SETTINGS = {"ham_quarter": ("skin lesions", 7), "pbc_quarter": ("blood cells", 8)}
"""Title and number of classes."""
METHODS = {"local": "each of ten\nsites alone", "ridge": "together\n(ridge)"}


def balanced_accuracy(setting: str, method: str) -> list[float]:
    """The committed score of each division."""
    paths = (RESULTS / f"{setting}_{method}_{division}.json" for division in DIVISIONS)
    return [json.loads(path.read_text(encoding="utf-8"))["scores"]["balanced_accuracy"] for path in paths]


def drawing() -> Drawing:
    """A bar for the mean of the divisions, a dot for each, and a line for guessing."""
    figure = new_figure(6.4, 2.2)
    panels = figure.subplots(1, len(SETTINGS), sharey=True)
    for axes, (setting, (title, classes)) in zip(panels, SETTINGS.items(), strict=True):
        for place, method in enumerate(METHODS):
            scores = balanced_accuracy(setting, method)
            axes.barh(place, fmean(scores), height=0.55, color=COLOURS[place], alpha=0.75)
            axes.plot(scores, [place] * len(scores), "o", color="black", markersize=3)
            axes.text(max(scores) + 0.02, place, f"{fmean(scores):.3f}".lstrip("0"), va="center", fontsize=NORMAL_SIZE)
        axes.axvline(1 / classes, color="black", linestyle=":", linewidth=1)
        axes.set(xlim=(0, 1), ylim=(1.5, -0.5))
        axes.set_yticks(range(len(METHODS)), list(METHODS.values()))
        axes.set_title(f"{title}, {classes} classes", fontsize=NORMAL_SIZE)
        axes.tick_params(labelsize=SMALL_SIZE, left=False)
        axes.spines[["top", "right"]].set_visible(False)
    label = "balanced accuracy: mean of three divisions of the images (dots); dotted: guessing"
    figure.supxlabel(label, fontsize=SMALL_SIZE)
    return Drawing("alone-and-together", figure, "", "")


if __name__ == "__main__":
    PICTURE.write_bytes(svg_of(drawing()))
