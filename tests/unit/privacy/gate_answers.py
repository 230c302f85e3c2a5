"""Tasks and answers for tests of the gate, and what has become of them."""

import json

import pytest
import torch

from grandrounds.privacy.gate.audit import AUDIT_NAME, Refused
from grandrounds.privacy.gate.gate import TaskFacts
from grandrounds.privacy.gate.inspection import Answer, Part
from grandrounds.privacy.gate.kinds import Expected
from grandrounds.privacy.gate.policy import ReleaseRule, ScalarRule
from grandrounds.privacy.gate.treatments import ClipAndNoise, MinimumSupport, Quantise
from grandrounds.privacy.ledger.ledger import Ledger
from grandrounds.privacy.ledger.lines import DatasetIdentity
from grandrounds.protocol.messages import METRICS, PROTOCOL, ReleaseKind

UPDATE, STATISTICS, SOFT = ReleaseKind.MODEL_UPDATE, ReleaseKind.CLASS_STATISTICS, ReleaseKind.SOFT_LABELS
NOISY = ReleaseRule(UPDATE, "update", ClipAndNoise(1.0, 32.0))
RELATION = ReleaseRule(STATISTICS, "relation", MinimumSupport(5), ("matrix", "support"), outside_budget=True)
ROWS = ReleaseRule(SOFT, "rows", Quantise(10), ("rows",), outside_budget=True)
SCALARS = (ScalarRule("validation.*", "val", 5), ScalarRule("samples", "train", 50))
SKIN = DatasetIdentity("skin", "a" * 64)
TARGET = 0.25
"""Between the epsilon of one update of noise multiplier 16, 0.204, and that of two, 0.298."""


def facts(task="train", number=1, dataset=SKIN, run="run", **patients):
    template = {"w": ((2, 3), torch.float32), "b": ((2,), torch.float32)}
    expected = Expected(
        number,
        "r-1",
        2,
        template,
        {"train": 60, "val": 9, "test": 9, **patients},
        images=44,
        public_rows=4,
        backbones=frozenset({"resnet10"}),
    )
    return TaskFacts("job-1", task, run, dataset, expected)


def update(**tensors):
    return Part("WEIGHT_DIFF", {"release": "model_update"}, {"w": torch.ones(2, 3), "b": torch.ones(2), **tensors})


def answer(header=None, metrics=None, **parts):
    full = {"protocol": PROTOCOL, "round": 1, "run_id": "r-1", "samples": 44} | (header or {})
    scores = {"validation.f1": 0.5, "loss": 1.25} if metrics is None else metrics
    return Answer(full, {METRICS: Part("METRICS", {}, scores), **(parts or {"update": update()})})


def booked(gate):
    return Ledger(gate.folder, gate.site).content().bookings


def audited(gate):
    return [json.loads(line) for line in (gate.folder / AUDIT_NAME).read_text().splitlines()]


def refusal(gate, reply, task=None, trained=None):
    """The refusal; of an answer that is refused nothing is booked."""
    before = len(booked(gate))
    with pytest.raises(Refused) as caught:
        gate.release(task or facts(), reply, trained)
    assert len(booked(gate)) == before
    return caught.value
