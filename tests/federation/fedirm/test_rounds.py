"""FedIRM with labelled and unlabelled hospitals, which their own data distinguish."""

import json

import numpy as np
import pytest
import torch

from grandrounds.deployment.simulate import simulate
from grandrounds.federation.server.record import read_events

LABELLED, UNLABELLED = ["site-1", "site-2"], ["site-3", "site-4"]
SITES = LABELLED + UNLABELLED


def test_sites_without_labels_train_from_their_start_on(whole):
    rounds = whole.summary["rounds"]
    # Rounds of the method count from 0: the second is round 1.
    assert [entry["asked"] for entry in rounds] == [LABELLED, SITES, SITES, SITES]
    assert [entry["answered"] for entry in rounds] == [LABELLED, SITES, SITES, SITES]
    assert [(entry["labelled"], entry["unlabelled"]) for entry in rounds] == [(LABELLED, [])] + [
        (LABELLED, UNLABELLED)
    ] * 3
    assert all(entry["relation_from"] == LABELLED for entry in rounds)
    assert whole.summary["status"] == "finished"


def test_sites_register_only_whether_they_have_labels(whole):
    joined = {
        event["site"]: event["metrics"]
        for event in read_events(whole.results)
        if event["event"] == "answer" and event["task"] == "join"
    }
    assert joined == {site: {"labelled": float(site in LABELLED)} for site in SITES}


@pytest.fixture(scope="package")
def overheard(small, go, tmp_path_factory):
    """A run of which sites write down what they get and give."""
    folder = tmp_path_factory.mktemp("overheard")
    job = small(
        "executor.learning_rate=0.0002",
        "executor.later_learning_rate=0.0003",
        "executor.learning_rate_change=2",
        "executor.unlabelled_learning_rate=0.0001",
        "executor.betas=[0.8, 0.9]",
        "executor.weight_decay=0.01",
        "controller.min_support=4",
        path="registrations.Listener",
        diary=str(folder / "diary"),
    )
    found = go(job, folder / "run")
    return found, [json.loads(line) for line in (folder / "diary").read_text().splitlines()]


def test_the_matrix_of_a_round_reaches_unlabelled_sites_in_the_next(overheard, relations):
    found, entries = overheard
    made = relations(found)
    for entry in entries:
        if entry["site"] in LABELLED:
            assert "target" not in entry
            assert entry["releases"] == ["relation", "update"]
        else:
            np.testing.assert_allclose(entry["target"], made[entry["round"] - 1]["matrix"], atol=1e-6)
            assert entry["releases"] == ["update"]
    assert {entry["round"] for entry in entries if "target" in entry} == {2, 3, 4}
    assert made[1]["matrix"] != made[2]["matrix"]


def test_the_mean_matrix_is_over_the_sites_with_enough_images_of_a_class(overheard, relations):
    found, entries = overheard
    counted = set()
    for number, event in relations(found).items():
        sent = [entry for entry in entries if entry["round"] == number and entry["site"] in LABELLED]
        for row, sites in enumerate(event["support"]):
            rows = [entry["matrix"][row] for entry in sent if entry["support"][row] >= 4]
            assert sites == len(rows)
            np.testing.assert_allclose(event["matrix"][row], np.mean(rows, axis=0) if rows else [0.25] * 4, atol=2e-6)
            counted.add(sites)
    assert len(counted) > 1, "some rows count at more sites than others"


def test_the_step_size_of_labelled_sites_rises_when_it_should_and_optimizers_go_on(overheard):
    entries = overheard[1]
    found = {(entry["round"] - 1, entry["site"]): (entry["learning_rate"], entry["steps"]) for entry in entries}
    assert [found[elapsed, "site-1"] for elapsed in range(4)] == [(2e-4, 0), (2e-4, 2), (3e-4, 4), (3e-4, 6)]
    assert [found[elapsed, "site-3"] for elapsed in range(1, 4)] == [(1e-4, 0), (1e-4, 2), (1e-4, 4)]
    assert all(entry["betas"] == [0.8, 0.9] and entry["weight_decay"] == 0.01 for entry in entries)


def test_unlabelled_sites_report_kept_share_accuracy_and_distance(whole, answers):
    for (number, site), metrics in answers(whole).items():
        if site in UNLABELLED:
            assert 0 <= metrics["kept"] <= 1
            assert {"consistency", "relation_loss", "empty_batches"} <= metrics.keys(), number
            assert ("pseudo_label_accuracy" in metrics) == (metrics["kept"] > 0)
            assert 0 <= metrics.get("relation_distance", 0.1) < 0.5
        else:
            assert not any("relation" in name for name in metrics), "only the site's log reports what is withheld"
    kept = [metrics["kept"] for (_, site), metrics in answers(whole).items() if site in UNLABELLED]
    assert any(0 < share < 1 for share in kept)
    assert any(metrics.get("relation_distance", 0) > 0 for metrics in answers(whole).values())


def test_the_teacher_stays_at_its_site_from_round_to_round(whole):
    steps = {}
    for site in SITES:
        (path,) = (whole.record.parent / site / "state").glob("round_00004.pt")
        steps[site] = torch.load(path, weights_only=True)["content"].get("teacher", {}).get("step")
    assert steps == {"site-1": None, "site-2": None, "site-3": 3 * 2, "site-4": 3 * 2}


