"""FedIRM with hospitals that have labels and hospitals that have none, told apart by their own data."""

import csv
import json
import re

import numpy as np
import pytest
import torch

from grandrounds.data.phantom_site import phantom_site
from grandrounds.deployment.simulate import simulate
from grandrounds.errors import GrandRoundsError
from grandrounds.federation.record import read_events
from grandrounds.methods.fedirm.executor import FedIRMExecutor

LABELLED, UNLABELLED = ["site-1", "site-2"], ["site-3", "site-4"]
SITES = LABELLED + UNLABELLED
OPTIONS = [
    "controller.rounds=4",
    "controller.unlabelled_start=1",
    "controller.min_support=2",
    "executor.min_support=2",
    "executor.steps=2",
    "executor.batch_size=8",
    "executor.uncertainty_threshold=1.3",
    "executor.device=cpu",
]


@pytest.fixture(scope="session")
def hospitals(tmp_path_factory, shared_cache):
    """Two hospitals with labels and two without."""
    folder = tmp_path_factory.mktemp("hospitals")
    for site in SITES:
        phantom_site(site, folder, size=32, images=60, labelled=float(site in LABELLED))
    return folder


@pytest.fixture(scope="session")
def small(tiny):
    """Make a small job: ``small("rscfed", "controller.subsets=1")``."""

    def make(*assignments, name="fedirm", path=None, **arguments):
        from grandrounds.deployment.jobs import load_job, with_options

        job = with_options(load_job(name), [*OPTIONS, *assignments])
        if path:
            entry = job.client["executors"][0]["executor"]
            entry["path"] = path
            entry["args"] |= arguments
        return job

    return make


@pytest.fixture(scope="session")
def go(run, hospitals):
    """Run a job with the hospitals."""

    def start(job, workspace, sites=SITES, **options):
        return run(job, workspace, sites, sites_dir=hospitals, **options)

    return start


@pytest.fixture(scope="session")
def whole(small, go, tmp_path_factory):
    """The run that the others are compared with."""
    return go(small(), tmp_path_factory.mktemp("whole"))


def answers(found, site=None):
    """Metrics of training answers by round and site."""
    return {
        (event["round"], event["site"]): event["metrics"]
        for event in read_events(found.results)
        if event["event"] == "answer" and event["task"] == "train" and site in (None, event["site"])
    }


def relations(found):
    return {event["round"]: event for event in read_events(found.results) if event["event"] == "relation"}


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


def test_sites_say_of_themselves_whether_they_have_labels_and_nothing_more(whole):
    joined = {
        event["site"]: event["metrics"]
        for event in read_events(whole.results)
        if event["event"] == "answer" and event["task"] == "join"
    }
    assert joined == {site: {"labelled": float(site in LABELLED)} for site in SITES}


@pytest.fixture(scope="session")
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
        path="introductions.Listener",
        diary=str(folder / "diary"),
    )
    found = go(job, folder / "run")
    return found, [json.loads(line) for line in (folder / "diary").read_text().splitlines()]


def test_the_matrix_of_a_round_reaches_unlabelled_sites_in_the_next(overheard):
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


def test_the_mean_matrix_is_over_the_sites_with_enough_images_of_a_class(overheard):
    found, entries = overheard
    counted = set()
    for number, event in relations(found).items():
        told = [entry for entry in entries if entry["round"] == number and entry["site"] in LABELLED]
        for row, sites in enumerate(event["support"]):
            rows = [entry["matrix"][row] for entry in told if entry["support"][row] >= 4]
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


def test_unlabelled_sites_tell_how_much_they_keep_how_well_and_how_far_they_are(whole):
    for (number, site), metrics in answers(whole).items():
        if site in UNLABELLED:
            assert 0 <= metrics["kept"] <= 1
            assert {"consistency", "relation_loss", "empty_batches"} <= metrics.keys(), number
            assert ("pseudo_label_accuracy" in metrics) == (metrics["kept"] > 0)
            assert 0 <= metrics.get("relation_distance", 0.1) < 0.5
        else:
            assert not any("relation" in name for name in metrics), "the site's log alone says what is withheld"
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


def test_two_runs_are_the_same_bit_for_bit_whatever_the_order_of_the_sites(small, go, tmp_path, same_run, whole):
    same_run(go(small(), tmp_path, sites=["site-4", "site-2", "site-3", "site-1"], wire=True), whole)


@pytest.mark.parametrize(
    ("event", "round_number", "party"),
    [("_round_done", 1, "server"), ("_round_started", 3, "server"), ("_after_task_execution", 3, "site-3")],
)
def test_a_run_cut_at_any_moment_ends_like_one_that_was_not(
    small, go, hospitals, tmp_path, same_run, whole, event, round_number, party
):
    job = small()
    arguments = {"event": event, "round_number": round_number, "party": party}
    (job.server if party == "server" else job.client)["components"].append(
        {"id": "cut", "path": "faulty.Interrupt", "args": arguments}
    )
    with pytest.raises(KeyboardInterrupt):
        simulate(job, tmp_path, SITES, sites_dir=hospitals)
    same_run(go(small(), tmp_path), whole)


