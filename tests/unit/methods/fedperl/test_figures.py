"""Figures show the numbers they were given, in their places; shares of peers within a site's own community."""

import io
import itertools
import math

import numpy as np
import pytest
from PIL import Image

from grandrounds.methods.fedperl.figures import (
    SimilarityRound,
    chance_within_group,
    community_blocks,
    community_order,
    mean_similarity,
    peer_frequency_figure,
    pick_matrix,
    similarity_figure,
    within_group_share,
)

SITES = ["site-1", "site-3", "site-2", "site-4"]
GROUPS = {"site-1": "camera", "site-3": "camera", "site-2": "scanner", "site-4": "film"}
FREQUENCY = np.array([[0, 0.75, 0.25, 0], [0.5, 0, 0.5, 0], [0.125, 0.875, 0, 0], [0, 0, 0, 0]])
LIKENESS = np.array([[1, 0.9, 0.2, 0.4], [0.9, 1, 0.3, 0.5], [0.2, 0.3, 1, 0.6], [0.4, 0.5, 0.6, 1]])
DEVICES = dict(zip("abcdefghij", ["isic"] * 5 + ["ham"] * 3 + ["pad", "derm"], strict=True))


def rendered(figure):
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=40)
    return np.asarray(Image.open(stream).convert("RGB"))


def matrix_of(axes):
    return axes.images[0].get_array().filled(np.nan)


def texts(axes):
    return {text.get_text() for text in axes.texts}


def right_labels(axes):
    return [label.get_text() for child in axes.child_axes for label in child.get_yticklabels()]


def outside(figure):
    """Names of labels that stick out of the figure, after layout."""
    figure.draw_without_rendering()
    width, height = figure.bbox.size
    found = []
    for axes in figure.get_axes():
        box = axes.get_tightbbox()
        if box is not None and (box.x0 < -1 or box.y0 < -1 or box.x1 > width + 1 or box.y1 > height + 1):
            found.append(axes.get_title(loc="left") or axes.get_ylabel() or "axes")
    return found


def test_communities_are_side_by_side_in_natural_order():
    assert community_order({f"site-{n}": "odd" if n % 2 else "even" for n in (10, 9, 2, 1)}) == [
        "site-1", "site-9", "site-2", "site-10",
    ]  # fmt: skip
    assert community_blocks(SITES, GROUPS) == [("camera", 0, 2), ("scanner", 2, 1), ("film", 3, 1)]


def test_mean_similarity_leaves_out_the_diagonal():
    within, between = mean_similarity(LIKENESS, SITES, GROUPS)
    assert within == pytest.approx(0.9)
    assert between == pytest.approx((0.2 + 0.4 + 0.3 + 0.5 + 0.6) / 5)


def test_mean_similarity_of_one_community_has_nothing_between():
    within, between = mean_similarity(LIKENESS, SITES, dict.fromkeys(SITES, "camera"))
    assert within == pytest.approx(2.9 / 6)
    assert math.isnan(between)


def test_peer_matrix_has_percent_with_choosers_in_rows_and_no_diagonal():
    axes, *_ = peer_frequency_figure(FREQUENCY, SITES).get_axes()
    expected = np.where(np.eye(4, dtype=bool), np.nan, 100 * FREQUENCY)
    np.testing.assert_array_equal(matrix_of(axes), expected)
    assert (axes.get_ylabel(), axes.get_xlabel()) == ("chooses", "is chosen as peer")
    assert [label.get_text() for label in axes.get_yticklabels()] == SITES
    assert [label.get_text() for label in axes.get_xticklabels()] == SITES
    assert {(text.get_position(), text.get_text()) for text in axes.texts} == {
        ((1, 0), "75"), ((2, 0), "25"), ((0, 1), "50"), ((2, 1), "50"), ((0, 2), "12"), ((1, 2), "88"),
    }  # fmt: skip


def test_boundaries_are_drawn_where_a_community_ends_with_its_name_beside_it():
    axes, beside = peer_frequency_figure(FREQUENCY, SITES, GROUPS, dict.fromkeys(SITES, (0.5, 0.25))).get_axes()[:2]
    horizontal = {line.get_ydata()[0] for line in axes.lines if line.get_ydata()[0] == line.get_ydata()[1]}
    vertical = {line.get_xdata()[0] for line in axes.lines if line.get_xdata()[0] == line.get_xdata()[1]}
    assert horizontal == vertical == {1.5, 2.5}
    assert right_labels(beside) == ["camera", "scanner", "film"]
    assert beside.child_axes[0].get_yticks().tolist() == [0.5, 2, 3]


