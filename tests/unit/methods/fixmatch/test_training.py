"""Semi-supervised training of a site, with and without a pseudo-labeler."""

import copy
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from grandrounds.data.images.augmentation import draw_views
from grandrounds.data.images.cache import DecodedCache
from grandrounds.data.images.tensors import to_tensor
from grandrounds.data.site import SiteData
from grandrounds.errors import ConfigurationError, DataError, GrandRoundsError
from grandrounds.federation.site.context import SiteContext, StateCache
from grandrounds.methods.fedperl.executor import FedPerlExecutor
from grandrounds.methods.fedperl.loss import PeerPseudoLabeler
from grandrounds.methods.fixmatch.executor import AVERAGE, FixMatchExecutor
from grandrounds.methods.fixmatch.training import (
    Expectations,
    SemiSupervisedOptions,
    accepted_images,
    all_images,
    averaged,
    mean_predictions,
    train_semi_supervised,
)
from grandrounds.methods.supervised.training import TrainingOptions
from grandrounds.protocol.problem import Problem
from grandrounds.protocol.task import PseudoLabels
from grandrounds.protocol.tasks import SINGLE
from grandrounds.seeding import numpy_generator, torch_generator

CLASSES = ("a", "b", "c")


class Fixed(nn.Module):
    """Predicts the same probabilities whatever it sees."""

    def __init__(self, *probabilities):
        super().__init__()
        self.logits = nn.Parameter(torch.tensor(probabilities, dtype=torch.float64).log())

    def forward(self, images):
        return self.logits.expand(len(images), -1)


