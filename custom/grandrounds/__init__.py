"""Federated training of medical-image classifiers between hospitals, on NVIDIA FLARE.

The public names load torch and FLARE when they are first used, so that ``import grandrounds`` is quick::

    import grandrounds as gr

    sites = gr.partition("ham10000", "DIR", "runs/ham/sites", sites=10)
    run = gr.run("fedperl", sites, rounds=30, preset="recommended")
    print(run.scores())
    run.report("runs/ham/report")
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

if "GRANDROUNDS_SEAL" in os.environ:  # a process that a kit's job has started
    from grandrounds.seal import inherit_seal

    inherit_seal()

PLACES = {
    "ConfigurationError": "errors", "ConfiguredMethod": "api.methods", "DataError": "errors",
    "Evaluation": "api.evaluation", "Execution": "deployment.simulate", "GrandRoundsError": "errors",
    "MonaiView": "data.images.augmentation", "PartitionOptions": "data.options",
    "ReadDataset": "data.datasets.published", "ReaderOptions": "data.families", "Run": "api.running",
    "Sites": "api.sites", "Sweep": "api.sweeping", "evaluate": "api.evaluation",
    "partition": "api.sites", "recipe": "api.running", "register_aggregator": "federation.server.robust",
    "register_backbone": "models.backbones.own", "register_dataset": "data.families",
    "register_loss": "methods.supervised.loss", "register_method": "federation.own_methods",
    "register_metric": "evaluation.metrics", "register_scheme": "data.own_schemes", "register_task": "protocol.tasks",
    "register_view": "data.images.augmentation", "report": "api.reports", "run": "api.running",
    "sweep": "api.sweeping",
}  # fmt: skip
"""The module of each public name that is not made here."""
CONSTRUCTORS = {
    "FedAlignCL": "fed_align_cl", "FedAvg": "fedavg", "FedIRM": "fedirm", "FedPerl": "fedperl", "Local": "local",
    "LocalFixMatch": "local_fixmatch", "MDHFL": "mdhfl", "Ridge": "ridge", "SSFL": "ssfl",
    "Statistics": "statistics",
}  # fmt: skip
"""The job of each method's constructor."""
__all__ = sorted([*PLACES, *CONSTRUCTORS, "testing"])


def __getattr__(name: str) -> Any:
    """Import a public name, or look up the installed version, when it is first used."""
    value: Any
    if name == "__version__":
        value = _version()
    elif name == "testing":
        value = import_module(f"{__name__}.testing")
    elif name in CONSTRUCTORS:
        value = import_module(f"{__name__}.api.methods").constructor(name)
    elif name in PLACES:
        value = getattr(import_module(f"{__name__}.{PLACES[name]}"), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def _version() -> str:
    """The version of the installed distribution, which comes from its git tag; code that is not installed has none."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(__name__)
    except PackageNotFoundError:
        return "0+unknown"


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
