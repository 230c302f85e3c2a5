"""What people have in Python, and the doors that take it."""

import os

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

import grandrounds as gr
from grandrounds.errors import ConfigurationError, UsageError
from grandrounds.models.backbones.own import OWN_BACKBONES
from tests.federations import write_pictures

NETWORK = torch.nn.Sequential(
    torch.nn.Conv2d(3, 4, 3, 2, 1), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(4, 2)
)  # fmt: skip


class Drawn(torch.utils.data.Dataset):
    """Pairs of a tensor in [0, 1] and a number, or dictionaries of them."""

    def __init__(self, as_dictionary=False):
        self.as_dictionary = as_dictionary

    def __len__(self):
        return 40

    def __getitem__(self, number):
        image = torch.rand(3, 12, 12, generator=torch.Generator().manual_seed(number))
        pair = {"image": image, "label": number % 2, "patient": f"P{number // 2}"}
        return pair if self.as_dictionary else (image, torch.tensor(number % 2))


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("doors")
    write_pictures(folder / "im", [f"{label}/{number}.png" for label in "ab" for number in range(24)])
    return folder


@pytest.fixture(scope="module")
def finished(place):
    sites = gr.Sites.from_folders(place / "im", place / "sites", sites=2, warn=False)
    others = dict(OWN_BACKBONES.entries)
    yield gr.run(
        "fedavg",
        sites,
        backbone=NETWORK,
        image_size=64,
        rounds=1,
        steps=1,
        workspace=place / "run",
        progress=False,
        reference=False,
    )
    OWN_BACKBONES.entries.clear()
    OWN_BACKBONES.entries.update(others)


@pytest.mark.filterwarnings("ignore:the patients are unknown")
def test_sites_are_made_of_a_path_whatever_is_there(place, monkeypatch):
    monkeypatch.chdir(place)
    made = gr.Sites("im")
    assert made.names == ("site-1", "site-2", "site-3", "site-4")
    assert gr.Sites(place / "runs" / "im" / "sites") == gr.Sites(made.folder) == made
    for wrong in (3, ["im"], None):
        with pytest.raises(ConfigurationError, match="folder, an archive or a table"):
            gr.Sites(wrong)


def test_a_network_itself_is_a_backbone_and_options_have_their_names(finished):
    configuration = finished.summary["configuration"]
    assert configuration["problem"]["backbone"].startswith("sequential_")
    client = next(finished.workspace.rglob("config_fed_client.json")).read_text()
    assert '"steps": 1,' in client
    with pytest.raises(UsageError, match="learning_rate"):
        gr.run("fedavg", finished.sites, learning_rates=0.1)
    with pytest.raises(ConfigurationError, match="Module"):
        gr.run("fedavg", finished.sites, backbone=3)


FLOATS = torch.rand(3, 3, 20, 20, generator=torch.Generator().manual_seed(0))
BYTES = (FLOATS * 255).round().to(torch.uint8)
FORMS = {
    "tensor in [0, 1]": lambda: FLOATS,
    "array in [0, 1]": lambda: FLOATS.numpy().transpose(0, 2, 3, 1),
    "list of tensors": lambda: list(FLOATS),
    "batches with labels": lambda: [(FLOATS[:2], [0, 1]), (FLOATS[2:], [1])],
    "loader": lambda: torch.utils.data.DataLoader([(image, 0) for image in FLOATS], batch_size=2),
    "dictionaries": lambda: [{"image": image} for image in FLOATS],
    "a dictionary": lambda: {"image": FLOATS},
    "generator": lambda: (image for image in FLOATS),
    "PIL images": lambda: [Image.fromarray(image.numpy().transpose(1, 2, 0)) for image in BYTES],
}


@pytest.mark.parametrize("form", FORMS)
def test_images_in_any_form_have_the_predictions_of_their_bytes(form, finished):
    pd.testing.assert_frame_equal(
        finished.predict(FORMS[form]()).reset_index(drop=True), finished.predict(BYTES).reset_index(drop=True)
    )


@pytest.mark.parametrize("wrong", [FLOATS * 2 - 1, FLOATS * 255, np.full((2, 8, 8), np.nan)])
def test_decimal_numbers_outside_0_to_1_are_refused(wrong, finished):
    with pytest.raises(ConfigurationError, match="from 0 to 1"):
        finished.predict(wrong)


def test_a_run_is_read_wherever_the_process_is(finished, tmp_path, monkeypatch, place):
    monkeypatch.chdir(place)
    again = gr.Run("run", "sites")
    monkeypatch.chdir(tmp_path)
    assert len(again.predict(BYTES)) == 3
    assert os.path.isabs(again.sites.folder)


@pytest.mark.parametrize("as_dictionary", [False, True])
def test_a_data_set_of_torch_becomes_sites(as_dictionary, tmp_path):
    made = gr.Sites.from_dataset(
        Drawn(as_dictionary), tmp_path / "out", classes=["nevus", "melanoma"], sites=2, warn=False
    )
    assert made.problem["classes"] == ["melanoma", "nevus"]
    assert made.counts()[["training", "validation", "test"]].to_numpy().sum() == 40
    assert (made.description.get("patients") == "unknown") != as_dictionary
    pixels = np.asarray(Image.open(tmp_path / "out" / "images" / "000003.png"))
    np.testing.assert_array_equal(pixels, (Drawn()[3][0] * 255).round().byte().numpy().transpose(1, 2, 0))
    with pytest.raises(ConfigurationError, match="not empty"):
        gr.Sites.from_dataset(Drawn(), tmp_path / "out")
    with pytest.raises(ConfigurationError, match="item 0"):
        gr.Sites.from_dataset([3], tmp_path / "other")


def test_a_dictionary_of_columns_is_a_table(place, tmp_path):
    columns = {
        "image": [f"{label}/{number}.png" for label in "ab" for number in range(24)],
        "label": ["a"] * 24 + ["b"] * 24,
    }
    assert len(gr.Sites.from_dataframe(columns, place / "im", tmp_path / "out", sites=2, warn=False).names) == 2
