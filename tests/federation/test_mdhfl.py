"""Four small hospitals with different networks that learn from each other's soft labels."""

import shutil

import pytest

from grandrounds.data.phantom_site import phantom_site
from grandrounds.deployment.jobs import load_job, with_options
from grandrounds.errors import ConfigurationError, GrandRoundsError
from grandrounds.federation.record import read_events

SITES = ["site-1", "site-2", "site-3"]
BACKBONES = '{"site-1": "compact", "site-2": "shufflenet", "site-3": "mobilenetv2"}'
PUBLIC_IMAGES, CLASSES, ROUNDS = 48, 4, 4
SMALL = [
    f"controller.rounds={ROUNDS}",
    "executor.pretrain_epochs=0.5",
    "executor.local_epochs=0.5",
    "executor.batch_size=8",
    f"executor.backbones={BACKBONES}",
    "executor.device=cpu",
]


def site_folder(folder, site, public="public"):
    """A site's own phantoms, and those drawn for ``public``, which are the same everywhere."""
    phantom_site(site, folder, size=32, images=48, labelled=1.0)
    drawn = phantom_site(public, folder / "public-drawn", size=32, images=PUBLIC_IMAGES).parent
    shutil.copytree(drawn, folder / site / "public", dirs_exist_ok=True)
    location = '{"manifest": "public/manifest.csv", "root": "public/images.npz"}'
    own = '{"manifest": "manifest.csv", "root": "images.npz"}'
    (folder / site / "grandrounds.json").write_text(f'{{"datasets": {{"phantom": {own}, "public": {location}}}}}')


@pytest.fixture(scope="module")
def hospitals(tmp_path_factory, shared_cache):
    folder = tmp_path_factory.mktemp("hospitals")
    for site in SITES:
        site_folder(folder, site)
    return folder


def small(*assignments, name="mdhfl"):
    return with_options(load_job(name), [*SMALL, *assignments])


@pytest.fixture(scope="module")
def whole(run, hospitals, tmp_path_factory):
    return run(small(), tmp_path_factory.mktemp("whole"), SITES, sites_dir=hospitals)


def answers(found):
    return {
        (event["round"], event["site"]): event["metrics"]
        for event in read_events(found.results)
        if event["event"] == "answer" and event["task"] == "train"
    }


def test_every_site_learns_from_the_two_others_and_keeps_a_network_of_its_own(whole):
    assert whole.summary["status"] == "finished"
    assert not whole.models  # no model has reached the server
    notes = [entry["contributors"] for entry in whole.summary["rounds"] if "contributors" in entry]
    assert notes == [dict.fromkeys(SITES, number) for number in range(1, ROUNDS)]
    told = answers(whole)
    assert all("pretrain_loss" in told[1, site] and "alignment_loss" not in told[1, site] for site in SITES)
    assert all(told[number, site]["alignment_loss"] > 0 for number in range(2, ROUNDS + 1) for site in SITES)
    backbones = {site: said["facts"]["backbone"] for site, said in whole.summary["introduced"].items()}
    assert backbones == {"site-1": "compact", "site-2": "shufflenet", "site-3": "mobilenetv2"}


def test_rows_are_all_that_travels_and_the_way_down_does_not_depend_on_the_number_of_sites(whole):
    rows = PUBLIC_IMAGES * CLASSES * 4
    for site in SITES:
        assert whole.summary["bytes"][site] == {"up.rows": (ROUNDS - 1) * rows, "down.rows": (ROUNDS - 1) * rows}


def test_eight_bits_are_a_quarter_of_the_bytes(run, hospitals, tmp_path):
    found = run(small("controller.wire=uint8", "controller.rounds=2"), tmp_path, SITES, sites_dir=hospitals)
    assert found.summary["bytes"]["site-1"]["up.rows"] == PUBLIC_IMAGES * CLASSES


@pytest.mark.parametrize("name", ["mdhfl_ce", "mdhfl_local", "rhfl", "rhfl_plus", "fedmd"])
def test_the_other_jobs_run(name, run, hospitals, tmp_path):
    found = run(small("controller.rounds=3", name=name), tmp_path, SITES, sites_dir=hospitals)
    assert found.summary["status"] == "finished"
    aligned = "alignment_loss" in answers(found)[2, "site-1"]
    assert aligned == (name != "mdhfl_local")
    weighted = any("weights" in entry for entry in found.summary["rounds"])
    assert weighted == name.startswith("rhfl")


def test_chunks_are_rounds(run, hospitals, tmp_path):
    found = run(small("controller.chunk=16", "controller.rounds=4"), tmp_path, SITES, sites_dir=hospitals)
    told = answers(found)
    assert [("loss" in told[number, "site-1"]) for number in (1, 2, 3, 4)] == [False, False, False, True]
    assert found.summary["bytes"]["site-1"]["up.rows"] == 3 * 16 * CLASSES * 4


@pytest.mark.parametrize(("event", "party"), [("_round_done", "server"), ("_after_task_execution", "site-2")])
def test_a_run_cut_in_its_second_round_ends_like_one_that_was_not(
    whole, run, same_run, hospitals, tmp_path, event, party
):
    cut = small()
    arguments = {"event": event, "round_number": 2, "party": party, "hard": False}
    configuration = cut.server if party == "server" else cut.client
    configuration["components"].append({"id": "cut", "path": "faulty.Interrupt", "args": arguments})
    with pytest.raises(KeyboardInterrupt):
        run(cut, tmp_path, SITES, sites_dir=hospitals)
    same_run(run(small(), tmp_path, SITES, sites_dir=hospitals), whole)


def test_a_site_with_exchanged_public_files_is_refused_and_the_others_go_on(run, hospitals, tmp_path):
    folder = tmp_path / "hospitals"
    shutil.copytree(hospitals, folder)
    # The names stay, the pictures behind them are others.
    site_folder(folder, "site-2", public="another")
    found = run(small("controller.rounds=2"), tmp_path / "run", SITES, sites_dir=folder)
    assert set(found.summary["refused"]) == {"site-2"}
    assert "another public set" in found.summary["refused"]["site-2"]
    assert found.summary["rounds"][0]["answered"] == ["site-1", "site-3"]


def test_a_single_site_learns_from_nobody(run, hospitals, tmp_path):
    job = small("controller.rounds=3", "controller.min_sites=1")
    found = run(job, tmp_path, SITES[:1], sites_dir=hospitals)
    assert "alignment_loss" not in answers(found)[2, "site-1"]
    assert "down.rows" not in found.summary["bytes"]["site-1"]


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("controller.rounds=1", "rounds must be at least 2"),
        ("controller.least_contributors=1", "least_contributors must be at least 2"),
        ("executor.optimizer=kept", "optimizer must be fresh"),
        ("executor.model=shared", "model must be own"),
        ("executor.test_rounds=-1", "test_rounds must be at least 0"),
    ],
)
def test_options_that_make_no_sense_are_refused(assignment, message, run, hospitals, tmp_path):
    with pytest.raises(ConfigurationError, match=message):
        run(small(assignment), tmp_path, SITES, sites_dir=hospitals)


def test_a_public_set_that_makes_no_batch_ends_the_run_with_its_reason(run, hospitals, tmp_path):
    with pytest.raises(GrandRoundsError, match="make no batch of 64"):
        run(small("controller.public_batch=64"), tmp_path, SITES, sites_dir=hospitals)
