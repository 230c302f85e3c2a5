"""What a site keeps lasts from task to task, and no longer than the run it belongs to."""

import csv

import pytest
import torch

from grandrounds.errors import CheckpointError
from grandrounds.federation.site_store import SiteStore, copy_to_cpu


def state(value):
    return {"w": torch.tensor([float(value)])}


def store(folder, run_id="run-a", **options):
    return SiteStore(folder / "site-1", run_id, {"problem": {"size": 32}, "exchange": "none", **options})


def test_state_of_the_round_before_is_found_by_another_process(tmp_path):
    assert store(tmp_path).load_state(1) == {}
    store(tmp_path).save_state(1, state(1))
    assert store(tmp_path).load_state(2)["w"].item() == 1.0


def test_a_site_that_sat_out_some_rounds_finds_its_last_state(tmp_path):
    store(tmp_path).save_state(1, state(1))
    assert store(tmp_path).load_state(9)["w"].item() == 1.0


@pytest.mark.parametrize("round_number", [2, 3])
def test_state_of_the_same_or_a_later_round_is_thrown_away(tmp_path, round_number):
    for number in (1, 2, 3, 4):
        store(tmp_path).save_state(number, state(number))
    # Rounds 2, 3 and 4 are on disk; the server has gone back.
    found = store(tmp_path).load_state(round_number)
    assert found == {} if round_number == 2 else found["w"].item() == 2.0
    assert not (tmp_path / "site-1" / "state" / "round_00003.pt").exists()


def test_another_start_of_the_run_wipes_what_is_there(tmp_path):
    old = store(tmp_path, "run-a")
    old.save_state(1, state(1))
    old.offer_best(1, 0.9, state(1))
    old.write_predictions("predictions_own", ["a"], [["1"]])
    new = store(tmp_path, "run-b")
    assert new.load_state(2) == {}
    assert new.best() is None
    assert not (tmp_path / "site-1" / "predictions_own.csv").exists()


def test_an_empty_state_needs_no_file(tmp_path):
    store(tmp_path).save_state(1, {})
    assert not (tmp_path / "site-1" / "state").exists()


def test_state_of_other_options_is_refused(tmp_path):
    store(tmp_path, steps=2).save_state(1, state(1))
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
