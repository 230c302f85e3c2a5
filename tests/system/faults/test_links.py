"""The link of a hospital is cut while it works: it is waited for, its answer is sent again, and nothing is booked twice."""

import json
import socket
import threading
import time
from contextlib import closing, suppress

import pytest

from grandrounds.deployment import local_federation
from grandrounds.federation.proxy import PROXY_VARIABLE
from grandrounds.privacy.ledger.ledger import Ledger
from grandrounds.protocol.messages import UPDATE

pytestmark = pytest.mark.faults
CUT_SECONDS = 60


class Link:
    """A proxy that knows CONNECT only, whose connections can be cut; while it is cut it takes no other."""

    def __init__(self, listener):
        self._listener, self._whole, self._open = listener, True, []
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def address(self):
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def cut(self):
        self._whole = False
        for one in self._open:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def mend(self):
        self._open.clear()
        self._whole = True

    def _accept(self):
        with suppress(OSError):  # the test is over
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._pass_on, args=(client,), daemon=True).start()

    def _pass_on(self, client):
        request = b""
        while b"\r\n\r\n" not in request and (data := client.recv(4096)):
            request += data
        if not self._whole or not request:
            client.close()
            return
        host, _, port = request.split()[1].decode().rpartition(":")
        server = socket.create_connection((host, int(port)))
        self._open += [client, server]
        client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
        threading.Thread(target=copy, args=(client, server), daemon=True).start()
        copy(server, client)


def copy(source, target):
    with suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    source.close()
    target.close()


@pytest.fixture
def link(restart):
    """The hospital's only way to the server."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        made = Link(listener)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(local_federation, "OUTSIDE_VARIABLES", ())  # which keep a proxy from its participants
            restart("hospital-c", **{PROXY_VARIABLE: made.address})
        yield made
        restart("hospital-c")


def released(trail, name, number):
    """Whether the hospital has booked its answer to this round of a run, by its audit trail."""
    text = trail.read_text() if trail.is_file() else ""
    lines = (json.loads(line) for line in text.splitlines() if line.endswith("}"))
    return any(
        (line["outcome"], line.get("run"), line.get("task"), line.get("round")) == ("released", name, "train", number)
        for line in lines
    )


@pytest.mark.parametrize("moment", ["booked", "arrived"])
def test_a_link_that_is_cut_for_a_minute_costs_no_round_and_no_booking(federation, run, link, moment):
    """The cut comes when the hospital has booked an answer and not sent it, or when the answer has just arrived."""
    name, privacy = f"cut-{moment}", federation.kits / "hospital-c" / "local" / "privacy"
    run = run(name, "controller.rounds=8")
    run.ROUNDS = 8
    moments = {
        "booked": lambda: released(privacy / "audit.jsonl", name, 3),
        "arrived": lambda: any(
            (e["event"], e.get("site"), e.get("round"), e.get("task")) == ("answer", run.VICTIM, 3, "train")
            for e in run.events()
        ),
    }
    run.wait_until(moments[moment])
    link.cut()
    time.sleep(CUT_SECONDS)
    link.mend()
    summary = run.end().summary
    assert summary["contributions"] == dict.fromkeys(run.HOSPITALS, run.ROUNDS)
    assert len(run.outcome.jobs) == 1
    bookings = Ledger(privacy, "hospital-c").content().bookings
    updates = [one.purpose for one in bookings if (one.purpose.run, one.purpose.release) == (name, UPDATE)]
    assert [one.round_number for one in updates] == list(range(1, run.ROUNDS + 1)), "no round is paid for twice"
    longest = max(entry["round_seconds"] for entry in summary["rounds"])
    assert CUT_SECONDS - 10 < longest < CUT_SECONDS + 60
