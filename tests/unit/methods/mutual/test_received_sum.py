"""A site checks the sum of soft labels and its contributors before it learns from them."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from mutual_site import site_context

from grandrounds.deployment.jobs import load_job
from grandrounds.deployment.presets import with_options
from grandrounds.errors import MessageError
from grandrounds.methods.mutual.executor import MutualExecutor
from grandrounds.protocol.messages import Payload
from grandrounds.protocol.problem import Problem
from grandrounds.seeding import numpy_generator

IMAGES, CLASSES = 4, 3
MEAN = torch.tensor([[0.5, 0.3, 0.2]] * IMAGES)
ROUNDS, WEIGHTS = {"a": 1, "b": 1}, {"a": 1.0, "b": 1.0}


def executor():
    options = ["executor.backbones=null", "executor.pretrain_epochs=0", "executor.batch_size=2"]
    return MutualExecutor(**with_options(load_job("mdhfl"), options).options("executor"))


def train(values, contributors):
    """The second of three rounds at a site that has not contributed to the sum of the first."""
    generator = numpy_generator("received sum")
    images = generator.integers(0, 256, (IMAGES, 32, 32, 3), dtype=np.uint8)
    own = site_context(images, np.arange(IMAGES) % CLASSES, site="c")
    context = replace(own, round_number=2, datasets=lambda name: own.data, problem=Problem("skin", ("x", "y", "z")))
    task = {"exchange": {"options": {"public_batch": 2}, "rounds": 3, **contributors}, "public": "public"}
    return executor().train(Payload(2, task, {"soft_labels": {"values": values}}), context)


def contributors(rounds=ROUNDS, weights=WEIGHTS):
    return {"contributors": {"rounds": rounds, "weights": weights}}


def test_a_site_aligns_to_a_valid_sum():
    result = train(MEAN, contributors())
    assert result.metrics["alignment_loss"] > 0
    assert result.releases["soft_labels"].tensors["values"].shape == (IMAGES, CLASSES)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        (MEAN * 2, "the sum of the soft labels: row 0 does not sum to 1"),
        (MEAN.index_copy(0, torch.tensor([2]), torch.tensor([[1.2, 0.0, -0.2]])), "row 2 has a negative entry"),
        (MEAN.index_fill(0, torch.tensor(1), float("nan")), "row 1 has an entry that is not finite"),
        (MEAN[:3], r"expected shape \(4, 3\), got \(3, 3\)"),
        (MEAN[:, :2], "expected 3 classes, got 2"),
        (MEAN.to(torch.int64), "expected one of fp64, fp32, fp16, uint8, got torch.int64"),
    ],
)
def test_a_sum_that_is_not_a_mean_of_distributions_is_refused(values, reason):
    with pytest.raises(MessageError, match=reason):
        train(values, contributors())


@pytest.mark.parametrize(
    ("described", "reason"),
    [
        (contributors(weights={"a": 1.0}), r"rounds of \['a', 'b'\] and weights of \['a'\]"),
        (contributors(rounds={"a": 1}), r"rounds of \['a'\] and weights of \['a', 'b'\]"),
        (contributors({}, {}), r"rounds of \[\] and weights of \[\]"),
        (contributors(weights={"a": 1.0, "b": -1.0}), "weight of b must be at least 0, got -1"),
        ({}, "the task has soft labels, but 'contributors' is missing"),
        ({"contributors": {"rounds": ROUNDS}}, "the task has soft labels, but 'weights' is missing"),
    ],
)
def test_contributors_that_do_not_match_are_refused(described, reason):
    with pytest.raises(MessageError, match=reason):
        train(MEAN, described)
