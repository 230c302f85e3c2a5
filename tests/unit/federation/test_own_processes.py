"""At a kit's internal port only processes that know the secret of its start are heard, whatever they call themselves."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from grandrounds.errors import ConfigurationError
from grandrounds.federation.identity.own_processes import guard_internal_ports
from grandrounds.protocol.paths import START_KEY

COMMON = """
import os, sys, time, traceback
from pathlib import Path
from nvflare.fuel.f3.communicator import Communicator, load_comm_drivers
from nvflare.fuel.f3.drivers.connector_info import Mode
from nvflare.fuel.f3.endpoint import Endpoint
from nvflare.fuel.f3.sfm import sfm_conn
from nvflare.fuel.f3.sfm.conn_manager import ConnManager
from nvflare.fuel.f3.sfm.constants import Types
sys.excepthook = lambda *found: (traceback.print_exception(*found), sys.stderr.flush(), os._exit(1))

def until(true, seconds=60):
    end = time.time() + seconds
    while time.time() < end:
        if true():
            return True
        time.sleep(0.05)
    return False

def connected(url, name):
    one = Communicator(Endpoint(name))
    one.add_connector(url, Mode.ACTIVE)
    one.start()
    return one

def ended(one):
    # FLARE connects again and again
    (connector,) = one.conn_manager.connectors.values()
    return connector.total_conns > 1
"""
OWN = """
import subprocess
from grandrounds.federation.identity import own_processes
kit = Path(sys.argv[1])
sent = []
frame = sfm_conn.SfmConnection.send_dict
def noted(connection, kind, stream, data):
    sent.append((kind, dict(data)))
    frame(connection, kind, stream, data)
sfm_conn.SfmConnection.send_dict = noted
own_processes.guard_internal_ports(kit, begins=True)
own_processes.guard_internal_ports(kit, begins=True)
parent = Communicator(Endpoint("hospital-a"))
_, url, _ = parent.start_listener("tcp", {"host": "localhost"})
parent.start()
heard = lambda: set(parent.conn_manager.sfm_endpoints)
job = connected(url, "hospital-a.job")
assert until(lambda: heard() == {"hospital-a.job"}), heard()
assert until(lambda: set(job.conn_manager.sfm_endpoints) == {"hospital-a"})
(kind, hello), (answer, ready) = sent
assert (kind, answer) == (Types.HELLO, Types.READY)
stranger = subprocess.Popen([sys.executable, "-c", sys.argv[2], url, hello["grandrounds_nonce"],
    hello["grandrounds_proof"], ready["grandrounds_proof"]], stdout=subprocess.PIPE, text=True)
theirs = stranger.stdout.readline().strip()
assert theirs.startswith("tcp://"), theirs
child = connected(theirs, "hospital-a.other")
assert until(lambda: ended(child)), "an impostor is left"
assert not child.conn_manager.sfm_endpoints
assert stranger.wait(120) == 0
assert heard() == {"hospital-a.job"}, heard()
print("done")
os._exit(0)
"""
STRANGER = """
load_comm_drivers()  # nobody else may read the environment
if os.geteuid() == 0:
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
url, nonce, hello, ready = sys.argv[1:5]
impostor = Communicator(Endpoint("hospital-a", {"grandrounds_nonce": nonce, "grandrounds_proof": ready}))
_, own, _ = impostor.start_listener("tcp", {"host": "localhost"})
impostor.start()
print(own, flush=True)
answers = []
update = ConnManager.update_endpoint
def noted(manager, connection, data):
    if manager is not impostor.conn_manager:
        answers.append(data)
    update(manager, connection, data)
ConnManager.update_endpoint = noted
proofs = ({}, {"grandrounds_proof": ""}, {"grandrounds_nonce": nonce, "grandrounds_proof": hello},
    {"grandrounds_nonce": nonce, "grandrounds_proof": ready}, {"grandrounds_proof": [1]})
for name in ("hospital-a.5f0c0000-0000-4000-8000-00000000beef", "server", "hospital-a"):
    for properties in proofs:
        one = Communicator(Endpoint(name, dict(properties)))
        one.add_connector(url, Mode.ACTIVE)
        one.start()
        assert until(lambda: ended(one)), (name, properties)
        assert not one.conn_manager.sfm_endpoints, (name, properties)
assert answers == [], answers
assert until(lambda: impostor.conn_manager.sfm_endpoints), "the child did not come"
os._exit(0)
"""


def test_who_does_not_know_the_secret_is_not_heard_and_not_believed(tmp_path):
    """Another process, as another user where this one is root: by any name, with others' proofs, and as the parent."""
    command = [sys.executable, "-c", COMMON + OWN, str(tmp_path), COMMON + STRANGER]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
    assert ended.stdout.strip().endswith("done"), ended.stderr[-4000:] + ended.stdout


def test_a_job_reads_the_secret_of_the_running_start_and_no_other_user_can(tmp_path):
    with pytest.raises(ConfigurationError, match="of no start of the kit"):
        guard_internal_ports(tmp_path, begins=False)
    path = tmp_path / START_KEY
    path.write_bytes(bytes(32))
    path.chmod(0o640)
    with pytest.raises(ConfigurationError, match="others can read it"):
        guard_internal_ports(tmp_path, begins=False)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can run a process as another user")
def test_another_user_can_neither_read_the_secret_nor_reach_the_forkserver(tmp_path):
    script = f"""
import multiprocessing, os, socket, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from multiprocessing import forkserver
from pathlib import Path
from grandrounds.federation.identity import own_processes
kit = Path({str(tmp_path)!r})
own_processes._key(kit / "key", True)
forkserver.ensure_running()
address = forkserver._forkserver._forkserver_address
os.setgroups([]); os.setgid(65534); os.setuid(65534)
for reach in (lambda: (kit / "key").read_bytes(), lambda: socket.socket(socket.AF_UNIX).connect(address)):
    try:
        reach()
    except PermissionError:
        continue
    raise SystemExit("reached")
"""
    os.chmod(tmp_path, 0o755)
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 0, ended.stderr
