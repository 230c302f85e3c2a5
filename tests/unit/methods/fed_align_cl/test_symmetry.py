"""Sites without any difference: a discriminator that sees both sides alike cannot tell them apart."""

import math

import pytest
import torch
from torch import nn

from grandrounds.methods.fed_align_cl.iteration import AlignmentTrainer, Neighbour, train_iteration
from grandrounds.methods.fed_align_cl.loss import make_discriminator
from grandrounds.methods.fed_align_cl.noise import clip_bound, clipped_share, noisy_embeddings
from grandrounds.methods.fed_align_cl.options import EmbeddingNoiseOptions, EncoderAlignmentOptions
from grandrounds.seeding import numpy_generator, torch_generator

WIDTH, BATCH, STEPS, LAST = 64, 32, 400, 100
GUESSING = 2 * math.log(2)
FIXED = {"embedding_clip": 16.0}
RULE = (16.0, 8.0)  # clip 16, noise multiplier 0.5


def embeddings(generator: torch.Generator) -> torch.Tensor:
    """Of one law at all sites, with the norms of EfficientNet-Lite0 on blood cells: about 47, positive and uneven."""
    scale = torch.linspace(1, 9, WIDTH)
    return torch.randn(BATCH, WIDTH, generator=generator).abs() * scale


def last_losses(options: EmbeddingNoiseOptions, gate=None) -> float:
    """The mean discriminator loss of the last of many steps between two sites of one law."""
    discriminator = make_discriminator(WIDTH, "own")
    optimizers = {"discriminator": torch.optim.Adam(discriminator.parameters(), lr=1e-3)}
    network, noise = nn.Sequential(nn.Identity(), nn.Linear(WIDTH, 2)), numpy_generator("noise").bytes
    trainer = AlignmentTrainer(network, discriminator, optimizers, options, noise, gate)
    generator, losses = torch_generator("images"), []
    for _ in range(STEPS):
        theirs = noisy_embeddings(embeddings(generator), options, noise, gate)
        losses.append(float(trainer.discriminate(trainer.embed(embeddings(generator)), [theirs])))
    return sum(losses[-LAST:]) / LAST


@pytest.mark.parametrize("gate", [None, RULE], ids=["no gate", "gate"])
@pytest.mark.parametrize(
    "options",
    [
        EmbeddingNoiseOptions(),
        EmbeddingNoiseOptions(**FIXED),
        EmbeddingNoiseOptions("clipped", 0.5, **FIXED),
    ],
    ids=["default", "fixed clip", "noise of half the clip"],
)
def test_sites_of_one_law_leave_a_discriminator_guessing(options, gate):
    assert clipped_share(embeddings(torch_generator("share")), 16.0) == 1
    assert last_losses(options, gate) == pytest.approx(GUESSING, abs=0.05)


@pytest.mark.parametrize("options", [{"embedding_clip": 16.0}, {"embedding_noise": "clipped", **FIXED}])
def test_clean_embeddings_of_the_own_site_give_it_away(options):
    """The treatment of one side alone is what a discriminator of the paper's asymmetry finds."""
    level = {"embedding_noise_level": 0.5} if "embedding_noise" in options else {}
    assert last_losses(EmbeddingNoiseOptions(own_embeddings="clean", **options, **level)) < GUESSING - 0.3


def test_the_default_bound_follows_the_norms():
    rows = torch.randn(200, 32, generator=torch_generator("rows"))
    for scale in (0.1, 100.0):
        bound = clip_bound(scale * rows, EmbeddingNoiseOptions())
        assert bound == pytest.approx(3 * float((scale * rows).norm(dim=1).median()), rel=1e-6)
        assert clipped_share(scale * rows, bound) == 0


def drifted(drift: float, generator: torch.Generator) -> tuple[AlignmentTrainer, dict[str, Neighbour], torch.Tensor]:
    """Two sites with images of one law, whose encoders have moved apart from their mean, and the mean's embeddings."""
    mean = nn.Linear(8, 16)
    mean.load_state_dict(
        {name: torch.randn(value.shape, generator=generator) for name, value in mean.state_dict().items()}
    )
    encoder = nn.Linear(8, 16)
    encoder.load_state_dict({"weight": mean.weight, "bias": mean.bias + drift})
    network, discriminator = nn.Sequential(encoder, nn.Linear(16, 2)), make_discriminator(16, "own")
    still = {role: torch.optim.SGD(network.parameters(), lr=0.0) for role in ("classification", "adversarial")}
    optimizers = {**still, "discriminator": torch.optim.Adam(discriminator.parameters(), lr=1e-3)}
    trainer = AlignmentTrainer(network, discriminator, optimizers, EmbeddingNoiseOptions(), numpy_generator(1).bytes)
    images = [torch.randn(2048, 8, generator=generator) for _ in range(2)]
    with torch.no_grad():
        own, theirs = (mean(pixels) for pixels in images)
    return trainer, {"site-2": Neighbour(theirs, make_discriminator(16, "theirs"), BATCH)}, own


@pytest.mark.parametrize("banked", [True, False])
def test_banks_by_the_mean_encoder_hide_the_drift_of_local_encoders(banked):
    generator, draws, losses = torch_generator("drift"), numpy_generator("draws"), []
    trainer, neighbours, own = drifted(1.0, generator)
    labels = torch.arange(BATCH) % 2
    for _ in range(STEPS):
        images = torch.randn(BATCH, 8, generator=generator)
        bank = own if banked else None
        found = train_iteration(trainer, "site-1", images, labels, neighbours, EncoderAlignmentOptions(), draws, bank)
        losses.append(float(found["loss_discriminator"]))
    last = sum(losses[-LAST:]) / LAST
    if banked:
        assert last == pytest.approx(GUESSING, abs=0.05)
    else:
        assert last < GUESSING - 0.2
