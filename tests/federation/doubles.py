"""A site of mutual learning that computes in float64; jobs name it by its class path."""

from __future__ import annotations

from torch import nn

from grandrounds.federation.site.context import SiteContext
from grandrounds.methods.mutual.executor import MutualExecutor


class DoubleExecutor(MutualExecutor):
    """Has its network in float64, whatever images it is given."""

    def build(self, context: SiteContext) -> nn.Module:
        """The network of the site, in float64."""
        network = super().build(context).double()
        network.register_forward_pre_hook(lambda _, given: (given[0].double(),))
        return network
