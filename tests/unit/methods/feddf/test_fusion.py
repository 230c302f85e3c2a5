"""FedDF averages models of one kind, and distils each kind from the ensemble of all."""

import copy

import numpy as np
import pytest
import torch
from feddf import (
    FusionController,
    FusionExecutor,
    FusionOptions,
    distil,
    ensemble_soft_labels,
    ensemble_target,
    means_by_architecture,
)
from mutual_site import site_context
from torch import nn
from torch.nn import functional as F

from grandrounds.deployment.jobs import load_job
from grandrounds.deployment.presets import with_options
from grandrounds.errors import ConfigurationError, GrandRoundsError, MessageError
from grandrounds.methods.mutual.training import alignment_loss
from grandrounds.protocol.messages import Payload, Registration, Result, floating_entries, model_update
from grandrounds.seeding import numpy_generator, torch_generator
from tests.federations import OUTSIDE

IMAGES = numpy_generator("images").integers(0, 256, (20, 4, 4, 1), dtype=np.uint8)
PIXELS = torch.from_numpy(IMAGES).permute(0, 3, 1, 2).to(torch.float32).div(255).double()
CONTEXT = site_context(IMAGES)
D1, D2 = (torch.tensor([row], dtype=torch.float64) for row in ((0.5, 0.5), (0.9, 0.1)))


def network(seed):
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return nn.Sequential(nn.Flatten(), nn.Linear(16, 3)).double()


def test_models_of_one_kind_are_averaged_and_a_kind_of_one_stays():
    states = {f"site-{n}": {"w": torch.full((2,), float(n)), "steps": torch.tensor(n)} for n in (10, 2, 4)}
    means = means_by_architecture(states, {"site-10": "a", "site-2": "a", "site-4": "b"})
    assert means["a"]["w"].tolist() == [6.0, 6.0]
    assert means["a"]["steps"].item() == 2  # a counter: as the first site has it
    assert means["b"]["w"].tolist() == [4.0, 4.0]
    assert means["a"]["w"].dtype == torch.float32


def test_a_checkpoint_names_the_precision_of_updates():
    options = with_options(load_job(OUTSIDE["feddf"]), ["controller.update_precision=bfloat16"]).options("controller")
    assert FusionController(**options).fingerprint()["update_precision"] == "bfloat16"


@pytest.mark.parametrize("averaging", ["logits", "probabilities"])
def test_the_ensembles_labels_are_those_of_the_mean(averaging):
    teachers = [network(1), network(2)]
    with torch.no_grad():
        logits = torch.stack([teacher(PIXELS) for teacher in teachers])
    expected = logits.mean(0).softmax(1) if averaging == "logits" else logits.softmax(2).mean(0)
    torch.testing.assert_close(ensemble_soft_labels(teachers, CONTEXT, averaging, 7), expected, atol=1e-14, rtol=0)


def test_a_student_comes_to_predict_what_the_ensemble_does():
    target = ensemble_soft_labels([network(1), network(2)], CONTEXT)
    student = network(3)
    options = FusionOptions(distillation_steps=800, distillation_batch=16, distillation_rate=0.05)
    before = ensemble_soft_labels([student], CONTEXT)
    distil(student, target, options, numpy_generator("fusion"), CONTEXT)
    after = ensemble_soft_labels([student], CONTEXT)
    assert float((after - target).abs().max()) < 0.02 < 0.1 < float((before - target).abs().max())


def test_steps_shrink_along_a_half_cosine_and_gradients_are_clipped():
    """With one step of two left, the rate is half of the first; with clipping to nearly nothing Adam's step stays."""
    options = FusionOptions(distillation_steps=2, distillation_batch=20, distillation_rate=0.01)
    target = ensemble_soft_labels([network(1)], CONTEXT)
    student, other = network(3), network(3)
    distil(student, target, options, numpy_generator(1), CONTEXT)
    optimiser = torch.optim.Adam(other.parameters(), lr=0.01)
    for rate in (0.01, 0.005):
        optimiser.param_groups[0]["lr"] = rate
        optimiser.zero_grad()
        nn.functional.kl_div(other(PIXELS).log_softmax(1), target, reduction="batchmean").backward()
        optimiser.step()
    torch.testing.assert_close(student[1].weight, other[1].weight, atol=1e-10, rtol=0)
    clipped = network(3)
    distil(clipped, target, FusionOptions(2, 20, 0.01, clip_norm=1e-9), numpy_generator(1), CONTEXT)
    assert float((clipped[1].weight - student[1].weight).detach().abs().max()) > 1e-3


def test_invalid_values_are_refused():
    with pytest.raises(ConfigurationError, match="the public set has 20 images, which make no batch of 21"):
        FusionOptions(distillation_batch=21).require_batch(20)
    target = ensemble_soft_labels([network(1)], CONTEXT)
    broken = copy.deepcopy(network(1))
    broken[1].weight.data.fill_(float("nan"))
    with pytest.raises(
        GrandRoundsError,
        match=r"the loss of step 0 is not finite",
    ):
        distil(broken, target, FusionOptions(2, 4), numpy_generator(1), CONTEXT)