def test_the_matrices_matter_in_these_runs(small, go, tmp_path, identical, whole):
    """Otherwise the comparisons here would show little."""
    assert not identical(go(small("executor.relation_weight=0"), tmp_path).models, whole.models)


def test_without_unlabelled_sites_it_is_federated_averaging_of_the_labelled_ones(small, go, tmp_path, identical):
    never = go(small("controller.unlabelled_start=null"), tmp_path / "a")
    alone = go(small(), tmp_path / "b", sites=LABELLED)
    assert [entry["asked"] for entry in never.summary["rounds"]] == [LABELLED] * 4
    assert torch.equal(*(found.models["last"]["classifier.weight"] for found in (never, alone)))
    assert identical({"last": never.models["last"]}, {"last": alone.models["last"]})


def test_two_runs_are_the_same_bit_for_bit_whatever_the_order_of_the_sites(small, go, tmp_path, assert_same_run, whole):
    assert_same_run(go(small(), tmp_path, sites=["site-4", "site-2", "site-3", "site-1"], wire=True), whole)


@pytest.mark.parametrize(
    ("event", "round_number", "party"),
    [("_round_done", 1, "server"), ("_round_started", 3, "server"), ("_after_task_execution", 3, "site-3")],
)
def test_a_run_cut_at_any_moment_ends_like_one_that_was_not(
    small, go, hospitals, tmp_path, assert_same_run, whole, event, round_number, party
):
    job = small()
    arguments = {"event": event, "round_number": round_number, "party": party}
    (job.server if party == "server" else job.client)["components"].append(
        {"id": "cut", "path": "faulty.Interrupt", "args": arguments}
    )
    with pytest.raises(KeyboardInterrupt):
        simulate(job, tmp_path, SITES, sites_dir=hospitals)
    assert_same_run(go(small(), tmp_path), whole)


def test_matrices_of_unlabelled_sites_are_released_for_figures_alone(small, go, tmp_path, identical, whole, relations):
    found = go(small("executor.release_relation=true"), tmp_path)
    own = {number: event["pseudo_relations"] for number, event in relations(found).items()}
    assert own[1] == {}
    for number in (2, 3, 4):
        assert set(own[number]) == set(UNLABELLED)
        for relation in own[number].values():
            assert np.allclose(np.sum(relation["matrix"], axis=1), 1, atol=1e-5)
    assert identical(found.models, whole.models)
    assert not any(event["pseudo_relations"] for event in relations(whole).values())


def test_a_matrix_leaves_only_in_rounds_after_which_a_site_matches_it(small, go, tmp_path, relations):
    found = go(small("controller.unlabelled_start=2", "controller.rounds=3"), tmp_path / "a")
    assert sorted(relations(found)) == [2, 3]
    assert relations(go(small("controller.rounds=1", "controller.unlabelled_start=null"), tmp_path / "b")) == {}
    alone = go(small("controller.rounds=2", "controller.unlabelled_start=0"), tmp_path / "c", sites=LABELLED)
    assert relations(alone) == {}, "all sites have labels"


@pytest.mark.parametrize(
    ("sites", "start", "reported"), [(LABELLED, 1, True), (LABELLED, "null", False), (SITES, 1, False)]
)
def test_the_server_reports_that_all_sites_have_labels(small, go, tmp_path, sites, start, reported):
    go(small("controller.rounds=1", f"controller.unlabelled_start={start}"), tmp_path, sites=sites)
    assert (
        "every site has a labelled training image: no site trains without labels" in (tmp_path / "run.log").read_text()
    ) == reported


def test_the_labelled_sites_own_choice_is_kept_with_its_model(whole):
    """A model is scored by those who train from it, that of round 1 in round 2, and compared as that of all sites is.

    Predictions are needed for the area under the curve, so it is a mean over the labelled sites.
    """
    scores = {}
    for event in read_events(whole.results):
        trained = event["event"] == "answer" and event["task"] == "train" and event["site"] in LABELLED
        if trained and "validation.auc_macro" in event["metrics"]:
            scores.setdefault(event["round"] - 1, []).append(event["metrics"]["validation.auc_macro"])
    means = {number: np.mean(found) for number, found in scores.items()}
    assert sorted(means) == [1, 2, 3]
    best = max(means, key=lambda number: (means[number], number))
    choice = whole.summary["rounds"][-1]["labelled_choice"]
    assert (choice["round"], choice["score"]) == (best, pytest.approx(means[best]))
    assert (whole.record / "parts" / f"labelled_choice@{best:05d}.pt").is_file()


def test_the_step_size_of_unlabelled_sites_follows_the_ramp_where_that_is_asked_for(
    small, go, tmp_path, identical, whole
):
    flat = ["controller.rounds=2", "executor.ramp_length=0"]
    assert identical(
        go(small(*flat, "executor.ramp_learning_rate=true"), tmp_path / "a").models,
        go(small(*flat), tmp_path / "b").models,
    )
    ramped = go(small("executor.ramp_learning_rate=true"), tmp_path / "c")
    assert not identical(ramped.models, whole.models)


def test_unlabelled_sites_report_the_number_of_matched_rows(answers, whole):
    matched = [metrics["matched_rows"] for (_, site), metrics in answers(whole).items() if site in UNLABELLED]
    assert all(0 <= rows <= 4 for rows in matched)
    assert max(matched) > 0
