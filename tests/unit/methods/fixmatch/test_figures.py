"""The figure of pseudo-labels shows sites as dots and their mean as a line."""

from grandrounds.methods.fixmatch.figures import pseudo_label_figure


def test_pseudo_labels_are_dots_with_the_mean_over_the_rounds_participants():
    accepted = {"site-1": {1: 0.25, 2: 0.5}, "site-2": {1: 0.75}}
    above, below = pseudo_label_figure(accepted, {"site-1": {2: 0.9}}).get_axes()
    assert above.lines[2].get_xydata().tolist() == [[1, 0.5], [2, 0.5]]
    assert below.lines[1].get_xydata().tolist() == [[2, 0.9]]


def test_without_known_labels_there_is_no_panel_of_accuracy():
    (axes,) = pseudo_label_figure({"site-1": {1: 0.25}}, {}).get_axes()
    assert axes.get_title(loc="left") == "accepted share of unlabelled images"
