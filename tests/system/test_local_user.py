"""What a local user of a participant's machine gets from the internal ports of a kit and its job: nothing."""

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from grandrounds.deployment.job_watch import admin_session
from grandrounds.deployment.jobs import load_job, write_job
from grandrounds.deployment.kit.read import running_processes
from grandrounds.deployment.manifest import add_manifests
from grandrounds.deployment.presets import with_options
from grandrounds.protocol.paths import START_KEY
from tests.federations import await_true

pytestmark = [
    pytest.mark.provisioned,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can run a process as another user"),
]
HOSPITAL = "hospital-a"
QUICK = ["controller.rounds=200", "controller.min_sites=1", "executor.steps=2", "executor.batch_size=8"]


def ports(kit):
    """On which the processes of a kit listen."""
    found = set()
    for number in running_processes(kit):
        connections = psutil.Process(number).net_connections(kind="tcp")
        found |= {each.laddr.port for each in connections if each.status == psutil.CONN_LISTEN}
    return found


def test_a_local_user_gets_nothing_from_any_internal_port(consortium, tmp_path):
    """Fifteen attempts at each, while a job runs, which goes on."""
    with consortium((HOSPITAL,)) as made, admin_session(made.kit(made.researcher)) as session:
        folder = add_manifests(write_job(with_options(load_job("fedavg"), QUICK), tmp_path / "job"))
        job = session.submit_job(str(folder))
        audit = made.kits / HOSPITAL / "local" / "privacy" / "audit.jsonl"
        await_true(lambda: audit.is_file() and '"train"' in audit.read_text())
        asked = []
        for name in (HOSPITAL, made.server):
            kit = made.kit(name)
            key = kit.folder / START_KEY
            assert stat.S_IMODE(key.stat().st_mode) == 0o600
            for port in ports(kit) - {kit.port}:
                command = [sys.executable, str(Path(__file__).with_name("local_user.py")), str(port), name, job]
                ended = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
                asked.append([json.loads(line) for line in ended.stdout.splitlines()])
        assert len(asked) >= 2, "a port of the hospital and one of the server"
        assert {len(answers) for answers in asked} == {15}
        assert {answer["code"] for answers in asked for answer in answers} <= {
            "timeout",
            "comm_error",
            "target_unreachable",
        }
        log = (made.kits / HOSPITAL / "log.txt").read_text()
        assert "does not know the secret of this start" in log
        assert "RUNNING" in str(session.get_job_meta(job)["status"])
        before = audit.read_text().count('"train"')
        await_true(lambda: audit.read_text().count('"train"') > before)
        session.abort_job(job)
