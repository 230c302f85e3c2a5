"""Figures of relation matching show the rows that are known, and how far the sites are from each other."""

import io

import numpy as np
import pytest

from grandrounds.methods.fedirm.figures import RelationRound, mean_of_rows, relation_figure, relation_gap

CLASSES = ["nv", "mel", "bcc"]
SHARP = np.array([[0.8, 0.1, 0.1], [0.2, 0.7, 0.1], [0.3, 0.3, 0.4]])
FLAT = np.full((3, 3), 1 / 3)
PARTLY = np.array([[0.5, 0.25, 0.25], [np.nan] * 3, [0.3, 0.3, 0.4]])


def rounds(*numbers, unlabelled=PARTLY):
    return [RelationRound(number, SHARP, unlabelled) for number in numbers]


def test_rows_are_averaged_over_those_who_know_them():
    found = mean_of_rows([SHARP, FLAT], [np.array([5, 0, -1]), np.array([1, 9, 0])])
    np.testing.assert_allclose(found[0], (SHARP[0] + FLAT[0]) / 2)
    np.testing.assert_allclose(found[1], FLAT[1])
    assert np.isnan(found[2]).all()


@pytest.mark.parametrize(("matrices", "supports"), [([], []), ([FLAT], [])])
def test_a_mean_without_values_is_refused(matrices, supports):
    with pytest.raises(ValueError, match=f"at least one matrix, got {len(matrices)} and {len(supports)}"):
        mean_of_rows(matrices, supports)


def test_the_gap_is_over_rows_that_both_know():
    # Row 0 differs by 0.3, 0.15 and 0.15, row 2 not at all, row 1 is not known.
    assert relation_gap(RelationRound(1, SHARP, PARTLY)) == pytest.approx(0.6 / 6)
    assert np.isnan(relation_gap(RelationRound(1, SHARP, np.full((3, 3), np.nan))))


def images(figure):
    return [axes.images[0] for axes in figure.get_axes() if axes.images]


def test_each_round_has_a_row_of_matrices_and_differences_with_and_without():
    figure = relation_figure(rounds(1, 2, 3), [1, 3], CLASSES, rounds(1, 3, unlabelled=FLAT))
    drawn = images(figure)
    assert len(drawn) == 2 * 4
    np.testing.assert_allclose(drawn[0].get_array(), SHARP)
    np.testing.assert_allclose(drawn[2].get_array().filled(np.nan), np.abs(SHARP - PARTLY))
    np.testing.assert_allclose(drawn[3].get_array(), np.abs(SHARP - FLAT))
    assert drawn[2].get_clim() == drawn[3].get_clim() == (0, pytest.approx(np.abs(SHARP - FLAT).max()))
    below = figure.get_axes()[-1]
    assert [list(line.get_xdata()) for line in below.lines] == [[1, 2, 3], [1, 3]]
    np.testing.assert_allclose(below.lines[0].get_ydata(), 0.1)


def test_without_a_second_run_there_are_three_columns():
    assert len(images(relation_figure(rounds(5), [5], CLASSES))) == 3


@pytest.mark.parametrize("shown", [[], [2]])
def test_a_round_that_is_not_there_cannot_be_shown(shown):
    with pytest.raises(ValueError, match="shown must be rounds of every run"):
        relation_figure(rounds(1), shown, CLASSES)


def test_matrices_must_fit_the_classes():
    with pytest.raises(ValueError, match=r"expected matrices of 2 classes, got \(3, 3\) in round 1"):
        relation_figure(rounds(1), [1], CLASSES[:2])


def test_the_figure_can_be_written():
    stream = io.BytesIO()
    relation_figure(rounds(1), [1], CLASSES).savefig(stream, format="png")
    assert stream.getvalue().startswith(b"\x89PNG")
