"""The table of jobs and shipped policies is what happens: a job that it calls refused is, and another one runs."""

import json
from contextlib import suppress

import pytest

from grandrounds.data.site import LABELLED_NAME
from grandrounds.deployment.disclosure import under_policy
from grandrounds.deployment.jobs import job_names, load_job
from grandrounds.deployment.kit.shipped import POLICIES, SUMS, shipped_content
from grandrounds.deployment.presets import with_options
from grandrounds.errors import GrandRoundsError
from grandrounds.federation.server.controller import RoundController
from grandrounds.federation.server.record import read_events
from grandrounds.privacy.ledger.ledger import Ledger

SITES = ["site-1", "site-2", "site-3"]
SHORT = {
    "controller.rounds": 1, "controller.distillation_steps": 1, "controller.aggregation": "secure", "executor.steps": 1,
    "executor.batch_size": 16, "executor.iterations": 4, "executor.local_epochs": 0.1, "executor.pretrain_epochs": 0.1,
    "problem.backbone": "small",
}  # fmt: skip
OF_A_ROUND = ("model_update", "class_statistics", "soft_labels", "sufficient_statistics")
SLOW = ("mdhfl",)  # tests/federation/sums/test_secure_soft_labels.py and privacy/test_mdhfl_gate.py cover most of it
JOBS = [
    pytest.param(name, marks=pytest.mark.slow if name in SLOW else ())
    for name in job_names()
    if issubclass(load_job(name).component("controller"), RoundController)
]


def short(name, policy):
    """The job on images of enough patients, as small as its options allow; its sums are secure where a policy asks."""
    job = load_job(name)
    values = {**SHORT, "problem.dataset": LABELLED_NAME, "problem.norm": "group", "executor.device": "cpu"}
    if name == "mdhfl":
        values["controller.rounds"] = 3  # training alone, one exchange, and the last scores
        values["executor.backbones"] = dict(zip(SITES, ("small", "narrow", "wide"), strict=True))
    if name == "ridge":
        del values["controller.rounds"], values["problem.norm"], values["problem.backbone"]
    if policy != SUMS or under_policy(job, policy).startswith("refused"):
        del values["controller.aggregation"]
    known = {f"{part}.{option}" for part in ("controller", "executor", "problem") for option in job.options(part)}
    return with_options(job, [f"{option}={json.dumps(value)}" for option, value in values.items() if option in known])


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", JOBS)
def test_a_job_that_the_table_calls_refused_is_and_another_one_runs(name, policy, run, tmp_path, shared_cache):
    for site in SITES:
        local = tmp_path / "flare" / site / "local"
        local.mkdir(parents=True)
        (local / "privacy.json").write_text(json.dumps(shipped_content(policy)))
        Ledger.create(local / "privacy", site)
    said = under_policy(load_job(name), policy)
    summary = {}
    with suppress(GrandRoundsError):
        summary = run(short(name, policy), tmp_path, sites=SITES).summary
    finished = summary.get("status") == "finished"
    assert finished is not said.startswith("refused"), said
    if policy == SUMS:
        (path,) = tmp_path.glob("state/*/server/summary.json")
        assert json.loads(path.read_text())["final"] is not finished, "what is refused is not submitted again"
    events = read_events(tmp_path / "results") if finished else []
    answers = [event for event in events if event["event"] == "answer"]
    released = {name: left["kind"] for event in answers for name, left in event.get("released", {}).items()}
    if policy == SUMS:
        assert set(released.values()) <= {"masked_sum"}
        assert not any(event["metrics"] for event in answers if event["task"] != "join")
    if (name, policy) == ("ridge", "open"):
        assert all("elsewhere" in tested for tested in summary["records"].values())
    of_a_round = {name for name, kind in released.items() if kind in OF_A_ROUND}
    assert all(f"{name}: " in said for name in of_a_round), (of_a_round, said)
