"""What a site's process waits for before it trains: FLARE's simulator may start one for every task."""

import json
import subprocess
import sys

import pytest

EXECUTORS = ("fed_align_cl", "fedirm", "fedperl", "fixmatch", "mutual", "statistics", "supervised")
HEAVY = (
    "matplotlib",
    "monai",
    "pandas",
    "pydicom",
    "scipy",
    "sklearn",
    "sympy",
    "torch._dynamo",
    "torchvision",
)
PROBE = f"""
import json, sys
from importlib import import_module
loaded = {{}}
def note(when):
    loaded[when] = [name for name in {HEAVY!r} if name in sys.modules]
for method in {EXECUTORS!r}:
    import_module(f"grandrounds.methods.{{method}}.executor")
    note(method)
import grandrounds.privacy.gate.filters
note("site's gate")
import torch
from grandrounds.federation.site.training import OptimizerStep, new_optimizer
from grandrounds.models.registry import build_model
from grandrounds.protocol.problem import ModelSpec
for algorithm in ("adam", "sgd"):
    network = build_model(ModelSpec("compact", 2), seed=0)
    optimizer = new_optimizer(network.parameters(), algorithm, 0.1)
    OptimizerStep(network, optimizer).step([network(torch.ones(2, 3, 32, 32)).sum()])
    new_optimizer(network.parameters(), algorithm, 0.1).load_state_dict(optimizer.state_dict())
    note(algorithm)
print(json.dumps(loaded))
"""


@pytest.fixture(scope="module")
def loaded():
    """Heavy packages that a fresh process has loaded after each step of a site's first task."""
    answer = subprocess.run([sys.executable, "-c", PROBE], check=True, capture_output=True, text=True).stdout
    return json.loads(answer.splitlines()[-1])


@pytest.mark.parametrize("executor", EXECUTORS)
def test_an_executor_loads_nothing_that_only_some_tasks_need(loaded, executor):
    assert loaded[executor] == []


def test_the_gate_loads_nothing_that_only_some_policies_need(loaded):
    assert loaded["site's gate"] == []


@pytest.mark.parametrize("algorithm", ["adam", "sgd"])
def test_a_training_step_does_not_load_torchs_compiler(loaded, algorithm):
    assert loaded[algorithm] == []
