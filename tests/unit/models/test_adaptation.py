"""Statistics of a site's images, compared with moments computed by hand from what the published network passes on."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from grandrounds.errors import ConfigurationError, DataError
from grandrounds.evaluation.prediction import predict, tensors_of
from grandrounds.models.adaptation import MAX_IMAGES, site_statistics
from grandrounds.models.norm import folded_copy
from grandrounds.models.norm_layers import FrozenBatchNorm, use_statistics, used_statistics
from grandrounds.models.partial import frozen_digest
from grandrounds.models.registry import build_model
from grandrounds.models.split import split_network
from grandrounds.models.trained import load_trained
from grandrounds.protocol.problem import MIN_STATISTICS_IMAGES, ModelSpec

FIRST = "blocks.2.residual.1"


@pytest.fixture
def spec(tmp_path):
    """A compact network with the "published" weights of another seed, whose last block is trained."""
    torch.save(build_model(ModelSpec("compact", classes=3), seed=7).state_dict(), tmp_path / "published.pt")
    weights = str(tmp_path / "published.pt")
    return ModelSpec("compact", classes=3, weights=weights, intensities="scaled", trainable="from:2", norm="site")


def drawn(count: int, seed: int = 0, brightness: float = 1.0) -> np.ndarray:
    noise = np.random.default_rng(seed).integers(0, 256, (count, 32, 32, 3))
    return (noise * brightness).astype(np.uint8)


def test_the_first_trained_norm_gets_the_moments_of_what_comes_in(spec):
    images = drawn(48)
    network = build_model(spec, seed=1).eval()
    assert isinstance(network.get_submodule(FIRST), FrozenBatchNorm)
    seen = []
    network.get_submodule(FIRST).register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    with torch.no_grad():
        network(tensors_of(images)(np.arange(48)))
    values = seen[0].double().numpy().transpose(1, 0, 2, 3).reshape(seen[0].shape[1], -1)
    found = site_statistics(spec, 1, images, np.arange(len(images)))
    np.testing.assert_allclose(found[f"{FIRST}.running_mean"], values.mean(axis=1), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(found[f"{FIRST}.running_var"], values.var(axis=1, ddof=1), rtol=1e-4)
    assert found.keys() == used_statistics(network).keys()


def test_statistics_are_used_in_training_and_evaluation_and_are_in_no_state(spec):
    network = build_model(spec, seed=1)
    digest, state = frozen_digest(network), network.state_dict()
    published = {name: value.clone() for name, value in used_statistics(network).items()}
    before = network(tensors_of(drawn(8))(np.arange(8)))
    own = site_statistics(spec, 1, drawn(48, brightness=0.5), np.arange(48))
    use_statistics(network, own)
    for mode in (True, False):
        assert not torch.allclose(network.train(mode)(tensors_of(drawn(8))(np.arange(8))), before, atol=1e-3)
    assert all(torch.equal(value, own[name]) for name, value in used_statistics(network).items())
    assert not any(torch.equal(value, own[name]) for name, value in published.items())
    assert (network.state_dict().keys(), frozen_digest(network)) == (state.keys(), digest)


def test_at_most_so_many_of_the_rows_count_evenly_spaced(spec):
    images, rows = drawn(2 * MAX_IMAGES), np.arange(1, 2 * MAX_IMAGES)
    expected = site_statistics(spec, 1, images, rows[::2])
    found = site_statistics(spec, 1, images, rows)
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_a_trained_model_is_whole_for_the_images_of_a_site(spec, tmp_path):
    images = drawn(48, brightness=0.6)
    network = build_model(spec, seed=1)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(1.1)
    torch.save(network.state_dict(), tmp_path / "trained.pt")
    use_statistics(network, site_statistics(spec, 1, images, np.arange(len(images))))
    rows = np.arange(48)
    whole = load_trained(spec, tmp_path / "trained.pt", 1, (images, rows))
    assert any(isinstance(module, nn.BatchNorm2d) for module in whole.modules())
    torch.testing.assert_close(
        predict(whole, tensors_of(images), rows).risks,
        predict(network, tensors_of(images), rows).risks,
        rtol=1e-4,
        atol=1e-5,
    )
    with pytest.raises(ConfigurationError, match=r"trained\.pt has no statistics of batch norm: .*common\.pt"):
        load_trained(spec, tmp_path / "trained.pt", 1)
    with pytest.raises(DataError, match=r"trained\.pt .*it needs at least 16 of one device, got 15$"):
        load_trained(spec, tmp_path / "trained.pt", 1, (images, rows[: MIN_STATISTICS_IMAGES - 1]))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"weights": None}, "problem.norm=site needs batch norms with trained weights: set problem.weights"),
        ({"trainable": "head"}, "problem.norm=site is for batch norms in trained layers, and problem.trainable=head"),
    ],
)
def test_there_must_be_norms_to_adapt(changed, message):
    with pytest.raises(ConfigurationError, match=message):
        ModelSpec("compact", **{"classes": 3, "weights": "imagenet", "norm": "site", **changed})


def test_a_network_without_batch_norm_is_refused(tmp_path):
    torch.save(build_model(ModelSpec("resnet9", classes=3), seed=7).state_dict(), tmp_path / "published.pt")
    weights = str(tmp_path / "published.pt")
    with pytest.raises(ConfigurationError, match=r"problem\.norm=site: no trained layer of resnet9 has batch norm"):
        build_model(ModelSpec("resnet9", classes=3, weights=weights, intensities="scaled", norm="site"), seed=1)


def test_copies_that_predict_keep_the_statistics(spec):
    network = build_model(spec, seed=1).eval()
    use_statistics(network, site_statistics(spec, 1, drawn(48, brightness=0.5), np.arange(48)))
    batch = tensors_of(drawn(8))(np.arange(8))
    encoder, head = split_network(network)
    for other in (copy.deepcopy(network), folded_copy(network), lambda images: head(encoder(images))):
        torch.testing.assert_close(other(batch), network(batch))
