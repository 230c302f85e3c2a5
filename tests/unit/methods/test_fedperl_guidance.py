"""Peers guide training: through the labels they agree on, and through how far the site is from them."""

import copy
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from grandrounds.data.images.views import draw_views, to_tensor
from grandrounds.data.site import SiteData
from grandrounds.errors import DataError, GrandRoundsError
from grandrounds.federation.site.context import SiteContext, StateCache
from grandrounds.methods.fedperl.peer_pseudo_labels import PeerGuide, VotingGuide
from grandrounds.methods.fixmatch.loss import PseudoLabels, pseudo_labels
from grandrounds.methods.fixmatch.training import SemiSupervisedOptions, train_semi_supervised
from grandrounds.methods.supervised.training import TrainingOptions
from grandrounds.protocol.problem import Problem
from grandrounds.seeding import numpy_generator, torch_generator

CLASSES = ("a", "b", "c")


class Fixed(nn.Module):
    """Predicts the same probabilities whatever it sees."""

    def __init__(self, *probabilities):
        super().__init__()
        self.logits = nn.Parameter(torch.tensor(probabilities, dtype=torch.float64).log())

    def forward(self, images):
        return self.logits.expand(len(images), -1)


def row(*values):
    return torch.tensor([values], dtype=torch.float64)


IMAGE = torch.zeros(1, 3, 4, 4)
LOCAL, PEER = (0.5, 0.3, 0.2), (0.8, 0.1, 0.1)


@pytest.mark.parametrize(
    ("local", "peers", "label", "accepted"),
    [
        (LOCAL, [PEER], 0, True),
        ((0.40, 0.35, 0.25), [(0.35, 0.40, 0.25)], None, False),
        (LOCAL, [(0.7, 0.2, 0.1), (0.2, 0.7, 0.1)], 0, False),
        ((0.1, 0.7, 0.2), [(0.0625, 0.875, 0.0625)], 1, True),
    ],
)
def test_labels_come_from_the_mean_of_own_and_peers_predictions(local, peers, label, accepted):
    found, _ = PeerGuide([Fixed(*peer) for peer in peers], 0.01)(IMAGE, row(*local), 0.6)
    assert found.accepted.tolist() == [accepted]
    assert label is None or found.labels.tolist() == [label]


@pytest.mark.parametrize(("reduction", "loss"), [("mean", 4.6667e-4), ("sum", 1.4e-3)])
def test_distance_from_the_peer_costs_the_hand_computed_loss_and_gradient(reduction, loss):
    local, peer = row(*LOCAL).requires_grad_(), Fixed(*PEER)
    _, extra = PeerGuide([peer], 0.01, reduction)(IMAGE, local, 0.6)
    assert extra.item() == pytest.approx(loss, rel=1e-4)
    extra.backward()
    classes = 3 if reduction == "mean" else 1
    expected = 0.01 * 2 * (row(*LOCAL) - row(*PEER)) / classes
    torch.testing.assert_close(local.grad, expected, atol=1e-8, rtol=1e-5)
    assert peer.logits.grad is None


def test_distance_counts_where_no_label_is_accepted():
    found, extra = PeerGuide([Fixed(*PEER)], 0.01)(IMAGE, row(*LOCAL), 1.0)
    assert not found.accepted.any()
    assert extra.item() == pytest.approx(4.6667e-4, rel=1e-4)


def test_with_a_constant_prediction_gamma_changes_no_gradient_as_in_the_released_code():
    gradients = []
    for gamma in (0.0, 10.0):
        logits = torch.tensor([[0.3, -0.2, 0.1]], dtype=torch.float64, requires_grad=True)
        labels, extra = PeerGuide([Fixed(*PEER)], gamma)(IMAGE, logits.softmax(dim=1).detach(), 0.0)
        total = F.cross_entropy(logits, labels.labels)
        (total if extra is None else total + extra).backward()
        gradients.append(logits.grad)
    assert extra.item() > 0.1
    assert torch.equal(*gradients)


def test_without_weight_there_is_no_term_and_no_gradient_is_asked_for():
    guide = PeerGuide([Fixed(*PEER)], 0.0)
    assert guide.needs_gradient is False
    assert guide(IMAGE, row(*LOCAL), 0.6)[1] is None
    assert PeerGuide([], 0.01).needs_gradient is True


