"""Sites that say of themselves what the method asks, once and before they first take part."""

import pytest

from grandrounds.deployment.simulate import simulate
from grandrounds.errors import GrandRoundsError
from grandrounds.federation.server.record import read_events
from tests.federations import as_between_kits

SITES = ["site-1", "site-2", "site-3", "site-4"]


@pytest.fixture
def asking(tiny, tmp_path):
    """A job whose controller asks, and the diary in which sites write that they were asked."""
    diary = tmp_path / "diary"
    diary.touch()

    def make(*assignments, **options):
        job = tiny("fedavg", "controller.min_sites=1", *assignments)
        job.server["workflows"][0]["path"] = "registrations.AskingController"
        entry = job.client["executors"][0]["executor"]
        entry["path"] = "registrations.RegistersItself"
        entry["args"] |= {"diary": str(diary), **options}
        return job

    return make, lambda: diary.read_text().split("\n")[:-1]


def test_each_site_is_asked_once_and_its_answer_decides_whether_it_trains(asking, run, tmp_path):
    make, diary = asking
    found = run(make(), tmp_path / "run", SITES)
    assert diary() == [f"1 {site}" for site in SITES]
    assert [entry["asked"] for entry in found.summary["rounds"]] == [["site-2", "site-4"]] * 3
    joins = [event for event in read_events(found.results) if event.get("task") == "join"]
    assert [(event["site"], event["metrics"]) for event in joins] == [
        (site, {"even": float(int(site[-1]) % 2 == 0)}) for site in SITES
    ]
    assert set(found.summary["records"]) == set(SITES), "the others score and test"


def test_answers_survive_the_server(asking, run, tmp_path, assert_same_run):
    make, diary = asking
    job = make()
    arguments = {"event": "_round_started", "round_number": 3, "party": "server", "hard": False}
    job.server["components"].append({"id": "cut", "path": "faulty.Interrupt", "args": arguments})
    with pytest.raises(KeyboardInterrupt):
        simulate(job, tmp_path / "run", SITES)
    resumed = run(make(), tmp_path / "run", SITES)
    assert diary() == [f"1 {site}" for site in SITES]
    assert_same_run(resumed, run(make(), tmp_path / "whole", SITES))


def test_a_site_that_comes_later_is_asked_then(asking, run, tmp_path):
    make, diary = asking
    run(make("controller.rounds=1"), tmp_path / "run", SITES[:2])
    as_between_kits(tmp_path / "run")
    found = run(make("controller.rounds=2"), tmp_path / "run", SITES)
    assert diary() == ["1 site-1", "1 site-2", "2 site-3", "2 site-4"]
    assert [entry["asked"] for entry in found.summary["rounds"]] == [["site-2"], ["site-2", "site-4"]]


def test_a_site_that_does_not_answer_takes_no_part_and_is_asked_again(asking, run, tmp_path):
    make, diary = asking
    found = run(make("controller.rounds=4", silent_until=2), tmp_path / "run", SITES)
    rounds = found.summary["rounds"]
    assert [entry["asked"] for entry in rounds] == [["site-2"], *[["site-2", "site-4"]] * 3]
    assert diary() == ["1 site-1", "1 site-2", "1 site-3", "2 site-4"]
    dropped = [event for event in read_events(found.results) if event["event"] == "dropped"]
    assert [(event["round"], event["site"]) for event in dropped] == [(1, "site-4")]


def test_where_no_method_asks_no_site_is_asked(tiny, run, tmp_path):
    found = run(tiny("fedavg"), tmp_path)
    assert not [event for event in read_events(found.results) if event.get("task") == "join"]


@pytest.fixture
def choosy(tiny):
    """A job whose server sends each site its place and gets it back; one site may be refused."""

    def make(*assignments, unwanted="", undeclared=""):
        job = tiny("fedavg", "controller.rounds=2", "controller.min_sites=2", "executor.steps=1", *assignments)
        workflow, entry = job.server["workflows"][0], job.client["executors"][0]["executor"]
        workflow["path"], entry["path"] = "registrations.ChoosyController", "registrations.ReturnsItsPlace"
        workflow["args"]["unwanted"], entry["args"]["undeclared"] = unwanted, undeclared
        return job

    return make


def test_a_site_that_is_refused_is_out_and_the_others_go_on(choosy, run, tmp_path):
    found = run(choosy(unwanted="site-2"), tmp_path, SITES[:3])
    assert found.summary["refused"] == {"site-2": "site-2 has other public images"}
    assert [entry["asked"] for entry in found.summary["rounds"]] == [["site-1", "site-3"]] * 2
    assert set(found.summary["records"]) == {"site-1", "site-3"}
    registration = found.summary["registered"]["site-1"]
    assert (registration["scalars"], registration["facts"]["digest"]) == ({"size": 3.0}, "of site-1")


def test_too_few_sites_that_are_not_refused_stop_the_run_with_the_reason(choosy, run, tmp_path):
    with pytest.raises(GrandRoundsError, match=r"min_sites is 2.*site-1: site-1"):
        run(choosy(unwanted="site-1"), tmp_path, SITES[:2])


def test_a_fact_that_was_not_declared_does_not_leave_its_site(choosy, run, tmp_path):
    found = run(choosy("controller.rounds=1", undeclared="site-3"), tmp_path, SITES[:3])
    (dropped,) = [event for event in read_events(found.results) if event["event"] == "dropped"]
    assert dropped["site"] == "site-3"
    assert "fact 'patient' is not declared" in dropped["reason"]
    assert "4711" not in (found.results / "events.jsonl").read_text()
