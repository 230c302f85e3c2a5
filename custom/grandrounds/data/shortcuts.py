"""What tells the class of an image without its picture: its site, device, file format, size, channels or decoding.

Where the images of a class were taken or saved otherwise than the rest, a network can learn that in place of the class, and
no score on such images shows it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import NamedTuple

from grandrounds.data.site import SiteData

TELLS = 0.4
"""Share of a class with some values of a kind, less that of the other classes with them, above which they tell the class;
less a bound of what chance gives. The devices of HAM10000 have .45 of nevi."""
FEWEST = 10
"""Images of a class, and of the others, below which nothing is said."""
MOST_VALUES = 50
FORMATS: Mapping[str, str] = {"JPG": "JPEG", "TIF": "TIFF", "": "no suffix"}
KINDS = ("source", "format", "size", "channels", "decoding")


class Told(NamedTuple):
    """A class, the values of a kind that its images have more often, and the shares of images with them."""

    name: str
    values: tuple[str, ...]
    others: str
    inside: float
    outside: float


def kinds_of(data: SiteData) -> dict[str, list[str]]:
    """By kind, the value of each image of a site; without the kinds that are not known."""
    formats = [format_of(name) for name in data.names]
    originals, rules = data.cache.originals, data.cache.rules
    known = {
        "source": list(data.sources),
        "format": formats if len(set(data.names)) > 1 else [],
        "size": [f"{height}x{width}" for height, width, _ in originals],
        "channels": ["grey" if channels == 1 else "colour" for *_, channels in originals],
        "decoding": [", ".join(applied) or "as stored" for applied in rules],
    }
    return {kind: values for kind, values in known.items() if len(values) == len(data.names)}


def format_of(name: str) -> str:
    """The format that a file's name says.

    Example:
        >>> format_of("a/b.JPG"), format_of("c.tif")
        ('JPEG', 'TIFF')
    """
    suffix = PurePosixPath(name).suffix[1:].upper()
    return FORMATS.get(suffix, suffix)


def telling(labels: Sequence[str], values: Sequence[str]) -> Told | None:
    """The class that the values of a kind tell best; None if none does.

    Args:
        labels: of images, empty where unknown.
        values: of the kind, empty where unknown.

    Example:
        >>> telling(["a", "b"] * 40, ["JPEG", "PNG"] * 40)
        Told(name='a', values=('JPEG',), others='PNG', inside=1.0, outside=0.0)
        >>> telling(["a", "b"] * 40, ["JPEG", "JPEG", "PNG", "PNG"] * 20)
    """
    pairs = [(label, value) for label, value in zip(labels, values, strict=True) if label and value]
    of_all = Counter(value for _, value in pairs)
    if not 1 < len(of_all) <= MOST_VALUES:
        return None
    best: tuple[float, Told | None] = (TELLS, None)
    for name, count in Counter(label for label, _ in pairs).items():
        rest = len(pairs) - count
        if min(count, rest) < FEWEST:
            continue
        own = Counter(value for label, value in pairs if label == name)
        shares = {value: (own[value] / count, (of_all[value] - own[value]) / rest) for value in of_all}
        more = [value for value, (inside, outside) in shares.items() if inside > outside]
        inside, outside = (sum(shares[value][side] for value in more) for side in (0, 1))
        certain = inside - outside - math.sqrt(len(of_all) / min(count, rest))
        if certain > best[0]:
            others = max(of_all, key=lambda value: of_all[value] - own[value])
            best = certain, Told(name, tuple(sorted(more, key=lambda value: -own[value])), others, inside, outside)
    return best[1]


def telling_kinds(labels: Sequence[str], kinds: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """A sentence for each kind whose values tell a class."""
    for kind, values in kinds.items():
        if best := telling(labels, values):
            shown = ", ".join(best.values[:3]) + (" ..." if best.values[3:] else "")
            yield (
                f"the {kind} tells the class: {best.inside:.0%} of {best.name} have {shown}, {best.outside:.0%} of the "
                f"other classes (mostly {best.others}); a model may learn the {kind}, and no score on these images shows it"
            )


def apart(sites: Mapping[str, Sequence[str]]) -> tuple[str, str, str, str] | None:
    """Two sites whose images have different channels: their names and channels; None if there are none.

    Example:
        >>> apart({"Leeds": ["grey"] * 9, "York": ["colour"] * 9})
        ('Leeds', 'grey', 'York', 'colour')
    """
    usual = {site: Counter(values).most_common(1)[0] for site, values in sites.items() if values}
    known = {site: value for site, (value, count) in usual.items() if count >= 0.95 * len(sites[site])}
    first = {value: site for site, value in reversed(known.items())}
    return (first["grey"], "grey", first["colour"], "colour") if {"grey", "colour"} <= first.keys() else None
