"""Fed-Align-CL between sites of different size: what each receives of the others, when it predicts, what may be missing."""

import math

import pytest
import torch

from grandrounds.errors import ConfigurationError
from grandrounds.federation.server.record import read_events
from grandrounds.methods.fed_align_cl import executor
from grandrounds.methods.fed_align_cl.iteration import Neighbour
from tests.federations import Federation, draw_hospitals, kept

IMAGES = {"site-1": 48, "site-2": 96, "site-3": 48}
SITES = list(IMAGES)
WIDTH, ITERATIONS, PACE = 12, 4, 2
BATCHES = {"site-1": 7, "site-2": 14, "site-3": 7}


@pytest.fixture(scope="module")
def federation(tmp_path_factory, shared_cache):
    folder = draw_hospitals(tmp_path_factory.mktemp("hospitals"), SITES, IMAGES)
    return Federation("fed_align_cl", SITES, folder, ["controller.validate_every=0", "problem.backbone=small"])


@pytest.fixture
def go(federation, tmp_path):
    def start(rounds, *assignments, sites=SITES[:2], place="run", **options):
        return federation(tmp_path / place, f"controller.rounds={rounds}", *assignments, sites=sites, **options)

    return start


def test_others_embeddings_are_drawn_in_batches_of_their_size(go, monkeypatch):
    received = []

    def noted(bank, discriminator, batch_size):
        received.append((tuple(bank.shape), batch_size))
        return Neighbour(bank, discriminator, batch_size)

    monkeypatch.setattr(executor, "Neighbour", noted)
    go(2)
    # site-1 receives the bank of site-2, and the other way round.
    assert sorted(received) == [((2 * PACE * size, WIDTH), size) for size in (7, 14)]


def embeddings_sent(go, place, *assignments):
    """The banks for the others after the first round."""
    found = go(1, "executor.max_bank_size=28", *assignments, place=place)
    state = torch.load(max(found.record.glob("round_*.pt")), weights_only=True)["content"]
    return found, {site: sent["bank"] for site, sent in state["method"]["for_others"].items()}


@pytest.mark.parametrize(("encoder", "alike"), [("mean", True), ("own", False)])
def test_the_bank_is_by_the_mean_encoder_which_local_training_has_not_changed(encoder, alike, go):
    choice = f"executor.bank_encoder={encoder}"
    found, slow = embeddings_sent(go, "slow", choice, "executor.learning_rate=0.000001")
    _, fast = embeddings_sent(go, "fast", choice, "executor.learning_rate=0.1")
    for site in SITES[:2]:
        assert torch.allclose(slow[site], fast[site], rtol=0.02, atol=0.02) is alike
        own = kept(found, site, 1)["own_bank"]
        assert (own is not None) is alike
        if alike:
            assert float(torch.cdist(own, slow[site]).min(dim=1).values.max()) < 0.1 * float(own.std())


def test_a_site_without_embeddings_by_the_others_encoder_does_not_align(go, monkeypatch):
    monkeypatch.setattr(executor.FedAlignExecutor, "_own_bank", lambda self, context: None)
    losses = [event["metrics"] for event in read_events(go(2).results) if event["event"] == "answer"]
    assert not any("loss_alignment" in metrics for metrics in losses)


def test_a_site_warns_if_more_than_a_hundredth_of_its_embeddings_is_cut(go, tmp_path):
    go(1, "executor.embedding_clip=0.001", place="cut")
    go(1, place="default")
    logs = [(tmp_path / place / "run.log").read_text() for place in ("cut", "default")]
    assert "site-1: executor.embedding_clip (0.001) cuts 100 % of the embeddings" in logs[0]
    assert "of the embeddings" not in logs[1]


def test_every_site_draws_its_own_discriminator_and_the_server_does_not_average_them(go):
    found = go(2)
    for number in (1, 2):
        one, other = (kept(found, site, number)["discriminator"] for site in SITES[:2])
        assert all(not torch.equal(value, other[name]) for name, value in one.items())


