"""Weights are found in four places in order, are checked by their digest, and declare how images are normalised."""

import hashlib
import tomllib
import urllib.error
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from grandrounds.errors import ConfigurationError
from grandrounds.models import pretrained
from grandrounds.models.pretrained import (
    IMAGENET_WEIGHTS,
    ImageNetWeights,
    add_file,
    available_files,
    imagenet_file,
    named_file,
)
from grandrounds.models.registry import backbone_names, build_model, chosen_intensities
from grandrounds.protocol.problem import ModelSpec, Problem

CONTENT = b"weights of a network"
DIGEST = hashlib.sha256(CONTENT).hexdigest()
FILE = f"net-{DIGEST[:8]}.pth"
PLACES = ("package", "folder", "cache", "download")


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine without weights; ``put(place)`` puts those of ``compact`` to one of the four places."""
    package, folder, cache = tmp_path / "site-packages" / "net_model", tmp_path / "weights", tmp_path / "torch"
    for made in (package, folder, cache / "hub" / "checkpoints"):
        made.mkdir(parents=True)
    (package / "__init__.py").touch()
    monkeypatch.syspath_prepend(package.parent)
    monkeypatch.setenv("GRANDROUNDS_WEIGHTS", str(folder))
    monkeypatch.setenv("TORCH_HOME", str(cache))
    published = ImageNetWeights(FILE, DIGEST, "imagenet", "MIT", "https://example.org/net.pth", "net-model")
    monkeypatch.setattr(pretrained, "IMAGENET_WEIGHTS", {"compact": published})
    served: list[bytes] = []
    asked: list[str] = []

    def download(url: str, path: str, digest: str, progress: bool) -> None:
        asked.append(url)
        if not served:
            raise urllib.error.URLError("no route to host")
        assert digest == DIGEST
        Path(path).write_bytes(served[0])

    monkeypatch.setattr(torch.hub, "download_url_to_file", download)
    paths = {
        "package": package / "models" / FILE,
        "folder": folder / FILE,
        "cache": cache / "hub" / "checkpoints" / FILE,
    }

    def put(place: str, content: bytes = CONTENT) -> Path:
        if place == "download":
            served.append(content)
            return paths["cache"]
        paths[place].parent.mkdir(exist_ok=True)
        paths[place].write_bytes(content)
        return paths[place]

    return SimpleNamespace(put=put, asked=asked, folder=folder, paths=paths)


@pytest.mark.parametrize("place", PLACES)
def test_weights_are_found_where_they_are(machine, place):
    path = machine.put(place)
    found = imagenet_file("compact")
    assert (found.path, found.licence, found.name) == (path, "MIT", "imagenet (compact)")
    assert found.path.read_bytes() == CONTENT
    assert machine.asked == (["https://example.org/net.pth"] if place == "download" else [])


def test_the_places_are_searched_in_their_order(machine):
    for place in PLACES:
        machine.put(place)
    for place in PLACES[:-1]:
        path = imagenet_file("compact").path
        assert path == machine.paths[place]
        path.unlink()
    assert not machine.asked
    assert imagenet_file("compact").path == machine.paths["cache"]
    assert len(machine.asked) == 1


def test_weights_that_are_nowhere_are_an_error_that_names_the_four_places(machine):
    with pytest.raises(ConfigurationError) as error:
        imagenet_file("compact")
    text = str(error.value)
    assert "\n" not in text
    places = [
        "package net-model is not installed",
        "GRANDROUNDS_WEIGHTS",
        str(machine.paths["cache"].parent),
        "no route",
    ]
    assert [text.index(place) for place in places] == sorted(text.index(place) for place in places)
    assert "grandrounds weights add FILE" in text


def test_weights_that_no_package_ships_and_no_address_has_are_an_error_too(machine, monkeypatch):
    published = ImageNetWeights(FILE, DIGEST, "imagenet", "MIT")
    monkeypatch.setattr(pretrained, "IMAGENET_WEIGHTS", {"compact": published})
    with pytest.raises(ConfigurationError, match=r"no package ships it; .*; it cannot be downloaded$"):
        imagenet_file("compact")
    assert not machine.asked


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("content", [CONTENT[:-3], b"another file", b""])
def test_a_truncated_or_another_file_is_refused_by_its_digest(machine, place, content):
    path = machine.put(place, content)
    digest = hashlib.sha256(content).hexdigest()
    with pytest.raises(ConfigurationError) as error:
        imagenet_file("compact")
    assert str(error.value).startswith(
        f"weights: {path} is damaged or another file: its SHA-256 is {digest}, expected "
    )
    assert DIGEST in str(error.value)
    assert "\n" not in str(error.value)


def test_a_backbone_without_imagenet_weights_is_refused_by_name(machine):
    with pytest.raises(ConfigurationError, match="backbone 'resnet9'"):
        imagenet_file("resnet9")


def test_published_digests_are_those_in_the_names_of_the_files():
    for published in IMAGENET_WEIGHTS.values():
        assert published.sha256.startswith(Path(published.file).stem.rpartition("-")[2])
        assert published.url or published.package
        assert published.licence


# Weights of the folder, by name.


def compact(seed: int = 3) -> dict[str, torch.Tensor]:
    return build_model(ModelSpec("compact", classes=4), seed=seed).state_dict()


@pytest.fixture
def saved(tmp_path) -> Callable[..., Path]:
    """Write a file of compact's weights; keyword arguments are what it declares beside them."""

    def write(seed: int = 3, **declared: str) -> Path:
        path = tmp_path / f"saved-{seed}.pt"
        torch.save({"state_dict": compact(seed), **declared} if declared else compact(seed), path)
        return path

    return write


