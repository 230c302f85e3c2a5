"""A filter that spoils the soft labels of one site on their way out; jobs name it by its class path."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from nvflare.apis.dxo import from_shareable
from nvflare.apis.filter import Filter
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from torch import Tensor

SPOILT: Mapping[str, Callable[[Tensor], Tensor]] = {
    "nan": lambda values: torch.where(torch.arange(len(values))[:, None] == 3, torch.nan, values),
    "negative": lambda values: values - torch.eye(*values.shape) * 2,
    "sum": lambda values: values * 1.01,
    "classes": lambda values: torch.cat([values, torch.zeros(len(values), 1)], dim=1),
    "images": lambda values: values[:-1],
    "integers": lambda values: values.round().long(),
}


class SpoilSoftLabels(Filter):
    """Spoils the soft labels of a site.

    Args:
        at: the site.
        how: a key of ``SPOILT``.
    """

    def __init__(self, at: str, how: str) -> None:
        super().__init__()
        self.at = at
        self.how = how

    def process(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        """Spoil them in fresh tensors."""
        if shareable.get_return_code() != ReturnCode.OK or fl_ctx.get_identity_name() != self.at:
            return shareable
        dxo = from_shareable(shareable)
        if "soft_labels" in dxo.data:
            part = dxo.data["soft_labels"]
            part.data = {"values": SPOILT[self.how](part.data["values"])}
        return dxo.update_shareable(shareable)
