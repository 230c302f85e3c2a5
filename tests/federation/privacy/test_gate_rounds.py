"""The gate in whole runs: no job gets rid of it, and the round goes on without a site that has nothing left to spend."""

import json

import numpy as np
import pytest
import torch

from grandrounds.deployment.jobs import write_job
from grandrounds.deployment.operation.status import read_trail
from grandrounds.deployment.simulate import simulate
from grandrounds.errors import DataError
from grandrounds.federation.engine import run_in_process
from grandrounds.federation.server import exchange
from grandrounds.federation.server.record import read_events
from grandrounds.privacy.accounting import gaussian_epsilon
from grandrounds.privacy.gate.audit import Reason
from grandrounds.privacy.ledger.chain import noted_head
from grandrounds.privacy.ledger.ledger import Ledger
from tests.federations import as_between_kits

SITES = ["site-1", "site-2"]
ROUNDS = ["controller.rounds=3", "controller.min_sites=1", "controller.validate_every=1"]


def test_a_spent_budget_drops_the_site_with_its_reason_and_the_round_goes_on(tiny, run, tmp_path, install, policy_of):
    local = tmp_path / "flare" / "site-1" / "local"
    target = (gaussian_epsilon(16.0, 1e-5, 2) + gaussian_epsilon(16.0, 1e-5, 3)) / 2
    install(local, policy_of(target_epsilon={"phantom": target}))
    found = run(tiny("ssfl", *ROUNDS), tmp_path, sites=SITES)
    first, second, third = found.summary["rounds"]
    assert first["answered"] == second["answered"] == SITES
    assert (third["answered"], third["dropped"]) == (["site-2"], {"site-1": "privacy budget spent"})
    assert len(Ledger(local / "privacy", "site-1").content().bookings) == 2
    lines = [json.loads(line) for line in (local / "privacy" / "audit.jsonl").read_text().splitlines()]
    assert [line["outcome"] for line in lines if line["task"] == "train"] == ["released", "released", "refused"]
    assert (tmp_path / "flare" / "site-2" / "local" / "privacy").exists() is False


@pytest.mark.parametrize("job_filters", [[], ["GaussianPrivacy"]])
def test_no_job_loosens_the_gate_and_its_own_filter_adds_no_noise(
    tiny, run, tmp_path, install, policy_of, update_rule, job_filters
):
    """The site's clip is next to nothing, so the model stays where it was whatever the job asks for."""
    tight = update_rule(clip=1e-9, noise_multiplier=1.0)
    for site in SITES:
        install(tmp_path / "flare" / site / "local", policy_of(releases=[tight]), site)
    job = tiny("ssfl", "controller.rounds=1", "controller.validate_every=0")
    if job_filters:
        arguments = {"clip": 1e3, "noise_multiplier": 1e3, "running_statistics": "average"}
        filters = [{"path": "grandrounds.federation.job_noise.GaussianPrivacy", "args": arguments}]
        job.client["task_result_filters"].append({"tasks": ["train"], "filters": filters})
    still = job_without_training(tiny, run, tmp_path / "plain")
    for name, value in run(job, tmp_path, sites=SITES).models["last"].items():
        if value.is_floating_point():
            torch.testing.assert_close(value, still[name], rtol=0, atol=1e-6)


def job_without_training(tiny, run, path):
    """The model before the first round."""
    job = tiny("ssfl", "controller.rounds=1", "controller.validate_every=0")
    filters = [{"path": "faulty.ScaleUpdate", "args": {"factor": 0.0}}]
    job.client["task_result_filters"].append({"tasks": ["train"], "filters": filters})
    return run(job, path, sites=SITES).models["last"]


def test_the_summary_reports_treatments_and_spending(tiny, run, tmp_path, install, policy_of):
    scalars = [{"name": "privacy.epsilon", "part": "train", "minimum_support": 2}]
    install(tmp_path / "flare" / "site-1" / "local", policy_of(scalars=scalars))
    found = run(tiny("ssfl", "controller.rounds=2", "controller.validate_every=0"), tmp_path, sites=SITES)
    assert found.summary["privacy"] == {"site-1": {"treated": {"update": "clip_and_noise"}, "epsilon": 0.3}}


def test_a_site_without_a_ledger_takes_no_part_and_reports_the_reason(tiny, run, tmp_path, install, policy_of):
    install(tmp_path / "flare" / "site-1" / "local", policy_of(), ledger_site=None)
    found = run(tiny("ssfl", "controller.rounds=1", "controller.min_sites=1"), tmp_path, sites=SITES)
    (entry,) = found.summary["rounds"]
    assert entry["dropped"] == {"site-1": Reason.LEDGER.value}


