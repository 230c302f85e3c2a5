"""A kit at two places: the server keeps its connection, tells the other, and takes it in when the first is gone."""

import json
import os
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest

from grandrounds.federation.identity import copies
from grandrounds.federation.identity.copies import kit_place, refused_copies, refused_here
from grandrounds.files import write_json

CONNECTED = """
import os, sys, time, traceback
from pathlib import Path
from nvflare.fuel.f3.communicator import Communicator
from nvflare.fuel.f3.drivers.connector_info import Mode
from nvflare.fuel.f3.endpoint import Endpoint
from grandrounds.federation.identity import copies
sys.excepthook = lambda *found: (traceback.print_exception(*found), sys.stderr.flush(), os._exit(1))
root = Path(sys.argv[1])
(root / "startup").mkdir()
copies.SILENT_SECONDS = 600.0  # nothing is silent here, however slow the machine is
copies.guard_copies(root)
copies.guard_copies(root)

def communicator(name, place):
    return Communicator(Endpoint(name, {copies.PLACE: place}))

def until(true, seconds=60):
    end = time.time() + seconds
    while time.time() < end:
        if true():
            return True
        time.sleep(0.05)
    return False

server = communicator("server", "s")
_, url, _ = server.start_listener("tcp", {"host": "localhost"})
server.start()

def connected(name="hospital-c"):
    held = server.conn_manager.sfm_endpoints.get(name)
    return [one.place for one in held.connections] if held else []

def connect(place, name="hospital-c"):
    one = communicator(name, place)
    one.add_connector(url, Mode.ACTIVE)
    one.start()
    return one

first = connect("here")
assert until(lambda: connected() == ["here"])
second = connect("there")
assert until(lambda: copies.refused_here(root)), "the copy was not told"
(seen,) = copies.refused_copies(root, 60)
assert (seen.what, connected()) == ("hospital-c", ["here"]), (seen, connected())
assert server.conn_manager.sfm_endpoints["hospital-c"].endpoint.get_prop("timestamp")
others = connect("anywhere", "hospital-d")
assert until(lambda: connected("hospital-d") == ["anywhere"])
held = server.conn_manager.sfm_endpoints["hospital-c"].connections[0]
again = connect("here")  # the same kit, started again while the link of before is not known to be dead
assert until(lambda: connected() == ["here"] and server.conn_manager.sfm_endpoints["hospital-c"].connections[0] is not held)
first.stop(), again.stop()
assert until(lambda: connected() == ["there"]), connected()
print("done")
os._exit(0)
"""


def test_the_second_place_is_refused_by_name_on_both_sides_and_taken_in_when_the_first_is_gone(tmp_path):
    """In a process of its own, because it changes FLARE's classes."""
    ended = subprocess.run(
        [sys.executable, "-c", CONNECTED, str(tmp_path)], capture_output=True, text=True, timeout=300, check=False
    )
    assert ended.stdout.strip().endswith("done"), ended.stderr[-3000:]
    assert "a copy of the kit of hospital-c is connected from another place" in refused_here(tmp_path)


@pytest.fixture
def kit(tmp_path):
    (tmp_path / "kit" / "startup").mkdir(parents=True)
    (tmp_path / "kit" / "startup" / "client.key").write_bytes(b"a key")
    return tmp_path / "kit"


def test_a_place_is_of_folder_and_machine_and_known_to_nobody_without_the_key(kit, monkeypatch):
    place = kit_place(kit)
    assert place == kit_place(kit / "startup" / "..")
    os.rename(kit, kit.with_name("copy"))
    assert kit_place(kit.with_name("copy")) != place
    os.rename(kit.with_name("copy"), kit)
    (kit / "startup" / "client.key").write_bytes(b"another key")
    assert kit_place(kit) != place
    (kit / "startup" / "client.key").unlink()
    assert kit_place(kit) == ""


def test_what_was_refused_is_forgotten_and_a_damaged_file_hides_no_other(tmp_path):
    folder = tmp_path / "grandrounds"
    now = datetime.now(UTC)
    for name, minutes in (("a", 1), ("b", 600)):
        time = (now - timedelta(minutes=minutes)).isoformat()
        write_json(folder / "copies" / f"{name}.json", {"name": name, "time": time, "times": 2})
    (folder / "copies" / "0.json").write_text("{")
    assert [(seen.what, seen.times) for seen in refused_copies(tmp_path, 3600)] == [("a", 2)]
    write_json(
        folder / "refused_copy.json", {"reason": "r", "time": (now - timedelta(hours=1)).isoformat(), "times": 1}
    )
    assert refused_here(tmp_path) == ""
    write_json(folder / "refused_copy.json", {"reason": "r", "time": now.isoformat(), "times": 1})
    assert refused_here(tmp_path) == "r"
    assert json.loads((folder / "refused_copy.json").read_text())["times"] == 1


@pytest.mark.parametrize(("silent", "alive"), [(0, True), (25, True), (35, False)])
def test_a_connection_that_is_silent_for_half_a_minute_holds_no_place(silent, alive):
    assert copies._is_alive(SimpleNamespace(last_activity=time.time() - silent)) is alive
