"""Every executor can be made anew in a child process, which finds the site's files and asks the gate in its parent."""

import json
import socket
import threading
from importlib import import_module
from types import SimpleNamespace

import pytest
import torch
from nvflare.apis.fl_context import FLContextManager
from nvflare.apis.workspace import Workspace

from grandrounds.deployment.jobs import job_names, load_job
from grandrounds.errors import ConfigurationError, DataError, Fault, GrandRoundsError, MessageError
from grandrounds.federation.site.child_messages import (
    error_message,
    question_message,
    read_error,
    read_question,
    require_shapes,
    result_from,
    result_message,
    task_message,
    task_payload,
)
from grandrounds.federation.site.frames import Frames
from grandrounds.federation.site.serving import GateOfParent, SiteIdentity
from grandrounds.federation.site.worker import readable_paths
from grandrounds.privacy.gate.audit import Reason, Refused
from grandrounds.protocol.messages import Payload, Release, ReleaseKind, Result
from grandrounds.protocol.paths import result_folder, state_folder
from grandrounds.protocol.spending import Mechanism, Spending, Unit, no_guarantee

RESULT = Result(
    {
        "update": Release(
            ReleaseKind.MODEL_UPDATE, {"w": torch.ones(2, 2), "half": torch.ones(1, dtype=torch.bfloat16)}
        ),
        "counts_own": Release(ReleaseKind.COUNTS, {"images": torch.arange(3), "images twice": torch.zeros(0)}),
    },
    {"loss": 0.5},
    7,
    {"backbone": "compact"},
)


@pytest.mark.parametrize("name", job_names())
def test_every_jobs_executor_can_be_made_anew(name):
    entry = load_job(name).executor
    module, _, class_name = entry["path"].rpartition(".")
    executor = getattr(import_module(module), class_name)(**entry["args"])
    twin = type(executor)(**json.loads(json.dumps(executor._given)))
    assert twin.options() == executor.options()


@pytest.fixture
def context(tmp_path, monkeypatch):
    """FLARE's, at a site."""
    monkeypatch.delenv("GRANDROUNDS_STATE", raising=False)
    monkeypatch.delenv("GRANDROUNDS_SITES", raising=False)
    for folder in ("local/privacy", "startup", "grandrounds/other"):
        (tmp_path / "kit" / folder).mkdir(parents=True)
    workspace = Workspace(str(tmp_path / "kit"), "hospital-a")
    engine = SimpleNamespace(get_workspace=lambda: workspace)
    return FLContextManager(engine, "hospital-a", "job-1").new_context()


@pytest.fixture
def pair():
    """Both ends of a connection."""
    ends = socket.socketpair()
    yield tuple(map(Frames, ends))
    for end in ends:
        end.close()


def test_the_child_finds_the_sites_files_where_the_parent_does(context):
    childs = SiteIdentity.of(context).context(None)
    assert childs.get_identity_name() == "hospital-a"
    for folder in (lambda c: state_folder(c, "run", "hospital-a"), result_folder):
        assert folder(childs) == folder(context)
    config = [c.get_engine().get_workspace().get_site_config_dir() for c in (context, childs)]
    assert config[0] == config[1]


def test_a_result_arrives_as_it_was(pair):
    sender, receiver = pair
    sender.send(*result_message("result", RESULT))
    came = result_from(*receiver.receive())
    assert (came.metrics, came.samples, came.facts) == (RESULT.metrics, RESULT.samples, RESULT.facts)
    for name, release in RESULT.releases.items():
        assert came.releases[name].kind is release.kind
        for key, value in release.tensors.items():
            assert came.releases[name].tensors[key].dtype == value.dtype
            assert torch.equal(came.releases[name].tensors[key], value)


def test_parts_of_a_task_may_share_their_memory(pair):
    sender, receiver = pair
    state = {"w": torch.rand(3, 4).t(), "n": torch.tensor(3)}
    threading.Thread(
        target=sender.send, args=task_message("train", Payload(2, {"seed": 1}, {"global": state, "peer-1": state}), {})
    ).start()
    payload = task_payload(*receiver.receive())
    assert (payload.round_number, payload.values) == (2, {"seed": 1})
    assert all(torch.equal(payload.parts[part][key], state[key]) for part in ("global", "peer-1") for key in state)


@pytest.mark.parametrize(
    "changed",
    [
        {"samples": "7"},
        {"samples": True},
        {"samples": -1},
        {"metrics": {"loss": "patient 4711"}},
        {"metrics": None},
        {"facts": []},
        {"kinds": {"update": "model_update"}},
        {"kinds": {"update": "picture", "counts_own": "counts"}},
        {"tensors": None},
        {"tensors": {"update": ["w"], "counts_own": ["images"]}},
    ],
)
def test_what_is_not_a_result_is_refused(changed):
    header, body = result_message("result", RESULT)
    with pytest.raises(MessageError):
        result_from({**header, **changed}, body)


