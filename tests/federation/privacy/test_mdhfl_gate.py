"""What leaves a hospital is not what it has made: its gate rounds soft labels, or something on the way spoils them."""

import pytest
import torch

from tests.federations import Federation, answers, draw_hospitals, give_public_images

SITES = ["site-1", "site-2", "site-3"]
LEVELS = 5
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
def go(tmp_path_factory, shared_cache):
    folder = draw_hospitals(tmp_path_factory.mktemp("hospitals"), SITES)
    for site in SITES:
        give_public_images(folder, site, 32)
    return Federation(
        "mdhfl", SITES, folder, ["controller.rounds=2", "executor.backbones=null", "problem.backbone=compact"]
    )


def newest(folder):
    return torch.load(max(folder.glob("round_*.pt")), weights_only=True)["content"]


def on_grid(rows):
    return bool(((rows * LEVELS) - (rows * LEVELS).round()).abs().max() < 1e-4)


@pytest.mark.parametrize("isolation", ["none", "process"])
def test_the_soft_labels_that_a_site_subtracts_are_those_that_the_server_got(
    isolation, go, install, tmp_path, monkeypatch
):
    install(tmp_path / "flare" / "site-1" / "local", POLICY)
    monkeypatch.setenv("GRANDROUNDS_ISOLATION", isolation)
    found = go(tmp_path)
    state = next((tmp_path / "state").iterdir())
    got = newest(state / "server")["method"]["soft_labels"]["values"]
    for site in SITES:
        (kept,) = (sent for sent in newest(state / site / "state")["learner"]["sent"].values())
        assert torch.equal(kept, got[site])
        assert on_grid(kept) == (site == "site-1")
    assert all(answers(found)[2, site]["alignment_loss"] > 0 for site in SITES)


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
def test_spoilt_soft_labels_drop_their_site_by_name_and_count_nowhere(how, reason, go, tmp_path):
    job = go.job("executor.pretrain_epochs=0", "controller.validate_every=0")
    filters = [{"path": "spoilt_soft_labels.SpoilSoftLabels", "args": {"at": "site-1", "how": how}}]
    job.client["task_result_filters"].append({"tasks": ["train"], "filters": filters})
    found = go(tmp_path, job=job)
    first = found.summary["rounds"][0]
    assert first["dropped"] == {"site-1": reason}
    assert list(first["contributors"]) == ["site-2", "site-3"]
    assert "alignment_loss" in answers(found)[2, "site-2"]
