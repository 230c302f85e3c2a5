"""Three hospitals from startup kits, each with a network of its own; one keeps its choice in its own folder."""

import json

import pytest
import torch

from grandrounds.deployment.jobs import load_job, with_options
from grandrounds.deployment.simulate import simulate
from grandrounds.deployment.submission import submit_and_watch, with_roster

pytestmark = pytest.mark.provisioned

NETWORKS = {"hospital-a": "compact", "hospital-b": "shufflenet", "hospital-c": "resnet10"}
ROUNDS, CLASSES = 3, 4
TINY = [
    f"controller.rounds={ROUNDS}",
    "controller.public_batch=32",
    "controller.round_timeout=240",
    "executor.pretrain_epochs=0.2",
    "executor.local_epochs=0.2",
    "executor.batch_size=8",
    f"executor.backbones={json.dumps(NETWORKS)}",
    "executor.device=cpu",
    "executor.cpu_threads=1",
]


@pytest.fixture(scope="module")
def federation(consortium):
    with consortium(NETWORKS) as made:
        yield made


def test_hospitals_with_different_networks_learn_from_each_other_and_no_weight_leaves(
    federation, tmp_path, shared_cache
):
    job = with_roster(with_options(load_job("mdhfl"), TINY), mandatory=tuple(NETWORKS), least=3)
    told = []
    outcome = submit_and_watch(federation.kit(federation.researcher), job, tmp_path / "results", told.append)
    assert outcome.finished, told
    summary = outcome.summary
    assert {site: said["facts"]["backbone"] for site, said in summary["introduced"].items()} == NETWORKS
    assert [entry.get("contributors") for entry in summary["rounds"]] == [
        dict.fromkeys(NETWORKS, 1),
        dict.fromkeys(NETWORKS, 2),
        None,
    ]
    assert not list((outcome.download / "workspace" / "results").glob("*.pt"))
    for sent in summary["bytes"].values():
        assert set(sent) == {"up.rows", "down.rows"}
        assert sent["up.rows"] == sent["down.rows"]
        assert sent["up.rows"] % ((ROUNDS - 1) * CLASSES * 4) == 0
    alone = simulate(job, tmp_path / "alone", list(NETWORKS))
    assert summary["test"] == alone["test"]
    for site, network in NETWORKS.items():
        kept = next((federation.kits / site).rglob("own_last.pt"))
        described = json.loads(kept.with_suffix(".json").read_text())
        assert described["model"]["backbone"] == network
        there = torch.load(next((tmp_path / "alone").glob(f"state/*/{site}/own_last.pt")), weights_only=True)
        here = torch.load(kept, weights_only=True)
        assert all(torch.equal(here[entry], there[entry]) for entry in there)
