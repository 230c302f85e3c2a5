"""What a site's data must have for a run; checked by each run before its first round, and by the doctor.

A failure would make results wrong (the same patient on both sides of a split) or training impossible (nothing labelled);
a warning is something a person should have seen. What only a person can judge (copies, appearance, sizes) is the doctor's
(:mod:`~grandrounds.data.doctor`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

import numpy as np

from grandrounds.data.manifest import SPLITS
from grandrounds.data.site import UNKNOWN_LABEL, Part, SiteData
from grandrounds.errors import DataError

Level = Literal["ok", "warning", "failure"]
Findings = Iterator[tuple[Level, str, str]]
"""Level, check and message of one check."""
MIN_TRAINING_IMAGES = 2
SHOWN = 3
SUPPORT_PARTS: tuple[tuple[Part, str], ...] = (
    ("labelled", "labelled training"),
    ("val", "validation"),
    ("test", "test"),
)
TWO_LABELS = "two labels"


@dataclass(frozen=True)
class Finding:
    """The outcome of one check.

    A ``failure`` must be fixed before training, a ``warning`` should be looked at; the message is one line with site and
    remedy.
    """

    level: Level
    check: str
    message: str


def require_healthy(findings: Sequence[Finding]) -> None:
    """Raise ``DataError`` with the first failure's message, if there is a failure; how many more is added."""
    failures = [finding.message for finding in findings if finding.level == "failure"]
    if failures:
        more = f" (and {len(failures) - 1} more)" if len(failures) > 1 else ""
        raise DataError(f"{failures[0]}{more}")


def examine_run(data: SiteData, site: str, needs_labels: bool, trains: bool) -> list[Finding]:
    """The checks without which a run would be wrong or impossible.

    Args:
        data: of the site.
        site: its name.
        needs_labels: whether an empty labelled set is a failure.
        trains: whether training images and their classes are examined.
    """
    rows = rows_by_digest(data)
    checks = [
        unreadable(data),
        vocabulary(data),
        training_images(data, needs_labels) if trains else (),
        evaluation_images(data),
        class_support(data, SUPPORT_PARTS) if trains else (),
        divided_groups(data),
        two_labels(data, rows),
        repeated_images(data, rows),
    ]
    return [Finding(level, check, f"{site}: {message}") for part in checks for level, check, message in part]


def rows_by_digest(data: SiteData) -> dict[str, list[int]]:
    """The rows of equal pictures, without unreadable ones and those of one colour."""
    unreadable_rows = set(data.cache.unreadable)
    rows: dict[str, list[int]] = defaultdict(list)
    for row, digest in enumerate(data.digests):
        if digest and row not in unreadable_rows:
            rows[digest].append(row)
    return rows


def unreadable(data: SiteData) -> Findings:
    """How many images cannot be read."""
    check = "readable images"
    if not data.cache.quarantined:
        yield "ok", check, f"all {len(data.names)} images can be read"
        return
    reasons = "; ".join(reason for _, _, reason in data.cache.quarantined[:SHOWN])
    count = len(data.cache.quarantined)
    share = f"{count} of {len(data.names)} images ({count / len(data.names):.2%})"
    remedy = "cannot be read and are left out; repair them or take them out of the manifest"
    yield "warning", check, f"{share} {remedy}: {reasons}{more(count)}"


def vocabulary(data: SiteData) -> Findings:
    """Whether all labels are among the classes."""
    outside = np.flatnonzero((data.labels < UNKNOWN_LABEL) | (data.labels >= len(data.classes)))
    if outside.size:
        first = listed(data.names[row] for row in outside)
        place = f"outside the vocabulary of {len(data.classes)} classes, first at {first}"
        yield "failure", "labels", f"{outside.size} labels are {place}; correct them in the manifest"
    else:
        yield "ok", "labels", f"all labels are among {', '.join(data.classes)}"


def training_images(data: SiteData, needs_labels: bool) -> Findings:
    """Whether there are enough training images, and labels among them."""
    check = "training images"
    total, labelled = len(data.rows("train")), len(data.rows("labelled"))
    if total < MIN_TRAINING_IMAGES:
        remedy = "give more rows of the manifest the split train"
        yield "failure", check, f"{total} training images, expected at least {MIN_TRAINING_IMAGES}; {remedy}"
    elif labelled:
        yield "ok", check, f"{total} training images, {labelled} with a label that may be used"
    if labelled == 0:
        remedy = "fill in the column label" + ("" if needs_labels else ", or let the site take part without labels")
        message = f"empty labelled set, no training image has a label that may be used; {remedy}"
        yield "failure" if needs_labels else "warning", check, message


