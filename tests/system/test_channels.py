"""Nobody gets files of a hospital by FLARE's admin channel, and no hospital reaches another; job control still works."""

import json
import os
import shutil
from pathlib import Path

import pytest

from grandrounds.deployment.job_watch import admin_session
from grandrounds.deployment.jobs import load_job, write_job
from grandrounds.deployment.kit.doctor import examine_kit
from grandrounds.deployment.kit.overlay import apply_overlay
from grandrounds.deployment.local_federation import start, stop_federation
from grandrounds.deployment.manifest import add_manifests
from grandrounds.deployment.presets import with_options
from tests.federations import await_true

pytestmark = pytest.mark.provisioned

HOSTILE, VICTIM = "hospital-a", "hospital-b"
SECRET = "patient 4711"
COMMANDS = ("cat {}", "head {}", "tail {}", "grep patient {}", "ls -R {}")
PLAN, ANSWERS = "attack.json", "answers.json"
"""Files of ``attacker.py`` in its kit."""
NETWORK = "_net_manager"


@pytest.fixture(scope="module")
def federation(consortium, monkeypatch_module):
    """Two hospitals; the first one is hostile and has taken the guard out of its own kit."""
    monkeypatch_module.setenv("PYTHONPATH", str(Path(__file__).parent))

    def arm(made):
        path = made.kits / HOSTILE / "local" / "resources.json"
        content = json.loads(path.read_text())
        own = [entry for entry in content["components"] if entry["id"] != "channel_guard"]
        content["components"] = [*own, {"id": "attacker", "path": "attacker.Attacker", "args": {}}]
        path.write_text(json.dumps(content))
        (made.kits / VICTIM / "predictions.csv").write_text(SECRET)

    with consortium((HOSTILE, VICTIM), change=arm) as made:
        yield made


@pytest.fixture(scope="module")
def monkeypatch_module():
    with pytest.MonkeyPatch.context() as patch:
        yield patch


def attacked(federation, requests):
    """The answers that the hostile hospital gets."""
    folder = federation.kits / HOSTILE
    (folder / "plan.tmp").write_text(json.dumps(requests))
    os.replace(folder / "plan.tmp", folder / PLAN)
    await_true((folder / ANSWERS).is_file)
    answers = json.loads((folder / ANSWERS).read_text())
    (folder / ANSWERS).unlink()
    return answers


def test_a_hospital_gets_no_file_of_another(federation):
    secret = federation.kits / VICTIM / "predictions.csv"
    bodies = [command.format(secret) for command in COMMANDS]
    plain = [{"target": VICTIM, "body": body} for body in bodies]
    forged = [{"target": VICTIM, "body": bodies[0], "origin": origin} for origin in ("server", VICTIM)]
    answers = attacked(federation, [*plain, *forged])
    assert "server" in answers[-1]["tokens"], "the attacker has the server's own token"
    assert [answer for answer in answers if SECRET in answer["said"]] == []
    assert {answer["code"] for answer in answers} <= {"unauthenticated", "timeout"}


def test_a_hospital_commands_no_other_and_learns_nothing_of_its_processes(federation):
    """Abort, restart and tasks of FLARE's, and its network diagnosis; also in the name of the server."""
    topics = [("admin", "restart"), ("admin", "shutdown"), ("aux_communication", "__do_task__")]
    topics += [(NETWORK, "process_info"), (NETWORK, "config_vars"), (NETWORK, "stop")]
    requests = [{"target": VICTIM, "channel": channel, "topic": topic} for channel, topic in topics]
    answers = attacked(federation, [*requests, *({**request, "origin": "server"} for request in requests)])
    assert {answer["code"] for answer in answers} <= {"unauthenticated", "timeout"}
    refused = (federation.kits / federation.server / "log.txt").read_text()
    assert f"{HOSTILE} cannot reach {VICTIM} through the server" in refused
    assert f"{HOSTILE} sends in the name of server" in refused
    with admin_session(federation.kit(federation.operator)) as session:
        assert VICTIM in {site.name for site in session.get_system_info().client_info}


def test_the_victim_refuses_by_itself_what_an_unguarded_server_passes_on(federation):
    """The server is started again without the component: the hospital's own one refuses."""
    path = federation.kits / federation.server / "local" / "resources.json"
    content = json.loads(path.read_text())
    stop_federation(federation)
    own = [entry for entry in content["components"] if entry["id"] != "channel_guard"]
    path.write_text(json.dumps({**content, "components": own}))
    start(federation)
    secret = federation.kits / VICTIM / "predictions.csv"
    answers = attacked(federation, [{"target": VICTIM, "body": f"cat {secret}"}])
    assert SECRET not in answers[0]["said"]
    assert f"{VICTIM} answers the server only, not {HOSTILE}" in (federation.kits / VICTIM / "log.txt").read_text()


@pytest.mark.parametrize("who", ["researcher", "operator"])
def test_no_user_gets_a_file_by_a_shell_command(federation, who):
    """The operator is the administrator of the server's project."""
    with admin_session(federation.kit(getattr(federation, who))) as session:
        said = []
        for command in (*COMMANDS, "cat ../predictions.csv"):
            reply = session.api.do_command(f"{command.replace('{}', 'predictions.csv').replace(' ', f' {VICTIM} ', 1)}")
            said.append(str(reply))
    assert [reply for reply in said if SECRET in reply] == []


def test_a_server_without_rules_gets_no_file(federation):
    """Rights come with the request's own headers, so the command itself must be gone."""
    (federation.kits / VICTIM / "startup" / "probe").write_text(SECRET)
    authorization = federation.kits / federation.server / "local" / "authorization.json"
    before = authorization.read_text()
    content = json.loads(before)
    content["permissions"]["project_admin"] = "any"
    authorization.write_text(json.dumps(content))
    with admin_session(federation.kit(federation.operator)) as session:
        reply = str(session.api.do_command(f"cat {VICTIM} predictions.csv"))
    authorization.write_text(before)
    assert SECRET not in reply


def test_jobs_are_controlled_as_before(federation, tmp_path):
    """Started, listed and aborted."""
    job = with_options(
        load_job("fedavg"),
        ["controller.rounds=200", "executor.steps=2", "executor.batch_size=8", "executor.cpu_threads=1"],
    )
    folder = add_manifests(write_job(job, tmp_path / "job"))
    with admin_session(federation.kit(federation.researcher)) as session:
        identifier = session.submit_job(str(folder))
        await_true(lambda: "RUNNING" in str(session.get_job_meta(identifier)["status"]))
        session.abort_job(identifier)
        meta = session.wait_for_job(identifier, timeout=600, poll_interval=0.5)
    assert "ABORTED" in str(meta["status"])
    shutil.rmtree(folder)


def test_the_doctor_sees_that_the_guard_is_missing(federation):
    levels = {
        site: {f.check: f.level for f in examine_kit(federation.kit(site), network=False)} for site in (HOSTILE, VICTIM)
    }
    assert levels[HOSTILE]["channels"] == "failure"
    assert levels[VICTIM]["channels"] == levels[VICTIM]["authorisation"] == "ok"
    apply_overlay(federation.kit(HOSTILE))
    (again,) = [f for f in examine_kit(federation.kit(HOSTILE), network=False) if f.check == "channels"]
    assert again.level == "ok"
