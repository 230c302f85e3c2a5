"""What a site keeps lasts from task to task, and no longer than the run it belongs to."""

import csv
import json

import pytest
import torch

from grandrounds.errors import CheckpointError
from grandrounds.federation.site.store import SiteStore, copy_to_cpu


def state(value):
    return {"w": torch.tensor([float(value)])}


def store(folder, run_id="run-a", **options):
    return SiteStore(folder / "site-1", run_id, {"problem": {"size": 32}, "exchange": "none", **options})


def keep(folder, round_number, content, needed=None, **options):
    """A state that has left the site."""
    kept = store(folder, **options)
    kept.stage_state(round_number, content)
    kept.commit(needed)


def test_state_of_the_round_before_is_found_by_another_process(tmp_path):
    assert store(tmp_path).load_state(1) == {}
    keep(tmp_path, 1, state(1))
    assert store(tmp_path).load_state(2)["w"].item() == 1.0


def test_a_site_that_sat_out_some_rounds_finds_its_last_state(tmp_path):
    keep(tmp_path, 1, state(1))
    assert store(tmp_path).load_state(9)["w"].item() == 1.0


@pytest.mark.parametrize("round_number", [2, 3])
def test_state_of_the_same_or_a_later_round_is_thrown_away(tmp_path, round_number):
    for number in (1, 2, 3, 4):
        keep(tmp_path, number, state(number))
    # Rounds 2, 3 and 4 are on disk; the server has gone back.
    found = store(tmp_path).load_state(round_number)
    assert found == {} if round_number == 2 else found["w"].item() == 2.0
    assert not (tmp_path / "site-1" / "state" / "round_00003.pt").exists()


def test_another_start_of_the_run_wipes_what_is_there(tmp_path):
    old = store(tmp_path, "run-a")
    keep(tmp_path, 1, state(1))
    old.offer_best(1, 0.9, state(1))
    old.write_predictions("predictions_own", ["a"], [["1"]])
    new = store(tmp_path, "run-b")
    assert new.load_state(2) == {}
    assert new.best() is None
    assert not (tmp_path / "site-1" / "predictions_own.csv").exists()


def test_a_damaged_state_costs_the_site_what_it_has_learnt_in_one_round(tmp_path, caplog):
    for number in (1, 2, 3):
        keep(tmp_path, number, state(number))
    path = tmp_path / "site-1" / "state" / "round_00003.pt"
    path.write_bytes(path.read_bytes()[:100])
    assert store(tmp_path).load_state(4)["w"].item() == 2.0
    assert "the checkpoint after round 3 is marked bad" in caplog.text
    keep(tmp_path, 4, state(4))
    assert store(tmp_path).load_state(5)["w"].item() == 4.0


def test_a_damaged_mark_of_the_run_is_named(tmp_path):
    keep(tmp_path, 1, state(1))
    (tmp_path / "site-1" / "run.json").write_text('{"run_id": "run')
    with pytest.raises(CheckpointError, match=r"run.json.*damaged:"):
        store(tmp_path)


def test_an_empty_state_needs_no_file(tmp_path):
    keep(tmp_path, 1, {})
    assert not (tmp_path / "site-1" / "state").exists()


def test_state_of_other_options_is_refused(tmp_path):
    keep(tmp_path, 1, state(1), steps=2)
    with pytest.raises(CheckpointError, match="steps was 2, is 3"):
        store(tmp_path, steps=3).load_state(2)


def test_the_best_model_is_kept_and_ties_go_to_the_later(tmp_path):
    for number, score in ((1, 0.5), (2, 0.7), (3, 0.6), (4, 0.7), (5, 0.1)):
        store(tmp_path).offer_best(number, score, state(number))
    best_round, model = store(tmp_path).best()
    assert best_round == 4
    assert model["w"].item() == 4.0


def test_offering_the_same_round_again_replaces_it(tmp_path):
    store(tmp_path).offer_best(1, 0.5, state(1))
    store(tmp_path).offer_best(2, 0.9, state(2))
    store(tmp_path).offer_best(2, 0.4, state(20))
    assert store(tmp_path).best()[0] == 1


def test_there_is_no_best_model_at_first(tmp_path):
    assert store(tmp_path).best() is None


def test_predictions_are_csv_that_a_spreadsheet_reads(tmp_path):
    store(tmp_path).write_predictions("predictions_own", ["image", "label"], [["a,b.png", 'say "x"'], ["c", ""]])
    with (tmp_path / "site-1" / "predictions_own.csv").open(newline="") as stream:
        assert list(csv.reader(stream)) == [["image", "label"], ["a,b.png", 'say "x"'], ["c", ""]]