def test_an_architecture_whose_sites_are_all_away_learns_from_the_others(tmp_path):
    options = ["controller.server_device=cpu", "controller.distillation_steps=2", "controller.distillation_batch=4"]
    server = FusionController(**with_options(load_job(OUTSIDE["feddf"]), options).options("controller"))
    server.check_abort = lambda: None
    server.folder = tmp_path
    server._public = site_context(numpy_generator("public").integers(0, 256, (6, 32, 32, 3), dtype=np.uint8)).data
    for site, kind in (("here", "x"), ("away", "y")):
        server.registered[site] = Registration({}, {"backbone": "compact", "architecture": kind})
    server.open_round(["here", "away"])
    server.round_number = 1
    start = copy.deepcopy(server._prototypes)
    update = {name: torch.full_like(value, 1e-2) for name, value in floating_entries(start["x"]).items()}
    server.absorb("here", Result(model_update(update), samples=1))
    server.close_round()
    for kind, before in start.items():
        assert any(not torch.equal(server._prototypes[kind][name], value) for name, value in before.items())
    assert server.round_notes()["distillation_loss"]["compact"] > 0


def test_feddfs_target_averages_logits_or_probabilities():
    # softmax of the mean logits is the normalised geometric mean: (sqrt(.45), sqrt(.05)) = 3 to 1.
    teachers = [D1.log() + 7, D2.log()]
    torch.testing.assert_close(ensemble_target(teachers), torch.tensor([[0.75, 0.25]], dtype=torch.float64))
    torch.testing.assert_close(ensemble_target(teachers, "probabilities"), (D1 + D2) / 2)


def test_averaged_probabilities_have_the_gradient_of_averaged_losses():
    teachers = [
        torch.randn(50, 13, generator=torch_generator("teacher", n), dtype=torch.float64).log_softmax(1)
        for n in range(3)
    ]
    ours, theirs = (
        torch.randn(50, 13, generator=torch_generator("student"), dtype=torch.float64).requires_grad_()
        for _ in range(2)
    )
    alignment_loss(ours, ensemble_target(teachers, "probabilities")).backward()
    each = [F.kl_div(theirs.log_softmax(dim=1), teacher.exp(), reduction="batchmean") for teacher in teachers]
    torch.stack(each).mean().backward()
    torch.testing.assert_close(ours.grad, theirs.grad, atol=1e-15, rtol=0)


@pytest.mark.parametrize("recalibrated", [True, False])
def test_distillation_ends_with_the_statistics_of_the_public_images(recalibrated):
    images = numpy_generator("public").integers(0, 256, (12, 4, 4, 1), dtype=np.uint8)
    student = nn.Sequential(nn.BatchNorm2d(1), nn.Flatten(), nn.Linear(16, 2))
    options = FusionOptions(distillation_steps=3, distillation_batch=4, recalibrate_bn=recalibrated)
    distil(student, torch.full((12, 2), 0.5), options, numpy_generator("batches"), site_context(images))
    assert (student[0].running_mean.item() == pytest.approx(images.mean() / 255, rel=1e-5)) == recalibrated


def job(*assignments, part="controller"):
    return with_options(load_job(OUTSIDE["feddf"]), assignments).options(part)


def in_round(server, number):
    server.round_number = number
    return server


@pytest.fixture
def fusion():
    server = FusionController(**job("controller.rounds=3", "controller.server_device=cpu", "problem.backbone=compact"))
    server.registered["a"] = Registration({}, {"backbone": "compact", "architecture": "x"})
    server.open_round(["a"])
    return server


def test_updates_are_for_the_rounds_that_distil_and_must_fit(fusion):
    update = {
        name: torch.zeros_like(value)
        for name, value in floating_entries(fusion.payload_for("a").parts["global"]).items()
    }
    in_round(fusion, 2).check("a", Result(model_update(update), samples=1))
    with pytest.raises(MessageError, match="a has sent an update in the last round, which is not used"):
        in_round(fusion, 3).check("a", Result(model_update(update), samples=1))
    with pytest.raises(MessageError, match="the result has no update"):
        in_round(fusion, 2).check("a", Result({}, samples=1))
    name = next(iter(update))
    with pytest.raises(MessageError, match=name):
        in_round(fusion, 2).check("a", Result(model_update({**update, name: torch.zeros(1, 1, 1)}), samples=1))


def test_an_unknown_network_is_refused_by_name(fusion):
    with pytest.raises(MessageError, match=r"network.*'resnet11'"):
        fusion.check_registration("b", Registration({}, {"backbone": "resnet11", "architecture": "x"}))


@pytest.mark.parametrize("values", [{"rounds": 3}, {"rounds": "3"}])
def test_a_task_without_its_model_or_rounds_is_refused(values):
    with pytest.raises(MessageError, match="the task lacks the number of rounds or global"):
        FusionExecutor(**job(part="executor")).train(Payload(1, values), None)


def test_norms_of_each_site_are_refused():
    server = FusionController(**job("problem.norm=site", "problem.weights=start", "problem.trainable=from:2"))
    with pytest.raises(ConfigurationError, match="FedDF needs whole models at the server"):
        server.start()
