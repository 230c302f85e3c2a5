"""Large states in files: written whole, read or mapped, and kept as long as a checkpoint refers to them."""

from pathlib import Path

import pytest
import torch

from grandrounds.errors import CheckpointError
from grandrounds.federation.checkpoints import CheckpointFolder, SavedParts, TensorFileStore, mapped_copy

STATE = {"w": torch.arange(6.0).reshape(2, 3), "half": torch.ones(2).half(), "counter": torch.tensor(7)}


@pytest.fixture
def files(tmp_path):
    return TensorFileStore(tmp_path / "parts")


def same(first, second):
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def mapped_paths():
    return {line.split(maxsplit=5)[-1].strip() for line in Path("/proc/self/maps").read_text().splitlines()}


def test_a_state_is_read_and_mapped_as_it_was_saved(files):
    files.save("site-1", 3, STATE)
    assert same(files.read("site-1", 3), STATE)
    path = str(files.path("site-1", 3))
    assert path not in mapped_paths()
    mapped = files.mapped("site-1", 3)
    assert same(mapped, STATE)
    assert path in mapped_paths()
    del mapped
    assert path not in mapped_paths()


def test_what_is_mapped_survives_its_file_and_does_not_reach_it(files):
    files.save("site-1", 3, STATE)
    first = files.mapped("site-1", 3)
    first["w"].zero_()
    assert same(files.read("site-1", 3), STATE)
    second = files.mapped("site-1", 3)
    files.save("site-1", 3, {"w": torch.zeros(1)})
    files.discard("site-1", 3)
    files.discard("site-1", 3)
    assert same(second, STATE)


def test_a_file_that_is_missing_or_cut_is_named(files):
    with pytest.raises(CheckpointError, match=r"site-1@00003.pt is missing"):
        files.mapped("site-1", 3)
    files.save("site-1", 3, STATE)
    path = files.path("site-1", 3)
    path.write_bytes(path.read_bytes()[:-100])
    for read in (files.read, files.mapped):
        with pytest.raises(CheckpointError, match=r"site-1@00003.pt: the checkpoint is damaged"):
            read("site-1", 3)


def test_parts_are_read_when_they_are_looked_up(files):
    files.save("site-1", 3, STATE)
    parts = SavedParts(files, {"site-1": 3, "lost": 2})
    assert (list(parts), len(parts), "site-1" in parts) == (["site-1", "lost"], 2, True)
    version, state = parts["site-1"]
    assert version == 3
    assert same(state, STATE)
    with pytest.raises(CheckpointError, match=r"lost@00002\.pt"):
        parts["lost"]


def test_a_checkpoint_refers_to_a_part_that_was_saved_before_and_misses_one_that_was_not(tmp_path):
    folder = CheckpointFolder(tmp_path, {})
    TensorFileStore(tmp_path / "parts").save("site-1", 1, STATE)
    folder.save(1, {}, {"site-1": (1, None)})
    assert same(folder.load().parts["site-1"][1], STATE)
    with pytest.raises(CheckpointError, match=r"site-2@00002.pt is missing"):
        folder.save(2, {}, {"site-1": (1, None), "site-2": (2, None)})
    assert folder.rounds() == [1]


def test_a_mapped_copy_has_no_file_any_more(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    copy = mapped_copy(STATE)
    assert same(copy, STATE)
    assert list(tmp_path.iterdir()) == []
    assert any(path.startswith(str(tmp_path)) and path.endswith("(deleted)") for path in mapped_paths())
