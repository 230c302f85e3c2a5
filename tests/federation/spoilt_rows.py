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
    "nan": lambda rows: torch.where(torch.arange(len(rows))[:, None] == 3, torch.nan, rows),
    "negative": lambda rows: rows - torch.eye(*rows.shape) * 2,
    "sum": lambda rows: rows * 1.01,
    "classes": lambda rows: torch.cat([rows, torch.zeros(len(rows), 1)], dim=1),
    "images": lambda rows: rows[:-1],
    "integers": lambda rows: rows.round().long(),
}


class SpoilRows(Filter):
    """Spoils the rows of a site.

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
        if "rows" in dxo.data:
            dxo.data["rows"].data = {"rows": SPOILT[self.how](dxo.data["rows"].data["rows"])}
        return dxo.update_shareable(shareable)
