"""What a site tells of its data, and how many must stand behind it."""

from __future__ import annotations

from dataclasses import dataclass

from grandrounds.errors import ConfigurationError
from grandrounds.methods.statistics.figures import LEVELS
from grandrounds.options import require_min


@dataclass(frozen=True)
class StatisticsOptions:
    """Options of a site.

    Attributes:
        min_count: fewest patients behind each figure. A site's own ``privacy.min_support`` counts if it is higher.
        bins: of the histogram of intensities; divides 256.

    Raises:
        ConfigurationError: if a value is outside its range.
    """

    min_count: int = 10
    bins: int = 16

    def __post_init__(self) -> None:
        require_min(self, 1, "min_count")
        if self.bins < 1 or LEVELS % self.bins:
            raise ConfigurationError(f"bins must divide {LEVELS}, got {self.bins}")
