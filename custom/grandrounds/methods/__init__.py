"""One package per method: its maths as pure functions, its executor and its controller.

A package may have a module ``figures`` with ``figures(history)``, which draws what the method's events show.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import TYPE_CHECKING

from grandrounds.federation.own_methods import OWN_METHODS

if TYPE_CHECKING:
    from grandrounds.evaluation.history import RunHistory
    from grandrounds.plotting import Drawing


def method_figures(history: RunHistory) -> list[Drawing]:
    """The figures of every method whose events a run has, those of plug-ins included.

    Args:
        history: of the run. Methods build on each other, so its events may be of several: FedPerl's sites report FixMatch's
            pseudo-labels too.
    """
    packages = [entry.name for entry in iter_modules(__path__) if entry.ispkg]
    own = [method.figures for method in OWN_METHODS.all().values() if method.figures]
    modules = [name for name in packages if (Path(__file__).parent / name / "figures.py").is_file()]
    drawn = [*(import_module(f"{__name__}.{name}.figures").figures for name in modules), *own]
    return [drawing for figures in drawn for drawing in figures(history)]
