"""The gate believes what a process of its own says about data sets as long as no file has changed, and nothing else."""

import json
import os

import numpy as np
import pytest
from PIL import Image

from grandrounds.data.manifest import Record, write_manifest
from grandrounds.errors import DataError
from grandrounds.privacy.gate import datasets
from grandrounds.privacy.gate.datasets import InventoryRequest, ask, take_inventory
from grandrounds.privacy.ledger.ledger import Ledger
from grandrounds.walls import missing_walls

PIXELS = np.random.default_rng(6).integers(0, 256, (4, 9, 11, 3), np.uint8)


@pytest.fixture
def skin(tmp_path):
    """A site's data set of two images, and the question about it."""
    (tmp_path / "images").mkdir()
    for name in "ab":
        Image.fromarray(PIXELS["ab".index(name)]).save(tmp_path / "images" / f"{name}.png")
    describe(tmp_path, "skin.csv", [Record("a.png", "nevus", patient="p"), Record("b.png", "nevus", patient="q")])
    return InventoryRequest("site-1", (str(tmp_path),), str(tmp_path / "cache"), "skin")


def describe(folder, manifest, records):
    write_manifest(records, folder / manifest)
    entry = {"manifest": manifest, "root": "images"}
    models = {"skin": {"backbone": "resnet10"}}
    (folder / "grandrounds.json").write_text(json.dumps({"datasets": {"skin": entry}, "models": models}))


@pytest.fixture
def asked(monkeypatch):
    """The questions that a process was started for."""
    found = []
    monkeypatch.setattr(datasets, "ask", lambda *question: found.append(question) or ask(*question))
    return found


def save_other(folder):
    """Another picture of the same size in bytes and with the same time, as some tools leave it."""
    path = folder / "images" / "a.png"
    before = path.stat()
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


CHANGES = {
    "an image": save_other,
    "an image is gone": lambda folder: (folder / "images" / "a.png").unlink(),
    "the manifest": lambda folder: write_manifest([Record("a.png", "nevus", patient="p")], folder / "skin.csv"),
    "the description": lambda folder: describe(folder, "new.csv", [Record("a.png", "nevus", patient="p")]),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_data_sets_are_read_again_as_soon_as_a_file_has_changed(tmp_path, skin, ledger, asked, change):
    first, second = (take_inventory(skin, ledger, tmp_path / "privacy") for _ in range(2))
    assert (len(asked), first.stamp) == (1, second.stamp)
    change(tmp_path)
    assert take_inventory(skin, ledger, tmp_path / "privacy").stamp != first.stamp
    assert len(asked) == 2


def test_what_is_known_of_a_data_set_is_that_of_its_files(tmp_path, skin, ledger):
    facts = take_inventory(skin, ledger, tmp_path / "privacy").datasets["skin"]
    assert (facts.images, facts.backbone) == (2, "resnet10")
    assert facts.patients == {"train": 2, "labelled": 2, "val": 0, "test": 0}
    assert len(ledger.content().digests("skin")) == 2 * 2 + 2  # bytes and pixels of two images, and two patients


def test_a_ledger_that_does_not_have_the_images_gets_them(tmp_path, skin, ledger, asked):
    take_inventory(skin, ledger, tmp_path / "privacy")
    other = Ledger.create(tmp_path / "other", "site-1")
    take_inventory(skin, other, tmp_path / "other")
    assert other.content().digests("skin")
    assert len(asked) == 2


@pytest.mark.parametrize("reader", ["grandrounds.no_such_module", "this", "json.tool"])
def test_a_process_that_fails_or_says_something_else_lets_no_task_in(tmp_path, skin, ledger, monkeypatch, reader):
    monkeypatch.setattr(datasets, "READER", reader)
    with pytest.raises(DataError):
        take_inventory(skin, ledger, tmp_path / "privacy")


def test_an_answer_without_end_is_not_read_to_its_end(tmp_path, skin, ledger, monkeypatch):
    monkeypatch.setattr(datasets, "MOST_BYTES", 100)
    with pytest.raises(DataError):
        take_inventory(skin, ledger, tmp_path / "privacy")


def test_a_process_that_is_silent_is_ended(tmp_path, skin, ledger, monkeypatch):
    (tmp_path / "silent.py").write_text("import time\ntime.sleep(300)\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(datasets, "READER", "silent")
    monkeypatch.setattr(datasets, "SILENT_SECONDS", 0.1)
    with pytest.raises(DataError):
        take_inventory(skin, ledger, tmp_path / "privacy")
    assert not ledger.content().known


@pytest.mark.skipif(bool(missing_walls()), reason=f"no walls: {missing_walls()}")
@pytest.mark.parametrize("what", ["socket.socket()", "open(os.environ['PROBE'])", "open(os.environ['PROBE'], 'a')"])
def test_who_reads_images_reaches_no_network_and_no_other_file(tmp_path, skin, ledger, monkeypatch, what):
    (tmp_path / "probe").write_text("x")
    (tmp_path / "prying_reader.py").write_text(
        f"import os, socket\nfrom grandrounds.privacy import inventory\ninventory.image_identity = lambda content: {what}\n"
        "inventory.main()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PROBE", str(tmp_path / "probe"))
    monkeypatch.setattr(datasets, "READER", "prying_reader")
    with pytest.raises(DataError, match="PermissionError"):
        take_inventory(skin, ledger, tmp_path / "privacy")


def test_without_walls_that_are_required_nothing_is_read(tmp_path, skin, ledger, monkeypatch):
    (tmp_path / "without.py").write_text(
        "from grandrounds.privacy import inventory\ninventory.raise_walls = lambda openings: {'seccomp': 'taken away'}\n"
        "inventory.main()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(datasets, "READER", "without")
    take_inventory(skin, ledger, tmp_path / "privacy")
    monkeypatch.setenv("GRANDROUNDS_ISOLATION", "required")
    with pytest.raises(DataError, match="seccomp"):
        take_inventory(skin._replace(private=True), ledger, tmp_path / "privacy")


def test_files_that_change_while_they_are_read_let_no_task_in(tmp_path, skin, ledger, monkeypatch):
    monkeypatch.setattr(datasets, "stamp", lambda read, seen: "of another time")
    with pytest.raises(DataError):
        take_inventory(skin, ledger, tmp_path / "privacy")
    assert not ledger.content().known


def test_a_data_set_that_cannot_be_read_is_an_error(tmp_path, skin, ledger):
    with pytest.raises(DataError, match="'ct' is not defined"):
        take_inventory(skin._replace(dataset="ct"), ledger, tmp_path / "privacy")
