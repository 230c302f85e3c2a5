"""The analysis of variance with sites as blocks, Bonferroni's factor, and counts of wins."""

import math

import numpy as np
import pytest
from scipy import stats

from grandrounds.evaluation.tests import Win, anova, bonferroni, wins
from grandrounds.seeding import numpy_generator


def test_hand_computed_table():
    # Means of methods 2 and 4, of sites 1.5, 3, 4.5; residuals +-0.5, 0, -+0.5: F = (6 / 1) / (1 / 2).
    found = anova(np.array([[1.0, 2.0, 3.0], [2.0, 4.0, 6.0]]), blocks=True)
    assert found[0] == pytest.approx(12)
    assert found[2:] == (1, 2)


def test_with_two_methods_it_is_the_paired_t_test():
    table = numpy_generator("blocks").random((2, 9))
    test = stats.ttest_rel(*table)
    found = anova(table, blocks=True)
    assert found.statistic == pytest.approx(test.statistic**2)
    assert found.p_value == pytest.approx(test.pvalue)


def test_what_is_common_to_a_site_cancels():
    table = numpy_generator("cancels").random((4, 6))
    hard = np.array([0, 5, -3, 1, 2, 9])
    assert anova(table + hard, blocks=True).statistic == pytest.approx(anova(table, blocks=True).statistic)


def test_limits():
    assert anova(np.ones((3, 4)), blocks=True) == (0.0, 1.0, 2, 6)
    apart = anova(np.array([[1.0, 1.0, 1.0], [2.0, 2.0, 2.0]]), blocks=True)
    assert (apart.statistic, apart.p_value) == (math.inf, 0.0)
    for table in (np.ones((1, 5)), np.ones((3, 2))):
        with pytest.raises(ValueError, match="two methods at least, with 3 finite results"):
            anova(table, blocks=True)
    with pytest.raises(ValueError, match="with 3 finite results each"):
        anova(np.array([[1.0, np.nan, 2.0], [1, 2, 3]]), blocks=True)


def test_bonferroni_is_at_most_one_and_keeps_what_is_unknown():
    assert bonferroni(5.429e-4, 3) == pytest.approx(1.629e-3, rel=1e-3)
    assert bonferroni(0.5447, 3) == 1
    assert math.isnan(bonferroni(math.nan, 3))


def test_wins_of_every_pair():
    found = wins({"a": [0.5, 0.7, 0.9], "b": [0.4, 0.7 + 1e-9, 1.0], "c": [0.1, 0.1, 0.1]})
    assert found == {("a", "b"): Win(1, 1, 1), ("a", "c"): Win(3, 0, 0), ("b", "c"): Win(3, 0, 0)}
    with pytest.raises(ValueError, match="zip"):
        wins({"a": [1.0], "b": [1.0, 2.0]})
