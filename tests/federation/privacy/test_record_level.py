"""Record-level private training in whole runs: booked as trained, refused before it starts when it cannot be paid for."""

import json

import pytest
import torch

from grandrounds.errors import ConfigurationError, GrandRoundsError
from grandrounds.privacy.accounting import spent_epsilon
from grandrounds.privacy.ledger.ledger import Ledger
from grandrounds.protocol.spending import Mechanism, Unit

SITES = ["site-1", "site-2"]
PROTECTED = [
    "problem.norm=group",
    "executor.class_weights=none",
    "executor.record_noise_multiplier=2",
    "controller.rounds=2",
    "controller.min_sites=1",
    "controller.validate_every=0",
]
RULE = {"kind": "model_update", "name": "update", "treatment": "record_level", "min_noise_multiplier": 1.5}


@pytest.fixture
def record_policy(policy_of):
    """Make a policy for the unit ``record`` that relies on the training."""
    return lambda **changes: policy_of(unit="record", releases=[RULE], **changes)


def local(tmp_path):
    return tmp_path / "flare" / "site-1" / "local"


def audited(tmp_path):
    lines = (local(tmp_path) / "privacy" / "audit.jsonl").read_text().splitlines()
    return [line for line in map(json.loads, lines) if line["task"] == "train"]


def test_what_a_protected_training_costs_is_booked_before_its_update_leaves(
    tiny, run, tmp_path, install, record_policy
):
    install(local(tmp_path), record_policy(scalars=[{"name": "samples", "part": "train", "minimum_support": 1}]))
    found = run(tiny("fedavg", *PROTECTED, "executor.record_clip=0.5"), tmp_path, sites=SITES)
    assert [entry["answered"] for entry in found.summary["rounds"]] == [SITES, SITES]
    bookings = Ledger(local(tmp_path) / "privacy", "site-1").content().bookings
    assert [booking.purpose.round_number for booking in bookings] == [1, 2]
    spending = bookings[0].spending
    assert (spending.mechanism, spending.unit) == (Mechanism.DP_SGD, Unit.RECORD)
    assert (spending.sensitivity, spending.sigma, spending.steps) == (0.5, 1.0, 2)
    assert 8 / spending.sampling_rate == pytest.approx(round(8 / spending.sampling_rate))
    assert bookings[1].epsilon == pytest.approx(spent_epsilon([spending] * 2, 1e-5, Unit.RECORD))
    assert [line["releases"]["update"]["mechanism"] for line in audited(tmp_path)] == ["dp_sgd", "dp_sgd"]


@pytest.mark.parametrize("isolation", ["none", "process"])
def test_a_training_that_could_not_be_paid_for_is_not_started(
    tiny, run, tmp_path, install, record_policy, isolation, monkeypatch
):
    """With a budget between the cost of one round and of two, the second goes on without the site."""
    probe = tmp_path / "probe"
    install(local(probe), record_policy())
    run(tiny("fedavg", *PROTECTED), probe, sites=SITES)
    options = ["problem.backbone=compact"]  # which a child process knows
    monkeypatch.setenv("GRANDROUNDS_ISOLATION", isolation)
    first, second = (booking.epsilon for booking in Ledger(local(probe) / "privacy", "site-1").content().bookings)
    install(local(tmp_path), record_policy(target_epsilon={"phantom": (first + second) / 2}))
    found = run(tiny("fedavg", *PROTECTED, *options), tmp_path, sites=SITES)
    assert found.summary["rounds"][0]["answered"] == SITES
    assert found.summary["rounds"][1]["dropped"] == {"site-1": "privacy budget spent"}
    refused = audited(tmp_path)[-1]
    assert (refused["outcome"], refused["round"]) == ("refused", 2)
    assert "one record" in refused["detail"]
    assert len(Ledger(local(tmp_path) / "privacy", "site-1").content().bookings) == 1


@pytest.mark.parametrize(
    ("changed", "detail"),
    [
        ("executor.record_noise_multiplier=1.4", "noise multiplier is 1.4, the policy needs 1.5"),
        ("executor.record_noise_multiplier=null", "the training was not record-level private"),
    ],
)
def test_a_job_with_less_protection_than_the_site_asks_for_gets_nothing(
    tiny, run, tmp_path, install, record_policy, changed, detail
):
    install(local(tmp_path), record_policy())
    found = run(tiny("fedavg", *PROTECTED, changed, "controller.rounds=1"), tmp_path, sites=SITES)
    (entry,) = found.summary["rounds"]
    assert entry["dropped"] == {"site-1": "the site's privacy policy does not allow a part of the answer"}
    assert detail in audited(tmp_path)[-1]["detail"]
    assert Ledger(local(tmp_path) / "privacy", "site-1").content().bookings == ()


def test_batch_norm_is_refused_at_every_site_with_the_option_to_change(tiny, tmp_path, run):
    with pytest.raises(GrandRoundsError, match=r"privacy.*problem\.norm=group"):
        run(tiny("fedavg", *PROTECTED, "problem.norm=batch", "controller.rounds=1"), tmp_path, sites=SITES)


def test_a_site_that_trains_alone_can_be_protected_and_spends_nothing(tiny, run, tmp_path, install, record_policy):
    install(local(tmp_path), record_policy(target_epsilon={"phantom": 1e-6}))
    found = run(tiny("local", *PROTECTED), tmp_path, sites=SITES)
    assert [entry["answered"] for entry in found.summary["rounds"]] == [SITES, SITES]
    assert Ledger(local(tmp_path) / "privacy", "site-1").content().bookings == ()


def test_two_protected_runs_of_one_seed_differ(tiny, run, tmp_path):
    models = [run(tiny("fedavg", *PROTECTED), tmp_path / name, sites=SITES).models["last"] for name in ("a", "b")]
    assert any(not torch.equal(models[0][name], models[1][name]) for name in models[0])


def test_a_job_whose_loss_does_not_allow_it_does_not_start(tiny, run, tmp_path):
    with pytest.raises(ConfigurationError, match="FixMatchExecutor cannot be record-level private"):
        run(tiny("ssfl", "executor.record_noise_multiplier=1.0"), tmp_path, sites=SITES)
