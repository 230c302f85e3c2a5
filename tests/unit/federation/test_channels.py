"""Who may ask whom for what by FLARE's cells."""

import subprocess
import sys

import pytest

from grandrounds.federation.channels import FROM_SERVER, refusal

ADMIN, AUX, COMMAND, NETWORK = "admin", "aux_communication", "client_command", "_net_manager"


@pytest.mark.parametrize(
    ("cell", "neighbour", "origin", "destination", "channel"),
    [
        ("hospital-b", "server", "server", "hospital-b", ADMIN),
        ("hospital-b.job", "server", "server.job", "hospital-b.job", AUX),
        ("hospital-b", "hospital-b.job", "hospital-b.job", "hospital-b", ADMIN),
        ("hospital-b.job", "hospital-b", "hospital-b", "hospital-b.job", COMMAND),
        ("hospital-b", "server", "server.job", "hospital-b.job", AUX),
        ("server", "hospital-a", "hospital-a.job", "server.job", "server_command"),
        ("server", "server.job", "server.job", "hospital-a.job", AUX),
        ("server.job", "server", "server", "server.job", "server_command"),
        ("server", "_admin_1", "_admin_1", "server", "hci_channel"),
    ],
)
def test_what_federated_training_needs_passes(cell, neighbour, origin, destination, channel):
    assert refusal(cell, neighbour, origin, destination, channel) == ""


@pytest.mark.parametrize("channel", [*sorted(FROM_SERVER), COMMAND, NETWORK])
@pytest.mark.parametrize("cell", ["hospital-b", "hospital-b.job"])
def test_a_site_answers_no_other_site(cell, channel):
    assert refusal(cell, "server", "hospital-a", cell, channel)
    assert refusal(cell, "hospital-a", "hospital-a", cell, channel)
    assert refusal(cell, "hospital-a", "server", cell, channel)
    assert refusal(cell, "server", "hospital-b", cell, channel)
    assert refusal(cell, "", "", cell, channel)


@pytest.mark.parametrize("channel", [COMMAND, NETWORK, "server_command", "unknown"])
def test_a_site_does_not_answer_the_server_on_every_channel(channel):
    assert refusal("hospital-b", "server", "server", "hospital-b", channel)


@pytest.mark.parametrize("destination", ["hospital-b", "hospital-b.job", "server"])
def test_a_server_lets_nobody_send_in_anothers_name_or_to_another_site(destination):
    assert refusal("server", "hospital-a", "server", destination, ADMIN)
    assert refusal("server", "hospital-a", "hospital-b", destination, ADMIN)
    if destination != "server":
        assert refusal("server", "hospital-a", "hospital-a", destination, ADMIN)


