"""Is this site's data fit for training, or for testing a finished model? Checked before the first round and on demand.

A failure would make results wrong (the same patient on both sides of a split) or training impossible (nothing labelled);
a warning is something a person should have seen. Each finding includes its remedy.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from grandrounds.data.images.decoding import image_digests
from grandrounds.data.manifest import SPLITS
from grandrounds.data.site import UNKNOWN_LABEL, DatasetLocation, Part, SiteData, load_site_data
from grandrounds.errors import ConfigurationError, DataError
from grandrounds.protocol.task import Task
from grandrounds.protocol.tasks import SINGLE

Purpose = Literal["training", "evaluation"]

MIN_TRAINING_IMAGES = 2
SHOWN = 3
SUPPORT_PARTS: tuple[tuple[Part, str], ...] = (
    ("labelled", "labelled training"),
    ("val", "validation"),
    ("test", "test"),
)


@dataclass(frozen=True)
class Finding:
    """The outcome of one check.

    A ``failure`` must be fixed before training, a ``warning`` should be looked at; the message is one line with site and
    remedy.
    """

    level: Literal["ok", "warning", "failure"]
    check: str
    message: str


def examine_location(
    location: DatasetLocation,
    classes: Sequence[str],
    image_size: int,
    channels: int,
    cache_dir: Path,
    site: str,
    needs_labels: bool = False,
    purpose: Purpose = "training",
    task: Task = SINGLE,
) -> list[Finding]:
    """Load a data set and examine it; an error of loading is a failure among the findings."""
    try:
        data = load_site_data(location, classes, image_size, channels, cache_dir, task=task)
    except (DataError, ConfigurationError) as error:
        return [Finding("failure", "data set", f"{site}: {error}")]
    return examine(data, site, needs_labels, trains=purpose == "training", tests=purpose == "evaluation")


def examine(
    data: SiteData, site: str, needs_labels: bool = False, trains: bool = True, tests: bool = False
) -> list[Finding]:
    """Run all checks on loaded data; each gives at least one finding.

    An empty labelled set is a failure if the site ``needs_labels``. Unless it ``trains``, training images and their classes
    are not examined. For a site that only ``tests`` a finished model, labelled test images are all it must have.
    """
    digests = _digests(data)
    return [
        *_unreadable(data, site),
        *_vocabulary(data, site),
        *(_training_images(data, site, needs_labels) if trains else ()),
        *(_test_images(data, site) if tests else _evaluation_images(data, site)),
        *(_class_support(data, site, SUPPORT_PARTS) if trains else ()),
        *(_class_support(data, site, SUPPORT_PARTS[-1:]) if tests else ()),
        *_divided_groups(data, site),
        *_repeated_images(data, site, digests),
        *_empty_images(data, site, digests),
        *_original_shapes(data, site),
    ]


def require_healthy(findings: Sequence[Finding]) -> None:
    """Raise ``DataError`` with the first failure's message, if there is a failure; how many more is added."""
    failures = [finding.message for finding in findings if finding.level == "failure"]
    if failures:
        more = f" (and {len(failures) - 1} more)" if len(failures) > 1 else ""
        raise DataError(f"{failures[0]}{more}")


def _unreadable(data: SiteData, site: str) -> Iterable[Finding]:
    check = "readable images"
    if not data.quarantined:
        yield Finding("ok", check, f"{site}: all {len(data.names)} images can be read")
        return
    reasons = "; ".join(reason for _, _, reason in data.quarantined[:SHOWN])
    count = len(data.quarantined)
    yield Finding(
        "warning",
        check,
        f"{site}: {count} of {len(data.names)} images ({count / len(data.names):.2%}) cannot be read and are left "
        f"out; repair them or take them out of the manifest: {reasons}{_more(count)}",
    )


def _vocabulary(data: SiteData, site: str) -> Iterable[Finding]:
    check = "labels"
    outside = np.flatnonzero((data.labels < UNKNOWN_LABEL) | (data.labels >= len(data.classes)))
    if outside.size:
        yield Finding(
            "failure",
            check,
            f"{site}: {outside.size} labels are outside the vocabulary of {len(data.classes)} classes, first at "
            f"{_listed(data.names[row] for row in outside)}; correct them in the manifest",
        )
        return
    yield Finding("ok", check, f"{site}: all labels are among {', '.join(data.classes)}")


def _training_images(data: SiteData, site: str, needs_labels: bool) -> Iterable[Finding]:
    check = "training images"
    total, labelled = len(data.rows("train")), len(data.rows("labelled"))
    if total < MIN_TRAINING_IMAGES:
        yield Finding(
            "failure",
            check,
            f"{site}: {total} training images, expected at least {MIN_TRAINING_IMAGES}; give more rows of the "
            "manifest the split train",
        )
    elif labelled:
        yield Finding("ok", check, f"{site}: {total} training images, {labelled} with a label that may be used")
    if labelled == 0:
        otherwise = "" if needs_labels else ", or let the site take part without labels"
        yield Finding(
            "failure" if needs_labels else "warning",
            check,
            f"{site}: empty labelled set, no training image has a label that may be used; fill in the column "
            f"label{otherwise}",
        )


def _evaluation_images(data: SiteData, site: str) -> Iterable[Finding]:
    for part, word in SUPPORT_PARTS[1:]:
        yield from _labelled_images(data, site, part, word, "warning")


