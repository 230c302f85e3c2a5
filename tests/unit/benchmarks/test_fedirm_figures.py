"""A score over numbers of sites is drawn in their order."""

import pytest

from benchmarks.fedirm_ham10000.figures import score_over_sites_figure


def test_a_score_is_drawn_over_the_numbers_of_sites_in_their_order():
    axes = score_over_sites_figure({"a": {4: 0.9, 1: 0.7}, "b": {1: 0.6}}, "sites", "AUC").get_axes()[0]
    assert [list(line.get_xdata()) for line in axes.lines] == [[1, 4], [1]]
    assert list(axes.lines[0].get_ydata()) == [0.7, 0.9]
    assert list(axes.get_xticks()) == [1, 4]


@pytest.mark.parametrize("curves", [{}, {"a": {}}])
def test_methods_without_a_score_are_refused(curves):
    with pytest.raises(ValueError, match="at least one method, with a score each"):
        score_over_sites_figure(curves, "sites", "AUC")
