"""Monte Carlo dropout: entropy of the mean prediction, and draws of the head that equal whole passes."""

import math

import pytest
import torch
from torch import nn

from grandrounds.errors import ConfigurationError
from grandrounds.methods.fedirm.uncertainty import certain, full_draws, head_draws, predictive_entropy
from grandrounds.models.registry import DropoutLinear, build_model
from grandrounds.models.split import head_of, split_network
from grandrounds.protocol.problem import ModelSpec
from grandrounds.protocol.tasks import SINGLE
from grandrounds.seeding import torch_generator


class Counting(nn.Module):
    """A backbone that counts its passes."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 6), norm, nn.ReLU())
        self.passes = 0

    def forward(self, images):
        self.passes += 1
        return self.layers(images)


class Scripted(nn.Dropout):
    """Dropout whose masks are given, one row for each sample that comes."""

    def __init__(self, masks: torch.Tensor) -> None:
        super().__init__(0.5)
        self.masks, self.used = masks, 0

    def forward(self, input):
        rows = self.masks[self.used : self.used + len(input)]
        self.used += len(input)
        return input * rows * 2


def small_network(probability=0.5):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return nn.Sequential(Counting(nn.BatchNorm1d(6)), DropoutLinear(nn.Linear(6, 3), probability))


def random(purpose, *shape):
    return torch.randn(*shape, generator=torch_generator(purpose))


def buffers(network):
    return {name: buffer.clone() for name, buffer in network.named_buffers()}


def equal(first, second):
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


@pytest.fixture(autouse=True)
def seeded_on_one_thread():
    """Threads that wait for each other on a busy machine take longer than one alone."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(11)
        yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("prediction", "entropy", "kept"),
    [
        ((0.9, 0.1, 0, 0, 0), 0.3251, True),
        ((0.85, 0.0375, 0.0375, 0.0375, 0.0375), 0.6307, True),
        ((0.8, 0.05, 0.05, 0.05, 0.05), 0.7777, False),
        ((0.5, 0.5, 0, 0, 0), 0.693147, False),
    ],
)
def test_the_filter_keeps_what_is_below_ln_2(prediction, entropy, kept, dtype):
    draws = torch.tensor([[prediction]], dtype=dtype)
    assert predictive_entropy(SINGLE, draws).item() == pytest.approx(entropy, abs=5e-5)
    assert certain(SINGLE, draws).tolist() == [kept]


def test_the_entropy_is_of_the_mean_probability_not_of_the_mean_logit():
    logits = torch.tensor([[[6.0, 0.0]], [[-1.0, 0.0]]])
    assert predictive_entropy(SINGLE, logits.softmax(dim=2)).item() == pytest.approx(0.657, abs=5e-4)
    assert predictive_entropy(SINGLE, logits.mean(dim=0, keepdim=True).softmax(dim=2)).item() == pytest.approx(
        0.269, abs=5e-4
    )


def test_each_sample_has_its_own_entropy():
    draws = torch.tensor([[[1.0, 0.0], [0.5, 0.5]], [[0.0, 1.0], [0.5, 0.5]], [[1.0, 0.0], [0.5, 0.5]]])
    expected = [-math.log(2 / 3) * 2 / 3 - math.log(1 / 3) / 3, math.log(2)]
    assert predictive_entropy(SINGLE, draws).tolist() == pytest.approx(expected)


def test_the_authors_threshold_keeps_even_what_is_wholly_unknown():
    unknown = torch.full((1, 1, 7), 1 / 7)
    assert predictive_entropy(SINGLE, unknown).item() == pytest.approx(1.946, abs=5e-4)
    assert certain(SINGLE, unknown, threshold=2.0).tolist() == [True]


@pytest.mark.parametrize("backbone", ["compact", "densenet121", "efficientnet_b0", "resnet18"])
def test_the_head_of_every_backbone_makes_draws_from_features(backbone):
    network = build_model(ModelSpec(backbone, classes=3, dropout=0.2), seed=1)
    encoder, head = split_network(network)
    features = encoder(torch.rand(2, 3, 64, 64)).detach()
    before, caught = buffers(network), features.clone()
    draws = head_draws(SINGLE, head, features, 3)
    assert draws.shape == (3, 2, 3)
    assert not draws.requires_grad
    assert not torch.equal(draws[0], draws[1])
    assert equal(buffers(network), before)
    assert torch.equal(features, caught)


def test_draws_of_the_head_are_those_of_whole_passes_with_the_same_masks():
    images, masks = random("images", 5, 4), (random("masks", 8 * 5, 6) > 0).float()
    whole, cheap = small_network(), small_network()
    features = cheap[0](images).detach()
    whole[1].dropout, cheap[1].dropout = Scripted(masks), Scripted(masks)
    with torch.no_grad():
        expected = torch.stack([whole(images).softmax(dim=1) for _ in range(8)])
    torch.testing.assert_close(head_draws(SINGLE, cheap[1], features, 8), expected)
    assert (whole[0].passes, cheap[0].passes) == (8, 1)
    assert int(cheap[0].layers[1].num_batches_tracked) == 1


