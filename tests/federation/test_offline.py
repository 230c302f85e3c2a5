"""Training from ImageNet weights needs no network: the package has them, and only loopback addresses are used."""

import socket

import pytest


@pytest.fixture
def cut_off(monkeypatch, tmp_path):
    """Refuse connections to anything but loopback; no weights lie anywhere but in the package. The refused addresses."""
    refused = []

    def guarded(original):
        def connect(self, address):
            host = address[0] if isinstance(address, tuple) else "localhost"
            if host not in ("localhost", "::1") and not str(host).startswith("127."):
                refused.append(address)
                raise OSError(f"the network cable is out: {address}")
            return original(self, address)

        return connect

    for name in ("connect", "connect_ex"):
        monkeypatch.setattr(socket.socket, name, guarded(getattr(socket.socket, name)))
    monkeypatch.setenv("GRANDROUNDS_WEIGHTS", str(tmp_path / "weights"))
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    return refused


def test_a_job_starts_from_imagenet_weights_without_a_network(tiny, run, cut_off, tmp_path):
    with pytest.raises(OSError, match="cable is out"):
        socket.create_connection(("192.0.2.1", 80), timeout=1)
    cut_off.clear()
    network = ["backbone=efficientnet_lite0", "weights=imagenet", "trainable=head", "image_size=64"]
    job = tiny("fedavg", *(f"problem.{option}" for option in network), "controller.rounds=1")
    found = run(job, tmp_path / "run")
    assert not cut_off
    assert found.summary["status"] == "finished"
    assert found.models["last"].keys() == {"classifier.1.weight", "classifier.1.bias"}
    head = 4 * (1280 * 4 + 4)
    for moved in found.summary["bytes"].values():
        assert moved["up.update"] == head
        for direction in ("up.", "down."):  # of a round and the tests at the end
            assert sum(size for name, size in moved.items() if name.startswith(direction)) < 100_000
    assert not (tmp_path / "torch").exists()
