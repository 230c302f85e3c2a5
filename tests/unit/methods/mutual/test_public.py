"""Public images have one order at all sites, and predictions on them depend on the model alone."""

import copy

import numpy as np
import pytest
import torch
from mutual_site import site_context
from torch import nn

from grandrounds.data.images.cache import DecodedCache
from grandrounds.data.site import SiteData
from grandrounds.errors import DataError
from grandrounds.methods.mutual.public import predict_public, public_images
from grandrounds.seeding import numpy_generator

PICTURES = np.arange(3 * 4 * 4 * 3, dtype=np.uint8).reshape(3, 4, 4, 3)


def data(names, pictures=PICTURES):
    count = len(names)
    return SiteData(
        cache=DecodedCache(pictures),
        labels=np.full(count, -1),
        labelled=np.zeros(count, bool),
        split=np.full(count, "train"),
        names=tuple(names),
        groups=tuple(names),
        classes=("a", "b"),
    )


def test_images_are_in_the_order_of_their_names_whatever_the_order_of_the_manifest():
    public, images = public_images(data(["c", "a", "b"]), "site-1")
    assert [image.image for image in public.images] == ["a", "b", "c"]
    assert np.array_equal(images, PICTURES[[1, 2, 0]])
    same, _ = public_images(data(["a", "b", "c"], PICTURES[[1, 2, 0]]), "site-2")
    assert same.digest == public.digest


def test_a_sorted_manifest_copies_no_image():
    assert np.shares_memory(public_images(data(["a", "b", "c"]), "site-1")[1], PICTURES)


def test_exchanged_files_are_another_set():
    here, _ = public_images(data(["a", "b", "c"]), "site-1")
    there, _ = public_images(data(["a", "b", "c"], PICTURES[[0, 2, 1]]), "site-2")
    assert here.digest != there.digest


def test_an_image_that_is_named_twice_is_refused():
    with pytest.raises(DataError, match="site-1: public image 'a' is named twice"):
        public_images(data(["a", "b", "a"]), "site-1")


def test_a_public_set_without_images_is_refused():
    with pytest.raises(DataError, match="site-1: the public set has no image"):
        public_images(data([], PICTURES[:0]), "site-1")


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


def predictions_of(network, rows=ALL, **options):
    return predict_public(network, IMAGES, rows, site_context(IMAGES), **options)


@pytest.mark.parametrize("batch_size", [2, 4, 100])
def test_they_are_the_predictions_in_evaluation_mode_whatever_the_batch(network, batch_size):
    with torch.no_grad():
        expected = copy.deepcopy(network).eval()(PIXELS)
    torch.testing.assert_close(predictions_of(network, batch_size=batch_size), expected.softmax(1), atol=1e-14, rtol=0)
    some = np.array([7, 0, 3])
    logits = predictions_of(network, some, batch_size=batch_size, content="logits")
    torch.testing.assert_close(logits, expected[some], atol=1e-13, rtol=0)


@pytest.mark.parametrize("statistics", ["eval", "batch"])
def test_the_model_is_left_as_it_was(network, statistics):
    network[4].eval()
    before = copy.deepcopy(network.state_dict())
    predictions_of(network, statistics=statistics)
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
    found = predictions_of(network, statistics="batch", batch_size=4)
    torch.testing.assert_close(found, expected, atol=1e-14, rtol=0)
    assert float((found - predictions_of(network)).abs().max()) > 1e-3


def test_a_network_in_single_precision_gives_single_precision(network):
    assert predictions_of(network.float()).dtype == torch.float32
    assert predictions_of(network.double()).dtype == torch.float64


@pytest.mark.parametrize(("statistics", "expected"), [("eval", [4, 5]), ("batch", [9])])
def test_batches_are_small_on_a_cpu_where_rows_do_not_depend_on_them(network, monkeypatch, statistics, expected):
    monkeypatch.setattr("grandrounds.methods.mutual.public.CPU_BATCH", 4)
    sizes = []
    network.register_forward_pre_hook(lambda module, arguments: sizes.append(len(arguments[0])))
    predictions_of(network, statistics=statistics)
    assert sizes == expected
