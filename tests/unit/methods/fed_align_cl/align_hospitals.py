"""Small hospitals in double precision, for tests of the alignment."""

import copy
from functools import partial

import torch
from torch import nn

from grandrounds.federation.site.training import Adam
from grandrounds.methods.fed_align_cl.iteration import AlignmentTrainer
from grandrounds.methods.fed_align_cl.loss import make_discriminator
from grandrounds.methods.fed_align_cl.options import EmbeddingNoiseOptions
from grandrounds.models.split import split_network
from grandrounds.seeding import numpy_generator, torch_generator

SITES = ("site-1", "site-2", "site-10")
SIZES = {"site-1": 8, "site-2": 2, "site-10": 4}
WIDTH, FEATURES = 6, 5
NOISE = EmbeddingNoiseOptions("absolute", 0.01, embedding_clip=0.6)  # shorter than most embeddings


def sgd(parameters) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


def adam(learning_rate: float = 1e-5):
    return partial(Adam, lr=learning_rate, fused=True)


def make_optimizers(model: nn.Module, discriminator: nn.Module, make=None) -> dict[str, torch.optim.Optimizer]:
    """Of the whole network for classification, of its encoder for alignment, of the discriminator."""
    make = make or adam()
    return {
        "classification": make(model.parameters()),
        "adversarial": make(split_network(model).encoder.parameters()),
        "discriminator": make(discriminator.parameters()),
    }


def network(seed: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        encoder = [nn.Linear(WIDTH, 7), nn.BatchNorm1d(7), nn.Tanh(), nn.Linear(7, FEATURES)]
        return nn.Sequential(*encoder, nn.Linear(FEATURES, 2)).double()


def participant(site: str, make=sgd, noise: EmbeddingNoiseOptions = NOISE) -> AlignmentTrainer:
    model = network(len(site) + int(site[5:]))
    discriminator = make_discriminator(FEATURES, site).double()
    optimizers = make_optimizers(model, discriminator, make)
    return AlignmentTrainer(model, discriminator, optimizers, noise, numpy_generator(site, "noise").bytes)


def participants(make=sgd, noise: EmbeddingNoiseOptions = NOISE) -> dict[str, AlignmentTrainer]:
    return {site: participant(site, make, noise) for site in SITES}


def batch(site: str, step: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch_generator(site, step)
    images = torch.randn(SIZES[site], WIDTH, generator=generator, dtype=torch.float64) + len(site)
    return images, torch.arange(SIZES[site]) % 2


def batches(step: int = 0) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    return {site: batch(site, step) for site in SITES}


def state(module: nn.Module) -> dict[str, torch.Tensor]:
    return copy.deepcopy(module.state_dict())


def moved(before: dict[str, torch.Tensor], module: nn.Module, prefixes: tuple[str, ...] = ("",)) -> bool:
    now = module.state_dict()
    return any(not torch.equal(value, now[name]) for name, value in before.items() if name.startswith(prefixes))
