"""Small hospitals whose encoders are aligned by what they send with their weights."""

import shutil

import pytest
import torch

from grandrounds.deployment.jobs import load_job
from grandrounds.deployment.presets import with_preset
from grandrounds.errors import ConfigurationError, GrandRoundsError
from grandrounds.methods.fed_align_cl import executor
from grandrounds.methods.fed_align_cl.iteration import LocalSteps
from grandrounds.methods.fed_align_cl.options import ROLES
from grandrounds.models.norm import norm_entries
from grandrounds.models.registry import build_model
from grandrounds.protocol.problem import ModelSpec
from tests.federations import Federation, answers, cut, draw_hospitals, kept

SITES = ["site-1", "site-2"]
WIDTH, BATCH, PACE = 12, 7, 2  # 28 or 29 training images and four iterations
# Sites that learn fast from few images forget a lot when they are averaged; a network of two layers learns too slowly.
FORGETFUL = ["problem.backbone=compact", "executor.factor=1e30", "executor.learning_rate=0.01"]


@pytest.fixture(scope="module")
def go(tmp_path_factory, shared_cache):
    folder = draw_hospitals(tmp_path_factory.mktemp("hospitals"), [*SITES, "site-3"])
    return Federation("fed_align_cl", SITES, folder, ["controller.rounds=4", "problem.backbone=small"])


def faulty(go, how, *assignments):
    """The job with a site-3 that goes wrong in the first round."""
    return go.job(*assignments, path="fed_align_parties.FaultyAligner", at_round=1, how=how)


@pytest.fixture(scope="module")
def whole(go, tmp_path_factory):
    return go(tmp_path_factory.mktemp("whole"))


def initial_model():
    return build_model(ModelSpec("small", classes=4, channels=3), seed=1)


def test_sites_align_from_the_first_exchange_on_and_send_a_bank_and_a_discriminator_with_the_weights(whole):
    assert whole.summary["status"] == "finished"
    reported = answers(whole)
    assert all("loss_alignment" not in reported[1, site] for site in SITES)
    assert all(reported[number, site]["loss_alignment"] > 0 for number in (2, 3, 4) for site in SITES)
    bank, discriminator = 2 * PACE * BATCH * WIDTH * 4, (4 * WIDTH + 4 + 4 + 1) * 4
    for site in SITES:
        sent = whole.summary["bytes"][site]
        assert (sent["up.bank"], sent["down.bank"]) == (4 * bank, 3 * bank)
        assert (sent["up.discriminator"], sent["down.discriminator"]) == (4 * discriminator, 3 * discriminator)


def test_data_of_the_curriculum_stay_at_the_site(whole):
    known = {
        "loss",
        "loss_alignment",
        "loss_discriminator",
        "batch_size",
        "train_seconds",
        "forgotten",
        "moved_forward",
    }
    for metrics in answers(whole).values():
        assert {name for name in metrics if not name.startswith("validation.")} <= known
    assert all({part.split(".")[1] for part in sent} == {"global", "update", "bank", "discriminator"}
               for sent in whole.summary["bytes"].values())  # fmt: skip


def test_discriminator_and_optimizers_of_a_site_go_on_over_deployments(whole):
    first, last = kept(whole, "site-1", 1), kept(whole, "site-1", 4)
    steps = {role: int(last[f"optimizer.{role}"]["state"][0]["step"]) for role in ROLES}
    # Four rounds of two iterations, the first without anybody to align with.
    assert steps == {"classification": 8, "adversarial": 6, "discriminator": 6}
    # Adam moves an entry by at most about its learning rate in a step: more than two steps' way is more than a round's.
    moved = max(
        float((last["discriminator"][name] - value).abs().max()) for name, value in first["discriminator"].items()
    )
    assert moved > 3.5 * load_job("fed_align_cl").options("executor")["learning_rate"]


def test_each_optimizer_has_its_own_step_size(go, tmp_path):
    rates = ["executor.alignment_learning_rate=0.0001", "executor.discriminator_learning_rate=0.01"]
    found = kept(go(tmp_path, "controller.rounds=1", *rates), "site-1", 1)
    used = {role: found[f"optimizer.{role}"]["param_groups"][0]["lr"] for role in ROLES}
    assert used == {"classification": 0.001, "adversarial": 0.0001, "discriminator": 0.01}


def test_a_discriminator_is_as_fast_as_the_encoder_unless_it_has_its_own_rate(go, tmp_path):
    found = kept(go(tmp_path, "controller.rounds=1", "executor.alignment_learning_rate=0.0001"), "site-1", 1)
    assert [found[f"optimizer.{role}"]["param_groups"][0]["lr"] for role in ROLES] == [0.001, 0.0001, 0.0001]


@pytest.fixture
def orders(monkeypatch):
    """The order of images in each round at each site."""
    found = {}

    def noted(trainer, images, order, interval, schedule, context):
        found[context.round_number, context.site] = order.tolist()
        return LocalSteps(trainer, images, order, interval, schedule, context)

    monkeypatch.setattr(executor, "LocalSteps", noted)
    return found


