"""A hostile hospital, a hostile server and a researcher without rights against three hospitals with certificates."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hostile import ANSWERS, MARKUP, PLAN, SAID, SEEN, TASKS
from nvflare.fuel.flare_api.api_spec import InternalError

from grandrounds.deployment.job_watch import admin_session
from grandrounds.deployment.jobs import Job, load_job, write_job
from grandrounds.deployment.manifest import add_manifests
from grandrounds.deployment.presets import with_options
from grandrounds.errors import Fault, GrandRoundsError
from grandrounds.privacy.gate.audit import Reason
from tests.federations import await_true

pytestmark = pytest.mark.provisioned

HOSTILE, VICTIM, HONEST = "hospital-a", "hospital-b", "hospital-c"
ROUNDS = max(len(ANSWERS), len(TASKS)) + 1
USED = {
    "honest",
    "an update a hundred times as long",
    "an update of 1e37",
    "a billion samples",
    "embeddings in federated averaging",
    "64 MiB beside the update",
    "a false name of a treatment",
}
"""Answers whose update has the right form. It is bounded; what is beside it is ignored, or a claim about its own images."""
BY_THE_SERVER = "the task is of another version: update_precision must be float32, float16 or bfloat16, got 'float1'"
TRAINED = {"honest", "a part with a path as its name"}
"""Changed tasks that the victim works on: the change has no meaning to it."""
SMALL = [
    *("executor.steps=1", "executor.batch_size=4", "executor.device=cpu", "executor.cpu_threads=1"),
    *("controller.weighting=samples", "controller.min_sites=1", "controller.round_timeout=600", "problem.norm=group"),
]


@pytest.fixture(scope="module")
def federation(consortium):
    """The first hospital and the server have hostile components in their own kits."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parent))

        def arm(made):
            for name, entry in (
                (HOSTILE, {"id": "hostile", "path": "hostile.HostileHospital", "args": {}}),
                (made.server, {"id": "hostile", "path": "hostile.HostileServer", "args": {"victim": VICTIM}}),
            ):
                path = made.kits / name / "local" / "resources.json"
                content = json.loads(path.read_text())
                path.write_text(json.dumps({**content, "components": [*content["components"], entry]}))
            state = made.kits / VICTIM / "grandrounds" / "somebody-elses"
            state.mkdir(parents=True)
            (state / "owner.json").write_text(json.dumps({"submitter_name": "ann@x.example", "name": "study"}))

        with consortium((HOSTILE, VICTIM, HONEST), change=arm) as made:
            yield made


def submitted(federation, job, folder):
    """Submit a job; its identity, its status at the end, and where its results are."""
    with admin_session(federation.kit(federation.researcher)) as session:
        identifier = session.submit_job(str(add_manifests(write_job(job, folder / "job"))))
        meta = session.wait_for_job(identifier, timeout=500, poll_interval=0.5)
        return str(meta["status"]), Path(session.download_job_result(identifier, str(folder / "result")))


@pytest.fixture(scope="module")
def run(federation, tmp_path_factory):
    """One run with another attack of each kind in each round."""
    job = with_options(load_job("fedavg"), [*SMALL, f"controller.rounds={ROUNDS}"])
    status, download = submitted(federation, job, tmp_path_factory.mktemp("run"))
    assert "COMPLETED" in status
    return json.loads((download / "workspace" / "results" / "summary.json").read_text())


def seen(federation, name):
    return [json.loads(line) for line in (federation.kits / name / SEEN).read_text().splitlines()]


def test_what_a_hostile_hospital_sends_is_refused_or_bounded(run, federation):
    """The others lose nothing: every round has the honest hospital, and the model is finite."""
    rounds = {entry["round"]: entry for entry in run["rounds"]}
    sent = {entry["change"]: rounds[entry["round"]] for entry in seen(federation, HOSTILE)}
    assert sent.keys() == ANSWERS.keys()
    assert all(HONEST in entry["answered"] for entry in run["rounds"])
    assert {name for name, entry in sent.items() if HOSTILE in entry["answered"]} == USED
    for name, field in (("an update of 1e37", "factor"), ("a billion samples", "weight_used")):
        assert field in sent[name]["bounded"][HOSTILE]


def test_what_a_hospital_writes_stays_a_short_text(run):
    reasons = [entry["dropped"].get(HOSTILE, "") for entry in run["rounds"]]
    assert any(MARKUP in reason for reason in reasons)
    assert all(len(reason) <= 600 and reason.isprintable() for reason in reasons)
    assert MARKUP not in json.dumps(run["privacy"])


def test_a_hostile_server_gets_from_a_hospital_what_its_policy_names(run, federation):
    asked = seen(federation, federation.server)
    answers = {entry["change"]: entry for entry in asked[: len(TASKS)]}
    assert answers.keys() == TASKS.keys()
    assert {entry["code"] for entry in asked[len(TASKS) :]} == {"OK"}, "the hospital goes on"
    for name, entry in answers.items():
        if entry["code"] == "OK":
            assert set(entry["parts"]) <= {"counts_validation", "metrics", "update"}, name
        else:
            assert entry["reason"] in {"", BY_THE_SERVER, *Reason, *Fault}, name
    assert {name for name, entry in answers.items() if entry["code"] == "OK"} == TRAINED
    victim = federation.kits / VICTIM
    assert (victim / "startup" / "client.key").is_file()
    written = ["cache", "fedavg", "ledger_head.json", "somebody-elses"]
    assert sorted(path.name for path in (victim / "grandrounds").iterdir()) == written


