"""Options of FedIRM's sites are checked, and passes over images are counted as batches are drawn."""

import re

import numpy as np
import pytest

from grandrounds.data.batches import index_batches
from grandrounds.deployment.jobs import load_job
from grandrounds.deployment.presets import with_preset
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


# The phantom's network has no frozen layers whose features could be kept.
SIZED_FOR_THE_PHANTOM = {"batch_size", "learning_rate", "unlabelled_learning_rate", "ramp_length", "feature_cache"}


# The text's filter is the default: the other one was tested with two of ten sites labelled.
FILTER = {"mc_dropout": "head", "min_confidence": 0.0}


@pytest.mark.parametrize(("name", "more"), [("fedirm", FILTER.keys()), ("rscfed", set())])
def test_a_job_without_a_preset_is_the_recommended_one_at_the_size_of_the_phantom(name, more):
    plain, advised = load_job(name).options("executor"), with_preset(load_job(name), "recommended").options("executor")
    assert {option for option in plain if plain[option] != advised[option]} == SIZED_FOR_THE_PHANTOM | more


def test_an_executor_without_options_is_the_recommended_one_with_the_texts_filter():
    advised = with_preset(load_job("fedirm"), "recommended").options("executor")
    made = FedIRMExecutor().options()
    expected = {option: advised[option] for option in made} | {"feature_cache": 0} | FILTER
    assert {**made, "betas": list(made["betas"])} == expected
