"""Sites with one network whose weights are averaged by a server that cannot read them."""

import json
import shutil

import pytest
import torch

from grandrounds.deployment.assignments import with_options
from grandrounds.deployment.jobs import load_job
from grandrounds.errors import ConfigurationError, GrandRoundsError
from grandrounds.federation.server.record import read_events
from grandrounds.protocol.messages import floating_entries

tenseal = pytest.importorskip("tenseal")

from grandrounds.federation.keys import SERVER_KEY, SITE_KEY, write_keys  # noqa: E402
from grandrounds.methods.baselines.encryption import executor as site_side  # noqa: E402
from grandrounds.methods.baselines.encryption.controller import EncryptedMeanController  # noqa: E402

SITES = ["site-1", "site-2", "site-3"]
ROUNDS = 3
SMALL = [
    f"controller.rounds={ROUNDS}",
    "problem.backbone=compact",
    "executor.pretrain_epochs=0.5",
    "executor.local_epochs=0.5",
    "executor.batch_size=8",
    "executor.device=cpu",
]


@pytest.fixture(scope="module")
def hospitals(phantom_hospitals):
    folder = phantom_hospitals(dict.fromkeys(SITES, 48))
    write_keys(folder, SITES)
    return folder


def small(*assignments):
    return with_options(load_job("fedavg_he"), [*SMALL, *assignments])


@pytest.fixture(scope="module")
def watched(run, hospitals, tmp_path_factory):
    """A run; every model before it was encrypted, in the order of the sites and rounds; and the server's attributes."""
    plain, servers = [], []
    original, start = site_side.encrypt_model, EncryptedMeanController.start

    def encrypt(state, weight, key):
        plain.append({name: value.clone() for name, value in floating_entries(state).items()})
        return original(state, weight, key)

    def started(self):
        start(self)
        servers.append(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(site_side, "encrypt_model", encrypt)
        patch.setattr(EncryptedMeanController, "start", started)
        found = run(small("executor.test_last=true"), tmp_path_factory.mktemp("run"), SITES, sites_dir=hospitals)
    return found, plain, servers[0]


def last_model(found, site):
    return torch.load(next(found.results.parent.glob(f"state/*/{site}/own_last.pt")), weights_only=True)


def test_what_sites_end_with_is_the_plain_mean_of_their_models(watched):
    found, plain, _ = watched
    assert len(plain) == (ROUNDS - 1) * len(SITES)
    last = plain[-len(SITES) :]
    models = [last_model(found, site) for site in SITES]
    for name in last[0]:
        mean = sum(model[name].double() for model in last) / len(SITES)
        assert float((models[0][name].double() - mean).abs().max()) < 1e-6 * max(1.0, float(mean.abs().max()))
        assert float((last[0][name] - last[1][name]).abs().max()) > 1e-6 or name.endswith("num_batches_tracked")
        assert torch.equal(models[0][name], models[1][name])
        assert torch.equal(models[0][name], models[2][name])


def test_the_server_has_no_secret_key_and_no_model(watched):
    found, _, server = watched
    assert not found.models
    held = [value for value in vars(server).values() if isinstance(value, bytes)]
    assert held == [server._key]
    assert not tenseal.context_from(server._key).is_private()


def test_ciphertexts_are_all_that_travels_and_as_many_come_back_as_one_site_sends(watched):
    found, plain, _ = watched
    numbers = sum(value.numel() for value in plain[0].values()) + 2
    ciphertexts = -(-numbers // 4096)
    bytes_of = found.summary["bytes"]["site-1"]
    assert set(bytes_of) == {"up.weights", "down.sum"}
    assert 200_000 < bytes_of["up.weights"] / (ROUNDS - 1) / ciphertexts < 350_000
    assert bytes_of["down.sum"] == pytest.approx(bytes_of["up.weights"], rel=0.02)


def test_a_site_with_another_network_is_refused_and_the_others_go_on(run, hospitals, tmp_path):
    folder = tmp_path / "hospitals"
    shutil.copytree(hospitals, folder)
    path = folder / "site-2" / "grandrounds.json"
    described = json.loads(path.read_text()) | {"models": {"phantom": {"backbone": "resnet10"}}}
    path.write_text(json.dumps(described))
    found = run(small("controller.rounds=2"), tmp_path / "run", SITES, sites_dir=folder)
    assert "has a resnet10 that differs from the job's" in found.summary["refused"]["site-2"]
    assert found.summary["rounds"][0]["answered"] == ["site-1", "site-3"]


def test_a_server_with_the_sites_key_does_not_start(run, hospitals, tmp_path):
    folder = tmp_path / "hospitals"
    shutil.copytree(hospitals, folder)
    shutil.copy(folder / "site-1" / SITE_KEY, folder / "server" / SERVER_KEY)
    with pytest.raises(GrandRoundsError, match="holds the secret key, which belongs to the sites alone"):
        run(small(), tmp_path / "run", SITES, sites_dir=folder)


def test_a_site_with_another_key_ends_the_run_and_no_site_accepts_its_sum(run, hospitals, tmp_path):
    folder = tmp_path / "hospitals"
    shutil.copytree(hospitals, folder)
    write_keys(tmp_path / "others", ["site-2"])
    shutil.copy(tmp_path / "others" / "site-2" / SITE_KEY, folder / "site-2" / SITE_KEY)
    with pytest.raises(GrandRoundsError, match="is not that of two or more models; have all sites the same key"):
        run(small("controller.rounds=2"), tmp_path / "run", SITES, sites_dir=folder)


def test_a_resumed_run_goes_on_from_the_sum(run, hospitals, tmp_path):
    cut = small()
    arguments = {"event": "_round_done", "round_number": 2, "party": "server", "hard": False}
    cut.server["components"].append({"id": "cut", "path": "faulty.Interrupt", "args": arguments})
    with pytest.raises(KeyboardInterrupt):
        run(cut, tmp_path, SITES, sites_dir=hospitals)
    found = run(small(), tmp_path, SITES, sites_dir=hospitals)
    assert found.summary["status"] == "finished"
    asked = [event["round"] for event in read_events(found.results) if event["event"] == "round_start"]
    assert asked[-1] == ROUNDS


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("controller.rounds=1", "rounds must be at least 2"),
        ("controller.min_sites=1", "min_sites must be at least 2: the sum of one model is that model"),
        ("problem.weights=weights.pt", "problem.weights must be null"),
        ("executor.model=shared", "needs model=own"),
    ],
)
def test_invalid_options_are_refused(assignment, message, run, hospitals, tmp_path):
    with pytest.raises(ConfigurationError, match=message):
        run(small(assignment), tmp_path, SITES, sites_dir=hospitals)
