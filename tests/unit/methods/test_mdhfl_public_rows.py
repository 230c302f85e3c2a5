"""Published rows are the model's predictions, whatever the batches, and computing them changes nothing in the model."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from grandrounds.methods.mutual.predictions import public_rows
from grandrounds.methods.mutual.work import PlainWork
from grandrounds.seeding import numpy_generator

IMAGES = numpy_generator("images").integers(0, 256, (9, 6, 6, 3), dtype=np.uint8)
PIXELS = torch.from_numpy(IMAGES).permute(0, 3, 1, 2).to(torch.float32).div(255).double()
ALL = np.arange(9)


@pytest.fixture
def network():
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(1)
        layers = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.5), nn.Flatten(), nn.Linear(64, 3)
        model = nn.Sequential(*layers).double()
    model[1].running_mean.fill_(0.3)
    return model.train()


def rows_of(network, rows=ALL, **options):
    return public_rows(network, IMAGES, rows, PlainWork(), **options)


@pytest.mark.parametrize("batch_size", [2, 4, 100])
def test_rows_are_the_predictions_in_evaluation_mode_whatever_the_batch(network, batch_size):
    with torch.no_grad():
        expected = copy.deepcopy(network).eval()(PIXELS)
    torch.testing.assert_close(rows_of(network, batch_size=batch_size), expected.softmax(1), atol=1e-14, rtol=0)
    some = np.array([7, 0, 3])
    logits = rows_of(network, some, batch_size=batch_size, content="logits")
    torch.testing.assert_close(logits, expected[some], atol=1e-13, rtol=0)


@pytest.mark.parametrize("statistics", ["eval", "batch"])
def test_the_model_is_left_as_it_was(network, statistics):
    network[4].eval()
    before = copy.deepcopy(network.state_dict())
    rows_of(network, statistics=statistics)
    assert all(torch.equal(before[name], entry) for name, entry in network.state_dict().items())
    assert [module.training for module in network] == [True, True, True, True, False]
    assert network[1].track_running_stats
    assert all(parameter.grad is None for parameter in network.parameters())


def test_statistics_of_the_batch_are_those_of_training_without_dropout(network):
    other = copy.deepcopy(network).train()
    other[2].p = 0.0
    with torch.no_grad():
        expected = torch.cat([other(PIXELS[:4]), other(PIXELS[4:])]).softmax(1)
    # Nine images in batches of four: the last one joins the four before.
    found = rows_of(network, statistics="batch", batch_size=4)
    torch.testing.assert_close(found, expected, atol=1e-14, rtol=0)
    assert float((found - rows_of(network)).abs().max()) > 1e-3


def test_a_network_in_single_precision_gives_single_precision(network):
    assert rows_of(network.float()).dtype == torch.float32
    assert rows_of(network.double()).dtype == torch.float64


@pytest.mark.parametrize(("statistics", "expected"), [("eval", [4, 5]), ("batch", [9])])
def test_batches_are_small_on_a_cpu_where_rows_do_not_depend_on_them(network, monkeypatch, statistics, expected):
    monkeypatch.setattr("grandrounds.methods.mutual.predictions.CPU_BATCH", 4)
    sizes = []
    network.register_forward_pre_hook(lambda module, arguments: sizes.append(len(arguments[0])))
    rows_of(network, statistics=statistics)
    assert sizes == expected
