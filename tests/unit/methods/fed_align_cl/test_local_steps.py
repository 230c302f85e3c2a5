"""What a site does between two communications: which images, in which batches, and what the others get of the next."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from align_hospitals import make_optimizers
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from grandrounds.data.images.cache import DecodedCache
from grandrounds.data.site import SiteData
from grandrounds.errors import DataError
from grandrounds.federation.site.context import SiteContext, StateCache
from grandrounds.methods.fed_align_cl.curriculum import draw_order
from grandrounds.methods.fed_align_cl.iteration import (
    AlignmentTrainer,
    LocalSteps,
    TrainingImages,
    communications,
    interval_of_round,
    site_batch_size,
)
from grandrounds.methods.fed_align_cl.loss import make_discriminator
from grandrounds.methods.fed_align_cl.options import (
    CurriculumOptions,
    EmbeddingNoiseOptions,
    EncoderAlignmentOptions,
    NoiseSourceOptions,
    ScheduleOptions,
)
from grandrounds.protocol.problem import Problem
from grandrounds.seeding import numpy_generator

COUNT, ITERATIONS, PACE, FEATURES = 11, 5, 2, 5  # batches of two, one image left over
NEXT_TO_NO_NOISE = EmbeddingNoiseOptions("absolute", 1e-16, embedding_clip=100.0)


class Seen(TrainingImages):
    """Notes which images were asked for."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.numbers = []

    def viewed(self, numbers, purpose, step):
        self.numbers.append(numbers.tolist())
        return super().viewed(numbers, purpose, step)


@pytest.fixture
def context(tmp_path):
    names = tuple(str(number) for number in range(COUNT + 1))
    pixels = np.random.default_rng(1).integers(0, 256, (COUNT + 1, 2, 2, 3), dtype=np.uint8)
    labels = np.arange(COUNT + 1) % 2
    flags, split = np.ones(COUNT + 1, np.bool_), np.array(["train"] * (COUNT + 1))
    data = SiteData(DecodedCache(pixels), labels, flags, split, names, names, ("benign", "malignant"))
    problem = Problem("mammograms", ("benign", "malignant"))
    cache = StateCache(tmp_path)
    return SiteContext("site-1", 2, problem, 7, data, torch.device("cpu"), "float32", lambda: False, cache)


@pytest.fixture
def work(context):
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(1)
        network = nn.Sequential(
            nn.Flatten(), nn.Linear(12, FEATURES), nn.BatchNorm1d(FEATURES, eps=1e-12), nn.Linear(FEATURES, 2)
        )
    discriminator = make_discriminator(FEATURES, "site-1")
    optimizers = make_optimizers(network, discriminator)
    trainer = AlignmentTrainer(network.train(), discriminator, optimizers, NEXT_TO_NO_NOISE)
    # The first image of the site is none of those that count.
    images = Seen(context, np.arange(1, COUNT + 1), ITERATIONS, 2)
    order = np.array([10, 3, 7, 0, 5, 9, 1, 8, 2, 6, 4])
    schedule = ScheduleOptions(iterations=ITERATIONS, pace=PACE)
    return LocalSteps(trainer, images, order, interval_of_round(2, ITERATIONS, PACE), schedule, context)


def test_an_interval_trains_on_its_own_batches_of_the_order(work):
    losses = work.train({}, EncoderAlignmentOptions())
    assert work.images.numbers == [[5, 9], [1, 8]]  # iterations 3 and 4
    assert losses.keys() == {"loss"}


def test_images_are_numbered_among_those_that_count(work, context):
    pixels, labels = work.images.viewed(np.array([0, 3]), "views", 0)
    assert labels.tolist() == [1, 0]
    expected = torch.from_numpy(context.data.images[[1, 4]]).permute(0, 3, 1, 2) / 255
    torch.testing.assert_close(pixels, expected.float(), atol=1e-7, rtol=0)
    assert sum(len(labels) for _, labels in work.images.all()) == len(work.images) == COUNT


def test_views_are_for_training_and_every_step_has_its_own(context):
    images = TrainingImages(context, np.arange(1, COUNT + 1), ITERATIONS, 2, "turns")
    numbers = np.arange(COUNT)
    plain = torch.cat([pixels for pixels, _ in images.all()])
    first, second = (images.viewed(numbers, "views", step)[0] for step in (0, 1))
    assert torch.equal(plain, torch.from_numpy(context.data.images[1:]).permute(0, 3, 1, 2) / 255)
    for viewed in (first, second):
        assert not torch.equal(viewed, plain)
        assert torch.equal(viewed.flatten(2).sort().values, plain.flatten(2).sort().values), "pixels move, none changes"
    assert not torch.equal(first, second)
    assert torch.equal(images.viewed(numbers, "views", 0)[0], first)


