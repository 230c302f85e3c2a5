"""Methods of plug-ins: an executor and a controller under a name, from which a job is made."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from grandrounds.errors import ConfigurationError
from grandrounds.plugins import Registry

if TYPE_CHECKING:
    from grandrounds.evaluation.history import RunHistory
    from grandrounds.plotting import Drawing

Component = TypeVar("Component", bound=type)
Figures = Callable[["RunHistory"], "Sequence[Drawing]"]
Presets = Mapping[str, Mapping[str, Mapping[str, Any]]]


class OwnMethod(NamedTuple):
    """A registered method; arguments as those of :func:`register_method`."""

    executor: type
    controller: type
    summary: str
    paper: str
    options: Mapping[str, Any]
    presets: Presets
    figures: Figures | None


OWN_METHODS: Registry[OwnMethod] = Registry("method")


def register_method(
    name: str,
    *,
    controller: type,
    summary: str = "",
    paper: str = "",
    options: Mapping[str, Any] = MappingProxyType({}),
    presets: Presets = MappingProxyType({}),
    figures: Figures | None = None,
) -> Callable[[Component], Component]:
    """Register a method as a job of this name; use it as a decorator of the executor.

    The job has the values of the job ``fedavg`` for the options that the components share with it, else their defaults.

    Args:
        name: lower-case letters, digits and ``_``; none of the package's jobs.
        controller: a class derived from ``RoundController``, for example ``FedAvgController``.
        summary: one line for ``grandrounds jobs``.
        paper: the publication, in short.
        options: values of options, ``{"executor.steps": 20}``.
        presets: named options, ``{"paper": {"executor": {"steps": 100}}}``.
        figures: draws what a run's events show; it gets the history of any run, and gives nothing where the run is not the
            method's.

    Returns:
        A decorator of a class derived from ``SiteExecutor``, for example from ``SupervisedExecutor``.

    Raises:
        ConfigurationError: if the name is taken or has other characters, or a class derives from something else.
    """
    from grandrounds.federation.server.controller import RoundController
    from grandrounds.federation.site.executor import SiteExecutor

    OWN_METHODS.require_name(name)
    _require_derived(name, controller, RoundController)

    def register(executor: Component) -> Component:
        _require_derived(name, executor, SiteExecutor)
        method = OwnMethod(executor, controller, summary, paper, options, presets, figures)
        OWN_METHODS.add(name, method, executor)
        return executor

    return register


def _require_derived(name: str, component: Any, base: type) -> None:
    if not isinstance(component, type) or not issubclass(component, base):
        raise ConfigurationError(f"method {name}: {component!r} must be a class derived from {base.__name__}")