def test_named_weights_start_a_network_with_their_normalisation(machine, saved):
    added = add_file(saved(), "retina", "imagenet", "CC-BY-4.0")
    assert added.path.parent == machine.folder
    assert added.path.name == f"retina-{hashlib.sha256(added.path.read_bytes()).hexdigest()[:8]}.pt"
    spec = ModelSpec("compact", classes=4, weights="retina")
    assert chosen_intensities(spec) == "imagenet"
    network = build_model(spec, seed=1)
    assert all(torch.equal(tensor, compact()[name]) for name, tensor in network.state_dict().items())
    image = torch.rand(1, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    explicit = build_model(ModelSpec("compact", classes=4, weights="retina", intensities="imagenet"), seed=1)
    scaled = build_model(ModelSpec("compact", classes=4, weights="retina", intensities="scaled"), seed=1)
    found = network.eval()(image)
    torch.testing.assert_close(found, explicit.eval()(image))
    assert not torch.allclose(found, scaled.eval()(image))


def test_what_a_file_declares_is_kept_when_it_is_added(machine, saved):
    added = add_file(saved(intensities="spread", licence="MIT"), "retina", None, "")
    assert added.licence == "MIT"
    assert [file.licence for file in available_files()] == ["MIT"]
    assert chosen_intensities(ModelSpec("compact", classes=4, weights="retina")) == "spread"


def test_an_unknown_name_is_refused_with_the_known_ones(machine, saved):
    with pytest.raises(ConfigurationError, match=r"weights.*'retina'"):
        named_file("retina")
    add_file(saved(), "skin", "scaled", "")
    with pytest.raises(ConfigurationError, match=r"named 'retina' \(there are: skin\)"):
        build_model(ModelSpec("compact", classes=4, weights="retina"), seed=1)


def test_two_files_of_one_name_are_refused(machine, saved):
    first = add_file(saved(), "retina", "scaled", "").path
    first.with_name("retina-01234567.pt").write_bytes(b"copied by hand")
    with pytest.raises(ConfigurationError, match="has 2 weights named 'retina'"):
        named_file("retina")


def test_a_damaged_file_does_not_hide_the_others(machine, saved):
    add_file(saved(), "retina", "scaled", "MIT")
    damaged = add_file(saved(4), "skin", "scaled", "MIT").path
    damaged.write_bytes(damaged.read_bytes()[:1000])
    assert {file.name for file in available_files()} == {"retina", "skin"}
    assert named_file("retina").licence == "MIT"
    with pytest.raises(ConfigurationError, match=rf"{damaged} is damaged or another file"):
        named_file("skin")


def test_a_pickle_that_raises_anything_does_not_hide_the_others(machine, saved):
    add_file(saved(), "retina", "scaled", "MIT")
    # collections.OrderedDict(1) is a TypeError.
    (machine.folder / "bad-00000001.pt").write_bytes(b"\x80\x02ccollections\nOrderedDict\n(K\x01tR.")
    assert {file.name for file in available_files()} == {"retina", "bad"}
    assert named_file("retina").licence == "MIT"


@pytest.mark.parametrize(
    ("entry", "spoil", "fault"),
    [
        ("stem", lambda value: value.to_sparse(), "is no dense tensor"),
        ("stem", lambda value: torch.empty(value.shape, device="meta"), "is no dense tensor"),
        ("stem", lambda value: value * float("nan"), "not finite"),
        ("stem", lambda value: value / 0, "not finite"),
        ("stem", lambda value: value.to(torch.complex64), "is complex"),
        ("stem", lambda value: torch.zeros(1).expand(10**9), "repeats what it stores"),
        (7, lambda value: value, "holds no state_dict"),
    ],
    ids=["sparse", "meta", "nan", "infinite", "complex", "expanded", "name"],
)
def test_an_entry_that_no_network_can_take_is_not_added(machine, tmp_path, entry, spoil, fault):
    torch.save({entry: spoil(torch.ones(2, 3))}, tmp_path / "spoilt.pt")
    named = rf"the entry '{entry}' .*{fault}" if isinstance(entry, str) else fault
    with pytest.raises(ConfigurationError, match=named):
        add_file(tmp_path / "spoilt.pt", "spoilt", "scaled", "")
    assert not list(available_files())


# Normalisation of intensities.


@pytest.mark.parametrize(
    ("backbone", "weights", "expected"),
    [
        *((backbone, None, "scaled") for backbone in backbone_names()),
        ("densenet121", "imagenet", "imagenet"),
        ("efficientnet_b0", "imagenet", "imagenet"),
        ("efficientnet_lite0", "imagenet", "efficientnet_lite"),
        ("resnet18", "imagenet", "imagenet"),
    ],
)
def test_auto_is_what_the_weights_were_trained_with(backbone, weights, expected):
    assert chosen_intensities(ModelSpec(backbone, classes=4, weights=weights)) == expected


def test_a_file_may_declare_its_normalisation_and_an_option_overrides_it(saved):
    path = str(saved(intensities="standardised"))
    assert chosen_intensities(ModelSpec("compact", classes=4, weights=path)) == "standardised"
    assert chosen_intensities(ModelSpec("compact", classes=4, weights=path, intensities="scaled")) == "scaled"


def test_a_file_without_a_declaration_needs_the_option(saved):
    path = str(saved())
    with pytest.raises(ConfigurationError, match=r"saved-3\.pt.*normalised"):
        build_model(ModelSpec("compact", classes=4, weights=path), seed=1)
    assert chosen_intensities(ModelSpec("compact", classes=4, weights=path, intensities="spread")) == "spread"


def test_a_declaration_that_does_not_exist_is_refused(saved):
    with pytest.raises(ConfigurationError, match=r"declares intensities 'raw'"):
        chosen_intensities(ModelSpec("compact", classes=4, weights=str(saved(intensities="raw"))))


# What a job may say.


def test_a_file_of_the_server_cannot_hold_frozen_layers():
    message = (
        r"^problem\.weights: every site loads the frozen layers itself and cannot read a file of the server; run "
        r"`grandrounds weights add /models/retina\.pt` at the server and the sites, and set problem\.weights to its name$"
    )
    with pytest.raises(ConfigurationError, match=message):
        Problem("skin", ("a", "b"), weights="/models/retina.pt", trainable="head")
    assert Problem("skin", ("a", "b"), weights="/models/retina.pt").for_sites()["weights"] is None
    assert Problem("skin", ("a", "b"), weights="retina", trainable="head").for_sites()["weights"] == "retina"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"trainable": "last"}, "problem.trainable must be all, head or from:<block>, got 'last'"),
        ({"norm": "frozen"}, "problem.norm=frozen needs batch norms with trained weights: set problem.weights"),
    ],
)
def test_what_cannot_be_frozen_is_refused(options, message):
    with pytest.raises(ConfigurationError, match=message):
        Problem("skin", ("a", "b"), **options)


def test_the_notice_has_the_digest_and_licence_of_all_weights_that_jobs_may_ask_for():
    root = Path(__file__).parents[3]
    entries = (root / "NOTICE").read_text(encoding="utf-8").split("\n\n")
    for weights in IMAGENET_WEIGHTS.values():
        (entry,) = [one for one in entries if one.startswith(weights.file)]
        assert f"SHA-256  {weights.sha256}\n" in entry
        assert f"licence  {weights.licence}:" in entry
        assert len(weights.sha256) == 64
        assert weights.file.endswith(f"-{weights.sha256[:8]}.pth")
    assert "NOTICE" in tomllib.loads((root / "pyproject.toml").read_text())["project"]["license-files"]
