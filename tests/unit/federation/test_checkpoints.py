"""Checkpoints survive a crash and refuse another configuration; large states are files, written once."""

import os
from pathlib import Path

import pytest
import torch

from grandrounds.errors import CheckpointError
from grandrounds.federation.checkpoints import CheckpointFolder, SavedParts, TensorFileStore, mapped_copy, save_models
from grandrounds.models.depths import DepthHead

CONFIGURATION = {"method": "FedPerl", "problem": {"classes": ("a", "b"), "size": 32}, "seed": 1}


@pytest.fixture
def folder(tmp_path):
    return CheckpointFolder(tmp_path / "run", CONFIGURATION)


def content(value):
    return {"model": {"w": torch.tensor([float(value)])}, "list": [value, {"deep": torch.tensor(value)}], "text": "x"}


def files(folder):
    return sorted(path.relative_to(folder.folder).as_posix() for path in folder.folder.rglob("*") if path.is_file())


def test_a_new_folder_has_no_checkpoint(folder):
    assert folder.load() is None
    assert folder.rounds() == []


def test_what_was_saved_is_loaded_by_another_process_of_the_same_configuration(folder):
    folder.save(7, content(7))
    loaded = CheckpointFolder(folder.folder, {**CONFIGURATION, "problem": {"size": 32, "classes": ["a", "b"]}}).load()
    assert loaded.round_number == 7
    assert loaded.content["model"]["w"].tolist() == [7.0]
    assert loaded.content["list"][1]["deep"].item() == 7
    assert loaded.parts == {}


def test_the_last_three_are_kept(folder):
    for number in (1, 2, 9, 10, 11):
        folder.save(number, content(number))
    assert folder.rounds() == [9, 10, 11]
    assert files(folder) == ["round_00009.pt", "round_00010.pt", "round_00011.pt"]
    assert folder.load().round_number == 11
    folder.discard_from(11)
    assert folder.load().round_number == 10


@pytest.mark.parametrize("moment", ["write", "fsync", "rename"])
def test_a_crash_while_writing_leaves_the_one_before(folder, monkeypatch, moment):
    folder.save(1, content(1))

    def crash(*_args, **_options):
        raise KeyboardInterrupt

    def half(_state, stream):
        stream.write(b"half of a checkpoint")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        target, name, how = {
            "write": (torch, "save", half),
            "fsync": (os, "fsync", crash),
            "rename": (os, "replace", crash),
        }[moment]
        patch.setattr(target, name, how)
        with pytest.raises(KeyboardInterrupt):
            folder.save(2, content(2))
    assert files(folder) == ["round_00001.pt"]
    assert folder.load().content["model"]["w"].tolist() == [1.0]


def test_a_temporary_file_that_a_killed_process_left_is_no_checkpoint_and_goes_at_the_next_start(folder):
    folder.save(1, content(1))
    (folder.folder / ".round_00002.pt.abc123").write_bytes(b"half")
    (folder.folder / "round_x.pt").write_bytes(b"foreign")
    assert folder.rounds() == [1]
    assert folder.load().round_number == 1
    folder.discard_from(2)
    assert files(folder) == ["round_00001.pt", "round_x.pt"]


@pytest.mark.parametrize("damage", [b"", b"not a checkpoint", None])
def test_a_damaged_file_is_named(folder, damage):
    folder.save(1, content(1))
    path = folder.folder / "round_00001.pt"
    path.write_bytes(path.read_bytes()[:200] if damage is None else damage)
    with pytest.raises(CheckpointError, match=r"round_00001.pt is damaged \(\w+\): no earlier one is kept, or"):
        folder.load()


