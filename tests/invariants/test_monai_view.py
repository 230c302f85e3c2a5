"""A view by MONAI's transforms gives the same bits in one process and in two; ``test_engines`` has FLARE's simulator."""

import sys
from pathlib import Path

import pytest
import torch

import grandrounds as gr
from grandrounds.data.images.augmentation import OWN_VIEWS

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_view"
OPTIONS = {"executor.steps": 2, "executor.batch_size": 4, "executor.cpu_threads": 1, "controller.pa_min_peers": 1}


@pytest.fixture(autouse=True)
def own_view(monkeypatch):
    """The example's module, for the time of a test."""
    monkeypatch.setattr(OWN_VIEWS, "entries", {})
    monkeypatch.syspath_prepend(str(EXAMPLE))
    monkeypatch.delitem(sys.modules, "own_view", raising=False)
    yield __import__("own_view")
    sys.modules.pop("own_view")


def trained(workspace, view="tilted", **execution):
    """The model of two rounds of FedPerl at two sites."""
    run = gr.run(
        "fedperl", 2, rounds=2, image_size=32, options={**OPTIONS, "executor.weak_view": view}, workspace=workspace,
        progress=False, reference=False, execution=gr.Execution(**execution),
    )  # fmt: skip
    return run.model.state_dict()


def assert_equal_bits(found, expected):
    assert found.keys() == expected.keys()
    assert [name for name, value in expected.items() if not torch.equal(value, found[name])] == []


def test_workers_draw_the_same_views(tmp_path):
    expected = trained(tmp_path / "one", workers=1)
    assert_equal_bits(trained(tmp_path / "two", workers=2), expected)
    weak = trained(tmp_path / "weak", view="weak", workers=1)
    assert any(not torch.equal(value, weak[name]) for name, value in expected.items()), "the view was not drawn"
