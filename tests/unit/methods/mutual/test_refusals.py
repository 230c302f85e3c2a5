"""What is not part of the protocol is refused with a reason, by the server and by the sites."""

import pytest
import torch

from grandrounds.deployment.jobs import load_job
from grandrounds.deployment.presets import with_options
from grandrounds.errors import MessageError
from grandrounds.methods.mutual.controller import MutualController
from grandrounds.methods.mutual.executor import MutualExecutor
from grandrounds.protocol.messages import (
    Payload,
    Registration,
    Release,
    ReleaseKind,
    Result,
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
    ],
)
def test_a_task_without_its_settings_is_refused(kind, name, values, reason):
    executor = kind(**load_job(name).options("executor"))
    with pytest.raises(MessageError, match=reason):
        executor.train(Payload(1, values), None)
