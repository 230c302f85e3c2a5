"""Epsilons agree with two libraries and with the definition, whatever the order and grouping of the releases.

Pinned numbers: dp-accounting 0.6 (loss distributions and Rényi) and Opacus 1.6 (Rényi and PRV).
"""

import math

import pytest
from scipy.stats import norm

from benchmarks.noise import min_noise_multiplier
from grandrounds.privacy.accounting import (
    combined_multiplier,
    composed_epsilon,
    exceeds,
    gaussian_epsilon,
    renyi_epsilon,
    sampled_gaussian_divergence,
    spent_epsilon,
)
from grandrounds.privacy.ledger.lines import Purpose
from grandrounds.protocol.spending import GaussianSteps, Mechanism, Spending, Unit, no_guarantee

# Noise multiplier, sampling rate, steps, delta; loss distributions (dp-accounting), PRV (Opacus), Rényi (Opacus).
SAMPLED = [
    (0.6, 1 / 120, 6000, 1e-4, 12.26381, 12.27466, 13.83729),
    (0.7, 1 / 120, 6000, 1e-4, 7.578152, 7.588689, 8.525731),
    (0.8, 1 / 120, 6000, 1e-4, 5.284841, 5.295215, 5.911621),
    (1.0, 1 / 120, 6000, 1e-4, 3.237865, 3.248090, 3.597575),
    (1.5, 1 / 120, 6000, 1e-4, 1.659903, 1.670005, 1.845680),
    (2.0, 1 / 120, 6000, 1e-4, 1.122047, 1.132098, 1.252994),
    (1.1, 256 / 60000, 14062, 1e-5, 2.381686, 2.391744, 2.596556),
]
# Noise multiplier, releases, delta; loss distributions (dp-accounting), Rényi (Opacus).
COMPLETE = [
    (1.0, 50, 1e-4, 50.495967, 53.586399),
    (5.0, 50, 1e-4, 5.772718, 6.307240),
    (4.0, 150, 1e-4, 15.423701, 16.654883),
    (16.0, 80, 1e-5, 2.258145, 2.451506),
    (10.0, 45, 1e-4, 2.382275, 2.628005),
    (2.4, 20, 1e-5, 9.165977, 9.841617),
]


@pytest.mark.parametrize(("multiplier", "rate", "steps", "delta", "losses", "prv", "_"), SAMPLED)
def test_with_sampling_two_libraries_agree_within_two_percent(multiplier, rate, steps, delta, losses, prv, _):
    epsilon = composed_epsilon([GaussianSteps(multiplier, rate, steps)], delta)
    assert epsilon == pytest.approx(losses, rel=2e-3)
    assert epsilon == pytest.approx(prv, rel=2e-2)


@pytest.mark.parametrize(("multiplier", "rate", "steps", "delta", "losses", "prv", "_"), SAMPLED)
def test_the_ledgers_epsilon_equals_that_of_two_libraries(ledger, skin, multiplier, rate, steps, delta, losses, prv, _):
    rounds = 2
    training = Spending(Mechanism.DP_SGD, Unit.RECORD, 0.5, 0.5 * multiplier, rate, steps // rounds)
    for number in range(1, rounds + 1):
        booked = ledger.book(Purpose("job", "run", number, "update"), skin, training, delta)
    assert booked.epsilon == pytest.approx(losses, rel=2e-2)
    assert booked.epsilon == pytest.approx(prv, rel=2e-2)


@pytest.mark.parametrize(("multiplier", "releases", "delta", "losses", "_"), COMPLETE)
def test_without_sampling_the_library_and_the_definition_agree(multiplier, releases, delta, losses, _):
    epsilon = composed_epsilon([GaussianSteps(multiplier, steps=releases)], delta)
    assert epsilon == pytest.approx(losses, rel=1e-5)
    mu = math.sqrt(releases) / multiplier
    by_definition = norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon + norm.logcdf(-mu / 2 - epsilon / mu))
    assert by_definition == pytest.approx(delta, rel=1e-6)


