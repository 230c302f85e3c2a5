"""Protected training: one step against its formula, secret draws, and what cannot be protected."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from grandrounds.data.images.cache import DecodedCache
from grandrounds.data.site import SiteData
from grandrounds.errors import ConfigurationError, DataError
from grandrounds.federation.site.context import SiteContext, StateCache
from grandrounds.methods.fed_align_cl.executor import FedAlignExecutor
from grandrounds.methods.fedirm.executor import FedIRMExecutor
from grandrounds.methods.fedperl.executor import FedPerlExecutor
from grandrounds.methods.fixmatch.executor import FixMatchExecutor
from grandrounds.methods.mutual.executor import MutualExecutor
from grandrounds.methods.supervised.executor import SupervisedExecutor
from grandrounds.methods.supervised.training import TrainingOptions, train_privately, units_to_learn
from grandrounds.privacy.mechanisms.dp_sgd import one_image_each
from grandrounds.privacy.mechanisms.record_level import ProtectionOptions, RecordLevelOptions
from grandrounds.protocol.problem import Problem
from grandrounds.protocol.spending import Mechanism, Unit

PROBLEM = Problem("noise", ("a", "b", "c"), 32)
PLAIN = TrainingOptions(steps=1, batch_size=4, class_weights="none", weak_augmentation=False, algorithm="sgd")
QUIET = 1e-12


def site(tmp_path, images=10, labelled=8):
    rng = np.random.default_rng(0)
    names = tuple(map(str, range(images)))
    data = SiteData(
        cache=DecodedCache(rng.integers(0, 256, (images, 8, 8, 3), dtype=np.uint8)),
        labels=np.arange(images) % 3,
        labelled=np.arange(images) < labelled,
        split=np.full(images, "train"),
        names=names,
        groups=names,
        classes=PROBLEM.classes,
    )
    cache = StateCache(tmp_path)
    return SiteContext("site-1", 1, PROBLEM, 7, data, torch.device("cpu"), "float32", lambda: False, cache)


def linear(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(192, 3))


def trained(context, options=PLAIN, **changes):
    """The network after a protected round, and the reported metrics."""
    values = {"clip": 1.0, "noise_multiplier": QUIET, "sampling_rate": 1.0, "steps": options.steps} | changes
    network = linear()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.5)
    metrics = train_privately(network, optimizer, context, options, RecordLevelOptions(**values))
    return network, metrics


def test_a_step_on_all_images_follows_the_mean_of_clipped_gradients(tmp_path):
    context = site(tmp_path)
    network, metrics = trained(context, clip=0.7)
    start, images, labels = linear(), context.data.images[:8], context.data.labels[:8]
    total = [torch.zeros_like(parameter) for parameter in start.parameters()]
    for image, label in zip(images, labels, strict=True):
        values = torch.from_numpy(image).permute(2, 0, 1)[None] / 255
        gradients = torch.autograd.grad(F.cross_entropy(start(values), torch.tensor([label])), list(start.parameters()))
        norm = math.sqrt(sum(float(gradient.square().sum()) for gradient in gradients))
        for sum_, gradient in zip(total, gradients, strict=True):
            sum_ += gradient * min(1.0, 0.7 / norm)
    for after, before, sum_ in zip(network.parameters(), start.parameters(), total, strict=True):
        torch.testing.assert_close(after, before - 0.5 * sum_ / 8, rtol=1e-4, atol=1e-6)
    assert metrics == {"samples": 8.0}


@pytest.mark.parametrize("augmented", [False, True])
def test_two_rounds_of_the_same_seed_have_nothing_in_common_but_the_start(tmp_path, augmented):
    """Batches, views and noise are the site's own: without noise what differs is batches, on all images it is views."""
    context = site(tmp_path)
    options = TrainingOptions(steps=3, class_weights="none", weak_augmentation=augmented)
    rate = 1.0 if augmented else 0.5
    first, second = (trained(context, options, sampling_rate=rate, steps=3)[0] for _ in range(2))
    assert not torch.allclose(first[1].weight, second[1].weight, atol=1e-6)


def test_torchs_own_generator_is_left_as_it_was(tmp_path):
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    network = linear(3)
    torch.manual_seed(3)
    options = RecordLevelOptions(1.0, 1.0, 0.5, 1)
    train_privately(network, torch.optim.SGD(network.parameters()), site(tmp_path), PLAIN, options)
    assert torch.equal(torch.rand(1), expected)


def executor(kind=SupervisedExecutor, **options):
    return kind(**{"record_noise_multiplier": 1.5, **options})


