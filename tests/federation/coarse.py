"""A filter whose updates every half precision can hold; jobs name it by its class path."""

from __future__ import annotations

from nvflare.apis.dxo import DataKind, from_shareable
from nvflare.apis.filter import Filter
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable


class CoarseUpdate(Filter):
    """Makes every entry of the update a multiple of 1/128 between -1 and 1."""

    def process(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        """Round in fresh tensors."""
        if shareable.get_return_code() != ReturnCode.OK:
            return shareable
        dxo = from_shareable(shareable)
        for part in dxo.data.values():
            if part.data_kind == DataKind.WEIGHT_DIFF:
                part.data = {name: (value * 128).round().clamp(-128, 128) / 128 for name, value in part.data.items()}
        return dxo.update_shareable(shareable)
