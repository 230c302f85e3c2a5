"""Peer pseudo-labels and consistency."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch import nn
from torch.nn import functional as F

from grandrounds.methods.fedperl.loss import (
    PeerPseudoLabeler,
    UnanimousPseudoLabeler,
    VotingPseudoLabeler,
    majority_label,
    mean_prediction,
    peer_consistency_loss,
    peer_divergence,
)
from grandrounds.methods.fedperl.peer_selection import anonymised_peer
from grandrounds.models.inference.forward import Forward
from grandrounds.protocol.tasks import SINGLE
from grandrounds.seeding import torch_generator

THIRDS = (0.5, 0.3, 0.2)


def row(*values):
    return torch.tensor([values], dtype=torch.float64)


def predictions(purpose, *shape):
    return torch.randn(*shape, generator=torch_generator(purpose), dtype=torch.float64).softmax(dim=-1)


@pytest.mark.parametrize(
    ("local", "peers", "mean", "accepted"),
    [
        (THIRDS, [(0.8, 0.1, 0.1)], (0.65, 0.2, 0.15), True),
        # The literal sum, 0.75, would be accepted.
        ((0.40, 0.35, 0.25), [(0.35, 0.40, 0.25)], (0.375, 0.375, 0.25), False),
        (THIRDS, [(0.7, 0.2, 0.1), (0.2, 0.7, 0.1)], (1.4 / 3, 0.4, 0.4 / 3), False),
        (THIRDS, [], THIRDS, False),
    ],
)
def test_pseudo_labels_come_from_the_mean_of_all_predictions(local, peers, mean, accepted):
    prediction = mean_prediction(row(*local), [row(*peer) for peer in peers])
    torch.testing.assert_close(prediction, row(*mean))
    pseudo = SINGLE.pseudo_labels(prediction, threshold=0.6)
    assert pseudo.accepted.item() is accepted


def test_the_mean_of_exactly_the_threshold_is_accepted_where_no_single_vote_decides():
    # The dyadic numbers make the mean exactly 0.625.
    mean = mean_prediction(row(0.5, 0.25, 0.25), [row(0.75, 0.125, 0.125)])
    assert SINGLE.pseudo_labels(mean, threshold=0.625).accepted.item() is True
    assert SINGLE.pseudo_labels(mean, threshold=0.6251).accepted.item() is False


def test_without_peers_the_mean_prediction_is_bit_for_bit_the_local_one():
    local = predictions("local", 16, 8).float()
    assert torch.equal(mean_prediction(local, []), local)


@given(k=st.integers(0, 5))
def test_the_mean_of_distributions_is_a_distribution(k):
    local, peers = predictions("local", 4, 8), predictions("peers", 5, 4, 8)
    mean = mean_prediction(local, list(peers[:k]))
    torch.testing.assert_close(mean.sum(dim=1), torch.ones(4, dtype=torch.float64))
    torch.testing.assert_close(mean * (k + 1), local + sum(peers[:k], torch.zeros_like(local)))


def test_averaging_predictions_is_not_predicting_with_averaged_parameters():
    # The logits (2, 0) and (0, 0) as the parameters of two models that ignore their input.
    first, second = torch.tensor([[2.0, 0.0]]), torch.tensor([[0.0, 0.0]])
    of_predictions = mean_prediction(first.softmax(dim=1), [second.softmax(dim=1)])
    of_parameters = anonymised_peer([{"bias": first}, {"bias": second}])["bias"].softmax(dim=1)
    assert of_predictions[0, 0].item() == pytest.approx(0.6904, abs=5e-5)
    assert of_parameters[0, 0].item() == pytest.approx(0.7311, abs=5e-5)


@pytest.mark.parametrize(("reduction", "expected"), [("mean", 0.0466667), ("sum", 0.14)])
def test_consistency_matches_the_hand_computed_distance(reduction, expected):
    loss = peer_consistency_loss(row(*THIRDS), [row(0.8, 0.1, 0.1)], reduction)
    assert loss.item() == pytest.approx(expected, abs=5e-8)


def test_consistency_has_the_hand_computed_gradient_and_leaves_the_peer_alone():
    local, peer = row(*THIRDS).requires_grad_(), row(0.8, 0.1, 0.1).requires_grad_()
    peer_consistency_loss(local, [peer]).backward()
    torch.testing.assert_close(local.grad, row(-0.2, 0.4 / 3, 0.2 / 3))
    assert peer.grad is None


@pytest.mark.parametrize(("reduction", "factor"), [("mean", 1.0), ("sum", 8.0)])
def test_consistency_is_averaged_over_peers_and_images(reduction, factor):
    local, peers = predictions("local", 6, 8), list(predictions("peers", 3, 6, 8))
    expected = sum(torch.nn.functional.mse_loss(local, peer) for peer in peers) / 3 * factor
    torch.testing.assert_close(peer_consistency_loss(local, peers, reduction), expected)
    torch.testing.assert_close(peer_consistency_loss(local, peers * 2, reduction), expected)


@pytest.mark.parametrize("function", [peer_consistency_loss, peer_divergence])
@pytest.mark.parametrize("peers", [[], [torch.zeros(0, 8)]])
def test_no_peers_or_no_images_give_zero_and_a_graph(function, peers):
    local = torch.zeros(len(peers[0]) if peers else 4, 8, requires_grad=True)
    loss = function(local, peers)
    loss.backward()
    assert loss.item() == 0.0
    assert torch.equal(local.grad, torch.zeros_like(local))


@pytest.mark.parametrize(
    ("local", "peers", "label"),
    [
        ((0.1, 0.9), [(0.6, 0.4), (0.6, 0.4)], 0),
        ((0.9, 0.1), [(0.4, 0.6)], 0),  # one to one: the lower class
        ((0.1, 0.9), [(0.6, 0.4)], 0),
        ((0.1, 0.9), [], 1),
        ((0.2, 0.1, 0.7), [(0.2, 0.7, 0.1), (0.1, 0.2, 0.7)], 2),
        ((0.2, 0.1, 0.7), [(0.2, 0.7, 0.1), (0.1, 0.7, 0.2), (0.3, 0.1, 0.6)], 1),  # two to two
    ],
)
def test_every_model_has_one_vote_however_sure_it_is(local, peers, label):
    assert majority_label(row(*local), [row(*peer) for peer in peers]).tolist() == [label]


def test_each_image_has_its_own_majority_and_agrees_with_scipys_mode():
    local, peers = predictions("local", 50, 4), predictions("peers", 4, 50, 4)
    votes = torch.stack([local, *peers]).argmax(dim=-1).numpy()
    assert majority_label(local, list(peers)).tolist() == stats.mode(votes, axis=0).mode.tolist()


def test_divergence_matches_the_hand_computed_nats():
    # 0.8 ln(0.8/0.5) + 0.1 ln(0.1/0.3) + 0.1 ln(0.1/0.2)
    expected = 0.8 * math.log(1.6) - 0.1 * math.log(3) - 0.1 * math.log(2)
    assert expected == pytest.approx(0.196827, abs=5e-7)
    assert peer_divergence(row(*THIRDS), [row(0.8, 0.1, 0.1)]).item() == pytest.approx(expected)
    assert peer_divergence(row(*THIRDS), [row(*THIRDS)]).item() == pytest.approx(0, abs=1e-15)


def test_divergence_is_torchs_averaged_over_peers_and_images():
    local, peers = predictions("local", 6, 8), list(predictions("peers", 3, 6, 8))
    expected = sum(F.kl_div(local.log(), peer, reduction="batchmean") for peer in peers) / 3
    torch.testing.assert_close(peer_divergence(local, peers), expected)
    torch.testing.assert_close(peer_divergence(local, peers * 2), expected)


def test_divergence_moves_only_the_own_prediction():
    local, peer = row(*THIRDS).requires_grad_(), row(0.8, 0.1, 0.1).requires_grad_()
    peer_divergence(local, [peer]).backward()
    # -q / p
    torch.testing.assert_close(local.grad, row(-1.6, -1 / 3, -0.5))
    assert peer.grad is None


def test_divergence_is_finite_where_a_probability_is_zero():
    local = torch.tensor([[1.0, 0.0]], requires_grad=True)
    loss = peer_divergence(local, [torch.tensor([[0.0, 1.0]])])
    loss.backward()
    assert loss.item() == pytest.approx(23 * math.log(2), rel=1e-6)  # the resolution of single precision is 2^-23
    assert torch.isfinite(local.grad).all()


class Fixed(nn.Module):
    """Predicts the same probabilities whatever it sees."""

    def __init__(self, *probabilities):
        super().__init__()
        self.logits = nn.Parameter(torch.tensor(probabilities, dtype=torch.float64).log())

    def forward(self, images):
        return self.logits.expand(len(images), -1)


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
    found, _ = PeerPseudoLabeler(SINGLE, [Fixed(*peer) for peer in peers], 0.01)(IMAGE, row(*local), 0.6)
    assert found.accepted.tolist() == [accepted]
    assert label is None or found.labels.tolist() == [label]


@pytest.mark.parametrize(("reduction", "loss"), [("mean", 4.6667e-4), ("sum", 1.4e-3)])
def test_distance_from_the_peer_costs_the_hand_computed_loss_and_gradient(reduction, loss):
    local, peer = row(*LOCAL).requires_grad_(), Fixed(*PEER)
    _, extra = PeerPseudoLabeler(SINGLE, [peer], 0.01, reduction)(IMAGE, local, 0.6)
    assert extra.item() == pytest.approx(loss, rel=1e-4)
    extra.backward()
    classes = 3 if reduction == "mean" else 1
    expected = 0.01 * 2 * (row(*LOCAL) - row(*PEER)) / classes
    torch.testing.assert_close(local.grad, expected, atol=1e-8, rtol=1e-5)
    assert peer.logits.grad is None


def test_distance_counts_where_no_label_is_accepted():
    found, extra = PeerPseudoLabeler(SINGLE, [Fixed(*PEER)], 0.01)(IMAGE, row(*LOCAL), 1.0)
    assert not found.accepted.any()
    assert extra.item() == pytest.approx(4.6667e-4, rel=1e-4)


def test_with_a_constant_prediction_gamma_changes_no_gradient_as_in_the_released_code():
    gradients = []
    for gamma in (0.0, 10.0):
        logits = torch.tensor([[0.3, -0.2, 0.1]], dtype=torch.float64, requires_grad=True)
        labels, extra = PeerPseudoLabeler(SINGLE, [Fixed(*PEER)], gamma)(IMAGE, logits.softmax(dim=1).detach(), 0.0)
        total = F.cross_entropy(logits, labels.labels)
        (total if extra is None else total + extra).backward()
        gradients.append(logits.grad)
    assert extra.item() > 0.1
    assert torch.equal(*gradients)


def test_without_weight_there_is_no_term_and_no_gradient_is_asked_for():
    labeler = PeerPseudoLabeler(SINGLE, [Fixed(*PEER)], 0.0)
    assert labeler.needs_gradient is False
    assert labeler(IMAGE, row(*LOCAL), 0.6)[1] is None
    assert PeerPseudoLabeler(SINGLE, [], 0.01).needs_gradient is True


@pytest.mark.parametrize("labeler", [PeerPseudoLabeler, VotingPseudoLabeler])
def test_no_graph_is_made_of_what_peers_predict(labeler):
    peer, graphs = Fixed(*PEER), []
    peer.register_forward_hook(lambda *_: graphs.append(torch.is_grad_enabled()))
    labeler(SINGLE, [Forward(peer)], 0.01)(IMAGE, row(*LOCAL).requires_grad_(), 0.6)
    assert graphs == [False]


def test_where_the_own_model_is_sure_the_majority_names_the_label():
    local = torch.tensor([[0.9, 0.05, 0.05], [0.5, 0.3, 0.2]], dtype=torch.float64)
    voters = [Fixed(0.1, 0.6, 0.3), Fixed(0.2, 0.5, 0.3)]
    images = torch.zeros(2, 3, 4, 4)
    found, extra = VotingPseudoLabeler(SINGLE, voters, 0.5)(images, local, 0.6)
    assert found.accepted.tolist() == [True, False], "the peers do not change who is sure"
    assert found.labels[0].item() == 1, "two to one, though the mean of all is 0.4 : 0.383 : 0.217"
    # Only the first image counts: the mean of the divergences of both voters from the own prediction on it.
    expected = [F.kl_div(local[:1].log(), voter(images[:1]).exp(), reduction="sum").item() for voter in voters]
    assert extra.item() == pytest.approx(0.5 * sum(expected) / 2, rel=1e-5)


def test_unanimous_labels_are_mean_predictions_on_which_no_model_disagrees():
    # The means are 0.75 : 0.25 and 0.7 : 0.3; on the second image the peer's class differs.
    local = torch.tensor([[0.8, 0.2], [0.95, 0.05], [0.55, 0.45]], dtype=torch.float64)
    peer = torch.tensor([[0.7, 0.3], [0.45, 0.55], [0.6, 0.4]], dtype=torch.float64)
    found = UnanimousPseudoLabeler(SINGLE, [nn.Identity()], 0.0).labels(local, [peer], 0.6)
    assert found.labels.tolist() == [0, 0, 0]
    assert found.accepted.tolist() == [True, False, False], "the third mean is 0.575"


def test_where_the_own_model_is_never_sure_voters_cost_nothing():
    local = row(*LOCAL).requires_grad_()
    found, extra = VotingPseudoLabeler(SINGLE, [Fixed(*PEER)], 0.5)(IMAGE, local, 0.95)
    extra.backward()
    assert not found.accepted.any()
    assert extra.item() == 0
    assert local.grad.tolist() == [[0, 0, 0]]
