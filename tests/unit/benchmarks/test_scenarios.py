"""Four scenarios beside each other, with the share of each map that lies in the breast."""

import numpy as np
import pytest
import torch

from benchmarks.fed_align_cl_ham10000.cases import breast_masks, scenario_figure, scenarios


@pytest.fixture
def images():
    pixels = np.zeros((3, 4, 4, 1), np.uint8)
    pixels[:, :, :2] = 200  # the breast is the left half
    return pixels


@pytest.fixture
def maps(images):
    inside, spread = torch.zeros(3, 4, 4), torch.ones(3, 4, 4)
    inside[:2, :, 0] = 1.0  # the last image's map is empty
    return {"Fed-Align": spread, "Fed-Align-CL": inside}


@pytest.fixture
def found():
    right = {"Fed-Align": torch.tensor([True, False, False]), "Fed-Align-CL": torch.tensor([True, True, False])}
    return scenarios(right, ours="Fed-Align-CL", reference="Fed-Align")


ANSWERS = {"": ["is mel"] * 3, "Fed-Align": ["nv 0.60"] * 3, "Fed-Align-CL": ["mel 0.90"] * 3}


def drawn(images, maps, found, breast=True):
    return scenario_figure(images, maps, found, "Fed-Align-CL", "Fed-Align", breast, ANSWERS)


def test_the_breast_is_where_a_prepared_mammogram_is_not_black(images):
    masks = breast_masks(images)
    assert masks[..., :2].all()
    assert not masks[..., 2:].any()


def test_each_scenario_has_a_row_with_the_share_of_each_map_inside_the_breast(images, maps, found):
    axes = drawn(images, maps, found).axes
    assert len(axes) == 4 * 3 + 1  # the scale of the maps
    below = [[panel.get_xlabel().partition("\n")[2] for panel in axes[3 * row + 1 : 3 * row + 3]] for row in range(4)]
    assert below == [["50% inside", "100% inside"], ["50% inside", "—"], ["50% inside", "100% inside"], ["", ""]]
    assert [panel.get_title() for panel in axes[:3]] == ["", "Fed-Align", "Fed-Align-CL"]


def test_a_scenario_without_an_image_is_labelled_so(images, maps, found):
    assert len(found["reference_right_ours_wrong"]) == 0
    last = drawn(images, maps, found).axes[9]
    assert [text.get_text() for text in last.texts] == ["no image"]
    assert "Fed-Align right" in last.get_ylabel()


def test_images_keep_their_colours_and_have_their_class_and_each_prediction(maps, found):
    colour = np.zeros((3, 4, 4, 3), np.uint8)
    colour[..., 0] = 250
    axes = drawn(colour, maps, found, breast=False).axes
    assert [panel.get_xlabel() for panel in axes[:3]] == ["is mel", "nv 0.60", "mel 0.90"]
    assert axes[0].images[0].get_array().shape == (4, 4, 3)
