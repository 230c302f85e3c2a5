"""Each treatment changes its tensors, has its cost, and refuses tensors that it cannot protect."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from grandrounds.errors import ConfigurationError
from grandrounds.privacy.gate.treatments import (
    ClipAndNoise,
    ClipAndNoiseSamples,
    CurveSupport,
    Deny,
    MinimumSupport,
    Quantise,
    RecordLevel,
    Unmodified,
    plain_copy,
)
from grandrounds.privacy.mechanisms.gaussian import clip_rows
from grandrounds.protocol.spending import Mechanism, Spending, Unit

COUNT = 100_000
WIDE = 7.0
TINY = 1e-12
NORMED = {"w": torch.tensor([3.0, 4.0]), "bn.running_mean": torch.tensor([6.0]), "bn.running_var": torch.tensor([9.0])}


def test_an_update_is_clipped_and_every_entry_gets_noise():
    treated = ClipAndNoise(2.0, 0.5).apply({"w": torch.full((COUNT,), 3.0), "b": torch.full((4,), -2.0)})
    shrunk = 2.0 / math.sqrt(COUNT * 9 + 16)
    noise = (treated["w"].double() - 3.0 * shrunk).numpy()
    assert abs(noise.std() / 0.5 - 1) < WIDE / math.sqrt(2 * COUNT)
    assert abs(noise.mean()) < WIDE * 0.5 / math.sqrt(COUNT)
    assert abs(np.corrcoef(noise[1:], noise[:-1])[0, 1]) < WIDE / math.sqrt(COUNT)
    assert bool((treated["b"] != -2.0 * shrunk).all())


@pytest.mark.parametrize(("clip", "multiplier"), [(0.1, 0.5), (1.0, 1.0), (4.0, 20.0)])
@pytest.mark.parametrize(("unit", "bounds"), [("presence", 1), ("site", 2)])
def test_the_deviation_is_the_multiplier_times_the_sensitivity(clip, multiplier, unit, bounds):
    treatment = ClipAndNoise.from_policy({"clip": clip, "noise_multiplier": multiplier}, Unit(unit))
    noise = treatment.apply({"w": torch.zeros(COUNT, dtype=torch.float64)})["w"].numpy()
    lowest, highest = stats.chi2.ppf([5e-12, 1 - 5e-12], COUNT)
    assert lowest < (noise**2).sum() / (bounds * multiplier * clip) ** 2 < highest


@pytest.mark.parametrize(
    ("statistics", "mean", "weights"),
    [("average", 6 / math.sqrt(142), 3 / math.sqrt(142)), ("drop", 0.0, 0.6), ("keep", 6.0, 0.6)],
)
def test_running_statistics_follow_the_policy(statistics, mean, weights):
    treated = ClipAndNoise(1.0, TINY, running_statistics=statistics).apply(NORMED)
    assert list(treated) == list(NORMED)
    assert float(treated["bn.running_mean"]) == pytest.approx(mean, abs=1e-6)
    assert float(treated["w"][0]) == pytest.approx(weights, abs=1e-6)


def test_running_statistics_are_refused_by_default_and_kept_ones_have_no_epsilon():
    with pytest.raises(ValueError, match="running statistic"):
        ClipAndNoise(1.0, 1.0).apply(NORMED)
    assert ClipAndNoise(1.0, 1.0, running_statistics="keep").spending(None).mechanism is Mechanism.NO_GUARANTEE
    assert ClipAndNoise(1.0, 32.0).spending(None) == Spending(Mechanism.GAUSSIAN, Unit.SITE, 2.0, 32.0)


def test_an_integer_entry_of_an_update_does_not_leave():
    with pytest.raises(ValueError, match=r"'steps' is of torch.int64: it would get no noise"):
        ClipAndNoise(1.0, 1.0).apply({"w": torch.ones(2), "steps": torch.tensor(3)})


def test_each_sample_of_embeddings_is_bounded_for_itself():
    treated = ClipAndNoiseSamples(1.0, TINY).apply({"e": torch.tensor([[3.0, 4.0], [0.3, 0.4]])})["e"]
    torch.testing.assert_close(treated, torch.tensor([[0.6, 0.8], [0.3, 0.4]]))
    rows = torch.randn(COUNT // 50, 50, generator=torch.Generator().manual_seed(0))
    noise = (ClipAndNoiseSamples(1.0, 2.0).apply({"e": rows})["e"] - clip_rows(rows, 1.0)).double().numpy()
    assert abs(noise.std() / 2.0 - 1) < WIDE / math.sqrt(2 * COUNT)
    assert ClipAndNoiseSamples(1.5, 9.0).spending(None) == Spending(Mechanism.GAUSSIAN, Unit.RECORD, 3.0, 9.0)
    with pytest.raises(ValueError, match="one tensor"):
        ClipAndNoiseSamples(1.0, 1.0).apply({"a": torch.zeros(1, 1), "b": torch.zeros(1, 1)})


def test_an_embedding_that_occurs_twice_is_refused_because_the_mean_of_its_noises_is_smaller():
    with pytest.raises(ValueError, match="occurs twice"):
        ClipAndNoiseSamples(1.0, 1.0).apply({"e": torch.tensor([[1.0, 2.0], [0.0, 1.0], [1.0, 2.0]])})


def test_embeddings_that_are_nearly_the_same_are_refused_as_well():
    """256 copies of one image's row that differ by a millionth would be averaged to a sixteenth of the noise."""
    rows = torch.ones(256, 8) + 1e-6 * torch.arange(256)[:, None]
    with pytest.raises(ValueError, match="occurs twice"):
        ClipAndNoiseSamples(1.0, 20.0).apply({"e": rows})
    with pytest.raises(ValueError, match="occurs twice"):
        ClipAndNoiseSamples(2.0, 20.0).apply({"e": torch.tensor([[0.5, 0.5], [0.5, 0.515]])})
    ClipAndNoiseSamples(2.0, 20.0).apply({"e": torch.tensor([[0.5, 0.5], [0.5, 0.525]])})
    with pytest.raises(ValueError, match="at most 8192"):
        ClipAndNoiseSamples(1.0, 20.0).apply({"e": torch.zeros(9000, 1)})