def test_tensors_that_are_none_are_refused():
    header, _ = result_message("result", RESULT)
    with pytest.raises(MessageError):
        result_from(header, b"\x80\x04N.")


@pytest.mark.parametrize("update", [{"w": torch.ones(3)}, {"w": torch.ones(2).double()}, {"v": torch.ones(2)}])
def test_an_update_has_the_shapes_of_the_model_that_was_sent(update):
    require_shapes({"w": torch.ones(2)}, {"w": torch.zeros(2), "n": torch.tensor(1)})
    with pytest.raises(MessageError):
        require_shapes(update, {"w": torch.zeros(2)})


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (DataError("skin.csv"), DataError, "skin.csv"),
        (Refused(Reason.BUDGET, "3 of 2"), GrandRoundsError, "privacy budget spent: 3 of 2"),
        (FileNotFoundError(2, "No such file", "a"), OSError, "[Errno 2] No such file: 'a'"),
        (KeyError("w"), RuntimeError, "KeyError: 'w'"),
    ],
)
def test_an_error_keeps_its_kind_as_far_as_it_is_known(error, kind, text):
    came = read_error(json.loads(json.dumps(error_message(error))))
    assert (type(came), str(came)) == (kind, text)
    assert Fault.of(came) == Fault.of(error)


@pytest.mark.parametrize(
    ("method", "arguments"),
    [
        ("admit_training", (None,)),
        ("admit_training", (Spending(Mechanism.DP_SGD, Unit.RECORD, 1.0, 1.5, 0.25, 4),)),
        ("admit_training", (no_guarantee(),)),
        ("begin_reading", ()),
        ("note_failure", ("a cause", Fault.DISK)),
        ("row_noise", ("bank",)),
        ("release_minimum", ("counts", "counts_own")),
    ],
)
def test_the_gate_is_asked_in_the_parent(pair, method, arguments):
    childs, parents = pair
    childs_gate = GateOfParent(childs, hides_failures=True, counts_updates=False)
    asked = []

    def answer():
        asked.append(read_question(parents.receive()[0]))
        parents.send({"kind": "answer", "value": 5})

    thread = threading.Thread(target=answer)
    thread.start()
    assert getattr(childs_gate, method)(*arguments) == 5
    thread.join()
    assert asked == [(method, arguments)]


def test_a_refusal_of_the_gate_is_raised_in_the_child(pair):
    childs, parents = pair
    parents.send(error_message(ConfigurationError("no budget")))
    with pytest.raises(ConfigurationError, match="no budget"):
        GateOfParent(childs, hides_failures=False, counts_updates=False).admit_training(None)


@pytest.mark.parametrize(
    "question",
    [
        {"method": "leaves", "arguments": [{}]},
        {"method": "begin_reading", "arguments": [1]},
        {"method": "note_failure", "arguments": ["a cause", "patient 4711"]},
        {"method": "release_minimum", "arguments": ["pictures", "a"]},
        {"method": "admit_training", "arguments": [{"mechanism": "dp_sgd", "unit": "record", "sigma": "1"}]},
        {"method": ["begin_reading"], "arguments": []},
        {},
    ],
)
def test_other_questions_are_none(question):
    with pytest.raises(MessageError):
        read_question({**question_message("begin_reading", ()), "method": None, "arguments": None, **question})


def test_a_child_may_read_its_jobs_images_and_public_ones_but_no_others_and_no_keys(context, tmp_path):
    local, data = tmp_path / "kit" / "local", tmp_path / "data"
    entries = {}
    for name in ("skin", "blood", "open"):
        (data / name).mkdir(parents=True)
        (data / f"{name}.csv").write_text("image,label,split,patient\n")
        entries[name] = {"manifest": str(data / f"{name}.csv"), "root": str(data / name)}
    entries["open"]["public"] = True
    entries["all"] = {"manifest": str(data / "skin.csv"), "root": str(tmp_path)}
    (local / "grandrounds.json").write_text(json.dumps({"datasets": entries}))
    payload = Payload(1, {"problem": {"dataset": "skin", "weights": str(tmp_path / "kit" / "startup" / "client.key")}})
    opened = readable_paths(payload, context, tmp_path / "kit" / "grandrounds" / "run" / "hospital-a")
    mine = [path for path in opened if path.startswith(str(tmp_path))]
    assert {str(data / "skin"), str(data / "skin.csv"), str(data / "open")} <= set(mine)
    assert not [path for path in mine if "blood" in path or "startup" in path or "privacy" in path or "other" in path]
    assert not {str(tmp_path), str(data), str(local), str(tmp_path / "kit")} & set(mine)
    around = readable_paths(
        Payload(1, {"problem": {"dataset": "all"}}), context, tmp_path / "kit" / "grandrounds" / "run"
    )
    mine = [path for path in around if path.startswith(str(tmp_path))]
    assert mine
    assert not [path for path in mine if "blood" in path or path.endswith(("/startup", "/privacy", "/kit/grandrounds"))]