def test_every_sample_of_every_draw_has_its_own_dropout_mask():
    head = DropoutLinear(nn.Linear(1, 2, bias=False), 0.25)
    with torch.no_grad():
        head.weight.copy_(torch.tensor([[3.0], [0.0]]))
    draws = head_draws(SINGLE, head, torch.ones(500, 1), 8)
    # A logit gap of 3 / 0.75 with probability 0.75, of 0 otherwise.
    kept = draws[:, :, 0] > 0.75
    torch.testing.assert_close(draws[:, :, 0], torch.where(kept, 1 / (1 + math.exp(-4)), 0.5))
    assert kept.float().mean().item() == pytest.approx(0.75, abs=0.02)
    assert all(kept[t].float().mean().item() == pytest.approx(0.75, abs=0.08) for t in range(8))
    assert len({tuple(column.tolist()) for column in kept.T}) > 60


def test_full_draws_are_plain_passes_but_only_the_first_counts_in_the_running_statistics():
    images, network, plain = random("images", 5, 4), small_network(), small_network()
    torch.manual_seed(5)
    logits = network(images)
    before = buffers(network)
    draws = full_draws(SINGLE, network, images, logits, 4)
    torch.manual_seed(5)
    with torch.no_grad():
        expected = torch.stack([plain(images).softmax(dim=1) for _ in range(4)])
    assert torch.equal(draws, expected)
    assert not draws.requires_grad
    assert network[0].passes == 4
    assert equal(buffers(network), before)
    assert not equal(buffers(plain), before)


def test_after_full_draws_running_statistics_are_kept_again_even_if_a_pass_fails():
    network = small_network()
    logits = network(random("images", 5, 4))
    with pytest.raises(RuntimeError):
        full_draws(SINGLE, network, random("images", 5, 3), logits)
    before = buffers(network)
    network(random("images", 5, 4))
    assert int(network[0].layers[1].num_batches_tracked) == 2
    assert not equal(buffers(network), before)


def test_batch_norm_that_keeps_no_statistics_stays_so():
    network = nn.Sequential(Counting(nn.BatchNorm1d(6, track_running_stats=False)), nn.Dropout(0.5), nn.Linear(6, 3))
    images = random("images", 5, 4)
    full_draws(SINGLE, network, images, network(images), 2)
    assert network[0].layers[1].track_running_stats is False


def test_a_single_full_draw_is_the_pass_that_was_made():
    network = small_network()
    logits = network(random("images", 5, 4))
    torch.testing.assert_close(
        full_draws(SINGLE, network, random("images", 5, 4), logits, 1)[0], logits.detach().softmax(1)
    )
    assert network[0].passes == 1


def test_dropout_in_densenets_layers_counts_as_dropout():
    network = build_model(ModelSpec("densenet121", classes=3, dropout=0.2, dropout_at="layers"), seed=1)
    images = torch.rand(2, 3, 64, 64)
    draws = full_draws(SINGLE, network, images, network(images), 2)
    assert not torch.equal(draws[0], draws[1])
    with pytest.raises(ConfigurationError, match="the head has no dropout, so that all draws would be equal"):
        head_draws(SINGLE, head_of(network), torch.zeros(2, 1024))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: head_draws(SINGLE, nn.Linear(2, 2), torch.ones(1, 2)),
            ConfigurationError,
            "set the model's dropout, or use",
        ),
        (
            lambda: head_draws(SINGLE, DropoutLinear(nn.Linear(2, 2), 0.0), torch.ones(1, 2)),
            ConfigurationError,
            "the head has no dropout",
        ),
        (
            lambda: head_draws(SINGLE, nn.Sequential(nn.BatchNorm1d(2), nn.Dropout(0.5)), torch.ones(2, 2)),
            ConfigurationError,
            "the head has a batch norm",
        ),
        (
            lambda: head_draws(SINGLE, DropoutLinear(nn.Linear(2, 2), 0.5).eval(), torch.ones(1, 2)),
            ValueError,
            "the head must be in training mode",
        ),
        (
            lambda: head_draws(SINGLE, DropoutLinear(nn.Linear(2, 2), 0.5), torch.ones(1, 2, 4, 4)),
            ValueError,
            r"features must have shape \(batch, features\), got \(1, 2, 4, 4\)",
        ),
        (
            lambda: full_draws(SINGLE, small_network(0.0), torch.ones(2, 4), torch.ones(2, 3)),
            ConfigurationError,
            "the network has no dropout, so that all draws would be equal: set the model's dropout",
        ),
        (
            lambda: full_draws(SINGLE, small_network().eval(), torch.ones(2, 4), torch.ones(2, 3)),
            ValueError,
            "the network must be in training mode",
        ),
    ],
)
def test_refuses_what_cannot_be_drawn(call, error, message):
    with pytest.raises(error, match=message):
        call()
