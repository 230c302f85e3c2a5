"""The labelled sites' own selection reads their counts, as that of all sites does."""

from types import SimpleNamespace

import pytest
from rscfed import ConsensusController

from grandrounds.methods.fedirm.controller import FedIRMController

SCORES = {"validation.n": 94.0, "validation.accuracy": 0.9, "validation.log_likelihood": -0.4}
PROBLEM = {"dataset": "skin", "classes": ["nevus", "melanoma"]}


@pytest.mark.parametrize("method", [FedIRMController, ConsensusController])
def test_a_labelled_site_that_keeps_its_counts_selects_by_the_log_likelihood(method):
    controller = method(problem=PROBLEM, rounds=3)
    controller.dispatcher = SimpleNamespace(counts={"a": {}, "unlabelled": {}, "b": {}})
    controller.record = SimpleNamespace(event=lambda *_, **__: None)
    controller.round_number, controller.sent = 2, {}
    controller._trained, controller._learned_labels = {"labelled": ["a"], "unlabelled": []}, True
    controller._matrices = {"relation": {}, "pseudo_relation": {}}
    controller._scores = {"a": SCORES}
    controller.close_round()  # nobody has trained: only the selection takes place
    choice = controller._labelled_selection.choice
    assert (choice["round"], choice["metric"], choice["score"]) == (1, "log_likelihood", -0.4)
    assert "no counts from a" in choice["note"]
