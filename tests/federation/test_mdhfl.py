"""Four small hospitals with different networks that learn from each other's soft labels."""

import shutil

import numpy as np
import pytest

from grandrounds.deployment import simulate
from grandrounds.errors import GrandRoundsError
from tests.federations import Federation, answers, cut, draw_hospitals, give_public_images

SITES = ["site-1", "site-2", "site-3"]
BACKBONES = '{"site-1": "small", "site-2": "narrow", "site-3": "wide"}'
PUBLIC_IMAGES, CLASSES, ROUNDS = 48, 4, 4


@pytest.fixture(scope="module")
def hospitals(tmp_path_factory, shared_cache):
    folder = draw_hospitals(tmp_path_factory.mktemp("hospitals"), SITES)
    for site in SITES:
        give_public_images(folder, site, PUBLIC_IMAGES)
    return folder


@pytest.fixture(scope="module")
def go(hospitals):
    return Federation("mdhfl", SITES, hospitals, [f"controller.rounds={ROUNDS}", f"executor.backbones={BACKBONES}"])


@pytest.fixture
def copied(hospitals, tmp_path):
    """A copy of the hospitals that a test may change."""
    return shutil.copytree(hospitals, tmp_path / "hospitals")


@pytest.fixture(scope="module")
def whole(go, tmp_path_factory):
    return go(tmp_path_factory.mktemp("whole"))


def test_every_site_learns_from_the_two_others_and_keeps_its_own_network(whole):
    assert whole.summary["status"] == "finished"
    assert not whole.models  # no model has reached the server
    notes = [entry["contributors"] for entry in whole.summary["rounds"] if "contributors" in entry]
    assert notes == [dict.fromkeys(SITES, number) for number in range(1, ROUNDS)]
    reported = answers(whole)
    assert all("pretrain_loss" in reported[1, site] and "alignment_loss" not in reported[1, site] for site in SITES)
    assert all(reported[number, site]["alignment_loss"] > 0 for number in range(2, ROUNDS + 1) for site in SITES)
    backbones = {site: entry["facts"]["backbone"] for site, entry in whole.summary["registered"].items()}
    assert backbones == {"site-1": "small", "site-2": "narrow", "site-3": "wide"}


@pytest.mark.slow
def test_compiled_networks_learn_the_same(go, tmp_path, graphs):
    reported = []
    for compiler in ("none", "aot_eager"):
        job = go.job(
            "controller.rounds=2", "executor.backbones={}", "problem.backbone=narrow", f"executor.compiler={compiler}"
        )
        found = go(tmp_path / compiler, job=job, sites=SITES[:2])
        reported.append(answers(found))
        assert bool(graphs.frame_count) == (compiler != "none")
    plain, compiled = reported
    for site in SITES[:2]:
        assert compiled[1, site]["pretrain_loss"] == pytest.approx(plain[1, site]["pretrain_loss"], rel=1e-2)
        assert compiled[2, site]["alignment_loss"] == pytest.approx(plain[2, site]["alignment_loss"], rel=1e-2)


def test_soft_labels_are_all_that_travels_and_the_way_down_does_not_depend_on_the_number_of_sites(whole):
    rows = PUBLIC_IMAGES * CLASSES * 4
    for site in SITES:
        assert whole.summary["bytes"][site] == {
            "up.soft_labels": (ROUNDS - 1) * rows,
            "down.soft_labels": (ROUNDS - 1) * rows,
        }


def test_eight_bits_are_a_quarter_of_the_bytes(go, tmp_path):
    found = go(tmp_path, "controller.wire=uint8", "controller.rounds=2")
    assert found.summary["bytes"]["site-1"]["up.soft_labels"] == PUBLIC_IMAGES * CLASSES


@pytest.mark.parametrize("preset", ["cross_entropy", "local", "rhfl", "rhfl_plus", "fedmd"])
def test_the_variants_run(preset, go, tmp_path):
    found = go(tmp_path, "controller.rounds=3", preset=preset)
    assert found.summary["status"] == "finished"
    aligned = "alignment_loss" in answers(found)[2, "site-1"]
    assert aligned == (preset != "local")
    weighted = any("weights" in entry for entry in found.summary["rounds"])
    assert weighted == preset.startswith("rhfl")
    # A site that does not align releases nothing.
    assert ("up.soft_labels" in found.summary["bytes"].get("site-1", {})) == (preset != "local")