def test_a_copy_is_contiguous_detached_and_its_own():
    weight = torch.nn.Parameter(torch.ones(2, 3, 2, 2).to(memory_format=torch.channels_last))
    copied = copy_to_cpu({"w": weight})["w"]
    with torch.no_grad():
        weight.zero_()
    assert copied.is_contiguous()
    assert not copied.requires_grad
    assert copied.sum().item() == 24


def test_other_options_within_a_run_are_refused_even_without_a_state(tmp_path):
    SiteStore(tmp_path / "site-1", "run-a", {"learning_rate": 0.1})
    with pytest.raises(CheckpointError, match=r"run.json: .* learning_rate was 0.1, is 0.2"):
        SiteStore(tmp_path / "site-1", "run-a", {"learning_rate": 0.2})
    SiteStore(tmp_path / "site-1", "run-b", {"learning_rate": 0.2})


def test_a_staged_state_that_was_not_committed_is_discarded(tmp_path):
    keep(tmp_path, 1, state(1))
    store(tmp_path).stage_state(2, state(2))
    assert store(tmp_path).load_state(3)["w"].item() == 1.0
    store(tmp_path).commit()
    assert store(tmp_path).load_state(3)["w"].item() == 1.0, "the next task has thrown it away"


def test_of_two_staged_states_the_later_counts(tmp_path):
    store(tmp_path).stage_state(1, state(1))
    keep(tmp_path, 2, state(2))
    assert [path.name for path in (tmp_path / "site-1" / "state").iterdir()] == ["round_00002.pt"]


def test_states_that_the_servers_checkpoints_need_are_kept(tmp_path):
    for number in (1, 3, 4, 6, 8, 9):
        keep(tmp_path, number, state(number), needed=[2, 5])
    # Of the rounds after which the server may go on: 1 for 2, 4 for 5; and the newest.
    assert sorted(path.stem for path in (tmp_path / "site-1" / "state").iterdir()) == [
        "round_00001",
        "round_00004",
        "round_00009",
    ]
    assert store(tmp_path).load_state(6)["w"].item() == 4.0


def test_best_models_that_the_servers_checkpoints_need_are_kept(tmp_path):
    for number in (1, 2, 3, 4, 5):
        store(tmp_path).offer_best(number, 0.1 * number, state(number), needed=[1])
    store(tmp_path).offer_best(2, 0.0, state(20), needed=[1])
    assert store(tmp_path).best()[0] == 1
    assert store(tmp_path).best_round() == 1


def test_the_best_round_is_read_without_the_model(tmp_path):
    assert store(tmp_path).best_round() is None
    store(tmp_path).offer_best(3, 0.5, state(3))
    assert store(tmp_path).best_round() == 3


def test_a_model_is_written_with_what_is_needed_to_build_it(tmp_path):
    store(tmp_path).write_model("own", state(3), {"model": {"backbone": "resnet10"}})
    folder = tmp_path / "site-1"
    assert torch.load(folder / "own.pt", weights_only=True)["w"].item() == 3.0
    assert json.loads((folder / "own.json").read_text()) == {"model": {"backbone": "resnet10"}}


def test_a_marker_is_read_again_only_if_it_has_changed(tmp_path, monkeypatch):
    kept = store(tmp_path)
    monkeypatch.setattr("pathlib.Path.read_text", lambda *_: pytest.fail("the marker was read"))
    kept.claim()


def test_a_store_that_is_kept_notices_another_start_of_the_run(tmp_path):
    kept = store(tmp_path, "run-a")
    keep_of_b = store(tmp_path, "run-b")
    keep_of_b.stage_state(1, state(1))
    keep_of_b.commit()
    kept.claim()
    assert json.loads((tmp_path / "site-1" / "run.json").read_text())["run_id"] == "run-a"
    assert kept.load_state(2) == {}


def test_a_store_that_is_kept_refuses_another_configuration(tmp_path):
    kept = store(tmp_path)
    marker = tmp_path / "site-1" / "run.json"
    content = json.loads(marker.read_text())
    content["configuration"]["problem"]["size"] = 64
    marker.with_name("new").write_text(json.dumps(content))
    marker.with_name("new").replace(marker)
    with pytest.raises(CheckpointError, match="size"):
        kept.claim()