def test_a_ledger_that_was_set_back_is_refused_by_the_next_run(tiny, run, tmp_path, install, policy_of):
    """The budget would begin anew; file and head are those of a whole, older ledger, so the site alone cannot tell."""
    local = tmp_path / "flare" / "site-1" / "local"
    install(local, policy_of())
    older = {path: path.read_bytes() for path in (local / "privacy").glob("ledger*")}
    job = tiny("ssfl", "controller.rounds=1", "controller.min_sites=1")
    assert run(job, tmp_path, sites=SITES).summary["rounds"][0]["answered"] == SITES
    for path, content in older.items():
        path.write_bytes(content)
    job.server["workflows"][0]["args"]["run_name"] = "another"
    as_between_kits(tmp_path)
    (entry,) = run(job, tmp_path, sites=SITES).summary["rounds"]
    assert (entry["answered"], entry["dropped"]) == (["site-2"], {"site-1": Reason.LEDGER.value})
    trail = (local / "privacy" / "audit.jsonl").read_text().splitlines()
    assert "another or an older file is in its place" in json.loads(trail[-1])["detail"]
    head = noted_head(
        tmp_path / "flare" / "site-1" / "grandrounds"
    )  # by which status --kit tells it before the next job
    with pytest.raises(DataError, match="another or an older file"):
        Ledger(local / "privacy", "site-1").content().chain.require_head(head)


def test_images_that_change_under_the_same_manifest_are_an_event_of_the_run_once(
    tiny, run, tmp_path, monkeypatch, install, policy_of
):
    monkeypatch.setenv("GRANDROUNDS_CACHE", str(tmp_path / "cache"))
    local = tmp_path / "flare" / "site-1" / "local"
    install(local, policy_of())
    job = tiny("ssfl", "controller.rounds=1", "controller.min_sites=1")

    def changed(name):
        job.server["workflows"][0]["args"]["run_name"] = name
        events = read_events(run(job, tmp_path, sites=SITES).results)
        as_between_kits(tmp_path)
        return [event["text"] for event in events if event["event"] == "remark" and event["site"] == "site-1"]

    assert changed("first") == []
    archive = tmp_path / "cache" / "phantom" / "site-1" / "images.npz"
    images = dict(np.load(archive))
    np.savez(archive, **images, more=np.zeros(1))  # other files with the same images, as after a copy
    assert changed("copied") == []
    images["images"][3] = np.rot90(images["images"][3])
    np.savez(archive, **images)
    assert changed("turned") == ["images of site-1 in 'phantom' have changed under the same manifest, as round 1 told"]
    assert changed("the-same") == []
    lines = [json.loads(line) for line in (local / "privacy" / "audit.jsonl").read_text().splitlines()]
    assert [line["dataset"] for line in lines if line["outcome"] == "changed"] == ["phantom"]
    assert Ledger(local / "privacy", "site-1").content().changes("phantom") == 1


@pytest.mark.parametrize("isolation", ["none", "process"])
@pytest.mark.parametrize("hidden", [True, False])
def test_the_cause_of_a_failed_training_stays_in_the_sites_trail(
    tiny, tmp_path, monkeypatch, shared_cache, install, policy_of, isolation, hidden
):
    local, state = tmp_path / "flare" / "site-1" / "local", tmp_path / "state"
    install(
        local,
        policy_of()
        if hidden
        else policy_of(releases=[{"kind": "model_update", "name": "update", "treatment": "unmodified"}]),
    )
    job = tiny("fedperl", "controller.rounds=1", "controller.min_sites=1", "problem.backbone=compact")
    fault = {"at": "site-1", "rounds": [1], "how": "raise"}
    monkeypatch.setenv("GRANDROUNDS_ISOLATION", isolation)
    entry = job.client["executors"][0]["executor"]
    entry["path"] = "faulty.FaultyExecutor"
    entry["args"] |= fault
    monkeypatch.setenv("GRANDROUNDS_STATE", str(state))
    run_in_process(write_job(job, tmp_path / "job"), tmp_path / "flare", SITES)
    (failed,) = read_trail(local / "privacy").failures.values()
    cause = "RuntimeError: patient 4711 has a broken file"
    assert {**failed, "time": ""} == {"time": "", "task": "train", "round": 1, "cause": cause}
    told = [path.read_text() for path in (state / "fedperl" / "server").glob("*.json*")]
    assert told
    assert hidden or any("the site replied EXECUTION_EXCEPTION" in text for text in told)
    assert not any("patient 4711" in text for text in told)