def cut(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def zeroed(path):
    path.write_bytes(bytes(path.stat().st_size))


def of_4_kib(path):
    whole = path.read_bytes()
    path.write_bytes(bytes(value ^ 0xFF for value in whole[:4096]) + whole[4096:])


def flipped(path):
    """One bit of the first value, which torch reads without a complaint."""
    whole = bytearray(path.read_bytes())
    whole[whole.index(VALUES.numpy().tobytes())] ^= 1
    path.write_bytes(whole)


VALUES = torch.arange(2000.0) + 0.5
DAMAGES = [cut, zeroed, of_4_kib, flipped]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_marked_and_the_one_before_is_taken(folder, damage):
    for number in (1, 2, 3):
        folder.save(number, {"w": VALUES, "number": number})
    damage(folder.folder / "round_00003.pt")
    loaded = folder.load()
    assert (loaded.content["number"], loaded.round_number) == (2, 2)
    assert (folder.rounds(), folder.bad_rounds()) == ([1, 2], [3])
    (told,) = loaded.remarks
    assert told.startswith("the checkpoint after round 3 is marked bad: round_00003.pt is damaged (")
    assert told.endswith("; the run goes on after round 2")
    assert folder.load().remarks == ()


def test_two_damaged_checkpoints_are_passed_over(folder):
    for number in (1, 2, 3):
        folder.save(number, content(number))
    for number in (2, 3):
        zeroed(folder.folder / f"round_{number:05d}.pt")
    assert folder.load().content["model"]["w"].tolist() == [1.0]
    assert folder.bad_rounds() == [2, 3]


def test_no_flipped_bit_gives_other_values(folder):
    folder.save(1, content(1))
    folder.save(2, content(2))
    path, before = folder.folder / "round_00002.pt", folder.folder / "round_00002.bad"
    whole, marked = path.read_bytes(), 0
    for position in range(0, len(whole), 7):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 1 << position % 8]) + whole[position + 1 :])
        loaded = folder.load()
        assert loaded.content["model"]["w"].tolist() == [float(loaded.round_number)]
        assert loaded.content["list"] == [loaded.round_number, {"deep": torch.tensor(loaded.round_number)}]
        marked += before.exists()
        before.unlink(missing_ok=True)
    assert marked > len(whole) / 7 / 4, "the rest of the file is padding"


def test_a_damaged_checkpoint_that_is_asked_for_is_refused(folder):
    for number in (1, 2, 3):
        folder.save(number, content(number))
    cut(folder.folder / "round_00003.pt")
    with pytest.raises(CheckpointError, match=r"round_00003.pt is damaged \(\w+\): choose another round, or"):
        folder.load(round_number=3)
    assert folder.rounds() == [1, 2, 3]


@pytest.mark.parametrize("damage", [*DAMAGES, Path.unlink])
def test_a_part_of_several_checkpoints_is_in_two_files_of_which_one_is_enough(folder, damage):
    for number in (1, 2):
        folder.save(number, {}, {"pool": (1, {"w": VALUES})})
    first, second = folder.folder / "parts/pool@00001.pt", folder.folder / "parts/second/pool@00001.pt"
    assert first.stat().st_ino != second.stat().st_ino
    for path in (first, second):
        damage(path)
        loaded = folder.load()
        assert loaded.round_number == 2
        assert torch.equal(loaded.parts["pool"][1]["w"], VALUES)
        assert len(loaded.remarks) == (path == first)
        folder.load()
        second.unlink(missing_ok=True)
        folder.save(3, {}, {"pool": (1, {"w": VALUES})})
        folder.discard_from(3)


@pytest.mark.parametrize("damage", [*DAMAGES, Path.unlink])
def test_a_checkpoint_whose_own_part_is_damaged_is_marked(folder, damage):
    for number in (1, 2):
        folder.save(number, {}, {"pool": (number, {"w": VALUES + number - 2})})  # the last one's are VALUES
    damage(folder.folder / "parts/pool@00002.pt")
    loaded = folder.load()
    assert loaded.round_number == 1
    assert torch.equal(loaded.parts["pool"][1]["w"], VALUES - 1)
    assert "parts/pool@00002.pt is" in loaded.remarks[0]


def test_a_file_that_would_run_code_is_refused(folder):
    folder.folder.mkdir(parents=True)
    torch.save({"round": 1, "content": os.getcwd}, folder.folder / "round_00001.pt")
    with pytest.raises(CheckpointError, match="damaged"):
        folder.load()


def test_an_older_format_is_refused(folder):
    folder.save(1, content(1))
    path = folder.folder / "round_00001.pt"
    saved = torch.load(path)
    del saved["format"]
    torch.save(saved, path)
    with pytest.raises(CheckpointError, match=r"round_00001.pt.*format 1, .*resume=never"):
        folder.load()


