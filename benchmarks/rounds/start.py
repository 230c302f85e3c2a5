"""A site's process from its start to its first training step: memory and CPU time."""

from __future__ import annotations

import time
from typing import Any

from benchmarks.measure import resident_mib


def start(own: bool) -> dict[str, Any]:
    """Import what FLARE's client and all executors need, then take a step with our optimizer or torch's own."""
    began = time.process_time()
    import nvflare.private.fed.client.client_runner  # noqa: F401
    import torch

    import grandrounds.methods.fed_align_cl.executor
    import grandrounds.methods.fedirm.executor
    import grandrounds.methods.fedperl.executor
    import grandrounds.methods.mutual.executor
    import grandrounds.privacy.gate.filters  # noqa: F401

    imports, after_imports = time.process_time() - began, resident_mib()
    from grandrounds.federation.site.training import Adam
    from grandrounds.models.registry import build_model
    from grandrounds.protocol.problem import ModelSpec

    began = time.process_time()
    network = build_model(ModelSpec("compact", 4), seed=1)
    optimizer = (Adam if own else torch.optim.Adam)(network.parameters(), fused=True)
    network(torch.ones(2, 3, 32, 32)).sum().backward()
    optimizer.step()
    step = time.process_time() - began
    return {
        "mib_after_imports": round(after_imports, 1),
        "mib_after_step": round(resident_mib(), 1),
        "cpu_seconds_of_imports": round(imports, 2),
        "cpu_seconds_of_step": round(step, 2),
    }