def test_chunks_are_rounds(go, tmp_path):
    found = go(tmp_path, "controller.chunk=16", "controller.rounds=4")
    reported = answers(found)
    assert [("loss" in reported[number, "site-1"]) for number in (1, 2, 3, 4)] == [False, False, False, True]
    assert found.summary["bytes"]["site-1"]["up.soft_labels"] == 3 * 16 * CLASSES * 4


def test_a_run_may_end_with_alignment(go, tmp_path):
    found = go(tmp_path, "executor.final_phase=alignment", "executor.test_rounds=2")
    reported = answers(found)
    assert ["loss" in reported[number, "site-1"] for number in range(2, ROUNDS + 1)] == [True] * (ROUNDS - 2) + [False]
    assert ["aligned.accuracy" in reported[number, "site-1"] for number in range(1, ROUNDS + 1)][-3:] == [
        False,
        True,
        True,
    ]
    for site in SITES:
        last = reported[ROUNDS, site]
        scores = {name.removeprefix("aligned."): value for name, value in last.items() if name.startswith("aligned.")}
        assert scores == {name.removeprefix("test."): value for name, value in last.items() if name.startswith("test.")}


def test_client_confidence_is_reported_once_per_epoch(go, tmp_path):
    job = go.job("controller.chunk=24", "controller.public_batch=8", "controller.rounds=5", preset="rhfl")
    reported = answers(go(tmp_path, job=job))
    assert [number for number in range(1, 6) if "local_loss" in reported[number, "site-1"]] == [1, 3]


@pytest.mark.parametrize(("event", "party"), [("_round_done", "server"), ("_after_task_execution", "site-2")])
def test_a_run_cut_in_its_second_round_ends_like_one_that_was_not(whole, go, assert_same_run, tmp_path, event, party):
    with pytest.raises(KeyboardInterrupt):
        go(tmp_path, job=cut(go.job(), 2, event, party))
    assert_same_run(go(tmp_path), whole)


def other_pictures(folder):
    """The names stay, the pictures behind them are others."""
    give_public_images(folder, "site-2", PUBLIC_IMAGES, "another")


def exchanged_pictures(folder):
    """All pictures are there; two have each other's name."""
    path = folder / "site-2" / "public" / "images.npz"
    with np.load(path) as archive:
        arrays = dict(archive)
    (pictures,) = (array for array in arrays.values() if array.ndim >= 3)
    pictures[[3, 5]] = pictures[[5, 3]]
    np.savez(path, **arrays)


@pytest.mark.parametrize("change", [other_pictures, exchanged_pictures])
def test_a_site_with_other_or_exchanged_public_pictures_is_refused_and_the_others_go_on(change, go, copied, tmp_path):
    change(copied)
    found = go(tmp_path / "run", "controller.rounds=2", folder=copied)
    assert set(found.summary["refused"]) == {"site-2"}
    assert "another public set" in found.summary["refused"]["site-2"]
    assert found.summary["rounds"][0]["answered"] == ["site-1", "site-3"]


def away(job, at, rounds, forgets=0):
    """The job with a site that gives no answer in some rounds."""
    entry = job.client["executors"][0]["executor"]
    entry["path"] = "absent.AbsentExecutor"
    entry["args"] |= {"at": at, "away": rounds, "forgets": forgets}
    return job


def contributors(found):
    return [entry["contributors"] for entry in found.summary["rounds"] if "contributors" in entry]


def test_a_site_that_joins_late_trains_alone_first_and_learns_from_those_before_it(go, tmp_path):
    found = go(tmp_path, job=away(go.job(), "site-3", [1, 2]))
    reported = answers(found)
    first = min(number for number, site in reported if site == "site-3")
    assert first == 4  # who has failed twice pauses for one round
    assert {"pretrain_loss", "alignment_loss", "loss"} <= reported[4, "site-3"].keys()
    assert [sorted(entry) for entry in contributors(found)] == [SITES[:2], SITES[:2], SITES[:2]]


def test_soft_labels_of_a_site_that_has_left_count_until_they_are_too_old(go, tmp_path):
    job = away(go.job("controller.max_age=1", "controller.rounds=5"), "site-3", [2, 3])
    found = go(tmp_path, job=job)
    rounds = [entry.get("site-3") for entry in contributors(found)]
    assert rounds == [1, 1, None, None]