def test_a_head_of_the_last_format_decides_by_its_risks(folder):
    head = DepthHead(3, 2, 0.0)
    head.temperature.fill_(8.0)
    whole = {f"head.{name}": value for name, value in head.state_dict().items()}
    old = {name: value for name, value in whole.items() if name != "head.risk"}
    folder.save(1, {"models": [old]}, {"site-1": (1, old)})
    path = folder.folder / "round_00001.pt"
    torch.save({**torch.load(path), "format": 2}, path)
    loaded = folder.load()
    for state in (*loaded.content["models"], loaded.parts["site-1"][1]):
        assert [*state] == [*whole]
        assert all(torch.equal(state[name], value) for name, value in whole.items())


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        ({"seed": 2}, "seed was 1, is 2"),
        ({"problem": {"classes": ("a", "b"), "size": 64}}, "problem.size was 32, is 64"),
        ({"problem": {"classes": ("b", "a"), "size": 32}}, r"problem.classes was \['a', 'b'\], is \['b', 'a'\]"),
        ({"seed": 2, "method": "Local"}, "method was 'FedPerl', is 'Local'"),
        ({"peers": 2}, "peers was None, is 2"),
    ],
)
def test_the_first_difference_of_another_configuration_is_named(folder, change, difference):
    folder.save(1, content(1))
    other = CheckpointFolder(folder.folder, {**CONFIGURATION, **change})
    with pytest.raises(
        CheckpointError, match=rf"round_00001.pt: .*{difference}; use another run_name, or resume=never"
    ):
        other.load()


def test_parts_are_written_once(folder, monkeypatch):
    written = []
    original = torch.save
    monkeypatch.setattr(torch, "save", lambda value, stream: (written.append(value), original(value, stream)))
    parts = {"site-1": (1, {"w": torch.tensor([1.0])}), "site-2": (1, {"w": torch.tensor([2.0])})}
    folder.save(1, {}, parts)
    assert len(written) == 3
    folder.save(2, {}, {**parts, "site-2": (2, {"w": torch.tensor([2.5])})})
    assert len(written) == 5
    loaded = folder.load()
    assert {name: (version, state["w"].item()) for name, (version, state) in loaded.parts.items()} == {
        "site-1": (1, 1.0),
        "site-2": (2, 2.5),
    }
    assert folder.load(with_parts=False).parts == {}
    folder.discard_from(2)
    assert folder.load().parts["site-2"][1]["w"].item() == 2.0


def test_parts_that_no_checkpoint_needs_are_deleted(folder):
    for number in range(1, 6):
        changing = {"often": (number, {"w": torch.tensor(number)})}
        folder.save(number, {}, {**changing, "seldom": (1, {"w": torch.tensor(1)})})
    assert files(folder) == [
        "parts/often@00003.pt",
        "parts/often@00004.pt",
        "parts/often@00005.pt",
        "parts/second/seldom@00001.pt",
        "parts/seldom@00001.pt",
        "round_00003.pt",
        "round_00004.pt",
        "round_00005.pt",
    ]
    for number in (5, 4, 3):
        folder.discard_from(number + 1)
        assert folder.load().parts["often"][0] == number


def test_checkpoints_still_in_use_are_kept_with_their_parts(folder):
    for number in (1, 2, 4, 6, 7):
        changing = {"often": (number, {"w": torch.tensor(number)})}
        folder.save(number, {}, {**changing, "seldom": (1, {"w": torch.tensor(1)})}, needed=[0, 3, 5])
    assert files(folder) == [
        "parts/often@00002.pt",
        "parts/often@00004.pt",
        "parts/often@00007.pt",
        "parts/second/seldom@00001.pt",
        "parts/seldom@00001.pt",
        "round_00002.pt",
        "round_00004.pt",
        "round_00007.pt",
    ]
    folder.discard_from(7)
    assert folder.load().parts["often"][1]["w"].item() == 4


