"""Published weights come over a connection that may break, and stand in the weights folder under their digest."""

import hashlib
import re
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save

from grandrounds.commands import jobs
from grandrounds.errors import ConfigurationError
from grandrounds.models.backbones.libraries import NETWORK_LIBRARIES, Published
from grandrounds.models.intensities import IMAGENET_DEVIATION, IMAGENET_MEAN
from grandrounds.models.pretrained import folder_files, read_weights
from grandrounds.models.published import get_file
from grandrounds.models.registry import build_model
from grandrounds.protocol.problem import ModelSpec

NETWORK = "torchvision:shufflenet_v2_x0_5"


@pytest.fixture
def server(tmp_path, monkeypatch):
    """Gives ``content`` by ranges as file servers do; ``breaks_after`` bytes the connection ends once."""
    monkeypatch.setenv("GRANDROUNDS_WEIGHTS", str(tmp_path / "weights"))
    state = SimpleNamespace(content=b"", etag='"1"', breaks_after=None, ranges=[], paths=[])

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            state.paths.append(self.path)
            begun = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
            goes_on = bool(begun) and self.headers.get("If-Range") == state.etag
            content = state.content[int(begun[1]) if goes_on else 0 :]
            state.ranges.append(int(begun[1]) if goes_on else 0)
            self.send_response(206 if goes_on else 200)
            self.send_header("Content-Length", str(len(content)))
            if state.etag:
                self.send_header("ETag", state.etag)
            self.end_headers()
            cut, state.breaks_after = state.breaks_after, None
            self.wfile.write(content[:cut])

        def log_message(self, *_):
            """Nothing."""

    with HTTPServer(("127.0.0.1", 0), Handler) as listening:
        Thread(target=listening.serve_forever, daemon=True).start()
        state.address = f"http://127.0.0.1:{listening.server_port}"
        yield state
        listening.shutdown()


@pytest.fixture
def shuffle(server, monkeypatch):
    """The server has weights of a small network; gives its state."""
    network = NETWORK_LIBRARIES["torchvision"].build("shufflenet_v2_x0_5", 1000, 3)
    server.content = save(network.state_dict())

    def publish(end="weights.safetensors", **changes):
        stated = Published(f"{server.address}/{end}", "BSD-3-Clause", IMAGENET_MEAN, IMAGENET_DEVIATION)
        monkeypatch.setattr(type(NETWORK_LIBRARIES["torchvision"]), "published", lambda *_: stated._replace(**changes))

    publish()
    return SimpleNamespace(state=network.state_dict(), publish=publish)


def left(folder):
    return sorted(path.name for path in folder.iterdir())


def test_weights_of_a_library_are_taken_by_their_name_with_its_normalisation_and_licence(server, shuffle, capsys):
    jobs.get(NETWORK, None)
    printed = capsys.readouterr().out
    assert "BSD-3-Clause" in printed
    assert printed.endswith(f"simulate ridge --backbone {NETWORK} --set problem.weights=shufflenet_v2_x0_5\n")
    (file,) = folder_files()
    assert (file.name, file.licence) == ("shufflenet_v2_x0_5", "BSD-3-Clause")
    assert left(file.path.parent) == [file.path.name]
    assert read_weights(file.path, NETWORK)[1] == "imagenet"
    model = build_model(ModelSpec(NETWORK, classes=3, weights=file.name), seed=1)
    name = "stage2.0.branch1.0.weight"
    assert torch.equal(model.state_dict()[f"encoder.{name}"], shuffle.state[name])
    with pytest.raises(ConfigurationError, match=f"set problem.backbone={NETWORK}"):
        build_model(ModelSpec("resnet18", classes=3, weights=file.name), seed=1)


@pytest.mark.parametrize(
    ("etag", "begins"), [('"1"', [0, 99_999]), ("", [0, 0])], ids=["goes on", "of a server that names no version"]
)
def test_a_connection_that_breaks_keeps_what_came(server, shuffle, tmp_path, etag, begins):
    server.etag, server.breaks_after = etag, 100_000
    with pytest.raises(ConfigurationError, match=r"ended after 100,000 of .* bytes.*; the same command goes on"):
        get_file(NETWORK, "net")
    assert left(tmp_path / "weights") == ["net.downloaded.safetensors.etag", "net.downloaded.safetensors.part"]
    state, _ = read_weights(get_file(NETWORK, "net").path)
    assert all(torch.equal(state[name], value) for name, value in shuffle.state.items())
    assert server.ranges == begins
    assert len(left(tmp_path / "weights")) == 1


