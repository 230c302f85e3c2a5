"""What is not part of the protocol is refused with a reason, by the server and by the sites."""

import pytest
import torch

from grandrounds.deployment.jobs import load_job
from grandrounds.deployment.presets import with_options
from grandrounds.errors import MessageError
from grandrounds.methods.feddf.controller import FusionController
from grandrounds.methods.feddf.executor import FusionExecutor
from grandrounds.methods.mutual.controller import MutualController
from grandrounds.methods.mutual.executor import MutualExecutor
from grandrounds.protocol.messages import (
    Payload,
    Registration,
    Release,
    ReleaseKind,
    Result,
    floating_entries,
    model_update,
)

ROWS = torch.full((16, 4), 0.25)


def controller(kind, name, *assignments):
    job = with_options(load_job(name), ["controller.rounds=3", *assignments])
    return kind(**job.options("controller"))


def at(server, number):
    server.round_number = number
    return server


@pytest.fixture
def mutual():
    server = controller(MutualController, "mdhfl")
    server.registered["a"] = Registration({"classes": 4.0, "public_images": 16.0}, {"public": "ab" * 32})
    server.participants(["a"])
    return server


def soft_labels(kind=ReleaseKind.SOFT_LABELS, name="values"):
    return Result({"soft_labels": Release(kind, {name: ROWS})}, samples=1)


def test_soft_labels_are_refused_in_rounds_without_an_exchange(mutual):
    at(mutual, 2).check("a", soft_labels())
    with pytest.raises(MessageError, match="a has sent soft labels in a round without an exchange"):
        at(mutual, 3).check("a", soft_labels())
    at(mutual, 3).check("a", Result({}, samples=1))
    alone = controller(MutualController, "mdhfl", "controller.content=none")
    with pytest.raises(MessageError, match="without an exchange"):
        at(alone, 1).check("a", soft_labels())


@pytest.mark.parametrize(
    "answer", [Result({}, samples=1), soft_labels(ReleaseKind.EMBEDDINGS), soft_labels(name="value")]
)
def test_an_answer_without_soft_labels_of_the_kind_is_refused(answer, mutual):
    with pytest.raises(MessageError, match="a must send its soft labels"):
        at(mutual, 1).check("a", answer)


@pytest.fixture
def fusion():
    server = controller(FusionController, "feddf", "controller.server_device=cpu", "problem.backbone=compact")
    server.registered["a"] = Registration({}, {"backbone": "compact", "architecture": "x"})
    server.open_round(["a"])
    return server


def test_updates_are_for_the_rounds_that_distil_and_must_fit(fusion):
    update = {
        name: torch.zeros_like(value)
        for name, value in floating_entries(fusion.payload_for("a").parts["global"]).items()
    }
    at(fusion, 2).check("a", Result(model_update(update), samples=1))
    with pytest.raises(MessageError, match="a has sent an update in the last round, which is not used"):
        at(fusion, 3).check("a", Result(model_update(update), samples=1))
    with pytest.raises(MessageError, match="the result has no update"):
        at(fusion, 2).check("a", Result({}, samples=1))
    name = next(iter(update))
    with pytest.raises(MessageError, match=name):
        at(fusion, 2).check("a", Result(model_update({**update, name: torch.zeros(1, 1, 1)}), samples=1))


def test_an_unknown_network_is_refused_by_name(fusion):
    with pytest.raises(MessageError, match=r"network.*'resnet11'"):
        fusion.check_registration("b", Registration({}, {"backbone": "resnet11", "architecture": "x"}))


@pytest.mark.parametrize(
    ("kind", "name", "values", "reason"),
    [
        (MutualExecutor, "mdhfl", {}, "the task lacks the options of the exchange"),
        (
            MutualExecutor,
            "mdhfl",
            {"exchange": {"options": {"wire": "fp32"}}},
            "the task lacks the options of the exchange",
        ),
        (
            MutualExecutor,
            "mdhfl",
            {"exchange": {"options": {"speed": 1}, "rounds": 3}},
            "options of the exchange: .*speed",
        ),
        (FusionExecutor, "feddf", {"rounds": 3}, "the task lacks the number of rounds or global"),
        (FusionExecutor, "feddf", {"rounds": "3"}, "the task lacks the number of rounds or global"),
    ],
)
def test_a_task_without_its_settings_is_refused(kind, name, values, reason):
    executor = kind(**load_job(name).options("executor"))
    with pytest.raises(MessageError, match=reason):
        executor.train(Payload(1, values), None)
