"""A model to start from: its entries are in the network to the bit, and those of another network are refused."""

import hashlib
import json
from types import SimpleNamespace

import pytest
import torch

from grandrounds.errors import ConfigurationError
from grandrounds.federation.server.options import Start
from grandrounds.federation.server.start import RIDGE, START_VARIABLE, load_start
from grandrounds.files import write_json
from grandrounds.models.pretrained import add_file
from grandrounds.models.registry import build_model
from grandrounds.models.split import head_name
from grandrounds.protocol.paths import LOCK, WEIGHTS_VARIABLE
from grandrounds.protocol.problem import DEPTHS, ModelSpec, Problem

NAMES = ("nevus", "melanoma", "other")
SPEC = ModelSpec("compact", 3, head=DEPTHS, trainable="head")


def problem(**changes):
    values = {"dataset": "skin", "classes": list(NAMES), "image_size": 32, "head": DEPTHS, "trainable": "head"}
    return Problem.from_dict({**values, "backbone": "compact", "weights": None, **changes})


def load(network, name, classes=NAMES, fl_ctx=None, **changes):
    return load_start(network, name, problem(classes=list(classes), **changes), 1, fl_ctx)


HEAD = {
    name: torch.full_like(value, 0.5)
    for name, value in build_model(SPEC, seed=1).state_dict().items()
    if name.startswith(head_name(build_model(SPEC, seed=1)))
}


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
    assert load(other, "earlier") == hashlib.sha256(path.read_bytes()).hexdigest()
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
        load(network, "earlier")
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())


def test_a_head_of_other_classes_is_refused(trained, tmp_path):
    """As many, in another order: the shapes agree, and every output would mean another class."""
    write_json(tmp_path / "summary.json", {"configuration": {"problem": {"classes": list(NAMES)}}})
    path = add_file(tmp_path / "selected.pt", "named", "scaled", "").path
    load(build_model(SPEC, seed=1), "named")
    (tmp_path / "summary.json").unlink()
    add_file(path, "again", "scaled", "")  # what a file has been told goes with it
    for name in ("named", "again"):
        with pytest.raises(ConfigurationError, match=rf"the weights '{name}' are of classes .* another class"):
            load(build_model(SPEC, seed=1), name, NAMES[::-1])


def test_an_entry_of_whole_numbers_is_no_weight(trained, tmp_path):
    network, _ = trained
    state = network.state_dict()
    entry = next(name for name, value in state.items() if value.is_floating_point())
    torch.save({**state, entry: state[entry].to(torch.int64)}, tmp_path / "whole.pt")
    add_file(tmp_path / "whole.pt", "whole", "scaled", "")
    with pytest.raises(ConfigurationError, match=rf"controller\.start_from: the weights 'whole' .*{entry}"):
        load(build_model(SPEC, seed=1), "whole")


def test_a_name_that_the_folder_does_not_have_is_refused_with_those_that_it_has(trained):
    with pytest.raises(ConfigurationError, match=r"weights.*'other'"):
        load(build_model(SPEC, seed=1), "other")


def test_where_no_simulation_computes_the_head_it_is_said_where_it_comes_from(trained):
    with pytest.raises(ConfigurationError, match=r"start_from: this server has no finished run .ridge.*--preset"):
        load(build_model(SPEC, seed=1), RIDGE)


def test_a_simulation_names_the_file_of_its_head(trained, tmp_path, monkeypatch):
    network, _ = trained
    monkeypatch.setenv(START_VARIABLE, str(tmp_path / "selected.pt"))
    other = build_model(SPEC, seed=1).eval()
    load(other, RIDGE)
    assert torch.equal(other(torch.ones(2, 3, 32, 32)), network(torch.ones(2, 3, 32, 32)))


@pytest.fixture
def server(tmp_path):
    """A server's FLARE context, and what its folder has of a finished run ``first`` by the submitter of the job."""
    folder = tmp_path / "kit" / "grandrounds" / "first" / "server"
    folder.mkdir(parents=True)
    torch.save(HEAD, folder / "selected.pt")
    write_json(folder.parent / "owner.json", {"submitter_name": "r@x.org", "name": "ridge"})
    configuration = {"problem": problem().to_dict(), "seed": 1}
    write_json(folder / "summary.json", {"status": "finished", "configuration": configuration})
    write_json(tmp_path / "meta.json", {"submitter_name": "r@x.org"})
    write_json(tmp_path / "kit" / "local" / LOCK, {})
    workspace = SimpleNamespace(
        get_root_dir=lambda: str(tmp_path / "kit"),
        get_job_meta_path=lambda job: str(tmp_path / "meta.json"),
        get_site_config_dir=lambda: str(tmp_path / "kit" / "local"),
    )
    context = SimpleNamespace(
        get_engine=lambda: SimpleNamespace(get_workspace=lambda: workspace), get_job_id=lambda: "job"
    )
    return context, folder