GUARDED = """
from grandrounds.federation.channels import ChannelGuard
from nvflare.private.fed.client.client_req_processors import ClientRequestProcessors
from nvflare.private.admin_defs import Message
from nvflare.private.defs import RequestHeader, SysCommandTopic, TrainingTopic
from nvflare.private.fed.client.client_engine_internal_spec import ClientEngineInternalSpec
from unittest.mock import Mock
from nvflare.fuel.f3.cellnet.core_cell import CoreCell
topics = lambda: [topic for found in ClientRequestProcessors.request_processors for topic in found.get_topics()]
assert SysCommandTopic.SHELL in topics()
before = len(topics())
ChannelGuard(), ChannelGuard()
assert SysCommandTopic.SHELL not in topics() and len(topics()) == before - 1
request = Message(TrainingTopic.DELETE_RUN, "")
(deletion,) = [found for found in ClientRequestProcessors.request_processors if request.topic in found.get_topics()]
engine = Mock(spec=ClientEngineInternalSpec)
for job in ("local", "startup", "grandrounds", "", "0d8fba9f-0e7e-4b0a-9b62-3c7f9b1f3a11"):
    request.set_header(RequestHeader.JOB_ID, job)
    deletion.process(request, engine)
import io, zipfile
from nvflare.private.fed.server.job_meta_validator import JobMetaValidator
def archive(**files):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as made:
        for name, text in files.items():
            made.writestr(name.replace("__", "/").replace("_dot_", "."), text)
    return stream.getvalue()
(deployment,) = [found for found in ClientRequestProcessors.request_processors if TrainingTopic.DEPLOY in found.get_topics()]
deploying = Message(TrainingTopic.DEPLOY, archive(config__config_fed_client_dot_conf='a = {include url("http://127.0.0.1:9/")}'))
assert "is no file of a job" in deployment.process(deploying, engine).body
engine.deploy_app.assert_not_called()
submitted = archive(job__meta_dot_json="{}", job__app__config__config_fed_client_dot_conf="a = 1")
for _ in range(2):
    valid, error, meta = JobMetaValidator().validate("job", submitted)
    assert not valid and "'config/config_fed_client.conf' is no file of a job" in error and meta == {}, error
assert "meta" in JobMetaValidator().validate("job", archive(job__meta_dot_conf="a = 1"))[1]
assert "no file of a job" in JobMetaValidator().validate("job", archive(other__meta_dot_json="{}"))[1]
assert [call.args for call in engine.delete_run.call_args_list] == [(job,)], engine.delete_run.call_args_list
cell = CoreCell("hospital-b", "tcp://127.0.0.1:1", secure=False, credentials={})
started = []
cell.communicator.start = lambda: started.append(cell.message_interceptor.__name__)
cell._set_bb_for_client_root = lambda: None
cell.start()
assert started == ["_intercept"], started
from grandrounds.federation import channels
from nvflare.private.admin_defs import error_reply, ok_reply
from nvflare.private.fed.server.admin import check_client_replies
from nvflare.private.fed.server.message_send import ClientReply
from nvflare.private.fed.client.scheduler_cmds import StartJobProcessor
from nvflare.private.fed.client.training_cmds import DeployProcessor
(start,) = [found for found in ClientRequestProcessors.request_processors if TrainingTopic.START_JOB in found.get_topics()]
starting = Message(TrainingTopic.START_JOB, {})
for message in (starting, deploying):
    message.set_header(RequestHeader.JOB_ID, "0d8fba9f-0e7e-4b0a-9b62-3c7f9b1f3a11")
channels.require_app = channels.read_files = lambda content: None
StartJobProcessor.process = lambda *arguments: ok_reply()
for deployed in (error_reply("no"), ok_reply()):
    assert "was not deployed" in start.process(starting, engine).body
    DeployProcessor.process = lambda *arguments: deployed
    deployment.process(deploying, engine)
reply = start.process(starting, engine)
assert reply.body == "ok"
lost = start.process(starting, engine)
assert "was not deployed" in lost.body
for later, answer in ((error_reply("withdrawn"), None), (ok_reply(), -channels.DEPLOYMENT_SECONDS)):
    deployed = ok_reply()
    deployment.process(deploying, engine)
    deployed = later
    deployment.process(deploying, engine)
    channels.JobStart.deployed = {job: at + answer for job, at in channels.JobStart.deployed.items()}
    assert "was not deployed" in start.process(starting, engine).body
try:
    check_client_replies([ClientReply("token", "hospital-a", starting, lost)], ["hospital-a"], "start job", False)
except RuntimeError as error:
    assert "was not deployed" in str(error)
else:
    raise AssertionError("FLARE takes a job for started that a site has refused")
"""


def test_the_guard_takes_the_shell_away_and_is_in_every_cell_before_it_listens():
    """In a process of its own, because it changes FLARE's classes."""
    ended = subprocess.run([sys.executable, "-c", GUARDED], capture_output=True, text=True, timeout=600, check=False)
    assert ended.returncode == 0, ended.stderr


KIT = """
import os, sys
from pathlib import Path
from grandrounds.federation import channels
kit = Path(sys.argv[2])
channels.show_life = lambda kit: None
os.umask(0o022)
channels.ChannelGuard()
assert os.umask(0) == 0o077
"""


def test_files_of_a_kits_processes_are_for_their_owner_alone_however_they_were_started(tmp_path):
    """Also by FLARE's own script."""
    (tmp_path / "startup").mkdir()
    (tmp_path / "local").mkdir()
    command = [sys.executable, "-c", KIT, "-m", str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert ended.returncode == 0, ended.stderr
