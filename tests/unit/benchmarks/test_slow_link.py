"""The slow line of the benchmark carries every byte, takes its time, and holds up for losses."""

import json
import socket
import threading
from types import SimpleNamespace

import pytest

from benchmarks.rehearsal import link
from benchmarks.wire import slow_link


def test_bytes_take_their_time_one_after_the_other_and_arrive_a_latency_later():
    line = link._Line(seed=0)
    line.quality = link.Quality(megabits=8, latency=50)
    assert line.arrival(500_000, now=10.0) == pytest.approx(10.55)
    assert line.arrival(250_000, now=10.1) == pytest.approx(10.80), "the line is free at 10.5"
    assert line.arrival(1_000_000, now=20.0) == pytest.approx(21.05)
    assert line.carried == 1_750_000
    line.quality = link.Quality()
    assert line.arrival(10**9, now=30.0) == 30.0


def test_each_lost_packet_holds_the_line_up():
    line = link._Line(seed=0)
    line.quality = link.Quality(loss=1.0)
    assert line.arrival(3 * 1460 + 1, now=0.0) == pytest.approx(4 * 0.2)
    assert line.arrival(1460, now=0.0) == pytest.approx(5 * 0.2)


def test_a_chunk_is_short_on_a_slow_line_and_never_less_than_a_packet():
    assert link.Quality().chunk == 65536
    assert link.Quality(megabits=0.8).chunk == 5000
    assert link.Quality(megabits=0.01).chunk == 1460


def test_a_connection_through_the_link_carries_both_ways_what_it_is_given():
    sent, answer = bytes(range(256)) * 400, b"answer" * 5000
    came = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve():
            connection, _ = server.accept()
            with connection, connection.makefile("rb") as stream:
                came.append(stream.read(len(sent)))
                connection.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        proxy = link.SlowLink(server.getsockname()[1])
        proxy.start()
        proxy.set(link.Quality(megabits=400, latency=1, loss=0.001))
        with socket.create_connection(("127.0.0.1", proxy.port)) as client, client.makefile("rb") as stream:
            client.sendall(sent)
            assert stream.read() == answer
        thread.join()
        assert (came, proxy.carried) == ([sent], (len(sent), len(answer)))
        proxy.stop()


def test_a_kit_is_pointed_at_the_link_and_stays_as_it_was_otherwise(tmp_path):
    startup = tmp_path / "kits" / "hospital-c" / "startup"
    startup.mkdir(parents=True)
    content = {
        "client": {"fqsn": "hospital-c"},
        "servers": [{"service": {"scheme": "grpc", "target": "localhost:8002"}}],
    }
    (startup / "fed_client.json").write_text(json.dumps(content))
    slow_link.reach_through(SimpleNamespace(kits=tmp_path / "kits"), "hospital-c", 4711)
    content["servers"][0]["service"]["target"] = "localhost:4711"
    assert json.loads((startup / "fed_client.json").read_text()) == content


def test_rounds_with_and_without_the_slow_site_are_counted_separately():
    def end(seconds, asked, answered, reason=None):
        dropped = {"hospital-c": reason} if reason else {}
        return {"round_seconds": seconds, "asked": asked, "answered": answered, "dropped": dropped}

    near = ["hospital-a", "hospital-b"]
    every = [*near, "hospital-c"]
    seen = [end(9.0, every, every), end(24.0, every, near, "late"), end(3.0, near, near), end(5.0, near, near)]
    found = slow_link.outcome("a line", link.Quality(10), seen, [2**20, 2**21])
    assert (found["asked"], found["in_time"], found["paused"]) == (2, 1, 2)
    assert (found["median_seconds"], found["median_seconds_paused"], found["reasons"]) == (16.5, 4.0, ["late"])
    assert (found["mib_to_server"], found["mib_to_site"]) == (1.0, 2.0)