def asked(federation, questions):
    folder = federation.kits / federation.server
    (folder / "plan.tmp").write_text(json.dumps(questions))
    os.replace(folder / "plan.tmp", folder / PLAN)
    await_true((folder / SAID).is_file)
    said = json.loads((folder / SAID).read_text())
    (folder / SAID).unlink()
    return said


def test_a_server_operator_deletes_and_replaces_no_folder_of_a_hospital(federation):
    victim = federation.kits / VICTIM
    before = sorted(path.name for path in (victim / "local").rglob("*"))
    names = ("local", "startup", "grandrounds", "..", "local/privacy", "")
    topics = ("train.delete_run", "train.start_job", "train.abort")
    asked(federation, [{"topic": topic, "job": name} for topic in topics for name in names])
    assert sorted(path.name for path in (victim / "local").rglob("*")) == before
    assert (victim / "startup" / "client.key").is_file()


def test_a_server_operator_learns_nothing_by_other_commands(federation):
    dictionary = json.dumps({"version": 1, "handlers": {"x": {"()": "os.system", "command": "touch stolen"}}})
    file = str(federation.kits / VICTIM / "local" / "grandrounds.json")
    topics = (
        "info.show_errors",
        "info.show_stats",
        "sys.report_env",
        "sys.info",
        "train.get_scopes",
        "comp_caller.call",
    )
    questions = [{"topic": topic} for topic in topics]
    questions += [{"topic": "sys.configure_site_log", "body": body} for body in (dictionary, file, "../../x.json")]
    questions += [{"topic": topic, "channel": "_net_manager"} for topic in ("config_vars", "process_info", "stop")]
    questions += [{"topic": "sys.shell", "body": f"cat {file}"}, {"topic": "control.do_command", "body": "{}"}]
    said = asked(federation, questions)
    assert not any("phantom" in one["said"] or "manifest" in one["said"] for one in said)
    assert not list(federation.kits.rglob("stolen"))
    with admin_session(federation.kit(federation.operator)) as session:
        assert VICTIM in {site.name for site in session.get_system_info().client_info}


def test_a_server_starts_no_job_again_that_was_not_deployed_again(federation, tmp_path):
    """A deployment asks for end, signers and approval; the folder of a job that has ended is still at the hospital."""
    job = with_options(load_job("fedavg"), [*SMALL, "controller.rounds=1", "controller.run_name=once"])
    status, _ = submitted(federation, job, tmp_path)
    assert "COMPLETED" in status
    victim = federation.kits / VICTIM
    folders = [path.parent for path in victim.glob("*/meta.json") if json.loads(path.read_text())["name"] == "fedavg"]
    folder = max(folders, key=lambda path: path.stat().st_mtime)
    signers = victim / "local" / "signers.json"
    before = signers.read_text()
    signers.write_text(json.dumps({**json.loads(before), "withdrawn": [federation.researcher]}))
    try:
        meta = json.loads((folder / "meta.json").read_text())
        (said,) = asked(federation, [{"topic": "train.start_job", "job": folder.name, "body": {}, "meta": meta}])
    finally:
        signers.write_text(before)
    assert "was not deployed" in said["said"]


def with_server_component(path, **arguments):
    job = load_job("fedavg")
    return Job(job.meta, {**job.server, "components": [{"id": "x", "path": path, "args": arguments}]}, job.client)


JOBS = {
    "a program at the server": lambda: with_server_component("subprocess.Popen", args=["touch", "stolen"]),
    "a file of the server as weights": lambda: with_options(
        load_job("fedavg"), ["problem.weights=/etc/passwd", "controller.run_name=weights"]
    ),
}
"""What a job brings to hospitals is judged in ``test_job_attacks.py``."""


@pytest.mark.parametrize("name", JOBS)
def test_a_researchers_job_cannot_bring_anything(federation, tmp_path, name):
    try:
        status, _ = submitted(federation, JOBS[name](), tmp_path)
    except (GrandRoundsError, InternalError) as error:
        status = str(error)
    assert "COMPLETED" not in status
    assert not list(federation.kits.rglob("stolen"))


def test_nobody_joins_in_the_name_of_another_hospital(federation, tmp_path):
    """The hostile hospital starts a second client, with its own certificate, under the name of another one."""
    kit = tmp_path / VICTIM
    shutil.copytree(federation.kits / HOSTILE / "startup", kit / "startup")
    shutil.copytree(federation.kits / VICTIM / "local", kit / "local")
    path = kit / "startup" / "fed_client.json"
    path.write_text(path.read_text().replace(HOSTILE, VICTIM))
    log = federation.kits / federation.server / "log.txt"
    arguments = ["-m", str(kit), "-s", "fed_client.json", "--set", "secure_train=true", f"uid={VICTIM}", "org=x"]
    module = [sys.executable, "-m", "nvflare.private.fed.app.client.client_train"]
    refused = f"authenticated as '{HOSTILE}' but claimed endpoint '{VICTIM}' requires identity '{VICTIM}'"
    joined = log.read_text().count(f"New client {VICTIM}")
    with (tmp_path / "out.txt").open("w") as out:
        client = subprocess.Popen(
            [*module, *arguments, "config_folder=config"], stdout=out, stderr=out, start_new_session=True
        )
        try:
            await_true(lambda: refused in log.read_text())
        finally:
            os.killpg(client.pid, signal.SIGKILL)
            client.wait()
    assert log.read_text().count(f"New client {VICTIM}") == joined
