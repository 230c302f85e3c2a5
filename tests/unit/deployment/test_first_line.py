"""The first line of a run names the engine that would save time, where it computes this network, and else none."""

import pytest

from grandrounds.console.account import SAVED_BY_FAST, start_line
from grandrounds.deployment.jobs import load_job
from grandrounds.deployment.presets import with_preset

NAMED = f"; executor.inference=fast (extra fast) would save {SAVED_BY_FAST}"


@pytest.mark.parametrize(
    ("changes", "device", "named"),
    [
        ({}, "cpu", True),
        ({("executor", "inference"): "auto"}, "cpu", True),
        ({("executor", "inference"): "fast"}, "cpu", False),
        ({("executor", "inference"): "bfloat16"}, "cpu", False),
        ({("problem", "backbone"): "densenet121"}, "cpu", False),
        ({("problem", "trainable"): "all"}, "cpu", False),
        ({}, "cuda", False),
    ],
)
def test_the_line_names_what_another_engine_saves_where_there_is_one(changes, device, named):
    job = with_preset(load_job("ridge"), "recommended").with_values(changes)
    line = start_line(job, {}, ["a", "b"], device)
    assert "\n" not in line
    assert line.endswith(NAMED if named else f"device {device}")
