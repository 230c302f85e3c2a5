"""Clip and noise are one step; what it is not made for does not pass."""

import math

import numpy as np
import pytest
import torch

from grandrounds.errors import ConfigurationError
from grandrounds.privacy.mechanisms.clipping import NormPolicy
from grandrounds.privacy.mechanisms.gaussian import MODEL_UPDATE, SOFT_LABELS, GaussianMechanism
from grandrounds.protocol.messages import ReleaseKind
from grandrounds.protocol.spending import Unit

COUNT = 200_000
WIDE = 7.0


def update() -> dict[str, torch.Tensor]:
    return {"w": torch.full((COUNT,), 3.0), "b": torch.full((4,), -2.0), "steps": torch.tensor(9)}


def test_the_release_is_the_clipped_update_with_noise_on_every_entry():
    released = GaussianMechanism(clip=2.0, sigma=0.5).release(update(), MODEL_UPDATE)
    norm = math.sqrt(COUNT * 9 + 16)
    noise = (released["w"].double() - 3.0 * 2.0 / norm).numpy()
    assert abs(noise.std() / 0.5 - 1) < WIDE / math.sqrt(2 * COUNT)
    assert abs(noise.mean()) < WIDE * 0.5 / math.sqrt(COUNT)
    assert (released["b"] != -2.0 * 2.0 / norm).all()


def test_with_next_to_no_noise_the_norm_is_the_clip_to_a_millionth():
    released = GaussianMechanism(clip=2.0, sigma=1e-12).release(update(), MODEL_UPDATE)
    flat = np.concatenate([released[name].double().numpy() for name in ("w", "b")])
    assert np.linalg.norm(flat) == pytest.approx(2.0, rel=1e-6)


def test_integers_stay_and_dtypes_stay():
    before = update() | {"half": torch.ones(3, dtype=torch.float16)}
    released = GaussianMechanism(clip=1.0, sigma=1.0).release(before, MODEL_UPDATE)
    assert torch.equal(released["steps"], torch.tensor(9))
    assert {name: value.dtype for name, value in released.items()} == {name: v.dtype for name, v in before.items()}


def test_noise_of_two_rounds_is_independent():
    mechanism = GaussianMechanism(clip=1.0, sigma=1.0)
    first, second = (mechanism.release(update(), MODEL_UPDATE)["w"].numpy() for _ in range(2))
    assert abs(np.corrcoef(first, second)[0, 1]) < WIDE / math.sqrt(COUNT)


def test_silenced_entries_are_zero_and_do_not_use_up_the_clip():
    before = {
        "conv.weight": torch.tensor([3.0, 4.0]),
        "bn.running_mean": torch.full((5,), 1e6),
        "bn.weight": torch.ones(2),
    }
    mechanism = GaussianMechanism(
        clip=1.0, sigma=1e-9, norm_policy=NormPolicy.ZERO, norm_entries=frozenset({"bn.weight"})
    )
    released = mechanism.release(before, MODEL_UPDATE)
    assert not released["bn.running_mean"].any()
    assert not released["bn.weight"].any()
    torch.testing.assert_close(released["conv.weight"], torch.tensor([0.6, 0.8]))


def test_running_statistics_are_treated_like_all_others_only_when_asked():
    before = {"w": torch.ones(1), "bn.running_var": torch.ones(3)}
    with pytest.raises(ValueError, match=r"'bn\.running_var' is a running statistic"):
        GaussianMechanism(clip=1.0, sigma=1.0).release(before, MODEL_UPDATE)
    released = GaussianMechanism(clip=1.0, sigma=1.0, norm_policy=NormPolicy.TREAT).release(before, MODEL_UPDATE)
    assert (released["bn.running_var"] != 0.5).all()


@pytest.mark.parametrize(("unit", "sensitivity"), [(Unit.PRESENCE, 1.5), (Unit.SITE, 3.0), (Unit.RECORD, 3.0)])
def test_what_is_booked_follows_from_clip_and_unit(unit, sensitivity):
    spending = GaussianMechanism(clip=1.5, sigma=6.0, unit=unit).spending()
    assert (spending.unit, spending.sensitivity, spending.sigma) == (unit, sensitivity, 6.0)


@pytest.mark.parametrize("sigma", [0.0, -0.1, math.nan, math.inf])
def test_no_noise_is_refused(sigma):
    with pytest.raises(
        ConfigurationError, match=r"sigma must be a positive number, got .*without noise has no epsilon"
    ):
        GaussianMechanism(clip=1.0, sigma=sigma)


@pytest.mark.parametrize("clip", [0.0, -1.0, math.inf, math.nan])
def test_noise_without_clipping_is_refused(clip):
    with pytest.raises(ConfigurationError, match=r"clip must be .*: noise without clipping has no epsilon"):
        GaussianMechanism(clip=clip, sigma=1.0)


def test_soft_labels_never_get_noise_and_an_undeclared_kind_is_refused():
    with pytest.raises(ConfigurationError, match="soft labels with noise are no distributions"):
        GaussianMechanism(clip=1.0, sigma=1.0, kinds=frozenset({SOFT_LABELS}))
    with pytest.raises(ConfigurationError, match="releases of kind 'embeddings'; only for model_update"):
        GaussianMechanism(clip=1.0, sigma=1.0).release(update(), "embeddings")


def test_a_value_that_is_not_finite_does_not_leave():
    with pytest.raises(ValueError, match="'w' has a value that is NaN or infinite"):
        GaussianMechanism(clip=1.0, sigma=1.0).release({"w": torch.tensor([math.nan])}, MODEL_UPDATE)


def test_kinds_are_in_the_words_of_the_messages():
    assert {MODEL_UPDATE, SOFT_LABELS} == {ReleaseKind.MODEL_UPDATE, ReleaseKind.SOFT_LABELS}
