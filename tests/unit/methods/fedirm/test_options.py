"""Options of FedIRM's sites are checked, and passes over images are counted as batches are drawn."""

import re

import numpy as np
import pytest

from grandrounds.data.batches import index_batches
from grandrounds.errors import ConfigurationError
from grandrounds.methods.fedirm.executor import FedIRMExecutor
from grandrounds.methods.fedirm.options import ClientOptions, LabelledOptions, ServerOptions
from grandrounds.seeding import numpy_generator

PROBLEM = {"dataset": "phantom", "classes": ["a", "b"]}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"betas": [0.9]}, "betas must be two numbers, got [0.9]"),
        ({"betas": [0.9, 1.0]}, "betas must be at least 0 and below 1, got (0.9, 1.0)"),
    ],
)
def test_an_option_out_of_range_is_named(options, message):
    with pytest.raises(ConfigurationError, match=f"^{re.escape(message)}$"):
        FedIRMExecutor(**options)


@pytest.mark.parametrize("images", [1, 2, 15, 16, 17, 18, 32, 33, 34, 49])
def test_a_pass_has_as_many_steps_as_batches_and_each_image_once(images):
    steps = ClientOptions(batch_size=16).pass_steps(images)
    batches = list(index_batches(np.arange(images), 16, steps, numpy_generator("pass")))
    assert sorted(np.concatenate(batches)) == list(range(images))


def test_a_round_is_epochs_or_as_many_steps_as_are_asked_for():
    assert ClientOptions(batch_size=48, epochs=2).round_steps(700) == 30
    assert ClientOptions(batch_size=48, epochs=2, steps=7).round_steps(700) == 7


def test_unlabelled_sites_are_absent_in_round_20_and_present_in_21():
    assert [ServerOptions().unlabelled_sites_train(elapsed) for elapsed in (0, 20, 21, 199)] == [
        False,
        False,
        True,
        True,
    ]
    assert ServerOptions(unlabelled_start=0).unlabelled_sites_train(0)
    assert not ServerOptions(unlabelled_start=None).unlabelled_sites_train(199)


def test_the_learning_rate_rises_in_round_21_and_need_not():
    code = LabelledOptions(later_learning_rate=3e-4)
    assert [code.rate_after(elapsed) for elapsed in (0, 20, 21, 199)] == [2e-4, 2e-4, 3e-4, 3e-4]
    assert LabelledOptions().rate_after(199) == 2e-4


def test_the_ramp_counts_epochs_and_where_steps_are_fixed_rounds():
    local = ClientOptions(batch_size=48, epochs=2)
    assert [local.elapsed(11, step, 700) for step in (0, 14, 15, 29)] == [20, 20, 21, 21]
    assert ClientOptions(batch_size=48, steps=40).elapsed(11, 39, 700) == 10
