"""The server refuses numbers that no images can have, and models that it has not asked for."""

import re

import pytest
import torch

from grandrounds.errors import MessageError
from grandrounds.federation.server.dispatcher import released_model, require_possible_numbers, require_possible_scores
from grandrounds.protocol.messages import Release, ReleaseKind, Result


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("validation.n", -1.0, r"^validation\.n must be in \[0, 1e\+09\], got -1$"),
        ("common.n", -0.5, r"^common\.n must be in \[0, 1e\+09\], got -0\.5$"),
        ("own.n", 1e12, r"^own\.n must be in \[0, 1e\+09\], got 1e\+12$"),
        ("validation.unit", 9.0, r"^validation\.unit must be in \[0, 2\], got 9$"),
        ("own.unit", 0.5, r"^own\.unit must be in \[0, 2\], got 0\.5$"),
        ("own.unit", -1.0, r"^own\.unit must be in \[0, 2\], got -1$"),
    ],
)
def test_an_impossible_number_is_refused_with_the_metrics_name(name, value, message):
    with pytest.raises(MessageError, match=message):
        require_possible_numbers({"validation.accuracy": 0.5, name: value})


def test_possible_numbers_and_other_negative_metrics_pass():
    assert require_possible_numbers({"a.n": 0.0, "a.unit": 2.0, "a.log_likelihood": -3.0}) is None


@pytest.mark.parametrize("prefix", ["common", "own", "validation", "test"])
@pytest.mark.parametrize(
    ("score", "value", "message"),
    [
        ("accuracy", 37.0, "is at most 1, got 37"),
        ("recall_weighted", -5.0, "is at least 0, got -5"),
        ("auc_macro", -1e-3, "is at least 0, got -0.001"),
        ("log_likelihood", 37.0, "is at most 0, got 37"),
        ("log_likelihood", -1e12, "is at least -36.0437, got -1e+12"),
        ("log_loss", -0.1, "is at least 0, got -0.1"),
        ("log_loss", 1e12, "is at most 36.0437, got 1e+12"),
        ("log_loss.3", -1e12, "is at least 0, got -1e+12"),
    ],
)
def test_a_score_beyond_either_end_is_refused_in_every_answer(prefix, score, value, message):
    with pytest.raises(MessageError, match=f"^{re.escape(f'{prefix}.{score} {message}')}$"):
        require_possible_scores({f"{prefix}.f1_macro": 0.5, f"{prefix}.{score}": value})


def test_perfect_and_worst_scores_and_numbers_that_are_no_scores_pass():
    scores = {"a.accuracy": 1.0000001, "a.f1_macro": 0.0, "a.log_loss": 16.0, "a.log_loss.3": 1e3, "loss": -7.0}
    assert require_possible_scores({**scores, "own.round": 12.0, "validation.own_metric": -3.0}) is None


@pytest.mark.parametrize(
    ("name", "kind", "asked", "taken"),
    [
        ("site_model", ReleaseKind.SITE_MODEL, True, True),
        ("site_model", ReleaseKind.SITE_MODEL, False, False),
        ("site_model", ReleaseKind.EMBEDDINGS, True, False),
        ("other", ReleaseKind.SITE_MODEL, True, False),
    ],
)
def test_a_sites_model_is_taken_where_it_was_asked_for_and_under_its_own_name_and_kind(name, kind, asked, taken):
    result = Result({name: Release(kind, {"w": torch.zeros(2)})})
    if taken:
        assert released_model(result, asked).keys() == {"w"}
    else:
        with pytest.raises(MessageError, match=f"^{name} of kind {kind}: .* executor.release_model=true"):
            released_model(result, asked)
    assert released_model(Result({"update": Release(ReleaseKind.MODEL_UPDATE, {})}), asked) is None