def test_class_statistics_and_soft_labels_are_coarsened():
    shown = MinimumSupport(5).apply({"matrix": torch.eye(2), "support": torch.tensor([9, 1])})
    assert shown["support"].tolist() == [9, -1]
    with pytest.raises(ValueError, match="must be matrix and support"):
        MinimumSupport(5).apply({"matrix": torch.eye(2)})
    assert Quantise(2).apply({"rows": torch.tensor([[0.7, 0.3]])})["rows"].tolist() == [[0.5, 0.5]]


def test_ranges_of_a_curve_are_merged_until_enough_patients_are_in_each():
    counts = torch.full((3, 2, 50), -1)
    counts[:2, 0, 0], counts[:2, 0, 20], counts[:2, 0, 40] = 12, 15, 30
    counts[:2, 1, 0], counts[:2, 1, 20], counts[:2, 1, 40] = 20, 0, 25
    shown = CurveSupport(25).apply({"counts": counts})["counts"]
    # Below 0.8 twelve and fifteen come together; in 20 and 25 of the other side the twenty are too few alone.
    assert [(place, *shown[0, :, place].tolist()) for place in shown[0, 0].gt(-1).nonzero()[:, 0].tolist()] == [
        (0, 57, 45)
    ]
    assert torch.equal(shown[0], shown[1])
    assert bool((shown[2] == -1).all())
    assert torch.equal(CurveSupport(12).apply({"counts": counts})["counts"], counts)
    with pytest.raises(ValueError, match="curves must be counts"):
        CurveSupport(5).apply({"scores": counts})


def test_record_level_needs_a_training_that_was_and_costs_what_it_cost():
    trained = Spending(Mechanism.DP_SGD, Unit.RECORD, 0.5, 0.55, 0.1, 20)
    rule = RecordLevel(1.0)
    assert rule.spending(trained) == trained
    with pytest.raises(ValueError, match="training was not record-level private"):
        rule.spending(None)
    with pytest.raises(ValueError, match="training was not record-level private"):
        rule.spending(Spending(Mechanism.GAUSSIAN, Unit.RECORD, 0.5, 0.55))
    with pytest.raises(ValueError, match=r"noise multiplier is 1\.1, the policy needs 2"):
        RecordLevel(2.0).spending(trained)
    with pytest.raises(ValueError, match="running statistic"):
        rule.apply(NORMED)
    with pytest.raises(ValueError, match="DP-SGD does not protect"):
        rule.apply({"steps": torch.tensor(3)})


def test_a_training_with_exactly_the_required_noise_may_leave_with_any_clip():
    trained = Spending(Mechanism.DP_SGD, Unit.RECORD, 1.9, 0.53 * 1.9, 0.1, 20)
    assert trained.sigma / trained.sensitivity < 0.53, "rounding"
    assert RecordLevel(0.53).spending(trained) == trained


def test_a_denied_release_has_no_treatment_and_an_unmodified_one_no_guarantee():
    with pytest.raises(ValueError, match="denied"):
        Deny().apply({"w": torch.ones(1)})
    assert Unmodified().spending(None).mechanism is Mechanism.NO_GUARANTEE


def test_nothing_behind_a_view_travels_along():
    secret = torch.arange(1000.0)
    for treatment in (Unmodified(), RecordLevel(1.0), ClipAndNoise(1e6, TINY)):
        (shown,) = treatment.apply({"w": secret[3:5]}).values()
        assert shown.untyped_storage().nbytes() <= 16
    assert plain_copy(torch.ones(2, 3).t()).is_contiguous()


@pytest.mark.parametrize(
    "make",
    [
        lambda: ClipAndNoise(0.0, 1.0),
        lambda: ClipAndNoise(1.0, 0.0),
        lambda: ClipAndNoise(1.0, -1.0),
        lambda: ClipAndNoiseSamples(math.inf, 1.0),
        lambda: ClipAndNoiseSamples(1.0, 0.0),
        lambda: MinimumSupport(1),
        lambda: CurveSupport(1),
        lambda: Quantise(1),
        lambda: Quantise(256),
        lambda: RecordLevel(0.0),
    ],
)
def test_options_without_protection_are_refused(make):
    with pytest.raises(ConfigurationError):
        make()
