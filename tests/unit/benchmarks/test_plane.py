"""Points in a plane: colour is the hospital, shape the diagnosis."""

import numpy as np
from matplotlib.colors import to_hex

from benchmarks.fed_align_cl_ham10000.embeddings import plane_figure

SITES = np.array(["site-2", "site-10", "site-2", "site-10"])
MALIGNANT = np.array([True, False, False, False])
PLANE = np.arange(8.0).reshape(4, 2)


def test_a_hospital_has_a_colour_and_a_diagnosis_a_shape():
    (axes,) = plane_figure(PLANE, SITES, MALIGNANT, "").axes
    filled = [dots for dots in axes.collections if len(dots.get_offsets())]
    offsets = [dots.get_offsets().tolist() for dots in filled]
    # Natural order: site-2 before site-10; circles before crosses; no malignant image at site-10.
    assert offsets == [[[4.0, 5.0]], [[0.0, 1.0]], [[2.0, 3.0], [6.0, 7.0]]]
    assert [to_hex(dots.get_edgecolor()[0]).upper() for dots in filled] == ["#0072B2", "#0072B2", "#D55E00"]


def test_a_caption_is_below_and_a_legend_beside():
    figure = plane_figure(PLANE, SITES, MALIGNANT, "silhouette 0.76")
    assert [axes.get_xlabel() for axes in figure.axes] == ["silhouette 0.76"]
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["site-2", "site-10", "not malignant", "malignant"]
