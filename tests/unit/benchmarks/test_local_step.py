"""FedPerl's local training makes the update of the loop that the paper describes, with no forward pass too many."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch

from benchmarks.local_step import loops
from benchmarks.local_step.fedirm import FedIRMCase
from benchmarks.local_step.fedperl import FedPerlCase
from grandrounds.data.datasets.phantom import PHANTOM_CLASSES, draw_phantom
from grandrounds.data.images.cache import DecodedCache
from grandrounds.data.images.views import Strong
from grandrounds.data.site import SiteData
from grandrounds.federation.site.context import SiteContext, StateCache
from grandrounds.methods.fedperl.loss import PeerPseudoLabeler
from grandrounds.methods.fixmatch.training import SemiSupervisedOptions, train_semi_supervised
from grandrounds.methods.supervised.training import TrainingOptions
from grandrounds.models.norm import folded_copy
from grandrounds.models.registry import build_model
from grandrounds.protocol.problem import Problem
from grandrounds.protocol.tasks import SINGLE

SIZE, BATCH, STEPS, THRESHOLD, GAMMA = 32, 8, 3, 0.3, 0.01


@pytest.fixture(scope="module")
def images():
    generator = np.random.default_rng(1)
    labels = np.arange(48) % len(PHANTOM_CLASSES)
    drawn = [draw_phantom(PHANTOM_CLASSES[label], "device-1", SIZE, generator) for label in labels]
    return SiteData(
        cache=DecodedCache(np.stack(drawn)),
        labels=labels,
        labelled=np.arange(48) < 24,
        split=np.full(48, "train"),
        names=tuple(map(str, range(48))),
        groups=tuple(map(str, range(48))),
        classes=PHANTOM_CLASSES,
    )


@pytest.fixture
def context(images, tmp_path):
    problem = Problem("phantom", PHANTOM_CLASSES, SIZE)
    device = torch.device("cpu")
    return SiteContext("site-1", 4, problem, 7, images, device, "float32", lambda: False, StateCache(tmp_path))


def network_in_double(seed):
    """Untrained, but for the running statistics; it takes images in single precision, as they come from the views."""
    network = build_model(Problem("phantom", PHANTOM_CLASSES, SIZE).model_spec(pretrained=False), seed).double()
    network.register_forward_pre_hook(lambda module, arguments: (arguments[0].double(),))
    with torch.no_grad():
        network(torch.rand(16, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(seed)))
    return network


def update(before, after):
    return {name: value - before[name] for name, value in after.state_dict().items() if value.is_floating_point()}


def train(network, context, labeler, optimizer, threshold=THRESHOLD):
    training = TrainingOptions(batch_size=BATCH, steps=STEPS)
    options = SemiSupervisedOptions(threshold=threshold)
    return train_semi_supervised(network, optimizer(network.parameters()), context, training, options, labeler)


def adam(parameters):
    return torch.optim.Adam(parameters, lr=0.001)


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("optimizer", [sgd, adam])
def test_the_update_is_that_of_the_textbook_loop_within_1e_12(context, count, optimizer):
    start, peers = network_in_double(0), [network_in_double(seed) for seed in range(1, count + 1)]
    ours, plain = copy.deepcopy(start), copy.deepcopy(start)
    metrics = train(ours, context, PeerPseudoLabeler(SINGLE, [folded_copy(peer) for peer in peers], GAMMA), optimizer)
    assert 0 < metrics["accepted"] < 1
    loops.fedperl_round(
        plain,
        optimizer(plain.parameters()),
        context,
        [peer.state_dict() for peer in peers],
        network_in_double(9),
        steps=STEPS,
        batch_size=BATCH,
        threshold=THRESHOLD,
        gamma=GAMMA,
    )
    expected = update(start.state_dict(), plain)
    for name, value in update(start.state_dict(), ours).items():
        largest = float(expected[name].abs().max())
        assert largest > 0, name
        torch.testing.assert_close(value, expected[name], rtol=0, atol=1e-12 * largest, msg=name)


class Heard(PeerPseudoLabeler):
    """Notes how many pseudo-labels are accepted in each step."""

    accepted = ()

    def __call__(self, images, local, threshold):
        found, extra = super().__call__(images, local, threshold)
        self.accepted = (*self.accepted, int(found.accepted.sum()))
        return found, extra


def batches_through(network):
    """Sizes of the batches that go through a network from now on."""
    sizes = []
    network.register_forward_pre_hook(lambda module, arguments: sizes.append(len(arguments[0])))
    return sizes


@pytest.mark.parametrize(("threshold", "fewest", "most"), [(0.0, 24, 24), (THRESHOLD, 1, 23), (1.0, 0, 0)])
def test_a_step_passes_labelled_and_weak_views_once_peers_once_and_of_strong_views_the_accepted(
    context, threshold, fewest, most
):
    network, peers = network_in_double(0), [folded_copy(network_in_double(seed)) for seed in (1, 2)]
    labeler = Heard(SINGLE, peers, GAMMA)
    own, theirs = batches_through(network), [batches_through(peer) for peer in peers]
    train(network, context, labeler, sgd, threshold)
    assert own == [size for accepted in labeler.accepted for size in (BATCH, BATCH, accepted) if size]
    assert theirs == [[BATCH] * STEPS] * 2
    assert fewest <= sum(labeler.accepted) <= most


def test_strong_views_are_drawn_of_accepted_images_only(context, monkeypatch):
    drawn, draw = [], Strong.draw

    def counted(view, image, generator):
        drawn.append(image)
        return draw(view, image, generator)

    monkeypatch.setattr(Strong, "draw", counted)
    labeler = Heard(SINGLE, [folded_copy(network_in_double(1))], GAMMA)
    train(network_in_double(0), context, labeler, sgd)
    assert len(drawn) == sum(labeler.accepted) < BATCH * STEPS


def test_the_weak_pass_keeps_no_graph_where_nothing_pulls_on_it(context):
    network = network_in_double(0)
    graphs = []
    network.register_forward_hook(lambda module, arguments, output: graphs.append(output.requires_grad))
    train(network, context, PeerPseudoLabeler(SINGLE, [folded_copy(network_in_double(1))], 0.0), sgd, threshold=0.0)
    assert graphs == [True, False, True] * STEPS


def test_peers_are_as_they_were_after_the_round(context):
    peer = folded_copy(network_in_double(1))
    before = copy.deepcopy(peer.state_dict())
    train(network_in_double(0), context, PeerPseudoLabeler(SINGLE, [peer], GAMMA), sgd)
    assert all(torch.equal(value, before[name]) for name, value in peer.state_dict().items())


def test_in_bfloat16_the_network_computes_in_halves_and_is_kept_in_single_precision(context):
    start = build_model(Problem("phantom", PHANTOM_CLASSES, SIZE).model_spec(pretrained=False), 0)
    losses, computed = {}, {}
    for precision in ("float32", "bfloat16"):
        network, dtypes = copy.deepcopy(start), set()
        network.classifier.register_forward_hook(lambda module, arguments, output, seen=dtypes: seen.add(output.dtype))
        # No pseudo-label is accepted: rounding would decide about some of them.
        metrics = train(network, replace(context, precision=precision), None, sgd, threshold=1.0)
        assert {parameter.dtype for parameter in network.parameters()} == {torch.float32}
        losses[precision], computed[precision] = metrics["loss"], dtypes
    assert computed == {"float32": {torch.float32}, "bfloat16": {torch.bfloat16}}
    assert losses["bfloat16"] != losses["float32"]
    assert losses["bfloat16"] == pytest.approx(losses["float32"], rel=0.05)


def test_without_a_gradient_of_consistency_the_update_is_that_of_the_released_passes():
    case = FedPerlCase("compact", SIZE, steps=2)
    assert case.difference("ours, as released", "released") < 1e-10
    assert case.difference("ours", "released") > 1e-3


@pytest.mark.parametrize("part", ["labelled", "unlabelled"])
def test_fedirm_makes_the_update_of_the_released_passes_from_fewer(part):
    case = FedIRMCase(part, "compact", SIZE, BATCH, steps=2)
    assert case.difference("ours", "released") < 1e-10