def _test_images(data: SiteData, site: str) -> Iterable[Finding]:
    yield from _labelled_images(data, site, "test", "test", "failure")
    others = int((data.split != "test").sum())
    if others:
        message = f"{site}: {others} images are not in split test; they are not evaluated"
        yield Finding("warning", "evaluation images", message)


def _labelled_images(
    data: SiteData, site: str, part: Part, word: str, missing: Literal["warning", "failure"]
) -> Iterable[Finding]:
    check = "evaluation images"
    count = len(data.rows(part))
    without = int(((data.split == part) & ~data.known).sum())
    if count == 0:
        message = f"{site}: no {word} images with a label; give some patients the split {part}"
        yield Finding(missing, check, message)
    else:
        yield Finding("ok", check, f"{site}: {count} {word} images")
    if without:
        message = f"{site}: {without} {word} images have no label and are not used; label them or make them train"
        yield Finding("warning", check, message)


def _class_support(data: SiteData, site: str, parts: Sequence[tuple[Part, str]]) -> Iterable[Finding]:
    check = "class support"
    for part, word in parts:
        rows = data.rows(part)
        if rows.size == 0 or (data.labels[rows] >= len(data.classes)).any():
            continue
        counts = data.class_counts(part)
        missing = [name for name, count in zip(data.classes, counts, strict=True) if count == 0]
        if missing:
            message = f"{site}: no {word} image of {', '.join(missing)}; scores of these classes mean nothing here"
            yield Finding("warning", check, message)
        else:
            yield Finding("ok", check, f"{site}: {word} images of every class, the fewest {counts.min()}")


def _divided_groups(data: SiteData, site: str) -> Iterable[Finding]:
    check = "patients and lesions"
    if data.groups == data.names:
        message = f"{site}: no patient or lesion is named, so it cannot be checked that none is in two splits"
        yield Finding("warning", check, f"{message}; fill in the columns patient or lesion")
        return
    splits: dict[str, set[str]] = defaultdict(set)
    for group, split in zip(data.groups, data.split, strict=True):
        splits[group].add(str(split))
    divided = [group for group, found in splits.items() if len(found) > 1]
    if divided:
        found = " and ".join(sorted(splits[divided[0]], key=SPLITS.index))
        yield Finding(
            "failure",
            check,
            f"{site}: {len(divided)} patients or lesions are in two splits, first {divided[0]!r} in {found}; keep all "
            "images of one in one split",
        )
        return
    yield Finding("ok", check, f"{site}: {len(splits)} patients or lesions, each in one split")


def _digests(data: SiteData) -> Mapping[str, list[int]]:
    """Rows by content; images of one colour are under the empty key, quarantined ones nowhere."""
    skipped = {row for row, _, _ in data.quarantined}
    rows: dict[str, list[int]] = defaultdict(list)
    for row, digest in enumerate(image_digests(data.images)):
        if row not in skipped:
            rows[digest].append(row)
    return rows


def _repeated_images(data: SiteData, site: str, digests: Mapping[str, list[int]]) -> Iterable[Finding]:
    check = "same image twice"
    repeated = [rows for digest, rows in digests.items() if digest and len(rows) > 1]
    across = [rows for rows in repeated if len(set(data.split[rows])) > 1]
    within = [rows for rows in repeated if len(set(data.split[rows])) == 1]
    if across:
        first = " and ".join(f"{data.names[row]} ({data.split[row]})" for row in across[0][:SHOWN])
        message = f"{site}: {len(across)} images are in two splits, first {first}; keep each in one split only"
        yield Finding("failure", check, message)
    if within:
        first = " and ".join(data.names[row] for row in within[0][:SHOWN])
        message = f"{site}: {len(within)} images occur more than once in a split, first {first}; keep one of each"
        yield Finding("warning", check, message)
    if not repeated:
        yield Finding("ok", check, f"{site}: no two images have the same pixels")


def _empty_images(data: SiteData, site: str, digests: Mapping[str, list[int]]) -> Iterable[Finding]:
    check = "empty images"
    empty = digests.get("", [])
    if empty:
        names = _listed(data.names[row] for row in empty)
        message = f"{site}: {len(empty)} images have one colour only: {names}; look at them and take them out"
        yield Finding("warning", check, message)
        return
    yield Finding("ok", check, f"{site}: no image is of one colour only")


def _original_shapes(data: SiteData, site: str) -> Iterable[Finding]:
    check = "original sizes"
    grey = sum(count for *_, channels, count in data.shapes if channels == 1)
    colour = sum(count for *_, channels, count in data.shapes if channels == 3)
    if grey and colour:
        message = f"{site}: {grey} grey and {colour} colour images; check that both belong to this data set"
        yield Finding("warning", check, message)
    sizes = {(height, width) for height, width, _, _ in data.shapes}
    if not sizes:
        yield Finding("ok", check, f"{site}: the sizes before resizing are not known")
        return
    least, most = min(sizes, key=lambda size: size[0] * size[1]), max(sizes, key=lambda size: size[0] * size[1])
    span = f"{least[0]}x{least[1]}" if len(sizes) == 1 else f"{least[0]}x{least[1]} to {most[0]}x{most[1]}"
    yield Finding("ok", check, f"{site}: {len(sizes)} original sizes, {span} (height x width)")


def _listed(names: Iterable[str]) -> str:
    found = list(names)
    return ", ".join(found[:SHOWN]) + _more(len(found))


def _more(count: int) -> str:
    return f" and {count - SHOWN} more" if count > SHOWN else ""