@pytest.mark.parametrize(("multiplier", "rate", "steps", "delta", "losses", "_", "renyi"), SAMPLED)
def test_the_second_opinion_with_sampling_is_opacus_and_above(multiplier, rate, steps, delta, losses, _, renyi):
    bound = renyi_epsilon([GaussianSteps(multiplier, rate, steps)], delta)
    assert bound == pytest.approx(renyi, rel=2e-2)
    assert bound > losses


@pytest.mark.parametrize(("multiplier", "releases", "delta", "losses", "renyi"), COMPLETE)
def test_the_second_opinion_without_sampling_is_opacus_and_above(multiplier, releases, delta, losses, renyi):
    bound = renyi_epsilon([GaussianSteps(multiplier, steps=releases)], delta)
    assert bound == pytest.approx(renyi, rel=2e-3)
    assert bound > losses


def test_divergences_are_those_of_dp_accounting():
    import dp_accounting
    from dp_accounting import rdp

    orders = [2, 3, 8, 32, 200]
    for multiplier, rate in ((0.5, 0.3), (1.0, 1 / 120), (4.0, 0.01)):
        accountant = rdp.RdpAccountant(orders)
        accountant.compose(dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(multiplier)))
        own = [sampled_gaussian_divergence(order, multiplier, rate) for order in orders]
        assert own == pytest.approx(accountant._rdp, rel=1e-8)


def test_opacus_itself_agrees():
    from opacus.accountants.analysis import rdp as analysis

    orders = list(range(2, 65))
    divergence = analysis.compute_rdp(q=0.01, noise_multiplier=1.3, steps=1000, orders=orders)
    epsilon, _ = analysis.get_privacy_spent(orders=orders, rdp=divergence, delta=1e-5)
    assert renyi_epsilon([GaussianSteps(1.3, 0.01, 1000)], 1e-5) == pytest.approx(epsilon, rel=2e-2)


def test_releases_of_different_noise_compose_as_the_library_does():
    import dp_accounting
    from dp_accounting import pld

    accountant = pld.PLDAccountant()
    sampled = dp_accounting.PoissonSampledDpEvent(0.02, dp_accounting.GaussianDpEvent(1.2))
    accountant.compose(sampled, 200)
    accountant.compose(dp_accounting.GaussianDpEvent(6.0), 3)
    accountant.compose(dp_accounting.GaussianDpEvent(9.0))
    history = [
        GaussianSteps(6.0),
        GaussianSteps(1.2, 0.02, 150),
        GaussianSteps(9.0),
        GaussianSteps(1.2, 0.02, 50),
        GaussianSteps(6.0, steps=2),
    ]
    epsilon = composed_epsilon(history, 1e-5)
    assert epsilon == pytest.approx(accountant.get_epsilon(1e-5), rel=2e-3)
    assert composed_epsilon(history[::-1], 1e-5) == epsilon


def test_a_loose_first_bound_does_not_make_the_result_loose():
    # The Rényi bound is above 10,000 here; 174.1 is the library's on a hundred times finer grid.
    history = [GaussianSteps(0.3, 1 / 120, 6000), GaussianSteps(5.0)]
    assert composed_epsilon(history, 1e-5) == pytest.approx(174.12, rel=5e-3)


@pytest.mark.parametrize(("epsilon", "multiplier"), [(1, 39.0), (2, 21.2), (4, 11.7), (8, 6.65), (16, 3.89)])
def test_noise_for_150_releases_is_what_was_measured(epsilon, multiplier):
    assert min_noise_multiplier(epsilon, 1e-4, 150) == pytest.approx(multiplier, rel=5e-3)


@pytest.mark.parametrize(("multiplier", "epsilon"), [(1, 46.7), (10, 2.38), (30, 0.68)])
def test_epsilon_of_45_epochs_of_embeddings_is_what_was_measured(multiplier, epsilon):
    assert gaussian_epsilon(multiplier, 1e-4, 45) == pytest.approx(epsilon, rel=6e-3)


