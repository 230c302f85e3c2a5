"""Federated training of medical-image classifiers between hospitals, on NVIDIA FLARE.

The public names load torch and FLARE when they are first used, so that ``import grandrounds`` is quick::

    import grandrounds as gr

    sites = gr.partition("ham10000", "DIR", "runs/ham/sites", sites=10)
    run = gr.run("fedperl", sites, rounds=30, preset="recommended")
    print(run.scores())
    run.report("runs/ham/report")
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    __version__: str
    from grandrounds import testing
    from grandrounds.api.evaluation import Evaluation, evaluate
    from grandrounds.api.recipes import recipe
    from grandrounds.api.reports import paper, report
    from grandrounds.api.running import Run, run
    from grandrounds.api.sites import Sites, partition
    from grandrounds.api.sweeping import Sweep, sweep
    from grandrounds.data.images.augmentation import register_view
    from grandrounds.data.own_datasets import ReaderOptions, register_dataset
    from grandrounds.data.own_schemes import register_scheme
    from grandrounds.errors import ConfigurationError, DataError, GrandRoundsError
    from grandrounds.evaluation.own_metrics import register_metric
    from grandrounds.federation.own_methods import register_method
    from grandrounds.models.backbones.own import register_backbone
    from grandrounds.protocol.tasks import register_task

__all__ = [
    "ConfigurationError",
    "DataError",
    "Evaluation",
    "GrandRoundsError",
    "ReaderOptions",
    "Run",
    "Sites",
    "Sweep",
    "evaluate",
    "paper",
    "partition",
    "recipe",
    "register_backbone",
    "register_dataset",
    "register_method",
    "register_metric",
    "register_scheme",
    "register_task",
    "register_view",
    "report",
    "run",
    "sweep",
    "testing",
]
PLACES = {
    "ConfigurationError": "errors",
    "DataError": "errors",
    "Evaluation": "api.evaluation",
    "GrandRoundsError": "errors",
    "ReaderOptions": "data.own_datasets",
    "Run": "api.running",
    "Sites": "api.sites",
    "Sweep": "api.sweeping",
    "evaluate": "api.evaluation",
    "paper": "api.reports",
    "partition": "api.sites",
    "recipe": "api.recipes",
    "register_backbone": "models.backbones.own",
    "register_dataset": "data.own_datasets",
    "register_method": "federation.own_methods",
    "register_metric": "evaluation.own_metrics",
    "register_scheme": "data.own_schemes",
    "register_task": "protocol.tasks",
    "register_view": "data.images.augmentation",
    "report": "api.reports",
    "run": "api.running",
    "sweep": "api.sweeping",
}
"""The module of each public name."""


def __getattr__(name: str) -> Any:
    """Import a public name, or look up the installed version, when it is first used."""
    found: Any
    if name == "__version__":
        found = _version()
    elif name == "testing":
        found = import_module(f"{__name__}.testing")
    elif name in PLACES:
        found = getattr(import_module(f"{__name__}.{PLACES[name]}"), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = found
    return found


def _version() -> str:
    """The version of the installed distribution, which comes from its git tag; code that is not installed has none."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(__name__)
    except PackageNotFoundError:
        return "0+unknown"


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