def test_an_epoch_keeps_its_order_over_its_rounds_and_the_next_has_another(orders, go, tmp_path):
    go(tmp_path)
    first, second, third, fourth = (orders[number, "site-1"] for number in (1, 2, 3, 4))
    assert sorted(first) == list(range(len(first)))
    assert first == second != third == fourth
    assert orders[1, "site-2"] != first


def test_each_epoch_records_how_many_images_were_forgotten_and_moved_forward(orders, go, tmp_path):
    found = go(tmp_path, "controller.rounds=4", *FORGETFUL)
    counted = {key: metrics for key, metrics in answers(found).items() if "forgotten" in metrics}
    assert sorted(counted) == [(number, site) for number in (1, 3) for site in SITES], "the first round of an epoch"
    for (number, site), metrics in counted.items():
        flags = kept(found, site, number)["memory"]["forgotten"]
        assert metrics["forgotten"] == int(flags.sum())
        # All the weight brings every image forward that the same random numbers would not have brought first.
        assert 0 <= metrics["moved_forward"] <= metrics["forgotten"]
    assert any(metrics["moved_forward"] > 0 for metrics in counted.values())
    assert not any(
        "forgotten" in metrics for metrics in answers(go(tmp_path / "fed", "executor.curriculum=false")).values()
    )


@pytest.mark.parametrize("comparison", ["around_last_comm", "every_comm"])
def test_forgotten_images_come_first_where_they_have_all_the_weight(comparison, orders, go, tmp_path):
    found = go(tmp_path, "controller.rounds=3", *FORGETFUL, f"executor.comparison={comparison}")
    forgotten = {site: kept(found, site, 3)["memory"]["forgotten"] for site in SITES}
    assert any(0 < int(flags.sum()) < len(flags) for flags in forgotten.values())
    for site, flags in forgotten.items():
        assert flags[orders[3, site][: int(flags.sum())]].all()


def test_two_ends_of_epochs_are_compared_from_the_second_on(orders, go, tmp_path):
    options = [*FORGETFUL, "executor.comparison=epoch_to_epoch"]
    found = go(tmp_path, "controller.rounds=5", "executor.pace=4", *options)  # a round is an epoch
    assert not kept(found, "site-1", 2)["memory"]["forgotten"].any()
    flags = kept(found, "site-1", 5)["memory"]["forgotten"]
    assert flags[orders[5, "site-1"][: int(flags.sum())]].all()


def test_nothing_but_weights_travels_before_alignment_can_use_it(go, tmp_path):
    found = go(tmp_path, "controller.rounds=3", "executor.warm_up=1")  # two rounds to an epoch
    assert [entry["banks_from"] for entry in found.summary["rounds"]] == [[], SITES, SITES]
    assert ["loss_alignment" in answers(found)[number, "site-1"] for number in (1, 2, 3)] == [False, False, True]


def test_without_alignment_a_site_sends_its_weights_alone(go, tmp_path):
    found = go(tmp_path, "controller.rounds=2", preset="fed_cl")
    assert set(found.summary["bytes"]["site-1"]) == {"down.global", "up.update"}


def test_the_others_go_on_without_a_site_that_is_missing_in_a_communication(go, tmp_path):
    found = go(tmp_path, job=faulty(go, "raise", "controller.rounds=2"), sites=[*SITES, "site-3"])
    first = found.summary["rounds"][0]
    assert "RuntimeError" in first["dropped"]["site-3"]
    assert first["answered"] == first["banks_from"] == SITES
    assert "loss_alignment" in answers(found)[2, "site-1"]


@pytest.fixture(scope="module")
def without_the_third(go, tmp_path_factory):
    job = faulty(go, "raise", "controller.rounds=1", "controller.validate_every=0")
    return go(tmp_path_factory.mktemp("raise"), job=job, sites=[*SITES, "site-3"])


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("wide", "bank of site-3: expected torch.float32 of shape (28, 12)"),
        ("empty", "bank of site-3"),
        ("huge", "bank of site-3 has a value beyond 1e+06"),
        ("sizeless", "must report the batch size"),
    ],
)
def test_a_site_whose_bank_is_refused_leaves_no_trace(how, reason, without_the_third, go, identical, tmp_path):
    job = faulty(go, how, "controller.rounds=1", "controller.validate_every=0")
    found = go(tmp_path, job=job, sites=[*SITES, "site-3"])
    assert reason in found.summary["rounds"][0]["dropped"]["site-3"]
    assert found.summary["rounds"][0]["banks_from"] == SITES
    assert identical(found.models, without_the_third.models)


def test_the_others_align_without_a_site_that_sent_no_discriminator(go, tmp_path):
    found = go(tmp_path, job=faulty(go, "alone", "controller.rounds=2"), sites=[*SITES, "site-3"])
    first, second = found.summary["rounds"]
    assert first["answered"] == second["answered"] == [*SITES, "site-3"]
    assert first["banks_from"] == SITES
    assert second["banks_from"] == [*SITES, "site-3"]
    assert "no other site gets the bank of site-3" in (tmp_path / "run.log").read_text()
    assert "loss_alignment" in answers(found)[2, "site-1"]