def test_files_of_ones_own_in_the_folder_stay(server, shuffle, tmp_path):
    own = tmp_path / "weights" / "net.safetensors"
    own.parent.mkdir()
    own.write_bytes(b"mine")
    get_file(NETWORK, "net")
    assert own.read_bytes() == b"mine"


def test_another_file_at_the_address_is_begun_anew(server, shuffle):
    server.breaks_after = 100_000
    with pytest.raises(ConfigurationError, match="ended after"):
        get_file(NETWORK, "net")
    later = {name: value + 1 for name, value in shuffle.state.items()}
    server.content, server.etag = save(later), '"2"'
    state, _ = read_weights(get_file(NETWORK, "net").path)
    assert all(torch.equal(state[name], value) for name, value in later.items())
    assert server.ranges == [0, 0]


def test_a_download_that_was_killed_at_its_last_byte_ends(server, shuffle, tmp_path):
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / "net.downloaded.safetensors.part").write_bytes(server.content)
    (tmp_path / "weights" / "net.downloaded.safetensors.etag").write_text(server.etag)
    assert get_file(NETWORK, "net").path.is_file()
    assert server.ranges == [len(server.content) - 1]


def test_a_file_that_is_not_what_its_address_says_is_refused_and_removed(server, shuffle, tmp_path):
    named = hashlib.sha256(server.content).hexdigest()[:8]
    torch.save(shuffle.state, tmp_path / "net.pth")
    shuffle.publish(f"net-{named}.pth")
    server.content = (tmp_path / "net.pth").read_bytes()
    with pytest.raises(ConfigurationError, match=f"gave another file: .*, expected {named}"):
        get_file(NETWORK, "net")
    assert left(tmp_path / "weights") == []
    shuffle.publish(f"net-{hashlib.sha256(server.content).hexdigest()[:8]}.pth")
    assert get_file(NETWORK, "net").path.is_file()


@pytest.mark.parametrize(
    ("network", "name", "changes", "message"),
    [
        ("torchvision:shufflenet", "net", {}, "has no network 'shufflenet'"),
        ("vgg", "net", {}, "vgg is no network of a library"),
        ("monai:DenseNet121", "net", {}, "monai names no weights of DenseNet121; add a file"),
        (NETWORK, "my net", {}, "--name must be of letters"),
        (NETWORK, "net", {"mean": (0.5,) * 3}, r"normalised by mean \(0.5, 0.5, 0.5\)"),
        (NETWORK, "net", {"url": "http://127.0.0.1:9/net.pth"}, "cannot be downloaded .*refused"),
    ],
)
def test_what_cannot_be_had_is_refused_with_the_reason(server, shuffle, tmp_path, network, name, changes, message):
    shuffle.publish(**changes)
    with pytest.raises(ConfigurationError, match=message):
        get_file(network, name)
    assert not list(folder_files())
    assert server.paths == []


def test_networks_of_timm_come_from_hugging_face_or_a_mirror(server, monkeypatch):
    pytest.importorskip("timm")
    timm = NETWORK_LIBRARIES["timm"]
    assert timm.published("convnext_tiny.fb_in1k") == Published(
        "https://huggingface.co/timm/convnext_tiny.fb_in1k/resolve/main/model.safetensors",
        "apache-2.0",
        IMAGENET_MEAN,
        IMAGENET_DEVIATION,
    )
    assert timm.published("test_resnet_of_nobody") is None
    monkeypatch.setenv("HF_ENDPOINT", server.address)
    server.content = save(timm.build("convnext_atto", 1000, 3).state_dict())
    file = get_file("timm:convnext_atto.d2_in1k", "atto")
    assert server.paths == ["/timm/convnext_atto.d2_in1k/resolve/main/model.safetensors"]
    model = build_model(ModelSpec("timm:convnext_atto", classes=3, weights=file.name), seed=1)
    assert model(torch.rand(1, 3, 64, 64)).shape == (1, 3)