def evaluation_images(data: SiteData) -> Findings:
    """Whether there are labelled images for validation and test."""
    for part, word in SUPPORT_PARTS[1:]:
        yield from labels_of_images(data, part, word, "warning")


def labels_of_images(data: SiteData, part: Part, word: str, missing: Level) -> Findings:
    """Whether a part has images with a label."""
    check = "evaluation images"
    count = len(data.rows(part))
    without = int(((data.split == part) & ~data.known).sum())
    if count:
        yield "ok", check, f"{count} {word} images"
    else:
        yield missing, check, f"no {word} images with a label; give some patients the split {part}"
    if without:
        yield "warning", check, f"{without} {word} images have no label and are not used; label them or make them train"


def class_support(data: SiteData, parts: Sequence[tuple[Part, str]]) -> Findings:
    """Whether each part has images of every class."""
    check = "class support"
    for part, word in parts:
        rows = data.rows(part)
        if rows.size == 0 or (data.labels[rows] >= len(data.classes)).any():
            continue
        counts = data.class_counts(part)
        missing = ", ".join(name for name, count in zip(data.classes, counts, strict=True) if count == 0)
        if missing:
            yield "warning", check, f"no {word} image of {missing}; scores of these classes mean nothing here"
        else:
            yield "ok", check, f"{word} images of every class, the fewest {counts.min()}"


def divided_groups(data: SiteData) -> Findings:
    """Whether no patient or lesion is in two splits."""
    check = "patients and lesions"
    alone = [name for name, group in zip(data.names, data.groups, strict=True) if group == name]
    if len(alone) == len(data.names):
        unknown = "no patient or lesion is named, so it cannot be checked that none is in two splits"
        yield "warning", check, f"{unknown}; fill in the columns patient or lesion"
        return
    if alone:
        counted = f"{len(alone)} images have no patient or lesion and count as patients of their own: {listed(alone)}"
        yield "warning", check, f"{counted}; fill in the column patient"
    splits: dict[str, set[str]] = defaultdict(set)
    for group, split in zip(data.groups, data.split, strict=True):
        splits[group].add(str(split))
    divided = [group for group, parts in splits.items() if len(parts) > 1]
    if divided:
        first = f"{divided[0]!r} in {' and '.join(sorted(splits[divided[0]], key=SPLITS.index))}"
        remedy = "keep all images of one in one split"
        yield "failure", check, f"{len(divided)} patients or lesions are in two splits, first {first}; {remedy}"
    else:
        yield "ok", check, f"{len(splits)} patients or lesions, each in one split"


def two_labels(data: SiteData, rows_of: Mapping[str, list[int]]) -> Findings:
    """Equal pictures whose known labels exclude each other."""
    pairs = [pair for rows in rows_of.values() for pair in _excluding(data, rows)]
    if pairs:
        shown = "; ".join(
            " and ".join(f"{data.names[row]} is {data.task.label_cell(data.labels[row], data.classes)}" for row in pair)
            for pair in pairs[:SHOWN]
        )
        message = f"one picture has two labels: {shown}{more(len(pairs))}; correct one, or take both out"
        yield "failure", TWO_LABELS, message


def _excluding(data: SiteData, rows: Sequence[int]) -> Iterator[tuple[int, int]]:
    """The first two rows whose known labels differ."""
    first = {data.labels[row].tobytes(): row for row in reversed(rows)}
    for pair in combinations(sorted(first.values()), 2):
        its, other = data.labels[list(pair)]
        if np.any((its != other) & (its >= 0) & (other >= 0)):
            yield pair
            return


def repeated_images(data: SiteData, rows_of: Mapping[str, list[int]]) -> Findings:
    """Equal pictures, in two splits or in one."""
    check = "same image twice"
    repeated = [rows for rows in rows_of.values() if len(rows) > 1]
    across = [rows for rows in repeated if len(set(data.split[rows])) > 1]
    within = [rows for rows in repeated if len(set(data.split[rows])) == 1]
    if across:
        first = " and ".join(f"{data.names[row]} ({data.split[row]})" for row in across[0][:SHOWN])
        yield "failure", check, f"{len(across)} images are in two splits, first {first}; keep each in one split only"
    if within:
        first = " and ".join(data.names[row] for row in within[0][:SHOWN])
        message = f"{len(within)} images occur more than once in a split, first {first}; keep one of each"
        yield "warning", check, message
    if not repeated:
        yield "ok", check, "no two images have the same pixels"


def listed(names: Iterable[str]) -> str:
    """The first names."""
    listed_names = list(names)
    return ", ".join(listed_names[:SHOWN]) + more(len(listed_names))


def more(count: int) -> str:
    """How many more there are than are shown."""
    return f" and {count - SHOWN} more" if count > SHOWN else ""