@pytest.mark.parametrize("guide", [PeerGuide, VotingGuide])
def test_no_graph_is_made_of_what_peers_predict(guide):
    peer, graphs = Fixed(*PEER), []
    peer.register_forward_hook(lambda *_: graphs.append(torch.is_grad_enabled()))
    guide([peer], 0.01)(IMAGE, row(*LOCAL).requires_grad_(), 0.6)
    assert graphs == [False]


def test_where_the_own_model_is_sure_the_majority_names_the_label():
    local = torch.tensor([[0.9, 0.05, 0.05], [0.5, 0.3, 0.2]], dtype=torch.float64)
    voters = [Fixed(0.1, 0.6, 0.3), Fixed(0.2, 0.5, 0.3)]
    images = torch.zeros(2, 3, 4, 4)
    found, extra = VotingGuide(voters, 0.5)(images, local, 0.6)
    assert found.accepted.tolist() == [True, False], "the peers do not change who is sure"
    assert found.labels[0].item() == 1, "two to one, though the mean of all is 0.4 : 0.383 : 0.217"
    # Only the first image counts: the mean of the divergences of both voters from the own prediction on it.
    expected = [F.kl_div(local[:1].log(), voter(images[:1]).exp(), reduction="sum").item() for voter in voters]
    assert extra.item() == pytest.approx(0.5 * sum(expected) / 2, rel=1e-5)


def test_where_the_own_model_is_never_sure_voters_cost_nothing():
    local = row(*LOCAL).requires_grad_()
    found, extra = VotingGuide([Fixed(*PEER)], 0.5)(IMAGE, local, 0.95)
    extra.backward()
    assert not found.accepted.any()
    assert extra.item() == 0
    assert local.grad.tolist() == [[0, 0, 0]]


# Training


def site(labelled, unlabelled):
    """A site of noise with labels 0, 1, 2, 0, ... and so many images of both kinds."""
    count = labelled + unlabelled
    return SiteContext(
        site="site-1",
        round_number=1,
        problem=Problem("noise", CLASSES, image_size=32),
        seed=1,
        data=SiteData(
            images=numpy_generator("noise", count).integers(0, 256, (count, 8, 8, 3)).astype(np.uint8),
            labels=np.arange(count) % 3,
            labelled=np.arange(count) < labelled,
            split=np.full(count, "train"),
            names=tuple(map(str, range(count))),
            groups=tuple(map(str, range(count))),
            classes=CLASSES,
        ),
        device=torch.device("cpu"),
        precision="float32",
        aborted=lambda: False,
        cache=StateCache(Path()),
    )


def network():
    layers = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3))
    generator = torch_generator("network")
    with torch.no_grad():
        for parameter in layers.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) / 4)
    return layers


def train(context, guide=None, model=None, steps=2, rate=1e-3, training=(), **options):
    """Train, and tell the metrics, the model and how many steps the optimizer took."""
    model, taken = model or network(), []
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    optimizer.register_step_post_hook(lambda *_: taken.append(1))
    how = TrainingOptions(steps=steps, batch_size=4, learning_rate=rate, **dict(training))
    metrics = train_semi_supervised(model, optimizer, context, how, SemiSupervisedOptions(**options), guide)
    return metrics, model, len(taken)


class Witness:
    """A guide that agrees with everything, and notes what it was shown."""

    def __init__(self, needs_gradient=False):
        self.needs_gradient = needs_gradient
        self.shown = []

    def __call__(self, images, local, threshold):
        self.shown.append((images, local.requires_grad, threshold))
        return pseudo_labels(local.detach(), threshold), None


@pytest.mark.parametrize(("labelled", "unlabelled"), [(3, 5), (60, 7), (5, 160)])
def test_every_site_takes_exactly_26_steps_whatever_its_size(labelled, unlabelled):
    witness = Witness()
    metrics, _, taken = train(site(labelled, unlabelled), witness, steps=26)
    assert taken == 26
    assert len(witness.shown) == 26
    assert metrics["samples"] == labelled + unlabelled


