"""A run of ridge regression gives the head of all images together, resumes to the bit, and refuses sums that are of none."""

import numpy as np
import pytest
import torch

from grandrounds.data.location import locate
from grandrounds.data.site import load_site_data
from grandrounds.deployment.jobs import load_job
from grandrounds.deployment.presets import with_options
from grandrounds.deployment.simulate import simulate
from grandrounds.errors import ConfigurationError
from grandrounds.evaluation.prediction import tensors_of
from grandrounds.models.closed_form.solve import solve
from grandrounds.models.closed_form.sums import class_weights, sums_of
from grandrounds.models.depths import depth_features, risk_logits
from grandrounds.models.registry import build_model
from grandrounds.models.split import head_of
from grandrounds.protocol.problem import Problem

SITES = ["site-1", "site-2", "site-3"]
CHOSEN = ["controller.penalties=[0.3]", "controller.temperature=4.0", "controller.prior_correction=0"]


def run(place, *options, sites=SITES):
    job = with_options(load_job("ridge"), [*CHOSEN, *options])
    summary = simulate(job, place, sites)
    assert summary["status"] == "finished"
    return job, summary, torch.load(place / "results" / "selected.pt", weights_only=True)


def features_of(problem, data, rows):
    """Of images and of their half turn, beside each other."""
    network = build_model(problem.model_spec(pretrained=False), 1).eval()
    inputs = tensors_of(data.images)
    return network, [depth_features(network, inputs(rows, view)).double() for view in ("none", "half_turn")]


def test_the_head_is_that_of_all_images_together(tmp_path, shared_cache):
    job, summary, state = run(tmp_path / "run")
    problem, views, labels = Problem.from_dict(job.options("problem")), [[], []], []
    for site in SITES:
        location = locate(problem.dataset, site, [], tmp_path / "cache")
        data = load_site_data(location, problem, tmp_path / "cache")
        rows = data.rows("labelled")
        network, found = features_of(problem, data, rows)
        for kept, one in zip(views, found, strict=True):
            kept.append(one)
        labels.append(torch.from_numpy(data.labels[rows]))
    label = torch.cat(labels)
    counts = torch.bincount(label, minlength=len(problem.classes))
    named = dict(zip(problem.classes, counts.tolist(), strict=True))
    assert summary["rounds"][0]["ridge"]["class_counts"] == named
    weights = class_weights(counts, 0.5)[label] / 2
    targets = torch.eye(len(problem.classes))[label]
    whole = [torch.cat(view) for view in views]
    sums = sums_of([(view, targets, weights) for view in whole], whole[0].shape[1], len(problem.classes))
    head = solve(sums, 0.3)
    network.load_state_dict(state)
    logits = head_of(network)(whole[0].float()).detach().double().numpy()
    expected = 4 * (whole[0] @ head[:-1] + head[-1]).numpy()
    np.testing.assert_allclose(logits, expected, atol=1e-3)
    shares = torch.bincount(label, weights=weights).numpy() / float(weights.sum())
    apart = risk_logits(network, torch.from_numpy(logits)).numpy() - expected - np.log(counts.numpy() / shares)
    np.testing.assert_allclose(np.ptp(apart, axis=1), 0, atol=3e-3)  # a softmax does not show what classes share


def test_a_run_that_is_resumed_gives_the_same_bits(tmp_path, shared_cache, monkeypatch):
    _, _, whole = run(tmp_path / "whole")
    import grandrounds.methods.ridge.controller as controller

    solved = controller.RidgeController._choose
    monkeypatch.setattr(controller.RidgeController, "_choose", lambda self: 1 / 0)
    with pytest.raises(Exception):  # noqa: B017 - whatever the engine makes of it
        run(tmp_path / "cut")
    monkeypatch.setattr(controller.RidgeController, "_choose", solved)
    _, _, resumed = run(tmp_path / "cut")
    assert all(torch.equal(resumed[name], value) for name, value in whole.items())


@pytest.mark.parametrize(
    ("option", "named"),
    [
        ("controller.rounds=2", "3 rounds"),
        ("problem.head=linear", "problem.head=depths"),
        ("controller.penalties=[]", "penalties"),
        ('executor.views=["weak"]', "fixed"),
    ],
)
def test_what_cannot_be_is_refused(option, named):
    with pytest.raises(ConfigurationError, match=named):
        with_options(load_job("ridge"), [option]).checked()
