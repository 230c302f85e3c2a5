"""The contracts of metrics, networks, data sets and methods: what the package has keeps them, and faults are named."""

import numpy as np
import pytest
from torch import nn

import grandrounds as gr
from grandrounds.models.registry import BACKBONES


def mean_confidence(labels, probabilities):
    return float(probabilities.max(axis=1).mean())


def undefined(labels, probabilities):
    return float("nan") if len(labels) == 1 else 1.0


def of_the_first(labels, probabilities):
    return float(probabilities[0, 0])


def sorting(labels, probabilities):
    labels.sort()
    return 0.5


def test_a_metric_keeps_the_contract():
    gr.testing.check_metric(mean_confidence)


@pytest.mark.parametrize(
    ("metric", "fault"),
    [(undefined, "gives nan for 1 images"), (of_the_first, "in another order"), (sorting, "changes its arguments")],
)
def test_a_metric_that_breaks_it_is_named(metric, fault):
    with pytest.raises(AssertionError, match=f"metric {metric.__name__} .*{fault}"):
        gr.testing.check_metric(metric)


@pytest.mark.parametrize("name", ["compact", "mobilenetv2", "resnet9"])
def test_small_networks_of_the_package_keep_the_contract(name):
    gr.testing.check_backbone(BACKBONES[name].build, stride=BACKBONES[name].stride)


def pooled(*layers):
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())


def silent(classes, channels):
    network = nn.Sequential(*pooled(nn.Conv2d(channels, 4, 2, 2)), nn.Linear(4, classes))
    network.register_parameter("idle", nn.Parameter(network[0].weight.detach().clone()))
    return network


def with_softmax(classes, channels):
    return nn.Sequential(*pooled(nn.Conv2d(channels, 4, 2, 2)), nn.Linear(4, classes), nn.Softmax(dim=1))


@pytest.mark.parametrize(("factory", "fault"), [(silent, "idle get no gradient"), (with_softmax, "softmax")])
def test_a_network_that_breaks_it_is_named(factory, fault):
    with pytest.raises(AssertionError, match=f"backbone {factory.__name__}.*{fault}"):
        gr.testing.check_backbone(factory, stride=2)


@pytest.fixture
def folder(tmp_path):
    for number in range(4):
        (tmp_path / f"{number}.png").write_text("")
    return tmp_path


def rows(**changed):
    def reader(root, options):
        return [
            {"image": f"{n}.png", "label": "a", "patient": f"p{n // 2}", "split": "train"} | changed for n in range(4)
        ]

    return reader


def test_a_data_set_keeps_the_contract(folder):
    gr.testing.check_dataset(rows(), folder)


@pytest.mark.parametrize(
    ("changed", "fault"),
    [
        ({"image": "5.png"}, "row 1: there is no file '5.png'"),
        ({"image": "0.png"}, "row 2: image '0.png' is listed twice"),
        ({"split": "dev"}, "row 1: split must be train, val or test, got 'dev'"),
    ],
)
def test_a_data_set_that_breaks_it_is_named(folder, changed, fault):
    with pytest.raises(AssertionError, match=fault):
        gr.testing.check_dataset(rows(**changed), folder)


def test_rows_in_another_order_are_found(folder):
    drawn = np.random.default_rng(1)

    def shuffled(root, options):
        return drawn.permutation(rows()(root, options)).tolist()

    with pytest.raises(AssertionError, match="gives other rows the second time; sort the files"):
        gr.testing.check_dataset(shuffled, folder)


@pytest.mark.parametrize("name", ["fedavg", "fedperl"])
def test_methods_of_the_package_keep_the_contract(name):
    gr.testing.check_method(name, {"executor.steps": 1})


def test_a_method_that_does_not_run_is_named():
    with pytest.raises(AssertionError, match="method nothing does not run"):
        gr.testing.check_method("nothing")