def test_peers_are_not_touched_by_training():
    peers = [network().eval().requires_grad_(False) for _ in range(2)]
    before = [copy.deepcopy(peer.state_dict()) for peer in peers]
    _, model, _ = train(site(8, 8), PeerGuide(peers, 1.0), steps=4, threshold=0.0)
    assert not torch.equal(model[0].weight, before[0]["0.weight"])
    for peer, state in zip(peers, before, strict=True):
        assert not peer.training
        assert all(torch.equal(value, state[name]) for name, value in peer.state_dict().items())


@pytest.mark.parametrize(("weak_pass", "moves"), [("train", True), ("eval", False)])
def test_the_weak_pass_moves_running_statistics_in_training_mode_only(weak_pass, moves):
    # Nothing is accepted and nothing is labelled: the weak pass is the only one.
    _, model, taken = train(site(0, 8), weak_pass=weak_pass, threshold=1.0, accept_unlabelled=True)
    assert taken == 0
    assert (model[1].num_batches_tracked.item() == 2) is moves
    assert bool(model[1].running_mean.any()) is moves
    assert model.training, "as it was given"


def test_the_loss_is_the_weighted_sum_of_its_terms():
    weights = {"supervised_weight": 3.0, "unsupervised_weight": 0.7, "threshold": 0.0}
    plain, _, _ = train(site(8, 8), steps=1, **weights)
    assert min(plain["loss_labelled"], plain["loss_unlabelled"]) > 0
    assert plain["loss"] == pytest.approx(3 * plain["loss_labelled"] + 0.7 * plain["loss_unlabelled"], rel=1e-6)
    guided, _, _ = train(site(8, 8), PeerGuide([Fixed(0.8, 0.1, 0.1)], 2.0), steps=1, **weights)
    without, _, _ = train(site(8, 8), PeerGuide([Fixed(0.8, 0.1, 0.1)], 0.0), steps=1, **weights)
    assert guided["loss_labelled"] == without["loss_labelled"]
    assert guided["loss"] > without["loss"] + 1e-3


def test_peers_draw_a_site_to_their_predictions_and_without_gamma_do_not():
    """Nothing is accepted, so the distance is all that is learnt."""
    moved = {}
    for gamma in (0.0, 100.0):
        guide = PeerGuide([Fixed(0.98, 0.01, 0.01)], gamma)
        context = site(0, 16)
        _, model, taken = train(context, guide, steps=20, rate=0.05, threshold=1.0, accept_unlabelled=True)
        assert taken == (20 if gamma else 0)
        with torch.no_grad():
            moved[gamma] = model(to_tensor(context.data.images, context.device)).softmax(dim=1)[:, 0].mean().item()
    assert moved[0.0] < 0.6
    assert moved[100.0] > 0.8


@pytest.mark.parametrize("needs_gradient", [False, True])
def test_the_own_prediction_has_a_graph_only_if_the_guide_needs_it(needs_gradient):
    witness = Witness(needs_gradient)
    train(site(4, 4), witness, threshold=0.7)
    assert {(graph, threshold) for _, graph, threshold in witness.shown} == {(needs_gradient, 0.7)}


def test_batches_of_unlabelled_images_have_their_own_size():
    witness = Witness()
    train(site(4, 30), witness, unlabelled_batch_size=7)
    assert [len(images) for images, _, _ in witness.shown] == [7, 7]


def test_without_augmentation_the_guide_sees_the_images_as_they_are():
    context, witness = site(4, 4), Witness()
    train(context, witness, training={"weak_augmentation": False})
    raw = {image.tobytes() for image in to_tensor(context.data.images[4:], context.device).numpy()}
    seen = {image.tobytes() for images, _, _ in witness.shown for image in images.numpy()}
    assert seen == raw
    train(context, witness)
    assert {image.tobytes() for image in witness.shown[-1][0].numpy()}.isdisjoint(raw)


def test_a_site_without_labels_learns_from_pseudo_labels_alone():
    metrics, _, taken = train(site(0, 8), threshold=0.0, accept_unlabelled=True)
    assert taken == 2
    assert metrics["loss_labelled"] == 0
    assert metrics["loss"] == pytest.approx(0.5 * metrics["loss_unlabelled"])
    assert metrics["samples"] == 8


