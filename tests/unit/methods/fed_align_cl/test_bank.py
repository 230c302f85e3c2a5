"""What leaves as embeddings is clipped, noisy, shuffled and of one size; what comes is checked."""

import numpy as np
import pytest
import torch

from grandrounds.errors import GrandRoundsError, MessageError
from grandrounds.methods.fed_align_cl.bank import bank_size, draw_rows, make_bank, require_bank, upcoming_rows
from grandrounds.methods.fed_align_cl.noise import (
    embedding_deviation,
    noisy_embeddings,
    noisy_weights,
)
from grandrounds.methods.fed_align_cl.options import EmbeddingNoiseOptions, NoiseSourceOptions, WeightNoiseOptions
from grandrounds.privacy.mechanisms.gaussian import clip_rows
from grandrounds.seeding import numpy_generator, torch_generator


def seeded(*purpose):
    return numpy_generator(*purpose).bytes


def embeddings(samples: int = 6, width: int = 256) -> torch.Tensor:
    return torch.randn(samples, width, generator=torch_generator("embeddings"))


QUIET = EmbeddingNoiseOptions("clipped", embedding_noise_level=1e-6, embedding_clip=4.0)


def test_sizes_of_banks():
    assert [bank_size(40, size) for size in (8, 2, 4)] == [256, 160, 256]
    assert bank_size(10, 1) == 20


def test_a_bank_holds_every_embedding_clipped_and_in_another_order():
    sent = embeddings(64)
    bank = make_bank(sent, 64, QUIET, seeded("noise"))
    clipped = clip_rows(sent, 4.0)
    nearest = torch.cdist(bank, clipped).argmin(dim=1)
    assert sorted(nearest.tolist()) == list(range(64))
    assert nearest.tolist() != list(range(64))
    torch.testing.assert_close(bank, clipped[nearest], atol=1e-4, rtol=0)
    assert (bank.dtype, bank.shape, bank.requires_grad) == (torch.float32, (64, 256), False)


def test_too_few_embeddings_are_repeated_with_the_noise_they_have():
    bank = make_bank(embeddings(3), 8, EmbeddingNoiseOptions("absolute", 0.1), seeded("noise"))
    distinct, counts = torch.unique(bank, dim=0, return_counts=True)
    assert (len(distinct), sorted(counts.tolist())) == (3, [2, 3, 3])


def test_distinct_rows_make_a_smaller_bank():
    noise = EmbeddingNoiseOptions("absolute", 0.1)
    bank = make_bank(embeddings(3), 8, noise, seeded("noise"), "distinct")
    assert len(torch.unique(bank, dim=0)) == len(bank) == 3
    assert len(make_bank(embeddings(9), 8, noise, seeded("noise"), "distinct")) == 8


def test_no_clean_embedding_leaves_in_any_mode():
    for mode in ("relative", "absolute", "clipped"):
        sent = embeddings()
        noisy = noisy_embeddings(sent, EmbeddingNoiseOptions(mode, 0.001, embedding_clip=100.0))
        # The noise is drawn by the site alone: an entry that stays equal has a probability of about one in a million.
        assert float((noisy == sent).float().mean()) < 0.01
        assert not torch.equal(noisy, noisy_embeddings(sent, EmbeddingNoiseOptions(mode, 0.001, embedding_clip=100.0)))


def test_equal_embeddings_of_a_dead_encoder_do_not_leave_bare():
    for value in (0.0, 0.5):
        noisy = noisy_embeddings(torch.full((4, 16), value), EmbeddingNoiseOptions(embedding_clip=8.0), seeded("noise"))
        assert float((noisy - value).std()) == pytest.approx(0.001 * 8 / 4, rel=0.4)


@pytest.mark.parametrize(("mode", "expected"), [("relative", 0.002), ("absolute", 0.031623), ("clipped", 0.1)])
def test_the_deviation_of_the_noise(mode, expected):
    spread = torch.tensor([[2.0, -2.0], [-2.0, 2.0]])
    options = EmbeddingNoiseOptions(mode, 0.001, embedding_clip=100.0)
    assert embedding_deviation(spread, options, 100.0) == pytest.approx(expected, rel=1e-4)
    big = spread.repeat(200, 250)
    noise = noisy_embeddings(big, EmbeddingNoiseOptions(mode, 0.001, embedding_clip=1000.0), seeded("noise")) - big
    expected *= 10 if mode == "clipped" else 1
    assert float(noise.double().std()) == pytest.approx(expected, rel=0.01)


