"""How the server describes the sites' last models, and compares them."""

import math

import pytest
import torch
from sklearn.metrics.pairwise import cosine_similarity
from sklearn.preprocessing import minmax_scale

from grandrounds.methods.fedperl.similarity_tracker import SimilarityTracker
from grandrounds.seeding import torch_generator

A = {"W1": torch.tensor([1.0, 3.0]), "W2": torch.tensor([2.0, 2.0, 5.0])}
B = {"W1": torch.tensor([0.0, 4.0]), "W2": torch.tensor([1.0, 1.0, 4.0])}


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


def moments(state):
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
    features = torch.tensor([moments(states[site]) for site in models.sites]).numpy()
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
def test_what_survives_a_restart_makes_the_same_descriptions(with_validation):
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