@pytest.mark.parametrize("forgets", [0, 4])
def test_a_site_that_comes_back_subtracts_its_old_soft_labels_or_learns_nothing(forgets, go, tmp_path):
    job = away(go.job("controller.max_age=2"), "site-3", [2], forgets and forgets - 1)
    found = go(tmp_path, job=job)
    assert contributors(found)[1]["site-3"] == 1
    reported = answers(found)[3, "site-3"]
    assert reported.get("own_soft_labels_lost") == (1.0 if forgets else None)
    assert ("alignment_loss" in reported) == (not forgets)


def test_two_contributors_are_not_sent_where_three_are_asked_for(go, tmp_path):
    found = go(tmp_path, "controller.min_contributors=3", "controller.rounds=2", sites=SITES[:2])
    assert found.summary["rounds"][0]["withheld"]
    assert "down.soft_labels" not in found.summary["bytes"]["site-1"]
    assert "alignment_loss" not in answers(found)[2, "site-1"]


def test_too_few_sites_with_one_public_set_end_the_run_with_the_reason(go, copied, tmp_path):
    give_public_images(copied, "site-2", PUBLIC_IMAGES, "another")
    with pytest.raises(GrandRoundsError, match="site-2 has another public set"):
        go(tmp_path / "run", "controller.rounds=2", sites=SITES[:2], folder=copied)


def test_a_refused_site_that_has_been_mended_is_asked_again_by_the_next_start(go, copied, tmp_path):
    give_public_images(copied, "site-2", PUBLIC_IMAGES, "another")
    first = go(tmp_path / "run", "controller.rounds=2", folder=copied)
    assert set(first.summary["refused"]) == {"site-2"}
    give_public_images(copied, "site-2", PUBLIC_IMAGES)
    second = go(tmp_path / "run", "controller.rounds=3", folder=copied)
    assert not second.summary["refused"]
    assert second.summary["rounds"][2]["answered"] == SITES


def test_divergence_does_not_learn_from_logits(go, tmp_path):
    with pytest.raises(GrandRoundsError, match=r"alignment=divergence learns from probabilities"):
        go(tmp_path, "controller.content=logits")


def test_sites_without_public_images_end_the_run_before_an_image_is_read(go, tmp_path, monkeypatch):
    missing = r"^site-1: data set 'elsewhere' is not defined; .*; each site needs images under the name 'elsewhere'"
    with monkeypatch.context() as unread:
        unread.setattr(simulate, "look_at_sites", lambda *given: pytest.fail("images were read"))
        with pytest.raises(GrandRoundsError, match=missing):
            go(tmp_path / "early", "controller.public=elsewhere")
    monkeypatch.setattr(simulate, "require_beside", lambda *given: None)  # as in kits
    with pytest.raises(GrandRoundsError, match=r"^0 of .* could not join: site-1: .*'elsewhere'.*; each site needs"):
        go(tmp_path / "late", "controller.public=elsewhere")


def test_scores_of_the_last_rounds_need_test_images_before_anything_is_trained(go, copied, tmp_path):
    manifest = copied / "site-3" / "manifest.csv"
    manifest.write_text(manifest.read_text().replace(",test,", ",train,"))
    job = go.job("controller.rounds=2", "executor.test_rounds=1")
    found = go(tmp_path / "run", job=job, folder=copied)
    reported = answers(found)
    assert "test.accuracy" not in reported[1, "site-1"]
    assert 0 <= reported[2, "site-1"]["test.accuracy"] <= 1
    assert not any(site == "site-3" for _, site in reported)


def test_a_single_site_does_not_align(go, tmp_path):
    job = go.job("controller.rounds=3", "controller.min_sites=1")
    found = go(tmp_path, job=job, sites=SITES[:1])
    assert "alignment_loss" not in answers(found)[2, "site-1"]
    assert "down.soft_labels" not in found.summary["bytes"]["site-1"]


def test_a_public_set_that_makes_no_batch_ends_the_run_with_its_reason(go, tmp_path):
    with pytest.raises(GrandRoundsError, match="make no batch of 64"):
        go(tmp_path, "controller.public_batch=64")