def test_the_gradient_goes_through_clipping_and_not_through_the_noise():
    sent = embeddings(2, 3).double().requires_grad_()
    noisy_embeddings(sent, EmbeddingNoiseOptions("absolute", 0.1, embedding_clip=50.0), seeded("n")).sum().backward()
    torch.testing.assert_close(sent.grad, torch.ones_like(sent))
    zero = torch.zeros(1, 3, requires_grad=True)
    noisy_embeddings(zero, EmbeddingNoiseOptions("absolute", 0.1), seeded("n")).sum().backward()
    assert zero.grad.tolist() == [[1, 1, 1]]
    long = torch.tensor([[30.0, 40.0]], dtype=torch.float64, requires_grad=True)
    noisy_embeddings(long, EmbeddingNoiseOptions("absolute", 0.1, embedding_clip=1.0), seeded("n"))[0, 0].backward()
    # d/dx of x/|x| is y^2 / |x|^3, of y -xy / |x|^3.
    torch.testing.assert_close(long.grad, torch.tensor([[0.0128, -0.0096]], dtype=torch.float64))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_embeddings_of_diverged_training_do_not_leave(value):
    with pytest.raises(GrandRoundsError, match="an embedding is not finite"):
        make_bank(torch.full((2, 3), value), 2, EmbeddingNoiseOptions())


@pytest.mark.parametrize(
    ("bank", "message"),
    [
        (torch.zeros(4, 512), r"bank of site-2: expected torch.float32 of shape \(4, 256\), got .* \(4, 512\); do all"),
        (torch.zeros(3, 256), r"got torch.float32 of shape \(3, 256\)"),
        (torch.zeros(4, 256, dtype=torch.float64), "got torch.float64"),
        (torch.full((4, 256), float("nan")), "bank of site-2 has a value that is NaN or infinite"),
    ],
)
def test_a_bank_that_is_not_as_agreed_is_refused(bank, message):
    require_bank(torch.zeros(4, 256), 4, 256, "bank of site-2")
    with pytest.raises(MessageError, match=message):
        require_bank(bank, 4, 256, "bank of site-2")


def test_batches_of_a_bank_repeat_no_row_unless_they_must():
    bank = torch.arange(10.0)[:, None]
    assert len(draw_rows(bank, 10, numpy_generator(1)).unique()) == 10
    assert len(draw_rows(bank, 15, numpy_generator(1))) == 15


def test_the_next_images_wrap_around():
    assert upcoming_rows(np.arange(5), 3, 4).tolist() == [3, 4, 0, 1]
    assert upcoming_rows(np.arange(5), 0, 9).tolist() == [0, 1, 2, 3, 4]


def test_noise_on_weights_has_its_size_and_spares_variances_and_counters():
    generator, seeded = torch_generator("weights"), NoiseSourceOptions("seeded").normals
    weights = {
        "w": 2 * torch.randn(1_000_000, generator=generator),
        "constant": torch.ones(5),
        "bn.running_var": torch.full((3,), 1e-6),
        "bn.num_batches_tracked": torch.tensor(7),
    }
    relative = noisy_weights(weights, WeightNoiseOptions(), seeded("noise"))
    assert float((relative["w"].double() - weights["w"]).std()) == pytest.approx(0.002, rel=0.01)
    assert torch.equal(relative["constant"], weights["constant"])
    absolute = noisy_weights(weights, WeightNoiseOptions("absolute"), seeded("noise"))
    assert float((absolute["w"].double() - weights["w"]).std()) == pytest.approx(0.031623, rel=0.01)
    three = [noisy_weights({"w": torch.zeros(1_000_000)}, WeightNoiseOptions("absolute"), seeded(n)) for n in "abc"]
    assert float(sum(state["w"] for state in three).div(3).std()) == pytest.approx(0.018257, rel=0.01)
    for noisy in (relative, absolute, noisy_weights(weights, WeightNoiseOptions("none"), seeded("noise"))):
        assert torch.equal(noisy["bn.running_var"], weights["bn.running_var"])
        assert torch.equal(noisy["bn.num_batches_tracked"], weights["bn.num_batches_tracked"])
    assert torch.equal(noisy["w"], weights["w"])