def test_what_a_site_sent_is_used_once_when_it_misses_later_communications(go, federation):
    faulty = {"path": "fed_align_parties.FaultyAligner", "at_round": 2, "how": "raise"}
    job = federation.job("controller.rounds=3", **faulty)
    found = go(3, job=job, sites=SITES)
    assert [entry["banks_from"] for entry in found.summary["rounds"]] == [SITES, SITES[:2], SITES]
    # To site-1 come in the second round the banks of both others, in the third that of site-2: site-3 has sent none since.
    expected = 2 * BATCHES["site-2"] + BATCHES["site-3"]
    assert found.summary["bytes"]["site-1"]["down.bank"] == expected * 2 * PACE * WIDTH * 4


@pytest.fixture
def predictions(monkeypatch):
    """How many images each pass over a site's training images has predicted."""
    passes = []
    predict = executor.correct_predictions

    def noted(network, batches):
        passes.append(len(flags := predict(network, batches)))
        return flags

    monkeypatch.setattr(executor, "correct_predictions", noted)
    return passes


@pytest.mark.parametrize(
    ("options", "passes"),
    [
        # Epochs of two rounds. The memory is made at the end of the first: own model in round 2, deployed one in round 3;
        # the second's own model in round 4, whose deployed one never comes.
        (["executor.warm_up=1"], 3),
        (["executor.warm_up=2"], 1),
        (["executor.warm_up=3"], 0),
        (["executor.warm_up=0", "executor.comparison=every_comm"], 7),
        # Epochs of one round: the deployed models at the ends of the two epochs before the first that uses them, and of all
        # after.
        (["executor.warm_up=2", "executor.pace=4", "executor.comparison=epoch_to_epoch"], 3),
        (["executor.warm_up=3", "executor.pace=4", "executor.comparison=epoch_to_epoch"], 2),
        (["executor.curriculum=false"], 0),
    ],
)
def test_images_are_predicted_only_where_the_curriculum_makes_use_of_it(options, passes, go, predictions):
    go(4, "executor.alignment=false", *options)
    assert len(predictions) == passes * 2, "two sites"


def test_with_a_warm_up_two_ends_of_epochs_are_compared_for_the_first_epoch_that_uses_them(go):
    options = ["executor.comparison=epoch_to_epoch", "executor.warm_up=2", "executor.pace=4"]
    found = go(3, "executor.learning_rate=0.01", *options)
    assert any(kept(found, site, 3)["memory"]["forgotten"].any() for site in SITES[:2])


def test_group_norm_takes_single_images_and_batch_norm_does_not(go, tmp_path):
    single = ["executor.iterations=28", "executor.pace=14"]
    found = go(2, *single, "problem.norm=group", place="group")
    assert [entry["banks_from"] for entry in found.summary["rounds"]] == [SITES[:2]] * 2
    answered = [event["metrics"] for event in read_events(found.results) if event["event"] == "answer"]
    assert {metrics["batch_size"] for metrics in answered if "batch_size" in metrics} == {1.0, 2.0}
    with pytest.raises(Exception, match="set iterations to at most 14"):
        go(2, *single, place="batch")


def test_the_codes_noise_is_a_share_of_the_weights_deviation_not_of_their_change(go):
    plain = go(1, "executor.weight_noise=none", place="plain").models["last"]
    noisy = go(1, "executor.weight_noise_level=0.2", place="noisy").models["last"]
    name = max((entry for entry in plain if entry.endswith("weight")), key=lambda entry: plain[entry].numel())
    added = noisy[name] - plain[name]
    assert float(added.std()) == pytest.approx(0.2 * float(plain[name].std()) / math.sqrt(2), rel=0.1)


def test_no_image_is_in_two_rows_of_a_bank_whose_rows_must_be_distinct(go):
    with pytest.raises(ConfigurationError, match="bank_rows=distinct needs replacement=false"):
        go(1, "executor.bank_rows=distinct", "executor.replacement=true")


@pytest.mark.parametrize("size", [0.0, 2.5, 1e9])
def test_a_batch_size_that_no_site_has_is_refused(size, go, monkeypatch):
    train = executor.FedAlignExecutor.train

    def spoilt(self, payload, context):
        result = train(self, payload, context)
        if context.site == "site-3":
            result.metrics["batch_size"] = size
        return result

    monkeypatch.setattr(executor.FedAlignExecutor, "train", spoilt)
    found = go(1, sites=SITES)
    assert "must report the batch size" in found.summary["rounds"][0]["dropped"]["site-3"]
    assert found.summary["rounds"][0]["answered"] == SITES[:2]
