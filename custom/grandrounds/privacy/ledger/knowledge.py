"""Further lines of a ledger: what the images of a data set are known by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from grandrounds.errors import DataError
from grandrounds.privacy.ledger.chain import LOST_LINES
from grandrounds.privacy.ledger.entries import Amendment, Booking, DatasetIdentity, Opening, read_line
from grandrounds.privacy.ledger.loss import Loss, read_loss

KNOWN_IMAGES, DISTINCTION = "images", "distinction"


@dataclass(frozen=True)
class Known:
    """What the images and patients of a data set are known by, besides what earlier lines of the data set say.

    Attributes:
        time: in UTC.
        dataset: the data set as its manifest describes it now.
        state: changes when files or manifest do; of an earlier version the name of the file that was read.
        images: the number of digests.
        file: the SHA-256 of the file with the digests, which is its name, too.
        content: a SHA-256 of what is in each image, by name; empty of an earlier version, which had none.
    """

    time: str
    dataset: DatasetIdentity
    state: str
    images: int
    file: str
    content: str = ""

    def to_json(self) -> dict[str, Any]:
        """The line as plain values."""
        known = {"time": self.time, "state": self.state, "images": self.images, "file": self.file}
        known |= {"content": self.content} if self.content else {}
        return {"kind": KNOWN_IMAGES, **known, "dataset": self.dataset.name, "fingerprint": self.dataset.fingerprint}


@dataclass(frozen=True)
class Distinction:
    """The patients of two data sets are different people, although some are called alike: when (in UTC), and why."""

    time: str
    first: str
    second: str
    reason: str

    def to_json(self) -> dict[str, Any]:
        """The line as plain values."""
        named = {"first": self.first, "second": self.second}
        return {"kind": DISTINCTION, "time": self.time, **named, "reason": self.reason}


Line = Opening | Amendment | Booking | Known | Distinction | Loss


def read_any_line(line: Mapping[str, Any], where: str) -> Line:
    """Parse a verified line of any kind.

    Raises:
        DataError: if this version does not know its form; ``where`` and the field are named.
    """
    kind = line.get("kind")
    try:
        if kind == KNOWN_IMAGES:
            return Known(
                line["time"], _dataset(line), line["state"], int(line["images"]), line["file"], line.get("content", "")
            )
        if kind == DISTINCTION:
            return Distinction(line["time"], line["first"], line["second"], line["reason"])
        if kind == LOST_LINES:
            return read_loss(line, where)
    except KeyError as error:
        raise DataError(f"{where}: {error.args[0]!r} is missing; was it written by another version?") from error
    return read_line(line, where)


def _dataset(line: Mapping[str, Any]) -> DatasetIdentity:
    return DatasetIdentity(line["dataset"], line["fingerprint"])
