"""How the image files of a data set are to be read, as its entry in a site's ``grandrounds.json`` states."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from grandrounds.data.images.dicom import Window
from grandrounds.data.images.files.windows import windows_from
from grandrounds.errors import ConfigurationError
from grandrounds.option_annotations import require_type
from grandrounds.protocol.names import Preprocess

MAX_BITS = 16


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
        found = {"windows": [list(one) for one in self.windows], "preprocess": self.preprocess, "bits": self.bits}
        return {key: value for key, value in found.items() if value not in ([], "none", 0)}


AS_IN_FILES = Reading()
"""The reading of a data set whose entry states nothing."""
