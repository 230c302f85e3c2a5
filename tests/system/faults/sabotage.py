"""A filter of a site that spoils what leaves, on request; the site's privacy.json names it."""

from pathlib import Path

from nvflare.apis.dxo import DataKind, from_shareable
from nvflare.apis.filter import Filter
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable


class Spoil(Filter):
    """Multiplies every number of the update.

    Args:
        trigger: file whose being there is the request; the factor is its content, and NaN if it is empty.
    """

    def __init__(self, trigger: str) -> None:
        super().__init__()
        self.trigger = Path(trigger)

    def process(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        """Spoil, or leave it as it is."""
        if shareable.get_return_code() != ReturnCode.OK or not self.trigger.exists():
            return shareable
        factor = float(self.trigger.read_text() or "nan")
        dxo = from_shareable(shareable)
        for part in dxo.data.values():
            if part.data_kind == DataKind.WEIGHT_DIFF:
                part.data = {name: value * factor for name, value in part.data.items()}
        return dxo.update_shareable(shareable)
