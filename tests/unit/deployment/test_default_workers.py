"""How many sites train at the same time if the user does not choose, and on which device."""

import pytest
import torch

from grandrounds.api import running
from grandrounds.deployment import simulate
from grandrounds.deployment.jobs import load_job
from grandrounds.deployment.presets import with_options
from grandrounds.errors import ConfigurationError

GIB = 1 << 30


@pytest.mark.parametrize(
    ("options", "sites", "cores", "memory", "gpus", "expected"),
    [
        ([], 10, 8, 64 * GIB, 0, 8),
        ([], 3, 8, 64 * GIB, 0, 3),
        ([], 10, 8, 5 * GIB, 0, 2),
        ([], 10, 8, GIB, 0, 1),
        ([], 10, 8, None, 0, 8),
        (["executor.cpu_threads=4"], 10, 8, 64 * GIB, 0, 2),
        (["executor.cpu_threads=16"], 10, 8, 64 * GIB, 0, 1),
        ([], 10, 8, 64 * GIB, 1, 1),
        ([], 10, 8, 64 * GIB, 4, 4),
        ([], 3, 8, 64 * GIB, 4, 3),
        (["executor.device=cpu"], 10, 8, 64 * GIB, 1, 8),
        (["executor.device=cuda"], 10, 8, 64 * GIB, 0, 1),
        (["executor.device=cuda:1"], 10, 8, 64 * GIB, 2, 1),
    ],
)
def test_cores_memory_and_sites_bound_the_workers(monkeypatch, options, sites, cores, memory, gpus, expected):
    monkeypatch.setattr(simulate.sys, "platform", "linux")
    monkeypatch.setattr(simulate, "usable_cores", lambda: cores)
    monkeypatch.setattr(simulate, "available_memory", lambda: memory)
    monkeypatch.setattr(simulate.torch.cuda, "device_count", lambda: gpus)
    assert simulate.default_workers(with_options(load_job("fedavg"), options), sites) == expected


@pytest.mark.parametrize(
    ("named", "gpus", "expected"),
    [
        ("auto", 0, "cpu"),
        ("auto", 1, "cuda, 1 GPU"),
        ("auto", 8, "cuda, 8 GPUs"),
        ("cpu", 8, "cpu"),
        ("cpu:0", 0, "cpu"),
        ("cuda", 1, "cuda:0"),
        ("cuda:1", 2, "cuda:1"),
    ],
)
def test_the_device_of_a_simulation_is_named_without_a_start_of_cuda(monkeypatch, named, gpus, expected):
    monkeypatch.setattr(simulate.torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(simulate.torch.cuda, "is_available", lambda: pytest.fail("this starts CUDA") if gpus else False)
    assert simulate.device_of(with_options(load_job("fedavg"), [f"executor.device={named}"])) == expected


@pytest.mark.skipif(torch.cuda.is_available(), reason="torch finds a GPU")
@pytest.mark.parametrize(
    "options", [["device=cuda"], ["device=cuda:1"], ["device=gpu"], ["device=cpu", "precision=tf32"]]
)
def test_a_device_that_is_not_there_is_refused_before_the_first_round(options, tmp_path):
    chosen = {f"executor.{name}": value for name, _, value in (option.partition("=") for option in options)}
    with pytest.raises(ConfigurationError, match=r"device|GPU"):
        running.run("fedavg", 2, options=chosen, workspace=tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()