def test_a_checkpoint_is_taken_over_from_another_folder(folder, tmp_path):
    for number in (1, 2, 3):
        folder.save(number, content(number))
    other = CheckpointFolder(tmp_path / "other", CONFIGURATION)
    other.save(4, content(4))
    folder.adopt(other, 4)
    assert (folder.rounds(), other.rounds()) == ([2, 3, 4], [])
    assert folder.load().content["model"]["w"].tolist() == [4.0]


def test_going_back_forgets_this_round_and_later_ones(folder):
    for number in (3, 4):
        folder.save(number, content(number), {"site-1": (number, {"w": torch.tensor(number)})})
    folder.discard_from(4)
    assert folder.load().round_number == 3
    assert files(folder) == ["parts/site-1@00003.pt", "round_00003.pt"]
    folder.discard_from(0)
    assert folder.load() is None


def test_a_part_of_a_round_that_is_done_again_is_written_again(folder):
    folder.save(1, {}, {"site-1": (1, {"w": torch.tensor(1)})})
    folder.discard_from(0)
    folder.save(1, {}, {"site-1": (1, {"w": torch.tensor(100)})})
    assert folder.load().parts["site-1"][1]["w"].item() == 100


def test_models_are_written_for_anyone_to_load(tmp_path):
    save_models(tmp_path / "out", {"last": {"w": torch.tensor([3.0])}})
    assert torch.load(tmp_path / "out" / "last.pt", weights_only=True)["w"].tolist() == [3.0]


def test_a_model_under_two_names_is_written_once(tmp_path, monkeypatch):
    written, save = [], torch.save
    monkeypatch.setattr(torch, "save", lambda content, stream: written.append(content) or save(content, stream))
    model, other = {"w": torch.tensor([3.0])}, {"w": torch.tensor([4.0])}
    assert save_models(tmp_path, {"selected": model, "last": model, "other": other}) == [
        "selected.pt",
        "last.pt",
        "other.pt",
    ]
    assert written == [model, other]
    found = {path.stem: torch.load(path, weights_only=True)["w"].item() for path in tmp_path.iterdir()}
    assert found == {"selected": 3.0, "last": 3.0, "other": 4.0}


STATE = {"w": torch.arange(6.0).reshape(2, 3), "half": torch.ones(2).half(), "counter": torch.tensor(7)}


@pytest.fixture
def tensor_files(tmp_path):
    return TensorFileStore(tmp_path / "parts")


def same(first, second):
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def mapped_paths():
    return {line.split(maxsplit=5)[-1].strip() for line in Path("/proc/self/maps").read_text().splitlines()}


def test_a_state_is_read_and_mapped_as_it_was_saved(tensor_files):
    tensor_files.save("site-1", 3, STATE)
    assert same(tensor_files.read("site-1", 3), STATE)
    path = str(tensor_files.path("site-1", 3))
    assert path not in mapped_paths()
    mapped = tensor_files.mapped("site-1", 3)
    assert same(mapped, STATE)
    assert path in mapped_paths()
    del mapped
    assert path not in mapped_paths()


def test_what_is_mapped_survives_its_file_and_does_not_reach_it(tensor_files):
    tensor_files.save("site-1", 3, STATE)
    first = tensor_files.mapped("site-1", 3)
    first["w"].zero_()
    assert same(tensor_files.read("site-1", 3), STATE)
    second = tensor_files.mapped("site-1", 3)
    tensor_files.save("site-1", 3, {"w": torch.zeros(1)})
    tensor_files.discard("site-1", 3)
    tensor_files.discard("site-1", 3)
    assert same(second, STATE)


def test_a_file_that_is_missing_or_cut_is_named(tensor_files):
    with pytest.raises(CheckpointError, match=r"site-1@00003.pt is missing"):
        tensor_files.mapped("site-1", 3)
    tensor_files.save("site-1", 3, STATE)
    path = tensor_files.path("site-1", 3)
    path.write_bytes(path.read_bytes()[:-100])
    for read in (tensor_files.read, tensor_files.mapped):
        with pytest.raises(CheckpointError, match=r"site-1@00003.pt is damaged"):
            read("site-1", 3)


def test_parts_are_read_when_they_are_looked_up(tensor_files):
    tensor_files.save("site-1", 3, STATE)
    parts = SavedParts(tensor_files, {"site-1": 3, "lost": 2})
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
