"""FedDF averages models of one kind, and distils each kind from the ensemble of all."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from grandrounds.deployment.jobs import load_job, with_options
from grandrounds.errors import ConfigurationError, GrandRoundsError
from grandrounds.methods.feddf.controller import FusionController
from grandrounds.methods.feddf.fusion import FusionOptions, distil, means_by_architecture, teacher_rows
from grandrounds.methods.mutual.work import PlainWork
from grandrounds.protocol.messages import Result, floating_entries, model_update
from grandrounds.protocol.registration import Registration
from grandrounds.seeding import numpy_generator

IMAGES = numpy_generator("images").integers(0, 256, (20, 4, 4, 1), dtype=np.uint8)
PIXELS = torch.from_numpy(IMAGES).permute(0, 3, 1, 2).to(torch.float32).div(255).double()
WORK = PlainWork()


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
    options = with_options(load_job("feddf"), ["controller.update_precision=bfloat16"]).options("controller")
    assert FusionController(**options).fingerprint()["update_precision"] == "bfloat16"


def test_models_that_cannot_be_averaged_are_refused():
    states = {"a": {"w": torch.ones(2)}, "b": {"w": torch.ones(3)}}
    with pytest.raises(ValueError, match="models of a and b are said to be of one architecture and differ in entries"):
        means_by_architecture(states, {"a": "x", "b": "x"})
    with pytest.raises(ValueError, match="the architecture of b is not known"):
        means_by_architecture(states, {"a": "x"})


@pytest.mark.parametrize("averaging", ["logits", "probabilities"])
def test_the_ensembles_labels_are_those_of_the_mean(averaging):
    teachers = [network(1), network(2)]
    with torch.no_grad():
        logits = torch.stack([teacher(PIXELS) for teacher in teachers])
    expected = logits.mean(0).softmax(1) if averaging == "logits" else logits.softmax(2).mean(0)
    torch.testing.assert_close(teacher_rows(teachers, IMAGES, WORK, averaging, 7), expected, atol=1e-14, rtol=0)


def test_a_student_comes_to_predict_what_the_ensemble_does():
    target = teacher_rows([network(1), network(2)], IMAGES, WORK)
    student = network(3)
    options = FusionOptions(distillation_steps=800, distillation_batch=16, distillation_rate=0.05)
    before = teacher_rows([student], IMAGES, WORK)
    distil(student, IMAGES, target, options, numpy_generator("fusion"), WORK)
    after = teacher_rows([student], IMAGES, WORK)
    assert float((after - target).abs().max()) < 0.02 < 0.1 < float((before - target).abs().max())


def test_steps_shrink_along_a_half_cosine_and_gradients_are_clipped():
    """With one step of two left, the rate is half of the first; with clipping to nearly nothing Adam's step stays."""
    options = FusionOptions(distillation_steps=2, distillation_batch=20, distillation_rate=0.01)
    target = teacher_rows([network(1)], IMAGES, WORK)
    student, other = network(3), network(3)
    distil(student, IMAGES, target, options, numpy_generator(1), WORK)
    optimiser = torch.optim.Adam(other.parameters(), lr=0.01)
    for rate in (0.01, 0.005):
        optimiser.param_groups[0]["lr"] = rate
        optimiser.zero_grad()
        nn.functional.kl_div(other(PIXELS).log_softmax(1), target, reduction="batchmean").backward()
        optimiser.step()
    torch.testing.assert_close(student[1].weight, other[1].weight, atol=1e-10, rtol=0)
    clipped = network(3)
    distil(clipped, IMAGES, target, FusionOptions(2, 20, 0.01, clip_norm=1e-9), numpy_generator(1), WORK)
    assert float((clipped[1].weight - student[1].weight).detach().abs().max()) > 1e-3


def test_what_makes_no_sense_is_refused():
    target = teacher_rows([network(1)], IMAGES, WORK)
    with pytest.raises(ConfigurationError, match="the public set has 20 images, which make no batch of 21"):
        distil(network(1), IMAGES, target, FusionOptions(distillation_batch=21), numpy_generator(1), WORK)
    with pytest.raises(ValueError, match="an ensemble needs at least one teacher, got none"):
        teacher_rows([], IMAGES, WORK)
    broken = copy.deepcopy(network(1))
    broken[1].weight.data.fill_(float("nan"))
    with pytest.raises(GrandRoundsError, match="distillation diverged: its loss is not finite"):
        distil(broken, IMAGES, target, FusionOptions(2, 4), numpy_generator(1), WORK)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"distillation_steps": 0}, "distillation_steps must be at least 1, got 0"),
        ({"distillation_batch": 1}, "distillation_batch must be at least 2, got 1"),
        ({"clip_norm": 0.0}, r"clip_norm must be positive, got 0\.0"),
        ({"recalibrate_bn": 1}, "recalibrate_bn must be true or false, got 1"),
        ({"averaging": "losses"}, "averaging must be logits or probabilities, got 'losses'"),
    ],
)
def test_options_that_make_no_sense_are_refused(options, message):
    with pytest.raises(ConfigurationError, match=message):
        FusionOptions(**options)


def test_an_architecture_whose_sites_are_all_away_learns_from_the_others():
    options = ["controller.server_device=cpu", "controller.distillation_steps=2", "controller.distillation_batch=4"]
    server = FusionController(**with_options(load_job("feddf"), options).options("controller"))
    server.check_abort = lambda: None
    server._images = numpy_generator("public").integers(0, 256, (6, 32, 32, 3), dtype=np.uint8)
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
