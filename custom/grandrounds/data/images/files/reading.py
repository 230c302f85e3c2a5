"""How the image files of a data set are to be read, as its entry in a site's ``grandrounds.json`` states."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from grandrounds.errors import ConfigurationError
from grandrounds.options import require_type
from grandrounds.protocol.names import Preprocess

MAX_BITS = 16
Window = tuple[float, float]
"""Centre and width in Hounsfield units."""
CHANNEL_COUNTS = (1, 3)
"""How many windows there may be: as many as an image may have channels."""


@dataclass(frozen=True)
class Reading:
    """What is not in the files.

    Attributes:
        windows: of CT slices, one for each channel.
        preprocess: what is done to images as they are read.
        bits: significant bits of grey images of more than eight, if their files do not state them; 0 leaves it to the files.
    """

    windows: tuple[Window, ...] = ()
    preprocess: Preprocess = "none"
    bits: int = 0

    @classmethod
    def of(cls, entry: Mapping[str, Any], where: str) -> Self:
        """The reading of a data set's entry, with the keys ``windows``, ``preprocess`` and ``bits``, all optional.

        Raises:
            ConfigurationError: naming the field, what was expected and what came.
        """
        windows = windows_from(entry["windows"], f"{where}.windows") if "windows" in entry else ()
        preprocess, bits = entry.get("preprocess", "none"), entry.get("bits", 0)
        require_type(preprocess, Preprocess, f"{where}.preprocess")
        if windows and preprocess != "none":
            raise ConfigurationError(
                f"{where}: windows are for CT and preprocess is for other images; keep one of them"
            )
        if isinstance(bits, bool) or not isinstance(bits, int) or not (bits == 0 or 8 < bits <= MAX_BITS):
            raise ConfigurationError(f"{where}.bits must be 9 to {MAX_BITS}, or 0 for what files say; got {bits!r}")
        return cls(windows, preprocess, bits)

    def entries(self) -> dict[str, Any]:
        """What differs from the defaults, as the keys of an entry."""
        entries = {
            "windows": [list(window) for window in self.windows],
            "preprocess": self.preprocess,
            "bits": self.bits,
        }
        return {key: value for key, value in entries.items() if value not in ([], "none", 0)}


AS_IN_FILES = Reading()
"""The reading of a data set whose entry states nothing."""


def windows_from(value: Any, where: str) -> tuple[Window, ...]:
    """Check windows, ``[[centre, width], ...]`` in Hounsfield units; ``where`` is their file and field.

    Raises:
        ConfigurationError: if these are not one or three pairs of numbers, or a width is below one.

    Example:
        >>> windows_from([[40, 80]], "windows")
        ((40.0, 80.0),)
    """
    if not isinstance(value, list | tuple) or len(value) not in CHANNEL_COUNTS:
        raise ConfigurationError(f"{where} must be a list of one or three windows [centre, width], got {value!r}")
    return tuple(_window(pair, where) for pair in value)


def require_channels(windows: Sequence[Window], channels: int, where: str) -> None:
    """Raise ``ConfigurationError`` unless there are no windows, or as many as the images are to have channels."""
    if windows and len(windows) != channels:
        raise ConfigurationError(
            f"{where}: images of {channels} channels (problem.channels) need as many windows, got {len(windows)}; "
            "change one of them"
        )


def _window(pair: Any, where: str) -> Window:
    if not isinstance(pair, list | tuple) or len(pair) != 2 or not all(_is_number(value) for value in pair):
        raise ConfigurationError(f"{where}: a window is two numbers [centre, width], got {pair!r}")
    if pair[1] < 1:
        raise ConfigurationError(f"{where}: the width of a window must be at least 1 Hounsfield unit, got {pair[1]}")
    return float(pair[0]), float(pair[1])


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
