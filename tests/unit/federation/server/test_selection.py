"""The selected model is the best one over the same sites."""

import json

import pytest
import torch

from grandrounds.errors import ConfigurationError
from grandrounds.federation.server.selection import ModelSelection


def scores(**sites):
    return {site: {"validation.n": 10, "validation.f1": value} for site, value in sites.items()}


def model(value):
    return {"w": torch.tensor([value])}


def test_the_best_mean_over_sites_is_kept():
    selection = ModelSelection("f1")
    assert selection.offer(1, scores(a=0.2, b=0.4), model(1.0)) == pytest.approx(0.3)
    selection.offer(2, scores(a=0.6, b=0.4), model(2.0))
    selection.offer(3, scores(a=0.1, b=0.8), model(3.0))
    assert selection.choice == {"round": 2, "metric": "f1", "score": 0.5}
    assert selection.model == model(2.0)


def test_a_tie_selects_the_later_model():
    selection = ModelSelection("f1")
    for number in (1, 2):
        selection.offer(number, scores(a=0.5), model(float(number)))
    assert selection.choice["round"] == 2


def test_a_round_does_not_win_because_a_hard_site_missed_it():
    selection = ModelSelection("f1")
    selection.offer(1, scores(easy=0.8, hard=0.2), model(1.0))
    # Without the hard site the mean would be 0.7, above 0.5.
    assert selection.offer(2, scores(easy=0.7), model(2.0)) == pytest.approx(0.45)
    assert selection.choice["round"] == 1


def test_sites_without_validation_images_do_not_count():
    selection = ModelSelection("f1")
    assert selection.offer(1, {"a": {"validation.n": 0}, "b": {"loss": 1.0}}, model(1.0)) is None
    assert selection.choice == {}
    assert selection.offer(2, {**scores(c=0.5), "a": {"validation.n": 0}}, model(2.0)) == 0.5


def test_a_metric_that_a_site_does_not_send_is_named_with_those_it_does():
    with pytest.raises(ConfigurationError, match=r"selection_metric 'auc' is not among the metrics of a: f1, n$"):
        ModelSelection("auc").offer(1, scores(a=0.5), model(1.0))


def test_a_selection_goes_on_from_its_state():
    before = ModelSelection("f1")
    before.offer(1, scores(easy=0.8, hard=0.2), model(1.0))
    state = before.state_dict()
    after = ModelSelection("f1")
    after.load_state_dict({**json.loads(json.dumps({**state, "model": None})), "model": state["model"]})
    assert after.offer(2, scores(easy=0.7), model(2.0)) == before.offer(2, scores(easy=0.7), model(2.0))
    assert after.choice == before.choice
    assert after.model == model(1.0)


def test_a_site_that_scores_for_the_first_time_begins_the_comparison_anew():
    selection = ModelSelection("f1")
    selection.offer(1, scores(a=0.9), model(1.0))
    selection.offer(2, scores(a=0.95, b=0.5), model(2.0))
    assert selection.choice["round"] == 2
    selection.offer(3, scores(a=0.9, b=0.5), model(3.0))
    assert selection.choice["round"] == 2