def site(labelled, unlabelled):
    """A site of noise with labels 0, 1, 2, 0, ... and so many images of both kinds."""
    count = labelled + unlabelled
    return SiteContext(
        site="site-1",
        round_number=1,
        problem=Problem("noise", CLASSES, image_size=32),
        seed=1,
        data=SiteData(
            cache=DecodedCache(numpy_generator("noise", count).integers(0, 256, (count, 8, 8, 3)).astype(np.uint8)),
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


def train(context, labeler=None, model=None, steps=2, rate=1e-3, training=(), teacher=None, **options):
    """Train, and return the metrics, the model and the number of optimizer steps."""
    model, taken = model or network(), []
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    optimizer.register_step_post_hook(lambda *_: taken.append(1))
    how = TrainingOptions(steps=steps, batch_size=4, learning_rate=rate, **dict(training))
    metrics = train_semi_supervised(model, optimizer, context, how, SemiSupervisedOptions(**options), labeler, teacher)
    return metrics, model, len(taken)


class Recorder:
    """A labeler that agrees with everything, and records its inputs."""

    def __init__(self, needs_gradient=False):
        self.needs_gradient = needs_gradient
        self.shown = []

    def __call__(self, images, local, threshold):
        self.shown.append((images, local.requires_grad, threshold))
        return SINGLE.pseudo_labels(local.detach(), threshold), None


@pytest.mark.parametrize(("labelled", "unlabelled"), [(3, 5), (60, 7), (5, 160)])
def test_every_site_takes_exactly_26_steps_whatever_its_size(labelled, unlabelled):
    recorder = Recorder()
    metrics, _, taken = train(site(labelled, unlabelled), recorder, steps=26)
    assert taken == 26
    assert len(recorder.shown) == 26
    assert metrics["samples"] == labelled + unlabelled


def test_peers_are_not_touched_by_training():
    peers = [network().eval().requires_grad_(False) for _ in range(2)]
    before = [copy.deepcopy(peer.state_dict()) for peer in peers]
    _, model, _ = train(site(8, 8), PeerPseudoLabeler(SINGLE, peers, 1.0), steps=4, threshold=0.0)
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
    assisted, _, _ = train(site(8, 8), PeerPseudoLabeler(SINGLE, [Fixed(0.8, 0.1, 0.1)], 2.0), steps=1, **weights)
    without, _, _ = train(site(8, 8), PeerPseudoLabeler(SINGLE, [Fixed(0.8, 0.1, 0.1)], 0.0), steps=1, **weights)
    assert assisted["loss_labelled"] == without["loss_labelled"]
    assert assisted["loss"] > without["loss"] + 1e-3


def test_peers_draw_a_site_to_their_predictions_and_without_gamma_do_not():
    """Nothing is accepted, so the distance is all that is learnt."""
    moved = {}
    for gamma in (0.0, 100.0):
        labeler = PeerPseudoLabeler(SINGLE, [Fixed(0.98, 0.01, 0.01)], gamma)
        context = site(0, 16)
        _, model, taken = train(context, labeler, steps=20, rate=0.05, threshold=1.0, accept_unlabelled=True)
        assert taken == (20 if gamma else 0)
        with torch.no_grad():
            moved[gamma] = model(to_tensor(context.data.images, context.device)).softmax(dim=1)[:, 0].mean().item()
    assert moved[0.0] < 0.6
    assert moved[100.0] > 0.8


@pytest.mark.parametrize("needs_gradient", [False, True])
def test_the_own_prediction_has_a_graph_only_if_the_labeler_needs_it(needs_gradient):
    recorder = Recorder(needs_gradient)
    train(site(4, 4), recorder, threshold=0.7)
    assert {(graph, threshold) for _, graph, threshold in recorder.shown} == {(needs_gradient, 0.7)}


def test_batches_of_unlabelled_images_have_their_own_size():
    recorder = Recorder()
    train(site(4, 30), recorder, unlabelled_batch_size=7)
    assert [len(images) for images, _, _ in recorder.shown] == [7, 7]


def test_without_augmentation_the_labeler_sees_unchanged_images():
    context, recorder = site(4, 4), Recorder()
    train(context, recorder, training={"weak_augmentation": False})
    raw = {image.tobytes() for image in to_tensor(context.data.images[4:], context.device).numpy()}
    seen = {image.tobytes() for images, _, _ in recorder.shown for image in images.numpy()}
    assert seen == raw
    train(context, recorder)
    assert {image.tobytes() for image in recorder.shown[-1][0].numpy()}.isdisjoint(raw)


def test_a_site_without_labels_learns_from_pseudo_labels_alone():
    metrics, _, taken = train(site(0, 8), threshold=0.0, accept_unlabelled=True)
    assert taken == 2
    assert metrics["loss_labelled"] == 0
    assert metrics["loss"] == pytest.approx(0.5 * metrics["loss_unlabelled"])
    assert metrics["samples"] == 8


def test_a_site_without_labels_waits_for_the_first_round_with_pseudo_labels():
    metrics, _, taken = train(site(0, 8), threshold=0.0, accept_unlabelled=True, unsupervised_start=2)
    assert (taken, metrics["loss"]) == (0, 0)
    assert metrics["samples"] == 8


def test_a_site_with_labels_learns_from_them_though_others_may_have_none():
    lone, labelled = (train(site(4, 4), accept_unlabelled=accept)[0] for accept in (True, False))
    assert lone == labelled
    assert lone["loss_labelled"] > 0


@pytest.mark.parametrize(("unlabelled", "accept"), [(8, False), (0, True)])
def test_a_site_with_nothing_to_learn_from_is_named(unlabelled, accept):
    with pytest.raises(DataError, match=r"^site-1: the labelled set is empty"):
        train(site(0, unlabelled), accept_unlabelled=accept)


class Teacher(Recorder):
    """A labeler that gives the batch's images these labels, and accepts those at these positions."""

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
        drawn = draw_views(context.data.images, rows, "strong", key, 0, np.array([1, 3]), strong_levels=other)
        assert torch.equal(to_tensor(drawn, context.device), inputs[2]) is (other == levels)


def separate():
    """A network that computes each image by itself."""
    layers = network()
    layers[1] = nn.Identity()
    return layers


@pytest.mark.parametrize("reduction", ["accepted_mean", "batch_mean"])
def test_all_strong_views_teach_what_those_of_accepted_images_do(monkeypatch, reduction):
    def trained():
        teacher = Teacher([0, 1, 2, 0], [1, 3])
        metrics, model, _ = train(site(4, 4), teacher, separate(), steps=1, unsupervised_reduction=reduction)
        return metrics, torch.cat([parameter.detach().flatten() for parameter in model.parameters()])

    expected, weights = trained()
    monkeypatch.setattr(SemiSupervisedOptions, "learnt_images", lambda *_: all_images)
    found, others = trained()
    assert found == pytest.approx(expected, rel=1e-6)
    torch.testing.assert_close(others, weights, rtol=1e-5, atol=1e-6)
    monkeypatch.setattr(SemiSupervisedOptions, "learnt_images", lambda *_: lambda found: None)
    assert not torch.allclose(trained()[1], weights, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("device", "model", "options", "chosen"),
    [
        ("meta", separate, {}, all_images),
        ("meta", network, {"strong_norm": "running"}, all_images),
        ("meta", network, {}, accepted_images),
        ("meta", network, {"strong_norm": "batch_untracked"}, accepted_images),
        ("meta", separate, {"accept_unlabelled": True}, accepted_images),
        ("cpu", separate, {}, accepted_images),
    ],
)
def test_other_views_are_computed_on_accelerators_only_and_where_they_change_nothing(device, model, options, chosen):
    assert SemiSupervisedOptions(**options).learnt_images(model(), torch.device(device)) is chosen


@pytest.mark.parametrize(("labelled", "unlabelled", "what"), [(4, 0, "loss"), (0, 4, "prediction")])
def test_divergence_of_training_is_reported_with_its_step(labelled, unlabelled, what):
    model = network()
    model.state_dict()["4.bias"][0] = math.nan
    message = rf"training diverged: the {what} of step 0 is not finite; lower executor.learning_rate"
    with pytest.raises(GrandRoundsError, match=message):
        train(site(labelled, unlabelled), model=model, accept_unlabelled=True)


def test_the_average_starts_as_a_mean_and_then_forgets():
    average = {}
    for times, value in enumerate((1.0, 2.0, 6.0, 5.0), start=1):
        state = {"w": torch.tensor([value]), "seen": torch.tensor(times)}
        average = averaged(average, state, times, decay=0.6)
    # 1; 1.5; 0.6 * 1.5 + 0.4 * 6 = 3.3 (2/3 is above 0.6); 0.6 * 3.3 + 0.4 * 5 = 3.98
    torch.testing.assert_close(average["w"], torch.tensor([3.98]))
    assert average["seen"] == 4


def test_a_teacher_labels_in_place_of_the_trained_model():
    context = site(labelled=6, unlabelled=8)
    sure, unsure = Fixed(0.98, 0.01, 0.01), Fixed(0.4, 0.3, 0.3)
    assert train(context, threshold=0.9)[0]["accepted"] < 1
    assert train(context, teacher=sure, threshold=0.9)[0]["accepted"] == 1
    assert train(context, teacher=unsure, threshold=0.9)[0]["accepted"] == 0


def test_pseudo_labels_are_not_made_on_the_view_that_learns_them():
    with pytest.raises(ConfigurationError, match="weak_view must not be strong"):
        TrainingOptions(weak_view="strong")


def test_weak_views_can_be_quarter_turns():
    context, recorder = site(labelled=6, unlabelled=8), Recorder()
    train(context, recorder, steps=1, training={"weak_view": "turns"})
    originals = {np.sort(image, axis=None).tobytes() for image in context.data.images[6:]}
    shown = (recorder.shown[0][0] * 255).round().to(torch.uint8).permute(0, 2, 3, 1).numpy()
    # The pixels of an image are in another place, and none is black or of another colour.
    assert {np.sort(image, axis=None).tobytes() for image in shown} <= originals


def test_pseudo_labels_start_in_their_round():
    context = site(labelled=6, unlabelled=8)
    assert "accepted" not in train(context, unsupervised_start=2)[0]
    assert "accepted" in train(replace(context, round_number=2), unsupervised_start=2)[0]


@pytest.mark.parametrize(("align", "expected"), [(False, [0.9, 0.0, 0.0]), (True, [0.0, 0.9, 0.0])])
def test_expectations_align_predictions_and_give_each_class_its_threshold(align, expected):
    context = site(labelled=6, unlabelled=8)
    rows = context.data.rows("unlabelled")
    predicted = mean_predictions(Fixed(0.96, 0.03, 0.01), context, rows, "weak")
    made = Expectations(predicted, np.array([0, 97, 0]))
    # Of 97 + 3 counts class 1 has 98 %; the mean prediction is aligned to these shares.
    aligned = made.aligned(torch.tensor([[0.96, 0.03, 0.01]], dtype=torch.float64))
    torch.testing.assert_close(aligned, torch.tensor([[0.01, 0.98, 0.01]], dtype=torch.float64))
    torch.testing.assert_close(made.thresholds(0.9, align), torch.tensor(expected))


def test_predictions_of_a_round_are_means_over_views():
    """A model that is sure of the class of each view's number: two views of one image give one half each."""
    context, rows = site(labelled=6, unlabelled=8), np.arange(6, 14)
    calls = iter(range(100))

    def model(images):
        return torch.eye(3)[torch.full((len(images),), next(calls))].log()

    found = mean_predictions(model, context, rows, "turns", views=2)
    torch.testing.assert_close(found, torch.tensor([[0.5, 0.5, 0.0]]).expand(8, 3))


def test_a_teacher_can_predict_each_image_once_a_round():
    context, seen = site(labelled=6, unlabelled=8), []
    teacher = Fixed(0.98, 0.01, 0.01)
    teacher.register_forward_hook(lambda _, inputs, outputs: seen.append(len(inputs[0])))
    options = SemiSupervisedOptions(teacher="received", teacher_views=2, threshold=0.9)
    metrics = train_semi_supervised(
        network(), torch.optim.SGD([torch.zeros(1)]), context, TrainingOptions(steps=5), options, teacher=teacher
    )
    assert (seen, metrics["accepted"]) == ([8, 8], 1)
    with pytest.raises(ConfigurationError, match=r"^teacher_views needs teacher=received or average$"):
        SemiSupervisedOptions(teacher_views=2)


def test_aligned_training_learns_other_labels():
    context = site(labelled=6, unlabelled=8)
    teacher = Fixed(0.98, 0.01, 0.01)
    plain, aligned = (
        train(context, teacher=teacher, threshold=0.9, align_distribution=on)[0]["accepted"] for on in (False, True)
    )
    # The labelled images have equal shares, so aligned predictions are never sure.
    assert (plain, aligned) == (1, 0)


def test_predictions_are_not_aligned_at_a_site_without_labels():
    options = {"threshold": 0.9, "align_distribution": True, "accept_unlabelled": True}
    found = train(site(labelled=0, unlabelled=8), teacher=Fixed(0.98, 0.01, 0.01), **options)[0]
    assert found["accepted"] == 1


@pytest.mark.parametrize(("norm", "counted"), [("batch", 6), ("batch_untracked", 4), ("running", 4)])
def test_strong_views_count_as_batches_of_batch_norm_if_asked(norm, counted):
    # Two steps with a labelled, a weak and a strong pass each.
    model = train(site(labelled=6, unlabelled=8), threshold=0.0, strong_norm=norm)[1]
    assert model[1].num_batches_tracked == counted


def test_an_executor_averages_what_it_receives_and_trains_what_it_received():
    executor = FixMatchExecutor(teacher="average", teacher_decay=0.9)
    first = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
    second = copy.deepcopy(first)
    with torch.no_grad():
        second[1].weight += 2
    context = site(labelled=6, unlabelled=8)
    executor._teacher(first, context)
    teacher = executor._teacher(second, context).network
    torch.testing.assert_close(teacher[1].weight, first[1].weight + 1)
    torch.testing.assert_close(second[1].weight, first[1].weight + 2)
    assert executor.kept[AVERAGE][0] == 2


def test_a_teacher_can_have_the_statistics_of_the_sites_images():
    executor = FixMatchExecutor(teacher="received", teacher_statistics="site")
    model, context = nn.Sequential(nn.BatchNorm2d(3)), site(labelled=6, unlabelled=8)
    teacher = executor._teacher(model, context).network
    images = to_tensor(context.data.images)
    torch.testing.assert_close(teacher[0].running_mean, images.mean(dim=(0, 2, 3)))
    torch.testing.assert_close(teacher[0].running_var, images.var(dim=(0, 2, 3)))
    assert torch.equal(model[0].running_mean, torch.zeros(3)), "the trained model keeps the received statistics"
    with pytest.raises(ConfigurationError, match="teacher_statistics=site needs teacher=received or average"):
        FixMatchExecutor(teacher_statistics="site")
    fixed = replace(context, problem=replace(context.problem, norm="site", weights="imagenet"))
    with pytest.raises(ConfigurationError, match=r"teacher_statistics=site.*problem\.norm=batch"):
        executor._teacher(model, fixed)


def test_teachers_that_cannot_be_are_refused():
    with pytest.raises(ConfigurationError, match=r"teacher=received.*model=own"):
        FixMatchExecutor(teacher="received", model="own")
    with pytest.raises(ConfigurationError, match="set consistency_weight to 0"):
        FedPerlExecutor(teacher="received")


def test_each_pass_starts_when_the_losses_before_it_have_been_differentiated():
    model, known = network(), []
    labeler = PeerPseudoLabeler(SINGLE, [copy.deepcopy(model).eval()], 0.5)
    model.register_forward_pre_hook(lambda *_: known.append(model[0].weight.grad is not None))
    train(site(6, 9), labeler, model, steps=1, threshold=0.0)
    assert known == [False, True, True]  # the labelled, weak and strong views


def test_strong_views_do_not_change_the_gradient_of_weak_views_in_evaluation_mode():
    """Their pass changes running statistics, which the backward pass of the weak views needs as they were."""
    gradients = []
    for threshold in (0.0, 1.0):  # all strong views, without a weight, and none
        model = network()
        labeler = PeerPseudoLabeler(SINGLE, [nn.Sequential(nn.Flatten(), Fixed(0.8, 0.1, 0.1))], 100.0)
        options = {"weak_pass": "eval", "supervised_weight": 0.0, "unsupervised_weight": 0.0, "threshold": threshold}
        train(site(6, 9), labeler, model, steps=1, **options)
        gradients.append(model[0].weight.grad)
    assert gradients[0].abs().max() > 0
    torch.testing.assert_close(*gradients)