def test_matrices_of_unlabelled_sites_are_released_for_figures_alone(small, go, tmp_path, identical, whole):
    found = go(small("executor.release_relation=true"), tmp_path)
    own = {number: event["own"] for number, event in relations(found).items()}
    assert own[1] == {}
    for number in (2, 3, 4):
        assert set(own[number]) == set(UNLABELLED)
        for relation in own[number].values():
            assert np.allclose(np.sum(relation["matrix"], axis=1), 1, atol=1e-5)
    assert identical(found.models, whole.models)
    assert not any(event["own"] for event in relations(whole).values())


def test_classes_that_no_site_supports_are_masked_and_named(small, go, tmp_path, identical):
    """Every hospital has fewer images of each class than are asked for."""
    job = small("controller.min_support=50", "executor.min_support=50")
    found = go(job, tmp_path / "a")
    classes = ["round", "irregular", "ring", "clustered"]
    assert all(entry["unsupported"] == classes for entry in found.summary["rounds"])
    assert found.summary["status"] == "finished"
    assert all(metrics["relation_loss"] == 0 for (_, site), metrics in answers(found).items() if site in UNLABELLED)
    assert all(event["support"] == [0] * 4 for event in relations(found).values())
    without = go(small("executor.relation_weight=0"), tmp_path / "b")
    assert identical(found.models, without.models)


@pytest.mark.parametrize(
    ("how", "at", "reason"),
    [
        ("nan", "site-2", "relation['matrix'] has a value that is NaN or infinite"),
        ("rows", "site-2", "row 1 of relation sums to 1.25, expected 1"),
        ("classes", "site-2", "relation must have shape (4, 4), a row for each class, got (5, 5)"),
        ("fractions", "site-2", "the support of relation must be whole numbers (int64), got torch.float32"),
        ("parts", "site-2", "relation must be class statistics with matrix and support, got ['matrix']"),
        ("unasked", "site-3", "site-3 joined without labels and must not send 'relation'"),
    ],
)
def test_a_matrix_that_is_none_costs_its_site_the_round_and_no_other(small, go, tmp_path, how, at, reason):
    job = small("controller.rounds=2", path="introductions.SpoiltRelation", at=at, how=how)
    found = go(job, tmp_path)
    last = found.summary["rounds"][-1 if at == "site-3" else 0]
    assert list(last["dropped"]) == [at]
    assert last["dropped"][at].startswith(reason)
    assert last["relation_from"] == [site for site in LABELLED if site != at]
    assert found.summary["status"] == "finished"


def test_without_any_site_with_labels_the_run_does_not_start(small, hospitals, tmp_path):
    with pytest.raises(
        GrandRoundsError,
        match=r"no site that has joined has a labelled training image \(joined: site-3, site-4\), and somebody must say",
    ):
        simulate(small(), tmp_path, UNLABELLED, sites_dir=hospitals)


@pytest.fixture
def fails(monkeypatch):
    """Let labelled sites fail at what they are asked: ``fails("train", {2, 3})`` in these rounds, or the first ``times``."""

    def start(method, rounds, times=100):
        original, failed = getattr(FedIRMExecutor, method), []

        def wrong(self, *arguments):
            context = arguments[-1]
            if context.site in LABELLED and context.round_number in rounds and failed.count(context.site) < times:
                failed.append(context.site)
                raise RuntimeError("nobody is in")
            return original(self, *arguments)

        monkeypatch.setattr(FedIRMExecutor, method, wrong)
        return failed

    return start


def test_a_site_that_has_not_joined_is_not_said_to_have_no_labels(small, hospitals, tmp_path, fails):
    fails("introduce", {1})
    with pytest.raises(GrandRoundsError, match=r"\(joined: site-3, site-4\), and site-1, site-2 did not join: see why"):
        simulate(small(), tmp_path, SITES, sites_dir=hospitals)


def test_while_nobody_with_labels_has_joined_those_that_failed_are_asked_once_more(small, go, tmp_path, fails):
    assert fails("introduce", {1}, times=1) == []
    found = go(small("controller.rounds=1"), tmp_path)
    assert found.summary["rounds"][0]["asked"] == LABELLED


def test_paused_sites_with_labels_are_called_back_where_nobody_else_has_any(small, go, tmp_path, fails):
    fails("train", {2})
    found = go(small(), tmp_path)
    assert [entry["asked"] for entry in found.summary["rounds"]] == [LABELLED, SITES, SITES, SITES]
    assert found.summary["rounds"][2]["answered"] == SITES
    events = [event for event in read_events(found.record) if event["event"] == "no_labelled_site"]
    assert [(event["round"], event["called_back"]) for event in events] == [(3, LABELLED)]


def test_the_others_do_not_go_on_alone_and_the_run_can_be_started_again(
    small, go, hospitals, tmp_path, fails, monkeypatch
):
    job = small("executor.release_relation=true")
    fails("train", {2, 3})
    with pytest.raises(GrandRoundsError, match=r"round 3: no site with labels is well \(site-1, site-2 gave no answer"):
        simulate(job, tmp_path, SITES, sites_dir=hospitals)
    monkeypatch.undo()
    found = go(job, tmp_path)
    assert found.summary["status"] == "finished"
    # In the second round sites without labels alone have answered: what they see is in the record.
    second = next(e for e in read_events(found.record) if e["event"] == "relation" and e["round"] == 2)
    assert (second["sites"], sorted(second["own"])) == ([], UNLABELLED)