def test_share_of_the_own_community_is_beside_chance_with_means_over_sites_that_could_pick_it():
    own = {"site-1": (0.75, 0.5), "site-3": (0.5, 0.25), "site-2": (0.0, 0.0), "site-4": (math.nan, 0.3)}
    beside = peer_frequency_figure(FREQUENCY, SITES, GROUPS, own).get_axes()[1]
    dots = [line.get_xydata().tolist() for line in beside.lines if line.get_marker() == "o" and len(line.get_xdata())]
    bars = [line.get_xydata().tolist() for line in beside.lines if line.get_marker() == "|" and len(line.get_xdata())]
    assert (dots, bars) == ([[[75, 0]], [[50, 1]]], [[[50, 0]], [[25, 1]]])
    assert [text.get_text() for text in beside.get_legend().get_texts()] == ["own community: 62 %", "by chance: 38 %"]


def test_many_sites_have_a_scale_of_colours_in_place_of_numbers():
    sites = [f"site-{number}" for number in range(1, 21)]
    axes, bar = peer_frequency_figure(np.full((20, 20), 0.05), sites).get_axes()
    assert not axes.texts
    assert bar.get_label() == "<colorbar>"


@pytest.fixture
def rounds():
    return [
        SimilarityRound(2, ["site-2", "site-3"], np.array([[1, 0.1], [0.1, 1]])),
        SimilarityRound(3, SITES, LIKENESS),
        SimilarityRound(4, SITES, np.ones((4, 4))),
    ]


def test_similarity_matrices_have_one_scale_and_empty_rows_for_sites_that_have_not_trained(rounds):
    first, second, *_ = similarity_figure(rounds, [2, 3], SITES).get_axes()
    expected = np.full((4, 4), np.nan)
    expected[1, 2] = expected[2, 1] = 0.1
    np.testing.assert_array_equal(matrix_of(first), expected)
    np.testing.assert_array_equal(matrix_of(second), np.where(np.eye(4, dtype=bool), np.nan, LIKENESS))
    assert first.images[0].get_clim() == second.images[0].get_clim() == (0.1, 0.9)
    assert [axes.get_title(loc="left") for axes in (first, second)] == ["after round 2", "after round 3"]


def test_curves_are_mean_similarities_within_and_between_over_all_rounds(rounds):
    curves = similarity_figure(rounds, [3], SITES, GROUPS, first_peers=3).get_axes()[-1]
    within, between, peers = curves.lines
    np.testing.assert_allclose(within.get_xydata(), [[2, math.nan], [3, 0.9], [4, 1]])
    np.testing.assert_allclose(between.get_xydata(), [[2, 0.1], [3, 0.4], [4, 1]])
    assert [text.get_text() for text in curves.get_legend().get_texts()] == [
        "within communities", "between communities",
    ]  # fmt: skip
    assert set(peers.get_xdata()) == {3}
    assert texts(curves) == {"peers from round 3"}


def test_without_communities_there_is_one_curve_of_all_pairs(rounds):
    (curve,) = similarity_figure(rounds, [3], SITES).get_axes()[-1].lines
    np.testing.assert_allclose(curve.get_ydata(), [0.1, 2.9 / 6, 1])


def test_labels_of_ten_sites_do_not_stick_out_of_their_figures():
    generator = np.random.default_rng(1)
    sites = [f"site-{number}" for number in range(1, 11)]
    groups = {site: f"a device with a long name {number // 4}" for number, site in enumerate(sites)}
    matrix = generator.random((10, 10))
    figures = [
        peer_frequency_figure(matrix, sites, groups, dict.fromkeys(sites, (0.5, 0.3))),
        similarity_figure([SimilarityRound(number, sites, matrix) for number in (1, 2)], [1, 2], sites, groups, 1),
    ]
    assert [outside(figure) for figure in figures] == [[], []]


def test_a_figure_is_drawn_without_a_display_and_the_same_each_time():
    first, second = (rendered(peer_frequency_figure(FREQUENCY, SITES, GROUPS)) for _ in range(2))
    assert len(np.unique(first.reshape(-1, 3), axis=0)) > 10
    np.testing.assert_array_equal(first, second)


def test_chance_matches_the_ten_sites_of_the_paper():
    chance = chance_within_group(DEVICES)
    assert chance["a"] == pytest.approx(4 / 9)
    assert chance["f"] == pytest.approx(2 / 9)
    assert chance["i"] == 0.0
    assert math.isnan(chance_within_group({"a": "isic"})["a"])


def test_chance_is_what_picking_every_other_site_once_gives():
    picks = list(itertools.permutations(DEVICES, 2))
    assert within_group_share(picks, DEVICES) == pytest.approx(chance_within_group(DEVICES))


def test_share_within_the_group_is_of_each_sites_own_picks():
    share = within_group_share([("a", "b"), ("a", "c"), ("a", "f"), ("f", "a")], DEVICES)
    assert share["a"] == pytest.approx(2 / 3)
    assert share["f"] == 0.0
    assert math.isnan(share["b"])


def test_pick_matrix_has_targets_in_rows_and_sums_to_one_where_there_are_picks():
    matrix = pick_matrix([("b", "a"), ("b", "c"), ("b", "a"), ("b", "a"), ("c", "b")], ["a", "b", "c"])
    assert matrix.tolist() == [[0, 0, 0], [0.75, 0, 0.25], [0, 1, 0]]