def test_a_site_with_labels_learns_from_them_though_others_may_have_none():
    lone, labelled = (train(site(4, 4), accept_unlabelled=accept)[0] for accept in (True, False))
    assert lone == labelled
    assert lone["loss_labelled"] > 0


@pytest.mark.parametrize(("unlabelled", "accept"), [(8, False), (0, True)])
def test_a_site_with_nothing_to_learn_from_is_named(unlabelled, accept):
    with pytest.raises(DataError, match=r"^site-1: the labelled set is empty"):
        train(site(0, unlabelled), accept_unlabelled=accept)


class Teacher(Witness):
    """A guide that gives the batch's images these labels, and accepts those at these positions."""

    def __init__(self, labels, positions):
        super().__init__()
        self._labels, self._positions = torch.tensor(labels), positions

    def __call__(self, images, local, threshold):
        super().__call__(images, local, threshold)
        accepted = torch.zeros(len(images), dtype=torch.bool)
        accepted[self._positions] = True
        return PseudoLabels(self._labels, accepted, torch.ones(len(images))), None


def test_accepted_labels_are_checked_where_the_hidden_label_is_known():
    # Rows 3 to 8 have the labels 0, 1, 2, 0, 1, 2; the last one's is not known at all.
    context = site(3, 6)
    context.data.labels[8] = -1
    all_of_them, _, _ = train(context, Teacher([0] * 6, range(6)), unlabelled_batch_size=6, steps=1)
    assert all_of_them["accepted"] == 1
    assert all_of_them["pseudo_label_accuracy"] == pytest.approx(2 / 5)
    context.data.labels[3:] = 0
    some, _, _ = train(context, Teacher([0, 0, 0, 0, 1, 1], [3, 4]), unlabelled_batch_size=6, steps=2)
    assert some["accepted"] == pytest.approx(2 / 6)
    assert some["pseudo_label_accuracy"] == 1 / 2


def test_losses_are_means_over_steps_and_each_accepted_image_has_its_own_label():
    model = network()
    with torch.no_grad():
        model[4].weight.zero_()
        model[4].bias.copy_(torch.tensor([2.0, 0.0, 0.0]))
    teacher = Teacher([0, 0, 1, 2], [2, 3])
    context = site(3, 4)
    metrics, _, _ = train(context, teacher, model, steps=5, rate=1e-12, training={"class_weights": "none"})
    # Class 0 costs ln(e^2 + 2) - 2, the others ln(e^2 + 2).
    dear = math.log(math.exp(2) + 2)
    assert metrics["loss_unlabelled"] == pytest.approx(dear, rel=1e-6)
    assert metrics["loss_labelled"] == pytest.approx(dear - 2 / 3, rel=1e-6)
    assert metrics["loss"] == pytest.approx(dear - 2 / 3 + 0.5 * dear, rel=1e-6)


@pytest.mark.parametrize("levels", [None, (2, 3)])
def test_accepted_images_are_learnt_on_their_strong_views(levels):
    context, model, teacher, inputs = site(4, 4), network(), Teacher([0, 1, 2, 0], [1, 3]), []
    model.register_forward_pre_hook(lambda _, given: inputs.append(given[0]))
    train(context, teacher, model, steps=1, training={"weak_augmentation": False}, strong_levels=levels)
    assert [len(images) for images in inputs] == [4, 4, 2], "labelled, weak, strong"
    raw = to_tensor(context.data.images, context.device)
    rows = np.array([int((raw == image).flatten(1).all(dim=1).nonzero()) for image in inputs[1]])
    key = context.key("unlabelled views")
    for other in (None, (2, 3)):
        drawn = draw_views(context.data.images, rows, "strong", key, 0, False, np.array([1, 3]), strong_levels=other)
        assert torch.equal(to_tensor(drawn, context.device), inputs[2]) is (other == levels)


@pytest.mark.parametrize(("labelled", "unlabelled", "what"), [(4, 0, "loss"), (0, 4, "prediction")])
def test_training_that_diverges_says_where(labelled, unlabelled, what):
    model = network()
    model.state_dict()["4.bias"][0] = math.nan
    message = rf"training diverged: the {what} of step 0 is not finite; lower executor.learning_rate"
    with pytest.raises(GrandRoundsError, match=message):
        train(site(labelled, unlabelled), model=model, accept_unlabelled=True)
