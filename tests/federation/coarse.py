"""A filter whose updates every half precision can hold; jobs name it by its class path."""

from faulty import ChangeUpdate
from torch import Tensor


class CoarseUpdate(ChangeUpdate):
    """Makes every entry of the update a multiple of 1/128 between -1 and 1."""

    def changed(self, value: Tensor) -> Tensor:
        """Rounded."""
        return (value * 128).round().clamp(-128, 128) / 128