def test_where_all_sites_with_labels_have_gone_the_run_stops(small, go, hospitals, tmp_path):
    go(small("controller.rounds=1"), tmp_path)
    with pytest.raises(
        GrandRoundsError, match=r"round 2: no site with labels is connected.*start site-1 or site-2, then"
    ):
        simulate(small("controller.rounds=2"), tmp_path, UNLABELLED, sites_dir=hospitals)
    events = [
        event
        for event in read_events(next((tmp_path / "state").iterdir()) / "server")
        if event["event"] == "no_labelled_site"
    ]
    assert [(event["round"], event["called_back"]) for event in events] == [(2, [])]


@pytest.mark.parametrize(
    ("site", "now", "reason"),
    [
        ("site-2", "0", "site-2: it joined this run with labels and is without a labelled training image now"),
        ("site-3", "1", "site-3: it joined this run without labels and is with a labelled training image now"),
    ],
)
def test_a_site_whose_labels_come_or_go_says_so_and_is_dropped(small, run, tmp_path, site, now, reason):
    folder = tmp_path / "hospitals"
    for name in SITES:
        phantom_site(name, folder, size=32, images=60, labelled=float(name in LABELLED))
    run(small("controller.rounds=2"), tmp_path / "run", SITES, sites_dir=folder)
    manifest = folder / site / "manifest.csv"
    with manifest.open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    with manifest.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, rows[0].keys(), lineterminator="\n")
        writer.writeheader()
        writer.writerows({**row, "labelled": now} for row in rows)
    found = run(small("controller.rounds=3"), tmp_path / "run", SITES, sites_dir=folder)
    (event,) = [event for event in read_events(found.record) if event["event"] == "dropped"]
    assert event["site"] == site
    assert found.summary["rounds"][-1]["asked"] == SITES
    assert re.search(re.escape(reason), (tmp_path / "run" / "run.log").read_text())


@pytest.mark.parametrize(
    "options",
    [
        ["executor.unlabelled_objective=self_training"],
        ["executor.relation_weight=0"],
    ],
)
def test_baselines_release_no_matrix(small, go, tmp_path, options):
    found = go(small("controller.rounds=3", *options), tmp_path)
    assert relations(found) == {}
    assert not any("relation" in part for parts in found.summary["bytes"].values() for part in parts)
    assert all("kept" in metrics for (_, site), metrics in answers(found).items() if site in UNLABELLED)


def test_matrices_cost_bytes_that_are_counted(whole):
    """A matrix of four classes in single precision and four counts: 64 + 32 bytes."""
    sent = whole.summary["bytes"]
    assert {site: parts.get("up.relation", 0) for site, parts in sent.items()} == {
        "site-1": 4 * 96, "site-2": 4 * 96, "site-3": 0, "site-4": 0,
    }  # fmt: skip
    assert {site: parts.get("down.relation", 0) for site, parts in sent.items()} == {
        "site-1": 0, "site-2": 0, "site-3": 3 * 96, "site-4": 3 * 96,
    }  # fmt: skip


def test_one_subset_of_all_sites_without_distances_is_federated_averaging(small, go, tmp_path):
    consensus = ["controller.subsets=1", "controller.subset_size=4", "controller.distance_scale=0"]
    # One round: Adam makes much of differences in the last bits.
    once = ["controller.rounds=1", "controller.unlabelled_start=0"]
    same = [*once, "executor.relation_weight=0", "executor.teacher=ema_reset"]
    left = go(small(*consensus, *same, "executor.teacher_temperature=1", name="rscfed"), tmp_path / "a")
    right = go(small(*same, "executor.mc_dropout=none"), tmp_path / "b")
    for name, value in left.models["last"].items():
        torch.testing.assert_close(value, right.models["last"][name], rtol=1e-5, atol=1e-7)


def test_the_consensus_says_who_counted_how_much_and_is_repeatable(small, go, tmp_path, same_run):
    options = ["controller.subsets=3", "controller.subset_size=2", "controller.distance_scale=10"]
    first = go(small(*options, name="rscfed"), tmp_path / "a")
    for entry in first.summary["rounds"]:
        assert len(entry["subsets"]) == 3
        for weights in entry["subsets"]:
            assert len(weights) == 2
            assert sum(weights.values()) == pytest.approx(1, abs=1e-5)
    same_run(first, go(small(*options, name="rscfed"), tmp_path / "b", sites=SITES[::-1]))


@pytest.mark.slow
def test_flares_simulator_gives_the_same_run(small, go, tmp_path, same_run, whole):
    """Two threads for four sites: teacher, optimizer and what sites have said of themselves live on disk."""
    job = small("executor.cpu_threads=1", "controller.round_timeout=100")
    same_run(go(job, tmp_path, engine="flare", threads=2), whole)
