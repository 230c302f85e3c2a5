"""What leaves a hospital is not what it has made: its gate rounds soft labels, or something on the way spoils them."""

import json
import shutil

import pytest
import torch

from grandrounds.data.partition.phantom_site import phantom_site
from grandrounds.deployment.jobs import load_job, with_options
from grandrounds.federation.server.record import read_events
from grandrounds.privacy.ledger.ledger import Ledger

SITES = ["site-1", "site-2", "site-3"]
LEVELS = 5
QUICK = [
    "controller.rounds=2",
    "executor.local_epochs=0.5",
    "executor.batch_size=8",
    "executor.device=cpu",
    "executor.backbones=null",
    "problem.backbone=compact",
]
NUMBERS = ("public_images", "classes", "alignment_loss")
POLICY = {
    "unit": "site",
    "delta": 1e-5,
    "releases": [
        {"kind": "soft_labels", "name": "soft_labels", "treatment": "quantise", "levels": LEVELS, "entries": ["values"]}
    ],
    "scalars": [{"name": name, "part": "train", "minimum_support": 2} for name in NUMBERS],
    "facts": ["public", "backbone", "architecture"],
}


@pytest.fixture(scope="module")
def hospitals(tmp_path_factory, shared_cache):
    folder = tmp_path_factory.mktemp("hospitals")
    own = {"manifest": "manifest.csv", "root": "images.npz"}
    public = {"manifest": "public/manifest.csv", "root": "public/images.npz", "public": True}
    for site in SITES:
        phantom_site(site, folder, size=32, images=48, labelled=1.0)
        drawn = phantom_site("public", folder / "drawn", size=32, images=32).parent
        shutil.copytree(drawn, folder / site / "public")
        (folder / site / "grandrounds.json").write_text(json.dumps({"datasets": {"phantom": own, "public": public}}))
    return folder


def install_gate(local, site):
    local.mkdir(parents=True)
    filters = [{"path": "grandrounds.privacy.gate.filters.SitePrivacyGate"}]
    scope = {"name": "strict", "properties": {"grandrounds": POLICY}, "task_data_filters": filters}
    scope["task_result_filters"] = filters
    (local / "privacy.json").write_text(json.dumps({"scopes": [scope], "default_scope": "strict"}))
    Ledger.create(local / "privacy", site)


def newest(folder):
    return torch.load(max(folder.glob("round_*.pt")), weights_only=True)["content"]


def on_grid(rows):
    return bool(((rows * LEVELS) - (rows * LEVELS).round()).abs().max() < 1e-4)


@pytest.mark.parametrize("isolation", ["none", "process"])
def test_the_soft_labels_that_a_site_subtracts_are_those_that_the_server_got(isolation, run, hospitals, tmp_path):
    install_gate(tmp_path / "flare" / "site-1" / "local", "site-1")
    job = with_options(load_job("mdhfl"), [*QUICK, "executor.pretrain_epochs=0.5", f"executor.isolation={isolation}"])
    found = run(job, tmp_path, SITES, sites_dir=hospitals)
    state = next((tmp_path / "state").iterdir())
    got = newest(state / "server")["method"]["soft_labels"]["values"]
    for site in SITES:
        (kept,) = (sent for sent in newest(state / site / "state")["learner"]["sent"].values())
        assert torch.equal(kept, got[site])
        assert on_grid(kept) == (site == "site-1")
    answered = [
        event["metrics"] for event in read_events(found.results) if event["event"] == "answer" and event["round"] == 2
    ]
    assert all(metrics["alignment_loss"] > 0 for metrics in answered if "alignment_loss" in metrics)


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("nan", "soft_labels['values'] has a value that is NaN or infinite"),
        ("negative", "soft labels of site-1: row 0 has a negative entry"),
        ("sum", "soft labels of site-1: row 0 does not sum to 1"),
        ("classes", "soft labels of site-1: expected 4 classes, got 5; all models need the same classes"),
        ("images", "soft labels of site-1: expected shape (32, 4), got (31, 4)"),
        ("integers", "soft labels of site-1: expected one of fp64, fp32, fp16, uint8, got torch.int64"),
    ],
)
def test_spoilt_soft_labels_drop_their_site_by_name_and_count_nowhere(how, reason, run, hospitals, tmp_path):
    job = with_options(load_job("mdhfl"), [*QUICK, "executor.pretrain_epochs=0", "controller.validate_every=0"])
    filters = [{"path": "spoilt_soft_labels.SpoilSoftLabels", "args": {"at": "site-1", "how": how}}]
    job.client["task_result_filters"].append({"tasks": ["train"], "filters": filters})
    found = run(job, tmp_path, SITES, sites_dir=hospitals)
    first = found.summary["rounds"][0]
    assert first["dropped"] == {"site-1": reason}
    assert list(first["contributors"]) == ["site-2", "site-3"]
    assert "alignment_loss" in next(
        event["metrics"]
        for event in read_events(found.results)
        if event["event"] == "answer" and (event["round"], event["site"]) == (2, "site-2")
    )
