"""Self-training: a site believes the model that it received, as much as the ramp allows."""

import math

import pytest
import torch
from small_site import COUNTS, LABELS, LOCAL, flat, network_of, sgd

from grandrounds.methods.fedirm.options import LocalOptions, UnlabelledOptions
from grandrounds.methods.fedirm.self_training import train_on_own_labels
from grandrounds.models.split import head_of


def test_self_training_learns_what_the_received_model_says(context):
    network = network_of(dropout=None)
    with torch.no_grad():
        head_of(network).bias[1] += 50
    start = flat(network)
    options = UnlabelledOptions(unlabelled_objective="self_training", ramp_length=0.0, self_training_confidence=0.99)
    metrics = train_on_own_labels(network, sgd(network), context, LOCAL, options)
    assert metrics["kept"] == 1
    assert metrics["pseudo_label_accuracy"] == pytest.approx(COUNTS[1] / len(LABELS))
    # Cross-entropy with labels that the model is sure of.
    assert metrics["loss"] < 1e-6
    assert not torch.equal(flat(network), start), "running statistics have moved"


def test_self_training_weighs_its_loss_by_the_ramp(context):
    losses = []
    for length in (0.0, 30.0):
        network = network_of(dropout=None)
        options = UnlabelledOptions(unlabelled_objective="self_training", ramp_length=length)
        local = LocalOptions(batch_size=48, steps=1)
        losses.append(train_on_own_labels(network, sgd(network), context, local, options)["loss"])
    # Three rounds came before.
    assert losses[1] == pytest.approx(losses[0] * math.exp(-5 * 0.9**2))


def test_self_training_can_let_its_step_size_follow_the_ramp_as_well(context):
    moved = []
    for follows in (False, True):
        network = network_of(dropout=None)
        options = UnlabelledOptions(
            unlabelled_objective="self_training",
            ramp_length=4.0,
            ramp_learning_rate=follows,
            unlabelled_learning_rate=0.05,
        )
        train_on_own_labels(network, sgd(network), context, LocalOptions(batch_size=48, steps=1), options)
        moved.append(head_of(network).weight.detach() - head_of(network_of(dropout=None)).weight.detach())
    assert moved[0].abs().max() > 1e-4
    torch.testing.assert_close(moved[1], moved[0] * math.exp(-5 * 0.25**2), rtol=1e-3, atol=1e-7)


def test_self_training_without_a_confident_image_changes_nothing(context):
    network = network_of()
    options = UnlabelledOptions(unlabelled_objective="self_training", self_training_confidence=1.0)
    metrics = train_on_own_labels(network, sgd(network), context, LOCAL, options)
    assert torch.equal(flat(network), flat(network_of()))
    assert metrics == {"loss": 0.0, "kept": 0.0, "samples": float(len(LABELS))}
