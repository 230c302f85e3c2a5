"""A site whose only way out is an HTTP proxy: FLARE's driver and the doctor's handshake go through it."""

import re
import socket
import threading
from contextlib import closing
from types import SimpleNamespace

import pytest
from nvflare.fuel.f3.drivers.aio_http_driver import AioHttpDriver
from nvflare.fuel.f3.drivers.connector_info import ConnectorInfo
from nvflare.fuel.f3.drivers.driver_params import DriverParams
from nvflare.fuel.utils.constants import Mode

from benchmarks.rehearsal.link import Quality, SlowLink
from grandrounds.deployment.kit.certificates import connection_fault
from grandrounds.deployment.kit.doctor import examine_kit
from grandrounds.deployment.kit.read import read_kit
from grandrounds.errors import ConfigurationError
from grandrounds.federation.proxy import PROXY_VARIABLE, replace_connect
from tests.federations import await_true

LIMIT_SECONDS = 600


@pytest.fixture
def proxy(monkeypatch):
    """A proxy that knows CONNECT only.

    ``asked`` has the first line of each request; ``allow`` is whether it obeys, as soon as ``go`` is set.
    """
    monkeypatch.setattr(AioHttpDriver, "connect", AioHttpDriver.connect)
    state = SimpleNamespace(asked=[], allow=True, go=threading.Event())
    state.go.set()
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        threading.Thread(target=accept, args=(listener, state), daemon=True).start()
        monkeypatch.setenv(PROXY_VARIABLE, f"http://127.0.0.1:{listener.getsockname()[1]}")
        yield state


def accept(listener, state):
    while True:
        try:
            client, _ = listener.accept()
        except OSError:  # the test is over
            return
        threading.Thread(target=pass_on, args=(client, state), daemon=True).start()


def pass_on(client, state):
    request = b""
    while b"\r\n\r\n" not in request:
        request += client.recv(4096)
    line = request.split(b"\r\n")[0].decode()
    state.asked.append(line)
    assert state.go.wait(LIMIT_SECONDS)
    if not state.allow:
        client.sendall(b"HTTP/1.1 403 Forbidden\r\n\r\n")
        client.close()
        return
    host, _, port = line.split()[1].rpartition(":")
    server = socket.create_connection((host, int(port)))
    client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
    threading.Thread(target=copy, args=(client, server), daemon=True).start()
    copy(server, client)


def copy(source, target):
    try:
        while data := source.recv(65536):
            target.sendall(data)
    except OSError:
        pass
    finally:
        source.close()
        target.close()


class Connected:
    """FLARE's monitor of a driver: keeps its connection and what it receives."""

    def __init__(self):
        self.connection, self.there, self.frames, self.received = None, threading.Event(), [], threading.Event()

    def state_change(self, connection):
        self.connection = connection
        connection.register_frame_receiver(self)
        self.there.set()

    def process_frame(self, frame):
        self.frames.append(bytes(frame))
        self.received.set()


@pytest.fixture
def server(make_kit, free_port):
    """FLARE's HTTP driver with the certificates of a server: its kit and its monitor."""
    port = free_port()
    kit = make_kit("server", port=port)
    driver, monitor = AioHttpDriver(), Connected()
    run(driver.listen, driver, monitor, kit, Mode.PASSIVE)
    await_true(lambda: connectable(port))
    yield SimpleNamespace(kit=kit, monitor=monitor)
    driver.shutdown()


def connectable(port):
    with socket.socket() as probe:
        return probe.connect_ex(("localhost", port)) == 0


def run(work, driver, monitor, kit, mode):
    """Let a driver listen or connect in a thread; the connector and the thread are returned."""
    party = "SERVER" if mode is Mode.PASSIVE else "CLIENT"
    params = {
        DriverParams.SCHEME.value: "https",
        DriverParams.HOST.value: "localhost",
        DriverParams.PORT.value: kit.port,
        DriverParams.SECURE.value: True,
        DriverParams.CA_CERT.value: str(kit.authority),
        DriverParams[f"{party}_CERT"].value: str(kit.certificate),
        DriverParams[f"{party}_KEY"].value: str(kit.key),
    }
    driver.register_conn_monitor(monitor)
    info = ConnectorInfo("test", driver, params, mode, 0, 0, False, threading.Event())
    thread = threading.Thread(target=work, args=(info,), daemon=True)
    thread.start()
    return info, thread


def test_flares_driver_and_the_doctor_go_through_the_proxy(make_kit, server, proxy):
    site = make_kit("site", port=server.kit.port)
    replace_connect()
    driver, monitor = AioHttpDriver(), Connected()
    run(driver.connect, driver, monitor, site, Mode.ACTIVE)
    assert monitor.there.wait(LIMIT_SECONDS)
    monitor.connection.send_frame(b"hello")
    assert server.monitor.received.wait(LIMIT_SECONDS)
    assert server.monitor.frames == [b"hello"]
    assert connection_fault(read_kit(site.folder)) == ""
    assert [line.rpartition(" ")[0] for line in proxy.asked] == [f"CONNECT localhost:{site.port}"] * 2
    driver.shutdown()


def test_a_connection_that_comes_after_the_shutdown_is_closed(make_kit, server, proxy):
    """A login that has timed out would wait for its end for ever."""
    replace_connect()
    driver, monitor = AioHttpDriver(), Connected()
    proxy.go.clear()
    connector, thread = run(driver.connect, driver, monitor, make_kit("site", port=server.kit.port), Mode.ACTIVE)
    await_true(lambda: proxy.asked)
    connector.stopped.set()
    driver.shutdown()
    proxy.go.set()
    thread.join(LIMIT_SECONDS)
    assert not thread.is_alive()
    assert not monitor.there.is_set()


@pytest.mark.parametrize(
    ("megabits", "seconds", "level", "words"),
    [
        (8, 10.0, "ok", r"^(1\.0|0\.[3-9]) MB/s to the server: a model of 10 MB takes [1-3]\d\.\d s"),
        (
            0.4,
            1.0,
            "warning",
            r"^slower than 1.0 MB/s to the server: a model of 10 MB takes 10 s or more in every round",
        ),
    ],
)
def test_the_doctor_measures_the_line_without_a_word_to_flare(
    make_kit, server, monkeypatch, megabits, seconds, level, words
):
    monkeypatch.setattr("grandrounds.deployment.kit.doctor.UPLOAD_SECONDS", seconds)
    link = SlowLink(server.kit.port, connect=True)
    link.start()
    link.set(Quality(megabits=megabits, latency=20))
    monkeypatch.setenv(PROXY_VARIABLE, link.address)
    kit = make_kit("site", port=server.kit.port)
    (found,) = [finding for finding in examine_kit(kit) if finding.check == "bandwidth"]
    link.stop()
    assert found.level == level
    assert re.search(words, found.message), found.message
    assert not server.monitor.there.is_set(), "FLARE's server sees no connection of a site"


def test_a_proxy_that_refuses_is_named_by_the_doctor(make_kit, proxy):
    proxy.allow = False
    fault = connection_fault(make_kit("site", host="fl.nowhere.example"))
    assert "through http://127.0.0.1:" in fault
    assert "403" in fault


def test_an_address_of_another_form_is_refused(monkeypatch):
    monkeypatch.setenv(PROXY_VARIABLE, "proxy.hospital.example")
    with pytest.raises(ConfigurationError, match="must have the form http://HOST:PORT"):
        replace_connect()
