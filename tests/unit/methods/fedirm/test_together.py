"""The pieces together: a small federation of hospitals of which most have no label."""

import copy
import math

import pytest
import torch
from torch import nn

from grandrounds.federation.server.means import OrderedMean
from grandrounds.methods.fedirm.relation import (
    Relation,
    RelationAccumulator,
    consistency_loss,
    mean_relation,
    pseudo_relation,
    ramp_up,
    relation_distance,
    relation_matching_loss,
    unlabelled_loss,
)
from grandrounds.methods.fedirm.uncertainty import (
    certain,
    ema_alpha,
    full_draws,
    head_draws,
    make_teacher,
    update_teacher,
)
from grandrounds.models.registry import DropoutLinear
from grandrounds.protocol.tasks import SINGLE
from grandrounds.seeding import torch_generator

CLASSES = 3
CENTRES = torch.tensor([[0.0, 0.0], [2.0, 0.0], [0.0, 3.0]])
LABELLED, UNLABELLED = ("site-1", "site-2"), ("site-3", "site-4", "site-5", "site-6")
ROUNDS, BATCH, STEPS = 6, 32, 12


@pytest.fixture(autouse=True)
def seeded_on_one_thread():
    """Threads that wait for each other on a busy machine take longer than one alone."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.random.fork_rng(devices=[]):
        yield
    torch.set_num_threads(before)


def small_network():
    return nn.Sequential(nn.Linear(2, 16), nn.BatchNorm1d(16), nn.ReLU(), DropoutLinear(nn.Linear(16, CLASSES), 0.3))


def patients(site):
    generator = torch_generator("patients", site)
    labels = torch.randint(CLASSES, (BATCH * STEPS,), generator=generator)
    return CENTRES[labels] + torch.randn(len(labels), 2, generator=generator), labels


def noisy(images):
    return images + 0.1 * torch.randn(images.shape)


class Site:
    """Trains a copy of the global model; keeps its teacher from round to round."""

    def __init__(self, name, network):
        self.images, self.labels = patients(name)
        self.teacher, self.step = make_teacher(network), 0

    def train_labelled(self, network):
        optimizer, accumulator = torch.optim.Adam(network.parameters(), 0.02), RelationAccumulator(SINGLE, CLASSES)
        for images, labels in zip(self.images.split(BATCH), self.labels.split(BATCH), strict=True):
            logits = network(noisy(images))
            accumulator.add(logits, labels)
            optimizer.zero_grad()
            SINGLE.smoothed_loss([logits], labels).backward()
            optimizer.step()
        return accumulator.relation()

    def train_unlabelled(self, network, target, ramp, relation_weight):
        optimizer, distances = torch.optim.Adam(network.parameters(), 0.02), []
        for images in self.images.split(BATCH):
            features = network[:-1](noisy(images))
            logits = network[-1](features)
            own = pseudo_relation(SINGLE, logits, certain(SINGLE, head_draws(SINGLE, network[-1], features.detach())))
            with torch.no_grad():
                taught = self.teacher(noisy(images)).softmax(dim=1)
            consistency = consistency_loss(logits.softmax(dim=1), taught)
            matching = relation_matching_loss(target, own)
            optimizer.zero_grad()
            unlabelled_loss(consistency, matching, ramp, relation_weight=relation_weight).backward()
            optimizer.step()
            update_teacher(self.teacher, network, ema_alpha(self.step))
            self.step += 1
            distances.append(relation_distance(target, own).item())
        return distances


def federate(relation_weight):
    """Mean distance of the unlabelled sites' matrices from the labelled ones' over the second half of the rounds."""
    torch.manual_seed(17)
    network = small_network()
    sites = {name: Site(name, network) for name in (*LABELLED, *UNLABELLED)}
    target, distances = None, []
    for elapsed in range(ROUNDS):
        mean, relations = OrderedMean(sites), []
        for name, site in sites.items():
            local = copy.deepcopy(network)
            if name in LABELLED:
                relations.append(site.train_labelled(local))
            elif target is not None:
                gone = site.train_unlabelled(local, target, ramp_up(elapsed, 2), relation_weight)
                distances += gone if elapsed >= ROUNDS // 2 else []
            else:
                continue
            mean.add(name, local.state_dict(), len(site.labels))
        network.load_state_dict(mean.close())
        target = mean_relation(relations)
    return torch.tensor(distances).nanmean().item()


def test_relation_matching_brings_unlabelled_sites_closer_to_the_labelled_ones():
    assert federate(relation_weight=1.0) < 0.85 * federate(relation_weight=0.0)


def gradient_of_a_step(draws):
    """The gradient of an unlabelled step under the authors' threshold, which lets everything through."""
    torch.manual_seed(23)
    network = small_network()
    teacher, images = make_teacher(network), patients("site-3")[0][:BATCH]
    logits = network(images)
    taught = teacher(noisy(images)).softmax(dim=1)
    keep = (
        certain(SINGLE, full_draws(SINGLE, network, images, logits, draws), threshold=2.0)
        if draws
        else torch.ones(BATCH) > 0
    )
    target = Relation(torch.eye(CLASSES) * 0.7 + 0.1, torch.ones(CLASSES, dtype=torch.long))
    matching = relation_matching_loss(target, pseudo_relation(SINGLE, logits, keep))
    unlabelled_loss(consistency_loss(logits.softmax(dim=1), taught), matching, 1.0, 15.0, 0.5).backward()
    return torch.cat([parameter.grad.flatten() for parameter in network.parameters()])


def test_the_passes_of_a_filter_that_never_fails_change_no_gradient():
    assert torch.equal(gradient_of_a_step(0), gradient_of_a_step(11))
    assert gradient_of_a_step(0).norm() > 0


@pytest.mark.parametrize(("weights", "expected"), [((100.0, 300.0), 4.0), ((1.0, 1.0), 3.0)])
def test_models_are_averaged_by_their_samples_or_plainly(weights, expected):
    mean = OrderedMean(["site-1", "site-2"])
    for site, value, weight in zip(("site-1", "site-2"), (1.0, 5.0), weights, strict=True):
        mean.add(site, {"theta": torch.tensor([value])}, weight)
    assert mean.close()["theta"].item() == pytest.approx(expected)


def test_softened_probabilities_cannot_be_as_sharp_as_softened_logits():
    # A one-hot row at temperature 2: e^0.5 / (e^0.5 + C - 1).
    for classes, sharpest in ((5, 0.292), (7, 0.216)):
        logits = torch.full((1, classes), -100.0)
        logits[0, 0] = 100.0
        every = torch.tensor([True])
        assert pseudo_relation(SINGLE, logits, every, source="probabilities").matrix.max().item() == pytest.approx(
            sharpest, abs=5e-4
        )
        assert pseudo_relation(SINGLE, logits, every).matrix.max().item() == pytest.approx(1.0)
        assert math.exp(0.5) / (math.exp(0.5) + classes - 1) == pytest.approx(sharpest, abs=5e-4)