def test_a_finished_run_of_the_submitter_is_a_start(server):
    context, folder = server
    network = build_model(SPEC, seed=1)
    digest = hashlib.sha256((folder / "selected.pt").read_bytes()).hexdigest()
    assert load(network, "first", fl_ctx=context) == digest
    assert all(torch.equal(value, network.state_dict()[name]) for name, value in HEAD.items())
    assert load(build_model(SPEC, seed=1), f"first@{digest}", fl_ctx=context) == digest


def write(folder, summary):
    write_json(folder / "summary.json", summary)


def changed(folder, **values):
    content = json.loads((folder / "summary.json").read_text())
    configuration = {**content["configuration"], **values.pop("configuration", {})}
    write_json(folder / "summary.json", {**content, "configuration": configuration, **values})


CHANGES = {
    "unfinished": (lambda folder: changed(folder, status="failed"), "run 'first' of this server is failed"),
    "no model": (lambda folder: (folder / "selected.pt").unlink(), "has no result to start from"),
    "another person's": (
        lambda folder: write_json(folder.parent / "owner.json", {"submitter_name": "m@x.org"}),
        "is not known to be of this job's submitter",
    ),
    "nobody's": (lambda folder: (folder.parent / "owner.json").unlink(), "is not known to be of this job's submitter"),
    "without a configuration": (lambda folder: write(folder, {"status": "finished"}), "does not say what it is of"),
    "without a problem": (
        lambda folder: write(folder, {"status": "finished", "configuration": {"problem": None}}),
        "does not say what it is of",
    ),
    "another norm": (
        lambda folder: changed(folder, configuration={"problem": {**problem().to_dict(), "norm": "group"}}),
        r"problem\.norm=group, and this job has batch",
    ),
    "another task": (
        lambda folder: changed(folder, configuration={"problem": {**problem().to_dict(), "task": "multi"}}),
        r"problem\.task=multi, and this job has single",
    ),
    "other random layers": (
        lambda folder: changed(folder, configuration={"seed": 2}),
        r"controller\.seed=2, and this job has 1",
    ),
    "another side": (
        lambda folder: changed(folder, configuration={"problem": {**problem().to_dict(), "image_size": 64}}),
        r"problem\.image_size=64, and this job has 32",
    ),
    "other weights": (
        lambda folder: changed(folder, configuration={"problem": {**problem().to_dict(), "weights": "retina"}}),
        r"problem\.weights=retina, and this job has None",
    ),
    "other classes": (
        lambda folder: changed(folder, configuration={"problem": {**problem().to_dict(), "classes": [*NAMES[::-1]]}}),
        "an output would mean another class",
    ),
}


@pytest.mark.parametrize("case", CHANGES)
def test_a_run_that_is_no_start_is_refused_with_the_reason(server, case):
    context, folder = server
    change, reason = CHANGES[case]
    change(folder)
    network = build_model(SPEC, seed=1)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    with pytest.raises(ConfigurationError, match=reason):
        load(network, "first", fl_ctx=context)
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())


def test_another_file_than_the_job_states_is_refused(server):
    context, _ = server
    with pytest.raises(ConfigurationError, match=r"has the SHA-256 .* and the job states 0000"):
        load(build_model(SPEC, seed=1), f"first@{'0' * 64}", fl_ctx=context)


def test_weights_of_the_name_stand_in_for_a_run_that_is_no_start(server, trained):
    context, folder = server
    network, path = trained
    changed(folder, status="failed")
    add_file(path, "first", "scaled", "")
    other = build_model(SPEC, seed=1).eval()
    load(other, "first", fl_ctx=context)
    assert torch.equal(other(torch.ones(2, 3, 32, 32)), network.eval()(torch.ones(2, 3, 32, 32)))


def test_of_a_run_and_weights_that_one_is_taken_whose_digest_is_stated(server, trained):
    context, folder = server
    digest = hashlib.sha256(add_file(trained[1], "first", "scaled", "").path.read_bytes()).hexdigest()
    of_run = hashlib.sha256((folder / "selected.pt").read_bytes()).hexdigest()
    assert load(build_model(SPEC, seed=1), f"first@{digest}", fl_ctx=context) == digest
    assert load(build_model(SPEC, seed=1), f"first@{of_run}", fl_ctx=context) == of_run
    assert load(build_model(SPEC, seed=1), "first", fl_ctx=context) == of_run


def test_a_run_keeps_what_it_started_from(server, tmp_path):
    context, folder = server
    kept = tmp_path / "start.pt"
    first = load_start(build_model(SPEC, seed=1), "first", problem(), 1, context, kept)
    changed(folder, status="running")
    network = build_model(SPEC, seed=1)
    assert load_start(network, "first", problem(), 1, context, kept) == first
    assert all(torch.equal(value, network.state_dict()[name]) for name, value in HEAD.items())


@pytest.mark.parametrize("text", ["", "a/b", "../first", "first@", "first@12", f"first@{'0' * 65}", "@" + "0" * 64])
def test_what_names_no_start_is_refused(text):
    with pytest.raises(ConfigurationError, match="start_from must be the name"):
        Start.parse(text)
