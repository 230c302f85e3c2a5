"""One site's process from its start to its first step of training: memory and CPU time."""

from __future__ import annotations

import time
from typing import Any

from benchmarks.measure import resident_mib


def start(own: bool) -> dict[str, Any]:
    """Import what FLARE's client and all executors need, then take a step with our optimizer or torch's own."""
    memory, times = {"interpreter": resident_mib()}, {}

    def note(what: str, began: float) -> float:
        memory[what], times[what] = resident_mib(), time.process_time() - began
        return time.process_time()

    began = time.process_time()
    import torch

    began = note("torch", began)
    import nvflare.private.fed.client.client_runner  # noqa: F401

    began = note("flare", began)
    import grandrounds.methods.fed_align_cl.executor
    import grandrounds.methods.fedirm.executor
    import grandrounds.methods.fedperl.executor
    import grandrounds.methods.mutual.executor
    import grandrounds.privacy.gate.filters  # noqa: F401

    note("executors", began)
    from grandrounds.federation.site.training import Adam
    from grandrounds.models.registry import build_model
    from grandrounds.protocol.problem import ModelSpec

    began = time.process_time()
    network = build_model(ModelSpec("compact", 4), seed=1)
    optimizer = (Adam if own else torch.optim.Adam)(network.parameters(), fused=True)
    network(torch.ones(2, 3, 32, 32)).sum().backward()
    optimizer.step()
    note("step", began)
    return {
        "mib": {name: round(value, 1) for name, value in memory.items()},
        "cpu_seconds": {name: round(value, 2) for name, value in times.items()},
        "mib_after_imports": round(memory["executors"], 1),
        "mib_after_step": round(memory["step"], 1),
        "cpu_seconds_of_imports": round(times["torch"] + times["flare"] + times["executors"], 2),
        "cpu_seconds_of_step": round(times["step"], 2),
    }
