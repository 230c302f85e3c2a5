"""Sites with different networks whose models the server distils from their ensemble."""

import json
import shutil

import pytest
import torch

from grandrounds.data.partition.phantom_site import phantom_site
from grandrounds.errors import ConfigurationError, GrandRoundsError
from tests.federations import Federation, answers, cut, draw_hospitals

SITES = ["site-1", "site-2", "site-3"]
BACKBONES = {"site-1": "small", "site-2": "narrow", "site-3": "small"}
ROUNDS = 3


@pytest.fixture(scope="module")
def hospitals(tmp_path_factory, shared_cache):
    folder = draw_hospitals(tmp_path_factory.mktemp("hospitals"), SITES)
    phantom_site("server", folder, size=32, images=32)
    described = json.loads((folder / "server" / "grandrounds.json").read_text())
    location = described["datasets"].pop("phantom")
    (folder / "server" / "grandrounds.json").write_text(json.dumps({"datasets": {"public": location}}))
    return folder


@pytest.fixture(scope="module")
def go(hospitals):
    options = [f"controller.rounds={ROUNDS}", f"executor.backbones={json.dumps(BACKBONES)}"]
    return Federation("feddf", SITES, hospitals, options)


@pytest.fixture(scope="module")
def whole(go, tmp_path_factory):
    return go(tmp_path_factory.mktemp("whole"), "executor.test_rounds=2")


def last_model(found, site):
    return torch.load(next(found.results.parent.glob(f"state/*/{site}/own_last.pt")), weights_only=True)


def test_every_round_but_the_last_distils_each_architecture(whole):
    losses = [entry["distillation_loss"] for entry in whole.summary["rounds"]]
    assert [sorted(entry) for entry in losses] == [["narrow", "small"]] * (ROUNDS - 1) + [[]]
    assert all(loss > 0 for entry in losses for loss in entry.values())


def test_weights_travel_and_none_goes_up_in_the_last_round(whole):
    bytes_of = whole.summary["bytes"]
    # An update lacks the integer counters of batch norm, eight bytes each; it goes up in two rounds of three.
    for site in SITES:
        up, down = bytes_of[site]["up.update"] / (ROUNDS - 1), bytes_of[site]["down.global"] / ROUNDS
        assert 0 <= down - up < 1000
    assert bytes_of["site-1"] == bytes_of["site-3"] != bytes_of["site-2"]


def test_the_round_after_the_last_training_tests_what_was_distilled(whole):
    reported = answers(whole)
    assert "loss" not in reported[ROUNDS, "site-1"]
    assert [number for number in range(1, ROUNDS + 1) if "test.accuracy" in reported[number, "site-1"]] == [2, 3]


def test_sites_of_one_architecture_end_with_the_same_model(whole):
    first, second, third = (last_model(whole, site) for site in SITES)
    assert all(torch.equal(value, third[name]) for name, value in first.items())
    assert any(value.shape != second[name].shape for name, value in first.items())


def test_a_resumed_run_ends_like_one_that_was_not_cut(whole, go, assert_same_run, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        go(tmp_path, job=cut(go.job("executor.test_rounds=2"), 2))
    assert_same_run(go(tmp_path, "executor.test_rounds=2"), whole)


def test_a_network_that_the_server_cannot_build_is_refused(go, hospitals, tmp_path):
    folder = tmp_path / "hospitals"
    shutil.copytree(hospitals, folder)
    path = folder / "site-2" / "grandrounds.json"
    described = json.loads(path.read_text())
    described["models"] = {"phantom": {"norm": "group"}}
    path.write_text(json.dumps(described))
    found = go(tmp_path / "run", "controller.rounds=2", folder=folder)
    assert set(found.summary["refused"]) == {"site-2"}
    assert "differs from the job's in more than its weights" in found.summary["refused"]["site-2"]


def test_a_server_without_public_images_is_reported(go, tmp_path):
    with pytest.raises(GrandRoundsError, match=r"public.*'elsewhere'"):
        go(tmp_path, "controller.public=elsewhere")


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("controller.rounds=1", "rounds must be at least 2"),
        ("controller.distillation_batch=33", "32 images, which make no batch of 33"),
    ],
)
def test_invalid_options_are_refused(assignment, message, go, tmp_path):
    with pytest.raises((ConfigurationError, GrandRoundsError), match=message):
        go(tmp_path, assignment)
