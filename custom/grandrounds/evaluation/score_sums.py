"""What sites add up of a model's scores, so that nobody reads those of a single site.

A table has the counts of predictions by class, of every class a histogram of its probability, and sums over images. Areas
under curves follow from the histograms, as if probabilities were spread evenly within a bin.
"""

from __future__ import annotations

import numpy as np

from grandrounds.evaluation.counts import IMAGES, PATIENTS, UNITS, counts_shape
from grandrounds.evaluation.metrics import LINEAR_SCORES
from grandrounds.protocol.task import Task

TOTALS, HISTOGRAMS, AREAS = "totals", "histograms", "areas"
"""Names of the arrays beside those of counts: sums over images, images by class, side and bin, and areas within sites."""
SCORE_ENTRIES = (IMAGES, PATIENTS, TOTALS, HISTOGRAMS, AREAS)
SIDES = 3
"""Of a histogram: images with the class, images without it, and images with the class at sites that have no other."""
AREA_COLUMNS = ("cases", "cases times area", "cases squared times variance", "sites", "cases lost")
"""Of the areas: cases with the class at a site that has images without it; those at other sites are lost."""
HISTOGRAM_BINS = 256
EDGES = 1 / (1 + np.exp(-np.linspace(-12, 12, HISTOGRAM_BINS - 1)))
"""Between bins of a probability, evenly spaced logits: small and large probabilities keep their order."""


def score_shapes(task: Task, classes: int) -> dict[str, tuple[int, ...]]:
    """The shapes of a table."""
    counts = counts_shape(task.answers(classes))
    totals = (1 + len(UNITS) + len(LINEAR_SCORES),)
    histograms, areas = (classes, SIDES, HISTOGRAM_BINS), (classes, len(AREA_COLUMNS))
    return dict(zip(SCORE_ENTRIES, (counts, counts, totals, histograms, areas), strict=True))