def test_the_cost_of_a_round_follows_from_the_sites_labelled_images(tmp_path):
    made = executor(class_weights="none", batch_size=2, steps=5, record_clip=0.25)
    cost = made.spending(site(tmp_path))
    assert (cost.mechanism, cost.sensitivity, cost.sigma) == (Mechanism.DP_SGD, 0.25, 0.375)
    assert (cost.sampling_rate, cost.steps) == (0.25, 5)
    assert executor(class_weights="none", batch_size=99).spending(site(tmp_path)).sampling_rate == 1.0
    assert made.options()["record_noise_multiplier"] == 1.5


def test_where_nothing_leaves_or_nothing_is_protected_nothing_is_spent(tmp_path):
    own, context = executor(class_weights="none", model="own"), site(tmp_path)
    assert own.model.spending(lambda: own.spending(context)) is None
    assert SupervisedExecutor().spending(site(tmp_path)) is None
    assert ProtectionOptions().of_round(10, 4, 1) is None


def test_a_site_without_labels_is_reported_before_anything_is_drawn(tmp_path):
    with pytest.raises(DataError, match="site-1: the labelled set is empty"):
        executor(class_weights="none").spending(site(tmp_path, labelled=0))


@pytest.mark.parametrize(
    ("kind", "obstacle"),
    [
        (FixMatchExecutor, "joins a labelled and an unlabelled batch"),
        (FedPerlExecutor, "joins a labelled and an unlabelled batch"),
        (FedIRMExecutor, "compare whole batches"),
        (FedAlignExecutor, "compares images of two sites"),
        (MutualExecutor, "not drawn in secret"),
    ],
)
def test_methods_whose_loss_does_not_allow_it_are_refused_with_the_reason(kind, obstacle):
    with pytest.raises(ConfigurationError, match=f"{kind.__name__} cannot be record-level private: .*{obstacle}"):
        executor(kind)
    assert kind().protection.record_noise_multiplier is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "needs class_weights=none, got median"),
        ({"class_weights": "none", "proximal_weight": 0.1}, "needs proximal_weight=0, got 0.1"),
        ({"class_weights": "none", "compiler": "inductor"}, "takes the gradient of each image: set compiler=none"),
    ],
)
def test_options_that_protect_nothing_are_refused(options, message):
    with pytest.raises(ConfigurationError, match=message):
        executor(**options)


def test_a_training_of_another_kind_does_not_inherit_that_it_hides_single_images():
    class Other(SupervisedExecutor):
        def train(self, payload, context): ...

    with pytest.raises(ConfigurationError, match="Other cannot be record-level private"):
        Other(record_noise_multiplier=1.0, record_clip=1.0)


def with_patients(context, patients):
    return replace(context, data=replace(context.data, patients=tuple(patients)))


def test_a_patients_images_together_move_the_sum_by_the_clip_at_most(tmp_path):
    """Eight images: with one patient behind seven of them, those seven count as much as the eighth alone."""
    context = with_patients(site(tmp_path), ["p"] * 7 + ["q"] + ["r"] * 2)
    network, metrics = trained(context, clip=1e-3, unit="patient")
    assert metrics == {"samples": 8.0}
    start = linear()
    moved = [after - before for after, before in zip(network.parameters(), start.parameters(), strict=True)]
    norm = math.sqrt(sum(float(part.detach().square().sum()) for part in moved))
    # Two clipped gradients, divided by two patients, times the learning rate.
    assert 0 < norm <= 0.5 * 2 * 1e-3 / 2 * (1 + 1e-3)


def test_units_are_images_or_patients(tmp_path):
    context = with_patients(site(tmp_path), "aabbbcdd" + "ee")
    assert [rows.tolist() for rows in units_to_learn(context, PLAIN, "patient")] == [[0, 1], [2, 3, 4], [5], [6, 7]]
    assert [rows.tolist() for rows in units_to_learn(context, PLAIN, "record")] == [[row] for row in range(8)]


def test_each_image_of_a_patient_is_drawn(tmp_path):
    units = [np.array([3, 5, 8])]
    assert {int(one_image_each(units)[0]) for _ in range(100)} == {3, 5, 8}


@pytest.mark.parametrize(("patients", "count"), [((), 8), (["p", "", *"qrstuvwx"], 1)])
def test_an_unknown_patient_is_refused(tmp_path, patients, count):
    context = with_patients(site(tmp_path), patients)
    with pytest.raises(DataError, match=rf"site-1: privacy_unit=patient .* empty for {count} of 8"):
        units_to_learn(context, PLAIN, "patient")


def test_the_cost_is_about_the_unit_that_was_sampled():
    options = ProtectionOptions(record_noise_multiplier=2.0, privacy_unit="patient").of_round(100, 25, 4)
    spending = options.spending()
    assert (spending.unit, spending.sampling_rate, spending.steps) == (Unit.PATIENT, 0.25, 4)
    assert spending.towards(Unit.PATIENT) is not None
    assert spending.towards(Unit.RECORD) is None
    assert spending.towards(Unit.SITE) is None
