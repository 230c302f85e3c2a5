"""Published weights come over a connection that may break, and stand in the weights folder under their digest."""

import errno
import hashlib
import re
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save

from grandrounds.commands import jobs
from grandrounds.errors import ConfigurationError, InUseError
from grandrounds.files import exclusive
from grandrounds.models import published
from grandrounds.models.backbones.libraries import NETWORK_LIBRARIES, Published
from grandrounds.models.intensities import IMAGENET_DEVIATION, IMAGENET_MEAN
from grandrounds.models.pretrained import add_file, folder_files, read_weights
from grandrounds.models.published import get_file
from grandrounds.models.registry import build_model
from grandrounds.protocol.problem import ModelSpec

NETWORK = "torchvision:shufflenet_v2_x0_5"


@pytest.fixture
def server(tmp_path, monkeypatch):
    """Gives ``content`` by ranges as file servers do, or as ``careless`` ones whatever the version of the file is;
    ``breaks_after`` bytes the connection ends once.
    """
    monkeypatch.setenv("GRANDROUNDS_WEIGHTS", str(tmp_path / "weights"))
    state = SimpleNamespace(content=b"", etag='"1"', breaks_after=None, careless=False, ranges=[], paths=[])

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            state.paths.append(self.path)
            begun = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
            goes_on = bool(begun) and (state.careless or self.headers.get("If-Range") == state.etag)
            content = state.content[int(begun[1]) if goes_on else 0 :]
            state.ranges.append(int(begun[1]) if goes_on else 0)
            self.send_response(206 if goes_on else 200)
            self.send_header("Content-Length", str(len(content)))
            if goes_on:
                self.send_header("Content-Range", f"bytes {begun[1]}-{len(state.content) - 1}/{len(state.content)}")
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
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def interrupted(server):
    """A download of ``net`` that ends early."""
    server.breaks_after = 100_000
    with pytest.raises(ConfigurationError, match=r"ended after 100,000 of .* bytes.*; the same command goes on"):
        get_file(NETWORK, "net")


def assert_is(file, state):
    kept, _ = read_weights(file.path)
    assert all(torch.equal(kept[name], value) for name, value in state.items())


def test_weights_of_a_library_are_taken_by_their_name_with_its_normalisation_and_licence(server, shuffle, capsys):
    jobs.get(NETWORK, None)
    printed = capsys.readouterr().out
    assert "BSD-3-Clause" in printed
    assert printed.endswith(
        f"next: grandrounds simulate ridge --image-size 64 --backbone {NETWORK} "
        "--set problem.weights=shufflenet_v2_x0_5\n"
    )
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
    server.etag = etag
    interrupted(server)
    assert "net.download/part" in left(tmp_path / "weights")
    assert not folder_files()
    assert_is(get_file(NETWORK, "net"), shuffle.state)
    assert server.ranges == begins
    assert len(left(tmp_path / "weights")) == 1


@pytest.mark.parametrize("careless", [False, True])
def test_another_file_at_the_address_is_begun_anew(server, shuffle, careless):
    interrupted(server)
    later = {name: value + 1 for name, value in shuffle.state.items()}
    server.content, server.etag, server.careless = save(later), '"2"', careless
    if careless:
        with pytest.raises(ConfigurationError, match="the server has another file by now"):
            get_file(NETWORK, "net")
    assert_is(get_file(NETWORK, "net"), later)
    assert server.ranges == [0, *([99_999] if careless else []), 0]


def test_another_address_under_the_same_name_is_begun_anew(server, shuffle):
    interrupted(server)
    shuffle.publish("others.safetensors")
    assert_is(get_file(NETWORK, "net"), shuffle.state)
    assert server.ranges == [0, 0]


def test_a_download_that_was_killed_at_its_last_byte_ends(server, shuffle, tmp_path):
    interrupted(server)
    (tmp_path / "weights" / "net.download" / "part").write_bytes(server.content)
    assert_is(get_file(NETWORK, "net"), shuffle.state)
    assert server.ranges == [0, len(server.content) - 1]


def test_what_could_not_be_written_is_not_downloaded_again(server, shuffle, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(published, "write_named", full)
        with pytest.raises(OSError, match="No space left"):
            get_file(NETWORK, "net")
    assert_is(get_file(NETWORK, "net"), shuffle.state)
    assert server.ranges == [0]


def test_one_command_downloads_and_the_other_is_refused(server, shuffle, tmp_path):
    with (
        exclusive(tmp_path / "weights" / "net.download"),
        pytest.raises(InUseError, match="another command downloads weights of this name; wait for it"),
    ):
        get_file(NETWORK, "net")
    assert not server.paths


def test_weights_of_ones_own_under_the_name_stay(server, shuffle, tmp_path):
    torch.save(shuffle.state, tmp_path / "own.pt")
    own = add_file(tmp_path / "own.pt", "net", "scaled", "")
    with pytest.raises(ConfigurationError, match=f"there are weights named net: {own.path}; .* another --name"):
        get_file(NETWORK, "net")
    assert own.path.is_file()


@pytest.mark.parametrize("kind", ["another file", "damaged", "of another network"])
def test_a_file_that_is_wrong_is_refused_and_removed(server, shuffle, tmp_path, kind):
    named, message = "weights.safetensors", "cannot be read"
    if kind == "another file":
        named, message = "net-0123456789.safetensors", "gave another file: .*, expected 0123456789"
    elif kind == "damaged":
        server.content = server.content[:-1000]
    else:
        server.content, message = save({"a.weight": torch.ones(3)}), "weights"
    shuffle.publish(named)
    with pytest.raises(ConfigurationError, match=message):
        get_file(NETWORK, "net")
    assert left(tmp_path / "weights") == []


def test_a_file_whose_address_states_its_digest_is_taken(server, shuffle):
    shuffle.publish(f"net-{hashlib.sha256(server.content).hexdigest()[:8]}.safetensors")
    assert_is(get_file(NETWORK, "net"), shuffle.state)


@pytest.mark.parametrize(
    ("network", "name", "changes", "message"),
    [
        ("torchvision:shufflenet", "net", {}, "has no network 'shufflenet'"),
        ("resnet18", "net", {}, "resnet18 is no network of a library"),
        ("monai:DenseNet121", "net", {}, "monai names no weights of DenseNet121; add a file"),
        (NETWORK, "my net", {}, "--name must be of letters"),
        (NETWORK, "imagenet", {}, "not imagenet; got 'imagenet'"),
        (NETWORK, "net", {"url": "hf-mirror.com/net.pth"}, "cannot be downloaded .*unknown url type"),
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
    monkeypatch.setenv("HF_ENDPOINT", "")
    assert timm.published("convnext_tiny").url.startswith("https://huggingface.co/timm/")
    monkeypatch.setenv("HF_ENDPOINT", server.address)
    server.content = save(timm.build("convnext_atto", 1000, 3).state_dict())
    file = get_file("timm:convnext_atto.d2_in1k", "atto")
    assert server.paths == ["/timm/convnext_atto.d2_in1k/resolve/main/model.safetensors"]
    model = build_model(ModelSpec("timm:convnext_atto", classes=3, weights=file.name), seed=1)
    assert model(torch.rand(1, 3, 64, 64)).shape == (1, 3)
