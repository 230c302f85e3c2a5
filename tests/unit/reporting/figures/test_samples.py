"""The sheet shows the surest right and wrong cases and the least sure ones, each with its classes."""

import numpy as np

from grandrounds.reporting.figures.images import JudgedImages, choose_samples, failure_figure, sample_figure

LABELS = np.array([0, 0, 1, 1, 0])
PROBABILITIES = np.array([[0.9, 0.1], [0.4, 0.6], [0.2, 0.8], [0.95, 0.05], [0.5, 0.5]])
JUDGED = JudgedImages(
    np.zeros((5, 4, 4, 1), np.uint8), LABELS, PROBABILITIES, PROBABILITIES.argmax(1), ("nevus", "melanoma")
)


def test_the_surest_come_first_and_the_least_sure_are_uncertain():
    found = choose_samples(JUDGED, count=2)
    assert [rows.tolist() for rows in found] == [[0, 2], [3, 1], [4, 1]]


def test_all_are_shown_where_there_are_few():
    assert [len(rows) for rows in choose_samples(JUDGED, count=9)] == [3, 2, 5]


def test_a_sheet_names_true_class_prediction_and_probability():
    maps = np.ones((5, 4, 4), np.float32)
    for given, layers in ((None, 1), (maps, 2)):
        panels = sample_figure(JUDGED, "clinic", given).get_axes()
        assert len(panels) == 18 + (given is not None)  # a scale of the maps
        assert [text.get_text() for text in panels[6].texts] == ["melanoma\nnevus 0.95"]
        assert len(panels[6].images) == layers
        assert not panels[8].images  # there is no third wrong case


def test_a_kind_without_cases_has_the_title_none():
    panels = sample_figure(JUDGED.at(np.array([0])), "clinic").get_axes()
    assert panels[6].get_title(loc="left") == "wrong: none"


def test_a_failure_sheet_has_the_most_confident_errors_alone():
    figure = failure_figure(JUDGED, "clinic")
    texts = [text.get_text() for panel in figure.axes for text in panel.texts]
    assert texts[0] == "is melanoma\ncalled nevus, 0.95"
    assert len(texts) == 2
    assert figure.get_suptitle().startswith("clinic: the 2 most confident of 2 errors in 5 images")