def test_noise_chosen_for_a_target_reaches_it_and_not_more():
    multiplier = min_noise_multiplier(3.0, 1e-5, steps=20, sampling_rate=0.2)
    reached = composed_epsilon([GaussianSteps(multiplier, 0.2, 20)], 1e-5)
    assert 2.98 < reached <= 3.0


def test_noise_for_a_large_target_is_found_although_the_first_bound_is_loose():
    multiplier = min_noise_multiplier(150.0, 1e-5, steps=200, sampling_rate=0.05)
    assert 148 < composed_epsilon([GaussianSteps(multiplier, 0.05, 200)], 1e-5) <= 150


def test_many_gaussian_releases_are_one_of_less_noise():
    assert combined_multiplier([GaussianSteps(10.0, steps=25)]) == pytest.approx(2.0)
    with pytest.raises(ValueError, match="only Gaussian mechanisms on all records combine"):
        combined_multiplier([GaussianSteps(1.0, 0.5)])
    with pytest.raises(ValueError, match="there must be at least one"):
        combined_multiplier([])


def gaussian(unit: Unit, sigma: float = 8.0, **changes: float) -> Spending:
    return Spending(Mechanism.GAUSSIAN, unit, sensitivity=2.0, sigma=sigma, **changes)


def test_nothing_released_is_nothing_spent():
    assert spent_epsilon([], 1e-5, Unit.SITE) == composed_epsilon([], 1e-5) == renyi_epsilon([], 1e-5) == 0.0


def test_what_hides_the_site_hides_a_record_and_not_the_other_way():
    site, record = gaussian(Unit.SITE), gaussian(Unit.RECORD)
    assert spent_epsilon([site], 1e-5, Unit.RECORD) == gaussian_epsilon(4.0, 1e-5)
    assert spent_epsilon([site, record], 1e-5, Unit.RECORD) == gaussian_epsilon(4.0, 1e-5, 2)
    assert spent_epsilon([site, record], 1e-5, Unit.SITE) == math.inf
    assert spent_epsilon([gaussian(Unit.PRESENCE)], 1e-5, Unit.SITE) == gaussian_epsilon(2.0, 1e-5)
    assert spent_epsilon([gaussian(Unit.PRESENCE)], 1e-5, Unit.PRESENCE) == gaussian_epsilon(4.0, 1e-5)


def test_one_release_without_a_guarantee_leaves_none():
    assert spent_epsilon([gaussian(Unit.SITE), no_guarantee(0.03)], 1e-5, Unit.RECORD) == math.inf


def test_a_target_is_exceeded_by_the_first_release_too_many():
    release = gaussian(Unit.SITE)
    target = gaussian_epsilon(4.0, 1e-5, 10)
    assert not exceeds(spent_epsilon([release] * 10, 1e-5, Unit.SITE), target)
    assert exceeds(spent_epsilon([release] * 11, 1e-5, Unit.SITE), target)
    assert exceeds(math.inf, 1e9)
    assert exceeds(math.nan, 1.0)


@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-5, math.nan])
def test_a_delta_that_is_no_small_probability_is_refused(delta):
    for use in (
        lambda: composed_epsilon([], delta),
        lambda: spent_epsilon([], delta, Unit.SITE),
        lambda: renyi_epsilon([], delta),
        lambda: gaussian_epsilon(1.0, delta),
        lambda: min_noise_multiplier(1.0, delta),
    ):
        with pytest.raises(ValueError, match="delta must be above 0 and below 1, got"):
            use()


def test_targets_and_releases_outside_their_range_are_refused():
    with pytest.raises(ValueError, match=r"epsilon .*got 0"):
        min_noise_multiplier(0.0, 1e-5)
    with pytest.raises(ValueError, match=r"steps .*got 0"):
        min_noise_multiplier(1.0, 1e-5, 0)
