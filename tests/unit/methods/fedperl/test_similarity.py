"""Models are described by the moments of their layers and compared by the cosine."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from sklearn.metrics.pairwise import cosine_similarity
from sklearn.preprocessing import minmax_scale

from grandrounds.methods.fedperl.peer_selection import (
    SimilarityTracker,
    cosine_similarity_matrix,
    layer_moments,
    normalise_features,
    similar_peers,
    similarity_matrix,
)
from grandrounds.seeding import torch_generator

A = {"W1": torch.tensor([1.0, 3.0]), "W2": torch.tensor([2.0, 2.0, 5.0])}
B = {"W1": torch.tensor([0.0, 4.0]), "W2": torch.tensor([1.0, 1.0, 4.0])}
FOUR = torch.tensor([[9.0, 2.0, 1.0], [12.0, 1.0, 2.0], [10.0, 4.0, 1.0], [9.0, 4.0, 1.0]])
NAMES = ["X0", "X1", "X2", "X3"]
FEATURES = arrays.arrays(
    np.float64, st.tuples(st.integers(1, 6), st.integers(1, 5)), elements=st.integers(-50, 50).map(float)
)


def moments(state):
    return layer_moments(state, "parameters_and_buffers")


def small_network():
    layers = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.Linear(4, 1))
    generator = torch_generator("small network")
    for parameter in layers.parameters():
        torch.nn.init.normal_(parameter, generator=generator)
    return layers


def test_moments_and_cosine_match_the_hand_computed_models():
    features = torch.stack([moments(A), moments(B)])
    root = math.sqrt
    expected = torch.tensor([[2, root(2), 3, root(3)], [2, 2 * root(2), 2, root(3)]], dtype=torch.float64)
    torch.testing.assert_close(features, expected)
    cosine = similarity_matrix(features, "none")[0, 1].item()
    assert cosine == pytest.approx(17 / math.sqrt(342))
    assert cosine == pytest.approx(0.919255, abs=5e-7)
    assert cosine != pytest.approx(0.935414, abs=5e-3)  # what the population deviation would give


def test_min_max_over_the_two_models_gives_two_thirds():
    features = torch.stack([moments(A), moments(B)])
    assert normalise_features(features, "minmax").tolist() == [[1, 0, 1, 1], [1, 1, 0, 1]]
    assert similarity_matrix(features, "minmax")[0, 1].item() == pytest.approx(2 / 3)


def test_normalisation_turns_the_ranking_round():
    raw = similarity_matrix(FOUR, "none")
    assert raw[0, 1:].tolist() == pytest.approx([0.98941, 0.98695, 0.98035], abs=5e-6)
    assert similar_peers("X0", NAMES, raw, top=2) == ["X1", "X2"]
    assert similar_peers("X0", NAMES, similarity_matrix(FOUR, "minmax"), top=2) == ["X3", "X2"]
    assert (raw[0] >= 0.95).all()  # so a gate on raw cosines keeps everyone


def test_min_max_of_the_four_models_matches_the_hand_computed_rows():
    scaled = normalise_features(FOUR, "minmax")
    third = 1 / 3
    expected = torch.tensor([[0, third, 0], [1, 0, 1], [third, 1, 0], [0, 1, 0]], dtype=torch.float64)
    torch.testing.assert_close(scaled, expected)
    cosines = similarity_matrix(FOUR, "minmax")
    assert cosines[0].tolist() == pytest.approx([1, 0, 3 / math.sqrt(10), 1])
    picks = dict(zip(NAMES, cosines[0].tolist(), strict=True))
    assert [name for name in ("X3", "X2") if picks[name] >= 0.95] == ["X3"]
    assert [name for name in ("X3", "X2") if picks[name] >= 0.85] == ["X3", "X2"]


def test_a_row_of_zeros_has_cosine_zero_not_nan():
    # The first model is the least in both features.
    cosines = similarity_matrix(torch.tensor([[1.0, 1.0], [2.0, 1.5], [1.5, 2.0]]), "minmax")
    assert cosines[0].tolist() == [0, 0, 0]
    assert cosines[:, 0].tolist() == [0, 0, 0]


@pytest.mark.parametrize(("features", "entries"), [("parameters_and_buffers", 8), ("parameters", 6), ("weights", 2)])
def test_selects_the_entries_that_count_as_layers(features, entries):
    network = small_network()
    names = [name for name, _ in network.named_parameters()]
    assert layer_moments(network.state_dict(), features, names).shape == (2 * entries,)


def test_moments_keep_the_order_of_the_state_and_agree_with_numpy():
    state = small_network().state_dict()
    layers = [value.numpy().astype(np.float64) for name, value in state.items() if "tracked" not in name]
    expected = [moment for value in layers for moment in (value.mean(), value.std(ddof=1) if value.size > 1 else 0.0)]
    np.testing.assert_allclose(moments(state).numpy(), expected, rtol=1e-12, atol=1e-15)


def test_counters_are_left_out_even_as_floating_point():
    state = A | {"steps": torch.tensor([3]), "mask": torch.tensor([True]), "bn.num_batches_tracked": torch.tensor(7.0)}
    assert torch.equal(moments(state), moments(A))


def test_small_spread_on_a_large_mean_survives():
    # In single precision, and in one pass, the deviation of 1e-3 around 1e4 is lost.
    values = torch.tensor([1e4 - 1e-3, 1e4 + 1e-3], dtype=torch.float64)
    assert moments({"w": values})[1].item() == pytest.approx(1e-3 * math.sqrt(2), rel=1e-6)


@pytest.mark.parametrize(
    ("state", "features", "message"),
    [
        ({"n": torch.tensor([1])}, "parameters_and_buffers", "no entry that counts as a layer"),
        (A, "parameters", "no entry that counts as a layer under features = parameters"),
        (A | {"W3": torch.tensor([1.0, math.inf])}, "parameters_and_buffers", "W3 is empty or has a value that is not"),
        (A | {"W3": torch.zeros(0)}, "parameters_and_buffers", "W3 is empty or has a value that is not finite"),
    ],
)
def test_refuses_a_state_that_has_no_moments(state, features, message):
    with pytest.raises(ValueError, match=message):
        layer_moments(state, features)


@given(features=FEATURES)
def test_min_max_agrees_with_scikit_learn_where_features_vary(features):
    scaled = normalise_features(torch.from_numpy(features), "minmax").numpy()
    varies = features.max(axis=0) > features.min(axis=0)
    np.testing.assert_allclose(scaled[:, varies], minmax_scale(features)[:, varies], atol=1e-12)
    assert (scaled[:, ~varies] == 1).all()


@given(features=FEATURES)
def test_cosines_agree_with_scikit_learn_and_are_symmetric_with_ones(features):
    cosines = cosine_similarity_matrix(torch.from_numpy(features)).numpy()
    np.testing.assert_allclose(cosines, cosine_similarity(features), atol=1e-12)
    assert (cosines == cosines.T).all()
    assert (np.diag(cosines) == features.any(axis=1)).all()
    assert (np.abs(cosines) <= 1).all()


@pytest.mark.parametrize("seed", range(5))
def test_equal_models_tie_exactly_and_the_order_of_rows_does_not_matter(seed):
    generator = torch_generator("ties", seed)
    features = torch.randn(37, 624, generator=generator, dtype=torch.float64)
    features[[3, 17, 36]] = features[8].clone()
    cosines = cosine_similarity_matrix(features)
    assert all(torch.equal(cosines[:, 8], cosines[:, row]) for row in (3, 17, 36))
    assert cosines[3, 17] == 1.0
    order = torch.randperm(37, generator=generator)
    assert torch.equal(cosine_similarity_matrix(features[order]), cosines[order][:, order])


def test_models_in_one_direction_do_not_exceed_one():
    base = torch.randn(1, 624, generator=torch_generator("direction"), dtype=torch.float64)
    cosines = cosine_similarity_matrix(base * torch.arange(-9.0, 10.0).reshape(-1, 1))
    assert cosines.max().item() == 1.0
    assert cosines.min().item() == -1.0


def test_single_precision_features_are_compared_in_double():
    close = torch.tensor([[1.0, 1.0], [1.0, 1.0 + 2**-20]])
    assert cosine_similarity_matrix(close)[0, 1].item() == pytest.approx(1 - 2**-43, abs=2e-14)
    assert cosine_similarity_matrix(close)[0, 1].item() < 1.0


def test_before_any_model_is_known_the_matrix_is_empty():
    assert similarity_matrix(torch.zeros(0, 6), "minmax").shape == (0, 0)


def random_state(number):
    generator = torch_generator("trained", number)
    return {"w": torch.randn(4, 3, generator=generator), "b": torch.randn(4, generator=generator)}


def trained(states, features="parameters_and_buffers", scaling="minmax", **options):
    models = SimilarityTracker(features, scaling, **options)
    describe_all(models, states)
    return models


def describe_all(models, states):
    for site, state in states.items():
        models.describe(site, state)
    models.compare()


def moments_by_hand(state):
    return [value for entry in state.values() for value in (entry.double().mean(), entry.double().std())]


def test_before_anybody_has_trained_there_is_nothing_to_compare():
    models = trained({})
    assert models.sites == []
    assert models.similarity.shape == (0, 0)
    assert models.raw_cosines() is None
    assert trained({"site-1": A}).raw_cosines() is None


def test_similarity_is_of_scaled_features_and_the_raw_cosines_are_not():
    models = trained({"site-1": A, "site-2": B})
    assert models.similarities_of("site-1") == {"site-2": pytest.approx(2 / 3)}
    assert models.raw_cosines() == pytest.approx((0.919255, 0.919255), abs=5e-7)
    unscaled = trained({"site-1": A, "site-2": B}, scaling="none")
    assert unscaled.similarities_of("site-2") == {"site-1": pytest.approx(17 / math.sqrt(342))}


def test_rows_are_in_natural_order_and_agree_with_scikit_learn():
    states = {f"site-{number}": random_state(number) for number in (10, 2, 1, 3)}
    models = trained(states)
    assert models.sites == ["site-1", "site-2", "site-3", "site-10"]
    features = torch.tensor([moments_by_hand(states[site]) for site in models.sites]).numpy()
    expected = cosine_similarity(minmax_scale(features.astype("float64")))
    assert models.similarity.numpy() == pytest.approx(expected, abs=1e-5)
    row = models.similarities_of("site-10")
    assert list(row) == ["site-1", "site-2", "site-3"]
    assert list(row.values()) == pytest.approx(expected[3, :3], abs=1e-5)
    raw = cosine_similarity(features)[~torch.eye(4, dtype=torch.bool).numpy()]
    assert models.raw_cosines() == pytest.approx((raw.min(), raw.max()), abs=1e-5)


def test_a_models_successor_takes_the_place_of_its_description():
    models = trained({"site-1": A, "site-2": B})
    models.describe("site-2", A)
    assert models.similarities_of("site-1")["site-2"] == pytest.approx(2 / 3), "until they are compared again"
    models.compare()
    assert models.similarities_of("site-1") == {"site-2": 1.0}


def test_only_the_named_parameters_describe_a_model_if_asked_for():
    # W2 alone: (3, 1.7321) against (2, 1.7321).
    models = trained({"site-1": A, "site-2": B}, "parameters", "none", parameters=frozenset({"W2"}))
    assert models.similarities_of("site-1")["site-2"] == pytest.approx(9 / math.sqrt(12 * 7))


def test_scores_on_validation_images_are_two_features_more():
    models = SimilarityTracker("parameters_and_buffers", "none", with_validation=True)
    models.validation = {"site-1": torch.tensor([0.5, 1.0]), "site-2": torch.tensor([1.0, 2.0])}
    describe_all(models, {"site-1": A, "site-2": B})
    # 17 + 0.5 * 1 + 1 * 2 = 19.5; squared norms 18 + 1.25 and 19 + 5.
    assert models.similarities_of("site-1")["site-2"] == pytest.approx(19.5 / math.sqrt(19.25 * 24))
    assert models.accuracy() == {"site-1": 0.5, "site-2": 1.0}


def test_scores_that_are_kept_for_a_policy_only_are_no_features():
    models = trained({"site-1": A, "site-2": B}, scaling="none")
    models.validation = {"site-1": torch.tensor([0.5, 1.0]), "site-2": torch.tensor([1.0, 2.0])}
    models.compare()
    assert models.similarities_of("site-1")["site-2"] == pytest.approx(17 / math.sqrt(342))


@pytest.mark.parametrize("with_validation", [False, True])
def test_a_restored_state_gives_the_same_descriptions(with_validation):
    models = SimilarityTracker("parameters_and_buffers", "minmax", with_validation=with_validation)
    models.validation = {f"site-{number}": torch.tensor([0.1 * number, 1.0]) for number in range(3)}
    models.embeddings = {"site-0": torch.tensor([1.0, 2.0])}
    states = {f"site-{number}": random_state(number) for number in range(3)}
    describe_all(models, states)
    restored = SimilarityTracker("parameters_and_buffers", "minmax", with_validation=with_validation)
    restored.load_state_dict(models.state_dict())
    describe_all(restored, states)
    assert torch.equal(restored.similarity, models.similarity)
    assert restored.accuracy() == models.accuracy()
    assert restored.embeddings.keys() == models.embeddings.keys()
    restored.validation.clear()
    assert models.validation, "a copy"
