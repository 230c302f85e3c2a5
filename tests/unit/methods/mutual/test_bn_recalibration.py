"""Recalibrated statistics are means over all local images, under the current weights."""

import copy

import numpy as np
import pytest
import torch
from mutual_site import site_context
from torch import nn

from grandrounds.methods.mutual.executor import MutualLearner
from grandrounds.methods.mutual.options import AlignmentOptions, ExchangeOptions, LocalOptions
from grandrounds.methods.mutual.soft_labels import SoftLabels
from grandrounds.methods.mutual.training import recalibrate_batch_norm, train_locally
from grandrounds.seeding import numpy_generator

IMAGES = np.array([0, 255, 0, 255, 255], np.uint8).reshape(5, 1, 1, 1)
CONTEXT = site_context(IMAGES)


def test_batches_of_black_and_white_have_mean_and_variance_of_a_half():
    norm = nn.BatchNorm2d(1)
    norm.running_mean.fill_(7.0)
    # Two black ones and two white ones: mean 1/2, and variance 1/3 with one less than four in the denominator.
    recalibrate_batch_norm(norm, np.arange(4), CONTEXT, batch_size=4)
    assert norm.running_mean.item() == 0.5
    assert norm.running_var.item() == pytest.approx(1 / 3)


def test_no_batch_is_of_one_image():
    norm = nn.BatchNorm2d(1)
    recalibrate_batch_norm(norm, np.arange(5), CONTEXT, batch_size=4)
    # One batch of five: mean 3/5, variance 6/5 / 4.
    torch.testing.assert_close(norm.running_mean, torch.tensor([0.6]))
    torch.testing.assert_close(norm.running_var, torch.tensor([0.3]))


def test_a_recalibrated_network_predicts_in_evaluation_mode_what_it_does_on_the_whole_as_one_batch():
    images = numpy_generator("images").integers(0, 256, (24, 4, 4, 1), dtype=np.uint8)
    network = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Conv2d(3, 2, 1), nn.BatchNorm2d(2))
    pixels = torch.from_numpy(images).permute(0, 3, 1, 2).float() / 255
    expected = network.train()(pixels)
    recalibrate_batch_norm(network, np.arange(24), CONTEXT, images, batch_size=24)
    # 96 values for each channel: the variances differ by 1 / 96, as torch normalises by the one with the whole denominator.
    torch.testing.assert_close(network.eval()(pixels), expected, atol=0.02, rtol=0.02)


def test_nothing_but_the_statistics_changes():
    network = nn.Sequential(nn.BatchNorm2d(1, momentum=0.25), nn.Dropout(0.5), nn.BatchNorm2d(1, affine=False))
    network[2].eval()
    before, modes = copy.deepcopy(network.state_dict()), [module.training for module in network.modules()]
    recalibrate_batch_norm(network, np.arange(4), CONTEXT)
    after = network.state_dict()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed - {"2.running_mean"} == {  # the mean of what is normalised is zero, as it was
        "0.running_mean",
        *(f"{norm}.{name}" for norm in (0, 2) for name in ("running_var", "num_batches_tracked")),
    }
    assert [module.training for module in network.modules()] == modes
    assert [network[0].momentum, network[2].momentum] == [0.25, 0.1]


def test_a_network_without_batch_norm_is_not_even_run():
    class Silent(nn.Module):
        def forward(self, images):
            raise AssertionError("it was run")

    recalibrate_batch_norm(Silent(), np.arange(4), CONTEXT)


def small_network():
    return nn.Sequential(nn.BatchNorm2d(1), nn.Flatten(), nn.Linear(16, 2))


@pytest.mark.parametrize("recalibrated", [True, False])
def test_training_on_own_labels_ends_with_the_statistics_of_the_own_training_images(recalibrated):
    images = numpy_generator("own").integers(0, 256, (12, 4, 4, 1), dtype=np.uint8)
    rows = np.arange(0, 12, 2)
    network = small_network()
    options = LocalOptions(batch_size=2, local_view="none", recalibrate_bn=recalibrated)
    train_locally(network, options, 1.0, 1, 2, site_context(images, np.arange(12) % 2, rows))
    expected = images[rows].mean() / 255
    assert (network[0].running_mean.item() == pytest.approx(expected, rel=1e-5)) == recalibrated


@pytest.mark.parametrize("recalibrated", [True, False])
def test_alignment_ends_with_the_statistics_of_the_own_images_too(recalibrated):
    draw = numpy_generator("participant")
    public = draw.integers(0, 128, (8, 4, 4, 1), dtype=np.uint8)
    own = draw.integers(128, 256, (8, 4, 4, 1), dtype=np.uint8)
    context = site_context(own, np.arange(8) % 2)
    options = ExchangeOptions(public_batch=2), AlignmentOptions(), LocalOptions(recalibrate_bn=recalibrated)
    network = small_network()
    others = SoftLabels(torch.full((8, 2), 0.5), {"site-2": 1}, {"site-2": 1.0})
    MutualLearner(context, network, public, 2, *options).align(others, np.arange(8), 1, 1)
    assert (network[0].running_mean.item() == pytest.approx(own.mean() / 255, rel=1e-5)) == recalibrated


def test_statistics_do_not_depend_on_images_of_a_class_standing_together():
    """Black images first, then white ones: with batches of neighbours the variance would be zero."""
    norm = nn.BatchNorm2d(1)
    images = np.repeat(np.array([0, 255], np.uint8), 200).reshape(400, 1, 1, 1)
    recalibrate_batch_norm(norm, np.arange(400), CONTEXT, images, batch_size=20)
    assert norm.running_mean.item() == pytest.approx(0.5)
    assert norm.running_var.item() == pytest.approx(0.25, rel=0.1)
