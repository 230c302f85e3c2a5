"""A model to start from: its entries are in the network to the bit, and those of another network are refused."""

import hashlib

import pytest
import torch

from grandrounds.errors import ConfigurationError
from grandrounds.files import write_json
from grandrounds.models.pretrained import add_file
from grandrounds.models.registry import build_model
from grandrounds.models.trained import RIDGE, START_VARIABLE, load_start
from grandrounds.protocol.paths import WEIGHTS_VARIABLE
from grandrounds.protocol.problem import DEPTHS, ModelSpec

NAMES = ("nevus", "melanoma", "other")
SPEC = ModelSpec("compact", 3, head=DEPTHS, trainable="head")


@pytest.fixture
def trained(tmp_path, monkeypatch):
    """The file of a trained head in the weights folder, as ``earlier``, and its network."""
    monkeypatch.setenv(WEIGHTS_VARIABLE, str(tmp_path / "weights"))
    network = build_model(SPEC, seed=1).eval()
    head = network.get_submodule("classifier" if hasattr(network, "classifier") else "head")
    with torch.no_grad():
        features = head.features
        head.set_linear(torch.randn(3, features), torch.randn(3), torch.randn(features), torch.rand(features), 8.0)
    torch.save(network.state_dict(), tmp_path / "selected.pt")
    return network, add_file(tmp_path / "selected.pt", "earlier", "scaled", "").path


def test_a_network_with_the_same_frozen_layers_computes_the_same(trained):
    network, path = trained
    other = build_model(SPEC, seed=1).eval()
    images = torch.rand(2, 3, 32, 32)
    assert not torch.equal(other(images), network(images))
    assert load_start(other, "earlier", NAMES) == hashlib.sha256(path.read_bytes()).hexdigest()
    assert torch.equal(other(images), network(images))


@pytest.mark.parametrize(
    "spec",
    [
        ModelSpec("compact", 4, head=DEPTHS, trainable="head"),
        ModelSpec("compact", 3, trainable="head"),
        ModelSpec("resnet9", 3, head=DEPTHS, trainable="head"),
    ],
    ids=["classes", "head", "backbone"],
)
def test_a_model_of_another_network_is_refused(trained, spec):
    network = build_model(spec, seed=1)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    with pytest.raises(ConfigurationError, match=r"controller\.start_from: the weights 'earlier'"):
        load_start(network, "earlier", NAMES)
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())


def test_a_head_of_other_classes_is_refused(trained, tmp_path):
    """As many, in another order: the shapes agree, and every output would mean another class."""
    write_json(tmp_path / "summary.json", {"configuration": {"problem": {"classes": list(NAMES)}}})
    path = add_file(tmp_path / "selected.pt", "named", "scaled", "").path
    load_start(build_model(SPEC, seed=1), "named", NAMES)
    (tmp_path / "summary.json").unlink()
    add_file(path, "again", "scaled", "")  # what a file has been told goes with it
    for name in ("named", "again"):
        with pytest.raises(ConfigurationError, match=rf"the weights '{name}' are of classes .* another class"):
            load_start(build_model(SPEC, seed=1), name, NAMES[::-1])


def test_an_entry_of_whole_numbers_is_no_weight(trained, tmp_path):
    network, _ = trained
    state = network.state_dict()
    entry = next(name for name, value in state.items() if value.is_floating_point())
    torch.save({**state, entry: state[entry].to(torch.int64)}, tmp_path / "whole.pt")
    add_file(tmp_path / "whole.pt", "whole", "scaled", "")
    with pytest.raises(ConfigurationError, match=rf"controller\.start_from: the weights 'whole' .*{entry}"):
        load_start(build_model(SPEC, seed=1), "whole", NAMES)


def test_a_name_that_the_folder_does_not_have_is_refused_with_those_that_it_has(trained):
    with pytest.raises(ConfigurationError, match=r"weights.*'other'"):
        load_start(build_model(SPEC, seed=1), "other", NAMES)


def test_where_no_simulation_computes_the_head_it_is_said_where_it_comes_from(trained):
    with pytest.raises(ConfigurationError, match=r"start_from=ridge.*--preset"):
        load_start(build_model(SPEC, seed=1), RIDGE, NAMES)


def test_a_simulation_names_the_file_of_its_head(trained, tmp_path, monkeypatch):
    network, _ = trained
    monkeypatch.setenv(START_VARIABLE, str(tmp_path / "selected.pt"))
    other = build_model(SPEC, seed=1).eval()
    load_start(other, RIDGE, NAMES)
    assert torch.equal(other(torch.ones(2, 3, 32, 32)), network(torch.ones(2, 3, 32, 32)))
