"""Federated averaging of which the server sees the sums alone, in simulations without a gate."""

import pytest
import torch

from grandrounds.deployment.jobs import load_job
from grandrounds.deployment.presets import with_options
from grandrounds.errors import ConfigurationError, GrandRoundsError
from grandrounds.federation.server.dispatcher import TaskDispatcher
from grandrounds.federation.server.record import read_events
from grandrounds.federation.server.sums import SumService
from grandrounds.methods.supervised.controller import FedAvgController
from grandrounds.protocol.messages import Payload

SECURE = "controller.aggregation=secure"


def same(one, two):
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


@pytest.mark.parametrize(("name", "weighting"), [("fedavg", "uniform"), ("fedavg", "samples"), ("ssfl", "uniform")])
def test_the_secure_mean_is_the_mean_as_far_as_it_is_rounded(run, tiny, tmp_path, name, weighting):
    options = (f"controller.weighting={weighting}", "controller.rounds=1")
    plain = run(tiny(name, *options), tmp_path / "plain")
    secure = run(tiny(name, *options, SECURE), tmp_path / "secure")
    for name, value in plain.models["last"].items():
        if value.is_floating_point():
            torch.testing.assert_close(secure.models["last"][name], value, atol=1e-6, rtol=0)


def test_the_record_says_who_was_in_a_sum(run, tiny, tmp_path):
    outcome = run(tiny("fedavg", SECURE, "controller.rounds=1"), tmp_path)
    event, *_ = [event for event in read_events(tmp_path / "results") if event["event"] == "sum"]
    assert event["quantity"] == "update 1"
    assert len(event["contributors"]) >= 3
    assert any("arithmetic" in remark for remark in outcome.summary["remarks"])


def test_the_next_sum_needs_two_small_tasks_more(run, tiny, tmp_path, monkeypatch):
    """The shares of the next round come with the opening of this one."""
    asked = []
    ask = TaskDispatcher.ask

    def counted(self, assignments, *rest):
        asked.append({assignment.payload.values["sum"]["phase"] for assignment in assignments.values()})
        return ask(self, assignments, *rest)

    monkeypatch.setattr(TaskDispatcher, "ask", counted)
    run(tiny("fedavg", SECURE, "controller.rounds=3", "controller.validate_every=0"), tmp_path)
    assert asked[:8] == [{"join"}, {"shares"}, *3 * [{"contributors"}, {"unmask"}]]


def test_sums_of_scores_in_between_leave_the_shares_of_the_next_update(run, tiny, tmp_path, monkeypatch):
    asked = []
    ask = TaskDispatcher.ask

    def noted(self, assignments, *rest):
        about = next(iter(assignments.values())).payload.values["sum"]
        asked.append((about["phase"], (about["roster"] or {}).get("quantity", "")))
        return ask(self, assignments, *rest)

    monkeypatch.setattr(TaskDispatcher, "ask", noted)
    run(tiny("fedavg", SECURE, "controller.rounds=3", "controller.validate_every=1"), tmp_path)
    assert ("shares", "scores_validation 2") in asked
    assert [quantity for phase, quantity in asked if phase == "shares" and "update" in quantity] == ["update 1"]


@pytest.mark.parametrize(
    ("name", "options", "named"),
    [
        ("fedperl", [], "peers are single sites' models"),
        ("fed_align_cl", [], "embeddings and discriminators"),
        ("mdhfl", ["controller.weighting=ccr"], "controller.weighting=uniform"),
        ("mdhfl", ["controller.max_age=2"], "controller.max_age=0"),
        ("mdhfl", ["controller.wire=uint8"], "controller.wire=fp32"),
        ("fedavg", ["controller.weight_multiple=3"], "weight_multiple"),
        ("fedavg", ["controller.max_norm=3"], "max_norm"),
        ("fedavg", ["controller.update_precision=float16"], "update_precision"),
    ],
)
def test_what_reads_single_updates_is_refused_by_name(name, options, named):
    with pytest.raises(ConfigurationError, match=named):
        with_options(load_job(name), [SECURE, *options]).checked()


def test_two_sites_have_no_sum(run, tiny, tmp_path):
    with pytest.raises(GrandRoundsError, match="3 to 100 sites"):
        run(tiny("fedavg", SECURE), tmp_path, sites=["site-1", "site-2"])


def test_workers_and_one_process_give_the_same_bits(run, tiny, tmp_path, identical):
    job = tiny("fedavg", SECURE, "controller.rounds=2")
    assert identical(run(job, tmp_path / "one").models, run(job, tmp_path / "two", workers=2).models)


class Isolating(FedAvgController):
    """A server that sends one site the model, and the others one from which nothing can be learnt."""

    def payload_for(self, site):
        payload = super().payload_for(site)
        if site == "site-1":
            return payload
        parts = {"global": {name: torch.zeros_like(value) for name, value in payload.parts["global"].items()}}
        return Payload(payload.round_number, payload.values, parts)


@pytest.mark.parametrize("looks", [True, False])
def test_a_server_that_sends_sites_different_models_opens_nothing(run, tiny, tmp_path, monkeypatch, looks):
    """The check at the server is a courtesy: without it the masks do not cancel."""
    if not looks:
        monkeypatch.setattr(SumService, "check", lambda *answer: None)
    job = tiny("fedavg", SECURE, "controller.rounds=1", "controller.min_sites=1", "controller.validate_every=0")
    job.server["workflows"][0]["path"] = f"{__name__}.Isolating"
    found = run(job, tmp_path)
    events = [event for event in read_events(tmp_path / "results") if event["event"] == "sum"]
    (event,) = [event for event in events if event["quantity"] == "update 1"]
    assert ("fewer than 3" if looks else "bound") in event["lost"]
    assert found.summary["status"] == "finished"
