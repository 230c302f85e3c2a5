"""FedIRM where something is missing or wrong: labels, sites, matrices."""

import csv
import json
import re

import pytest

from grandrounds.data.partition.phantom_site import phantom_site
from grandrounds.deployment.simulate import simulate
from grandrounds.errors import GrandRoundsError
from grandrounds.federation.server.record import read_events
from grandrounds.methods.fedirm.executor import FedIRMExecutor
from grandrounds.protocol.messages import Registration
from tests.federations import as_between_kits

LABELLED, UNLABELLED = ["site-1", "site-2"], ["site-3", "site-4"]
SITES = LABELLED + UNLABELLED


def test_classes_that_no_site_supports_are_masked_and_named(small, go, tmp_path, identical, answers, relations):
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
        ("fractions", "site-2", "the support of relation must be integers (int64), got torch.float32"),
        ("parts", "site-2", "relation must be class statistics with matrix and support, got ['matrix']"),
        ("unasked", "site-3", "site-3 joined without labels and must not send 'relation'"),
    ],
)
def test_an_invalid_matrix_drops_only_its_site_from_the_round(small, go, tmp_path, how, at, reason):
    job = small("controller.rounds=2", path="registrations.SpoiltRelation", at=at, how=how)
    found = go(job, tmp_path)
    last = found.summary["rounds"][-1 if at == "site-3" else 0]
    assert list(last["dropped"]) == [at]
    assert last["dropped"][at].startswith(reason)
    assert last["relation_from"] == [site for site in LABELLED if site != at]
    assert found.summary["status"] == "finished"


def test_without_any_site_with_labels_the_run_does_not_start(small, hospitals, tmp_path):
    with pytest.raises(
        GrandRoundsError,
        match=r"no site that has joined has a labelled",
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
                raise RuntimeError("registration fails")
            return original(self, *arguments)

        monkeypatch.setattr(FedIRMExecutor, method, wrong)
        return failed

    return start


@pytest.fixture
def withhold(monkeypatch):
    """Let sites register without reporting whether they have labels, as a privacy policy may require."""
    original = FedIRMExecutor.register

    def start(*sites):
        def silent(self, payload, context):
            return Registration() if context.site in sites else original(self, payload, context)

        monkeypatch.setattr(FedIRMExecutor, "register", silent)

    return start


def test_a_site_that_withholds_whether_it_has_labels_is_refused_with_the_reason(small, go, tmp_path, withhold):
    withhold("site-2", "site-4")
    found = go(small("controller.rounds=2"), tmp_path)
    assert list(found.summary["refused"]) == ["site-2", "site-4"]
    assert found.summary["refused"]["site-2"].startswith(
        "site-2 has not reported whether it has labels; allow the number"
    )
    assert [entry["asked"] for entry in found.summary["rounds"]] == [["site-1"], ["site-1", "site-3"]]


def test_if_all_labelled_sites_withhold_it_the_run_reports_that(small, hospitals, tmp_path, withhold):
    withhold(*LABELLED)
    with pytest.raises(GrandRoundsError, match="site-3, site-4; site-1"):
        simulate(small(), tmp_path, SITES, sites_dir=hospitals)


def test_a_site_that_has_not_joined_is_not_reported_as_unlabelled(small, hospitals, tmp_path, fails):
    fails("register", {1})
    with pytest.raises(GrandRoundsError, match=r"site-3, site-4\).*site-1, site-2"):
        simulate(small(), tmp_path, SITES, sites_dir=hospitals)


def test_while_no_labelled_site_has_joined_failed_sites_are_asked_again(small, go, tmp_path, fails):
    assert fails("register", {1}, times=1) == []
    found = go(small("controller.rounds=1"), tmp_path)
    assert found.summary["rounds"][0]["asked"] == LABELLED


def test_paused_sites_with_labels_are_called_back_where_no_other_site_has_labels(small, go, tmp_path, fails):
    fails("train", {2, 3})
    found = go(small(), tmp_path)
    assert [entry["asked"] for entry in found.summary["rounds"]] == [LABELLED, SITES, SITES, SITES]
    assert found.summary["rounds"][3]["answered"] == SITES
    events = [event for event in read_events(found.record) if event["event"] == "no_labelled_site"]
    assert [(event["round"], event["called_back"]) for event in events] == [(4, LABELLED)]


def test_the_others_do_not_go_on_alone_and_the_run_can_be_started_again(
    small, go, hospitals, tmp_path, fails, monkeypatch
):
    job = small("executor.release_relation=true")
    fails("train", {2, 3, 4})
    with pytest.raises(GrandRoundsError, match=r"round 4: no site with labels is available"):
        simulate(job, tmp_path, SITES, sites_dir=hospitals)
    monkeypatch.undo()
    found = go(job, tmp_path)
    assert found.summary["status"] == "finished"
    # In the second round sites without labels alone have answered: what they see is in the record.
    second = next(e for e in read_events(found.record) if e["event"] == "relation" and e["round"] == 2)
    assert (second["sites"], sorted(second["pseudo_relations"])) == ([], UNLABELLED)


def test_a_run_without_remaining_labelled_sites_stops(small, go, hospitals, tmp_path):
    go(small("controller.rounds=1"), tmp_path)
    as_between_kits(tmp_path)
    with pytest.raises(GrandRoundsError, match=r"round 2: no site with labels is connected"):
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
        ("site-2", "0", "site-2: the site joined this run with labels and is without a labelled training image now"),
        ("site-3", "1", "site-3: the site joined this run without labels and is with a labelled training image now"),
    ],
)
def test_a_site_whose_labels_appear_or_disappear_reports_that_and_is_dropped(small, run, tmp_path, site, now, reason):
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
    as_between_kits(tmp_path / "run")
    found = run(small("controller.rounds=3"), tmp_path / "run", SITES, sites_dir=folder)
    (event,) = [event for event in read_events(found.record) if event["event"] == "dropped"]
    assert event["site"] == site
    assert found.summary["rounds"][-1]["asked"] == SITES
    assert re.search(re.escape(reason), (tmp_path / "run" / "run.log").read_text())


def test_nothing_is_averaged_before_a_labelled_site_has_trained(small, hospitals, tmp_path, fails):
    fails("train", {1})
    with pytest.raises(GrandRoundsError, match=r"round 1: no site with labels is available"):
        simulate(small("controller.unlabelled_start=0"), tmp_path, SITES, sites_dir=hospitals)


def test_a_round_without_an_answer_of_a_labelled_site_leaves_the_model(small, go, tmp_path, fails, identical):
    once = go(small("controller.rounds=1"), tmp_path / "a")
    fails("train", {2})
    twice = go(small("controller.rounds=2"), tmp_path / "b")
    assert twice.summary["rounds"][1]["answered"] == UNLABELLED
    assert identical({"last": once.models["last"]}, {"last": twice.models["last"]})
    events = [event for event in read_events(twice.results) if event["event"] == "not_averaged"]
    assert [(event["round"], event["answered"]) for event in events] == [(2, UNLABELLED)]


def test_a_site_can_ask_for_more_patients_than_the_job(small, run, tmp_path, relations):
    folder = tmp_path / "hospitals"
    for name in SITES:
        phantom_site(name, folder, size=32, images=60, labelled=float(name in LABELLED))
    description = folder / "site-2" / "grandrounds.json"
    content = json.loads(description.read_text())
    description.write_text(json.dumps({**content, "privacy": {"min_support": 1000}}))
    found = run(small("controller.rounds=2"), tmp_path / "run", SITES, sites_dir=folder)
    assert max(relations(found)[1]["support"]) == 1, "of two labelled sites only the other shows rows"
