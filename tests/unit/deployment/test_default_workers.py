"""How many sites train at the same time if the user does not choose."""

import pytest

from grandrounds.deployment import simulate
from grandrounds.deployment.jobs import load_job
from grandrounds.deployment.presets import with_options

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