def test_moments_are_matched_without_discriminators(go, tmp_path):
    found = go(tmp_path, "controller.rounds=2", "executor.update=moments", "executor.bank_encoder=mean")
    assert set(found.summary["bytes"]["site-1"]) == {"down.global", "down.bank", "up.update", "up.bank"}
    assert "loss_alignment" in answers(found)[2, "site-1"]


@pytest.mark.parametrize(("event", "party"), [("_round_done", "server"), ("_after_task_execution", "site-2")])
def test_a_run_cut_in_its_third_round_ends_like_one_that_was_not(whole, go, assert_same_run, tmp_path, event, party):
    with pytest.raises(KeyboardInterrupt):
        go(tmp_path, job=cut(go.job(), 3, event, party))
    assert_same_run(go(tmp_path), whole)


def test_normalisation_may_stay_at_the_sites(go, tmp_path):
    found = go(tmp_path, "controller.rounds=2", "executor.averaged=local_norm")
    start, norms = initial_model().state_dict(), norm_entries(initial_model())
    unchanged = {name for name, value in found.models["last"].items() if torch.equal(value, start[name])}
    assert unchanged == norms
    one, other = (kept(found, site, 2)["local"] for site in SITES)
    assert one.keys() == norms
    assert not torch.equal(one["encoder.1.running_mean"], other["encoder.1.running_mean"])
    assert int(one["encoder.1.num_batches_tracked"]) == 4, "two rounds of two iterations"


def test_a_network_for_large_images_trains_the_same_with_activations_computed_again(go, tmp_path):
    options = [
        "controller.rounds=1",
        "problem.backbone=resnet22",
        "problem.image_size=128",
        "executor.pace=1",
        "controller.validate_every=0",
        "executor.weight_noise=none",
    ]
    stored = go(tmp_path / "kept", *options).models["last"]
    again = go(tmp_path / "again", *options, "executor.recompute_activations=true").models["last"]
    assert all(torch.allclose(again[name], value, rtol=1e-3, atol=1e-4) for name, value in stored.items())


def test_another_network_cannot_compute_its_activations_again(go, tmp_path):
    with pytest.raises(GrandRoundsError, match="recompute_activations: expected backbone resnet22"):
        go(tmp_path, "executor.recompute_activations=true")


def test_the_papers_noise_is_a_variance_on_every_weight_and_the_mean_of_two_sites_has_half_of_it(go, tmp_path):
    options = ["controller.rounds=1", "executor.weight_noise_level=0.001"]
    plain = go(tmp_path / "plain", *options, "executor.weight_noise=none").models["last"]
    noisy = go(tmp_path / "noisy", *options, "executor.weight_noise=absolute").models["last"]
    added = torch.cat([(noisy[name] - value).flatten() for name, value in plain.items() if name.endswith("weight")])
    assert float(added.var()) == pytest.approx(0.001 / 2, rel=0.05)
    assert all(torch.equal(noisy[name], value) for name, value in plain.items() if name.endswith("running_var"))


def test_a_site_without_one_class_takes_part(go, tmp_path):
    folder = shutil.copytree(go.folder, tmp_path / "hospitals")
    manifest = folder / "site-2" / "manifest.csv"
    text = manifest.read_text()
    assert ",ring," in text
    manifest.write_text(text.replace(",ring,", ",round,"))
    found = go(tmp_path / "run", "controller.rounds=2", folder=folder)
    assert found.summary["rounds"][1]["answered"] == SITES


def test_fewer_images_than_iterations_end_the_run_with_the_number_that_would_do(go, tmp_path):
    with pytest.raises(GrandRoundsError, match="make no batch of 2 for each of 30 iterations"):
        go(tmp_path, "executor.iterations=30")


@pytest.mark.slow
def test_compiled_networks_learn_the_same(go, tmp_path, graphs):
    options = ["controller.rounds=2"]
    plain = go(tmp_path / "plain", *options).models["last"]
    found = go(tmp_path / "compiled", *options, "executor.compiler=aot_eager").models["last"]
    assert graphs.frame_count > 0
    for name, value in plain.items():
        torch.testing.assert_close(found[name], value, rtol=1e-2, atol=1e-3, msg=name)


def test_activations_of_a_compiled_network_are_not_recomputed(go, tmp_path):
    with pytest.raises(ConfigurationError, match="recompute_activations needs compiler=none"):
        go(tmp_path, "executor.compiler=aot_eager", "executor.recompute_activations=true")


@pytest.mark.parametrize(
    ("name", "alignment", "curriculum"),
    [("fed", False, False), ("fed_cl", False, True), ("fed_align", True, False)],
)
def test_the_baselines_differ_in_their_parts_and_in_nothing_else(name, alignment, curriculum):
    full = load_job("fed_align_cl")
    job = with_preset(full, name)
    parts = {"alignment": alignment, "curriculum": curriculum}
    assert job.options("executor") == {**full.options("executor"), **parts}
    assert job.options("controller") == {**full.options("controller"), "run_name": name, "preset": name}
