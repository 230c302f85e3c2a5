"""One network for all sites of a process that have the same architecture."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakValueDictionary

from torch import Tensor, nn

from grandrounds.data.site import SiteData
from grandrounds.federation.site.context import SiteContext
from grandrounds.models.compute import compile_network
from grandrounds.models.norm_layers import use_statistics
from grandrounds.protocol.problem import SITE_NORM

_shared: WeakValueDictionary[tuple[Any, ...], nn.Module] = WeakValueDictionary()


class SharedNetwork:
    """Finds or builds the network of a task. Sites of one process work one after the other, each loads its own weights.

    Args:
        compiler: torch's, or ``none``.
        build: makes a network for a task; methods with another ``build`` share none.
    """

    def __init__(self, compiler: str, build: Callable[[SiteContext], nn.Module]) -> None:
        self._compiler, self._build = compiler, build
        self._held: tuple[tuple[Any, ...], nn.Module] | None = None
        self._statistics: tuple[SiteData, dict[str, Tensor]] | None = None

    def of(self, context: SiteContext) -> nn.Module:
        """The network of the context's architecture on its device; its weights are whatever was loaded last.

        With ``problem.norm=site`` it has the statistics of the site's training images.
        """
        network = self._network(context)
        if context.model_spec.norm == SITE_NORM:
            from grandrounds.models.adaptation import site_statistics  # if a job asks

            if self._statistics is None or self._statistics[0] is not context.data:
                of = context.data.images, context.data.rows("train")
                statistics = site_statistics(context.model_spec, context.seed, *of, context.device)
                self._statistics = context.data, statistics
            use_statistics(network, self._statistics[1])
        return network

    def _network(self, context: SiteContext) -> nn.Module:
        kind = getattr(self._build, "__func__", self._build)
        key = (context.model_spec, context.seed, context.device, self._compiler, kind)
        if self._held is None or self._held[0] != key:
            network = _shared.get(key)
            if network is None:
                _shared[key] = network = self._build(context)
                if self._compiler != "none":
                    compile_network(network, self._compiler)
            self._held = key, network
        return self._held[1]


def forget_networks() -> None:
    """Share nothing with runs that this process has had before: the files of frozen layers may have changed."""
    _shared.clear()