def test_the_bank_is_made_of_the_images_that_come_next_normalised_by_their_batches(work):
    statistics = work.trainer.network[2].running_mean.clone()
    bank = work.bank(
        work.upcoming_embeddings(EncoderAlignmentOptions()),
        EncoderAlignmentOptions(),
        NEXT_TO_NO_NOISE,
        numpy_generator(1).bytes,
    )
    # Two batches of the order are left for iteration 5 and for its surplus; then the order begins again.
    assert work.images.numbers == [[2, 6], [4, 10], [3, 7], [0, 5]]
    assert torch.equal(work.trainer.network[2].running_mean, statistics)
    assert bank.shape == (2 * PACE * 2, FEATURES)
    # Of two samples, batch norm makes plus and minus one.
    torch.testing.assert_close(bank.abs(), torch.ones_like(bank), atol=1e-3, rtol=0)


def test_the_rows_of_a_bank_have_the_noise_of_the_bank_alone(work):
    training = EmbeddingNoiseOptions("absolute", 1.0, embedding_clip=100.0)
    old = work.trainer
    loud = replace(work, trainer=AlignmentTrainer(old.network, old.discriminator, {}, training))
    bank = loud.bank(
        loud.upcoming_embeddings(EncoderAlignmentOptions()),
        EncoderAlignmentOptions(),
        NEXT_TO_NO_NOISE,
        numpy_generator(1).bytes,
    )
    torch.testing.assert_close(bank.abs(), torch.ones_like(bank), atol=1e-3, rtol=0)


def test_a_bank_is_no_larger_than_it_may_be(work):
    options = EncoderAlignmentOptions(max_bank_size=3)
    bank = work.bank(work.upcoming_embeddings(options), options, NEXT_TO_NO_NOISE, numpy_generator(1).bytes)
    assert bank.shape == (3, FEATURES)
    assert work.images.numbers == [[2, 6]], "whole batches"


def test_too_few_images_are_refused_with_the_name_of_the_site(context):
    with pytest.raises(DataError, match="site-1 has 9 training images"):
        TrainingImages(context, np.arange(9), ITERATIONS, 2)


def test_an_order_has_each_image_once_unless_it_is_drawn_with_replacement():
    forgotten = np.zeros(200, np.bool_)
    assert len(set(draw_order(forgotten, CurriculumOptions(), numpy_generator(1)).tolist())) == 200
    drawn = draw_order(forgotten, CurriculumOptions(replacement=True), numpy_generator(1))
    assert len(set(drawn.tolist())) == pytest.approx(200 * (1 - np.exp(-1)), abs=15)


def test_a_seeded_noise_can_be_repeated_and_that_of_the_system_cannot():
    def drawn(source):
        return source.random_bytes(1, "noise")(16), tuple(source.normals(1, "noise")((4,)).tolist())

    seeded = NoiseSourceOptions(noise_source="seeded")
    assert drawn(seeded) == drawn(seeded)
    assert all(
        first != second for first, second in zip(drawn(NoiseSourceOptions()), drawn(NoiseSourceOptions()), strict=True)
    )


@pytest.mark.parametrize(("images", "size", "unused"), [(1022, 8, 62), (287, 2, 47), (596, 4, 116)])
def test_batches_of_the_papers_hospitals(images, size, unused):
    assert site_batch_size(images, 120) == size
    assert images - 120 * size == unused


@pytest.mark.parametrize(
    ("images", "minimum", "message"),
    [
        (
            119,
            1,
            "site-2 has 119 training images, which make no batch of 1 for each of 120 iterations; .* at most 119$",
        ),
        (
            239,
            2,
            "site-2 has 239 training images, which make no batch of 2 for each of 120 iterations; .* at most 119$",
        ),
        (1, 2, "site-2 has 1 training images and needs 2 for a batch; leave it out of the job"),
        (0, 1, "site-2 has 0 training images and needs 1 for a batch"),
    ],
)
def test_too_few_images_are_refused_with_a_remedy(images, minimum, message):
    with pytest.raises(DataError, match=message):
        site_batch_size(images, 120, minimum, "site-2")


def test_the_remedy_works_and_group_norm_takes_single_images():
    assert site_batch_size(239, 119) == 2
    assert site_batch_size(120, 120, minimum=1) == 1


@pytest.mark.parametrize(
    ("pace", "expected"), [(40, (40, 80, 120)), (50, (50, 100, 120)), (120, (120,)), (500, (120,)), (60, (60, 120))]
)
def test_communications_of_an_epoch(pace, expected):
    assert communications(120, pace) == expected


@given(iterations=st.integers(1, 60), pace=st.integers(1, 70))
def test_rounds_cover_every_iteration_once(iterations, pace):
    rounds = len(communications(iterations, pace))
    intervals = [interval_of_round(number, iterations, pace) for number in range(1, 2 * rounds + 1)]
    covered = [(s.epoch, iteration) for s in intervals for iteration in range(s.first, s.last + 1)]
    assert covered == [(epoch, iteration) for epoch in (1, 2) for iteration in range(1, iterations + 1)]
    assert [s.ends_epoch for s in intervals] == 2 * ([False] * (rounds - 1) + [True])


def test_alignment_starts_after_the_warm_up():
    assert [epoch for epoch in range(1, 9) if ScheduleOptions(warm_up=5).warmed_up(epoch)] == [6, 7, 8]
    assert ScheduleOptions(warm_up=0).warmed_up(1)
