"""Self-training on the received model's pseudo-labels, and the teacher of a site."""

import math

import pytest
import torch
from small_site import BATCH, COUNTS, DRAWS, LABELS, LOCAL, SIZE, STEPS, fit_unlabelled, flat, network_of, sgd

from grandrounds.methods.fedirm.options import ClientOptions, UnlabelledOptions
from grandrounds.methods.fedirm.training import SiteTeacher, self_train, statistics_of_passes
from grandrounds.models.split import head_of
from grandrounds.protocol.tasks import SINGLE
from grandrounds.seeding import torch_generator


def test_self_training_learns_the_predictions_of_the_received_model(context):
    network = network_of(dropout=None)
    with torch.no_grad():
        head_of(network).bias[1] += 50
    start = flat(network)
    options = UnlabelledOptions(unlabelled_objective="self_training", ramp_length=0.0, min_confidence=0.99)
    metrics = self_train(network, sgd(network), context, LOCAL, options)
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
        local = ClientOptions(batch_size=48, steps=1)
        losses.append(self_train(network, sgd(network), context, local, options)["loss"])
    # Three rounds came before.
    assert losses[1] == pytest.approx(losses[0] * math.exp(-5 * 0.9**2))


def test_the_step_size_of_self_training_can_follow_the_ramp(context):
    moved = []
    for follows in (False, True):
        network = network_of(dropout=None)
        options = UnlabelledOptions(
            unlabelled_objective="self_training",
            ramp_length=4.0,
            ramp_learning_rate=follows,
            unlabelled_learning_rate=0.05,
        )
        self_train(network, sgd(network), context, ClientOptions(batch_size=48, steps=1), options)
        moved.append(head_of(network).weight.detach() - head_of(network_of(dropout=None)).weight.detach())
    assert moved[0].abs().max() > 1e-4
    torch.testing.assert_close(moved[1], moved[0] * math.exp(-5 * 0.25**2), rtol=1e-3, atol=1e-7)


def test_self_training_without_a_confident_image_changes_nothing(context):
    network = network_of()
    options = UnlabelledOptions(unlabelled_objective="self_training", min_confidence=1.0)
    metrics = self_train(network, sgd(network), context, LOCAL, options)
    assert torch.equal(flat(network), flat(network_of()))
    assert metrics == {"loss": 0.0, "kept": 0.0, "samples": float(len(LABELS))}


def test_sharper_teachers_are_nearer_to_one_class(context):
    network, images = network_of(), torch.rand(4, 3, SIZE, SIZE, generator=torch_generator("sharp"))
    plain, sharp = (
        SiteTeacher(SINGLE, network, UnlabelledOptions(teacher_temperature=temperature), {})
        for temperature in (1.0, 0.5)
    )
    for teacher in (plain, sharp):
        teacher.network.eval()
    squared = plain.predict(images) ** 2
    torch.testing.assert_close(sharp.predict(images), squared / squared.sum(1, keepdim=True))


def test_a_persistent_teacher_goes_on_where_it_was_and_a_reset_one_begins_anew(context):
    network = network_of()
    _, _, first = fit_unlabelled(network, context, teacher="ema_persistent")
    kept = first.state()
    assert kept["step"] == STEPS
    again = SiteTeacher(SINGLE, network_of(3), UnlabelledOptions(), kept)
    before = dict(first.network.named_parameters())
    assert all(torch.equal(value, before[name]) for name, value in again.network.named_parameters())
    assert again.state()["step"] == STEPS
    for kind in ("ema_reset", "none"):
        anew = SiteTeacher(SINGLE, network_of(3), UnlabelledOptions(teacher=kind), kept)
        assert torch.equal(flat(anew.network), flat(network_of(3)))
        assert anew.state() == {}


def test_without_a_moving_average_the_teacher_is_the_student(context):
    network = network_of()
    _, _, teacher = fit_unlabelled(network, context, teacher="none")
    assert all(
        torch.equal(theirs, ours)
        for theirs, ours in zip(teacher.network.parameters(), network.parameters(), strict=True)
    )


def test_running_statistics_follow_a_batch_once_or_as_with_all_passes_of_the_code(context):
    start = network_of().state_dict()["stem.1.running_mean"]
    moved = []
    for updates in ("once", "code"):
        network = network_of()
        fit_unlabelled(network, context, local=ClientOptions(batch_size=BATCH, steps=1), bn_updates=updates)
        assert network.stem[1].momentum == 0.1
        moved.append(network.state_dict()["stem.1.running_mean"] - start)
    torch.testing.assert_close(moved[1], moved[0] / 0.1 * (1 - 0.9 ** (DRAWS + 1)))


def test_a_norm_without_momentum_keeps_its_own_mean():
    norm = torch.nn.BatchNorm1d(1, momentum=None)
    with statistics_of_passes(norm, 12):
        assert norm.momentum is None
