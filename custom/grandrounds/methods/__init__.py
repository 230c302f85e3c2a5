"""One package per method: its maths as pure functions, its executor and its controller.

A package may have a module ``figures`` with ``figures(history)``, which draws what the method's events show.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from grandrounds.evaluation.history import RunHistory
    from grandrounds.plotting import Drawing


def method_figures(history: RunHistory) -> list[Drawing]:
    """The figures of every method whose events a run has.

    Args:
        history: of the run. Methods build on each other, so its events may be of several: FedPerl's sites report FixMatch's
            pseudo-labels too.
    """
    packages = [entry.name for entry in iter_modules(__path__) if entry.ispkg]
    modules = [name for name in packages if (Path(__file__).parent / name / "figures.py").is_file()]
    return [drawing for name in modules for drawing in import_module(f"{__name__}.{name}.figures").figures(history)]