def test_a_child_that_ends_in_a_noisy_training_answers_as_others(
    tiny, tmp_path, monkeypatch, shared_cache, install, policy_of
):
    """A method could end its process for some images, which the server must not see; without a gate it is dropped."""
    local, state = tmp_path / "flare" / "site-1" / "local", tmp_path / "state"
    install(local, policy_of())
    job = tiny("fedavg", "controller.rounds=1", "controller.min_sites=1", "problem.backbone=compact")
    entry = job.client["executors"][0]["executor"]
    entry["path"] = "prying.PryingExecutor"
    entry["args"] |= {"attempt": "exit"}
    monkeypatch.setenv("GRANDROUNDS_ISOLATION", "process")
    monkeypatch.setenv("GRANDROUNDS_STATE", str(state))
    run_in_process(write_job(job, tmp_path / "job"), tmp_path / "flare", SITES)
    (entry,) = json.loads((state / "fedavg" / "server" / "summary.json").read_text())["rounds"]
    assert (entry["answered"], list(entry["dropped"])) == (["site-1"], ["site-2"])
    (failed,) = read_trail(local / "privacy").failures.values()
    assert "exit status 7" in failed["cause"]


@pytest.fixture
def received(monkeypatch):
    """The bits of every answer that has reached the server, by round and site."""
    came = []
    decode = exchange.decode_result

    def noted(message, asked):
        result = decode(message, asked)
        bits = [(name, key, one.tensors[key]) for name, one in result.releases.items() for key in one.tensors]
        came.append((asked.round_number, result.metrics, bits))
        return result

    monkeypatch.setattr(exchange, "decode_result", noted)
    return came


def test_an_answer_that_was_booked_and_lost_is_sent_again_and_costs_nothing_more(
    tiny, run, tmp_path, install, policy_of, received, identical
):
    """The server's process ends when the sites have booked their answers to round 2, and before it has a checkpoint."""
    for site in SITES:
        install(tmp_path / "flare" / site / "local", policy_of(), site)
    options = [*ROUNDS, "controller.rounds=3", "executor.optimizer=kept"]
    cut = tiny("ssfl", *options)
    cut.server["components"].append(
        {"id": "cut", "path": "faulty.Interrupt", "args": {"event": "_round_done", "round_number": 2}}
    )
    with pytest.raises(KeyboardInterrupt):
        simulate(cut, tmp_path, SITES)
    lost = [entry for entry in received if entry[0] == 2]
    received.clear()
    found = run(tiny("ssfl", *options), tmp_path, sites=SITES)
    again = [entry for entry in received if entry[0] == 2]
    assert len(lost) == len(again) == len(SITES)
    for (_, metrics, bits), (_, same_metrics, same_bits) in zip(lost, again, strict=True):
        assert metrics == same_metrics
        assert [one[:2] for one in bits] == [one[:2] for one in same_bits]
        assert all(torch.equal(one[2], other[2]) for one, other in zip(bits, same_bits, strict=True))
    assert found.summary["contributions"] == dict.fromkeys(SITES, 3)
    for site in SITES:
        privacy = tmp_path / "flare" / site / "local" / "privacy"
        booked = [one.purpose.round_number for one in Ledger(privacy, site).content().bookings]
        assert booked == [1, 2, 3]
        lines = [json.loads(line) for line in (privacy / "audit.jsonl").read_text().splitlines()]
        trained = [(line["outcome"], line["round"]) for line in lines if line.get("task") == "train"]
        assert trained == [("released", 1), ("released", 2), ("repeated", 2), ("released", 3)]


@pytest.mark.parametrize("change", ["policy", "model"])
def test_another_question_or_policy_gets_an_answer_of_its_own(tiny, run, tmp_path, install, policy_of, change):
    local = tmp_path / "flare" / "site-1" / "local"
    install(local, policy_of())
    cut = tiny("ssfl", *ROUNDS, "controller.min_sites=1")
    cut.server["components"].append(
        {"id": "cut", "path": "faulty.Interrupt", "args": {"event": "_round_done", "round_number": 2}}
    )
    with pytest.raises(KeyboardInterrupt):
        simulate(cut, tmp_path, SITES)
    if change == "policy":
        install(local, policy_of(target_epsilon={"phantom": 1e6}), ledger_site=None)
    else:  # the model that round 2 begins with
        path = tmp_path / "state" / "ssfl" / "server" / "round_00001.pt"
        saved = torch.load(path)
        for value in saved["content"]["method"]["global"].values():
            value.mul_(0.5) if value.is_floating_point() else None
        torch.save(saved, path)
    run(tiny("ssfl", *ROUNDS, "controller.min_sites=1"), tmp_path, sites=SITES)
    booked = [one.purpose.round_number for one in Ledger(local / "privacy", "site-1").content().bookings]
    assert booked == [1, 2, 2, 3]
