"""A pass that leaves the running statistics alone is otherwise the same pass."""

import pytest
import torch
from torch import nn

from grandrounds.models.norm import normalises_by_batch, statistics_untouched
from grandrounds.models.registry import build_model
from grandrounds.protocol.problem import ModelSpec
from grandrounds.seeding import torch_generator

BATCH = torch.randn(4, 3, 32, 32, generator=torch_generator("images"))


def test_outputs_are_the_same_and_no_entry_of_the_state_changes():
    network = build_model(ModelSpec("compact", 2), seed=1)
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    with statistics_untouched(network):
        quiet = network(BATCH)
    assert all(torch.equal(tensor, before[name]) for name, tensor in network.state_dict().items())
    assert torch.equal(network(BATCH), quiet)
    assert not torch.equal(network.stem[1].running_mean, before["stem.1.running_mean"])


def test_statistics_are_noted_again_after_an_error():
    norm = nn.BatchNorm1d(2)
    with pytest.raises(ValueError, match="more than 1 value"), statistics_untouched(norm):
        norm(torch.zeros(1, 2))
    norm(torch.ones(2, 2))
    assert int(norm.num_batches_tracked) == 1
    assert norm.running_mean.tolist() == pytest.approx([0.1, 0.1])


def test_a_norm_that_never_notes_statistics_does_not_start_to():
    norm = nn.BatchNorm1d(2, track_running_stats=False)
    with statistics_untouched(norm):
        pass
    assert not norm.track_running_stats


@pytest.mark.parametrize(("norm", "expected"), [("batch", True), ("group", False)])
def test_networks_that_normalise_by_the_batch_are_known(norm, expected):
    assert normalises_by_batch(build_model(ModelSpec("compact", 2, norm=norm), seed=1)) is expected
