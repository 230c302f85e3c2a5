"""Is this site's data fit for training, or for testing a finished model? Checked before the first round and on demand.

A failure would make results wrong (the same patient on both sides of a split) or training impossible (nothing labelled);
a warning is something a person should have seen. Each finding includes its remedy.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Literal

import numpy as np

from grandrounds.data.appearance import appearance
from grandrounds.data.leaks.comparison import (
    NOTHING_SHARED,
    Findings,
    Level,
    Looked,
    Sharing,
    contradictions,
    look,
    near_copies,
    shared_between,
)
from grandrounds.data.manifest import SPLITS
from grandrounds.data.site import UNKNOWN_LABEL, DatasetLocation, Part, SiteData, load_site_data
from grandrounds.errors import ConfigurationError, DataError
from grandrounds.protocol.problem import Problem

Purpose = Literal["training", "evaluation"]
ALL_SITES = "all sites"
"""Where a finding is about several sites."""
MIN_TRAINING_IMAGES = 2
SHIPPED_MINIMUM = 10
"""Patients behind a count that leaves, in the policy of startup kits."""
MIN_IMAGES_OF_MIX = 50
DIFFERENT_MIX = 0.2
"""Half the sum of the absolute differences of two sites' shares of the classes; 1 if they have no class in common."""
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

    level: Level
    check: str
    message: str


def examine_location(
    location: DatasetLocation,
    problem: Problem,
    cache_dir: Path,
    site: str,
    needs_labels: bool = False,
    purpose: Purpose = "training",
    more: Callable[[SiteData], list[Finding]] = lambda _: [],
) -> tuple[list[Finding], Looked | None]:
    """Load a data set in the problem's format and examine it; an error of loading is a failure among the findings.

    ``more`` finds what is not checked here, such as what a page shows.

    Returns:
        The findings, and what can be compared with other sites, if the data could be loaded.
    """
    try:
        data = load_site_data(location, problem, cache_dir)
    except (DataError, ConfigurationError) as error:
        return [Finding("failure", "data set", f"{site}: {error}")], None
    looked = look(data, site)
    found = examine(data, site, needs_labels, purpose == "training", purpose == "evaluation", looked)
    return [*found, *more(data)], looked


def compare_sites(
    sites: Mapping[str, Looked], sharing: Sharing = NOTHING_SHARED, overlap_allowed: bool = False
) -> list[Finding]:
    """What sites on one machine have in common beyond ``sharing``, and whether their mixes of classes differ.

    What is ``overlap_allowed`` is a warning.
    """
    if len(sites) < 2:
        return []
    shared: list[tuple[Level, str, str]] = [
        ("warning" if overlap_allowed and level == "failure" else level, check, message)
        for level, check, message in shared_between(sites, sharing)
    ]
    found = [*contradictions(sites.values(), between=True), *shared, *_mixes(sites)]
    return [Finding(level, check, f"{ALL_SITES}: {message}") for level, check, message in found]


def examine(
    data: SiteData,
    site: str,
    needs_labels: bool = False,
    trains: bool = True,
    tests: bool = False,
    looked: Looked | None = None,
) -> list[Finding]:
    """Run all checks on loaded data.

    Args:
        data: of the site.
        site: its name.
        needs_labels: whether an empty labelled set is a failure.
        trains: whether training images and their classes are examined.
        tests: whether the site only tests a finished model, for which labelled test images are all it must have.
        looked: what :func:`~grandrounds.data.leaks.comparison.look` has found, if it has looked already.
    """
    looked = looked or look(data, site)
    rows = looked.rows_by_digest()
    found = [
        _unreadable(data),
        _vocabulary(data),
        _training_images(data, needs_labels) if trains else (),
        _test_images(data) if tests else _evaluation_images(data),
        _class_support(data, SUPPORT_PARTS) if trains else (),
        _class_support(data, SUPPORT_PARTS[-1:]) if tests else (),
        _withheld_scores(data, SUPPORT_PARTS[-1:] if tests else SUPPORT_PARTS[1:]),
        _divided_groups(data),
        contradictions([looked]),
        _repeated_images(data, rows),
        near_copies(looked.entries(), within=True),
        _empty_images(data, looked.flat),
        _original_shapes(data),
        *appearance(data),
    ]
    return [Finding(level, check, f"{site}: {message}") for part in found for level, check, message in part]


def require_healthy(findings: Sequence[Finding]) -> None:
    """Raise ``DataError`` with the first failure's message, if there is a failure; how many more is added."""
    failures = [finding.message for finding in findings if finding.level == "failure"]
    if failures:
        more = f" (and {len(failures) - 1} more)" if len(failures) > 1 else ""
        raise DataError(f"{failures[0]}{more}")


def _unreadable(data: SiteData) -> Findings:
    check = "readable images"
    if not data.quarantined:
        yield "ok", check, f"all {len(data.names)} images can be read"
        return
    reasons = "; ".join(reason for _, _, reason in data.quarantined[:SHOWN])
    count = len(data.quarantined)
    share = f"{count} of {len(data.names)} images ({count / len(data.names):.2%})"
    remedy = "cannot be read and are left out; repair them or take them out of the manifest"
    yield "warning", check, f"{share} {remedy}: {reasons}{_more(count)}"


def _vocabulary(data: SiteData) -> Findings:
    outside = np.flatnonzero((data.labels < UNKNOWN_LABEL) | (data.labels >= len(data.classes)))
    if outside.size:
        first = _listed(data.names[row] for row in outside)
        place = f"outside the vocabulary of {len(data.classes)} classes, first at {first}"
        yield "failure", "labels", f"{outside.size} labels are {place}; correct them in the manifest"
    else:
        yield "ok", "labels", f"all labels are among {', '.join(data.classes)}"


def _training_images(data: SiteData, needs_labels: bool) -> Findings:
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


def _evaluation_images(data: SiteData) -> Findings:
    for part, word in SUPPORT_PARTS[1:]:
        yield from _labelled_images(data, part, word, "warning")


def _test_images(data: SiteData) -> Findings:
    yield from _labelled_images(data, "test", "test", "failure")
    others = int((data.split != "test").sum())
    if others:
        yield "warning", "evaluation images", f"{others} images are not in split test; they are not evaluated"


def _labelled_images(data: SiteData, part: Part, word: str, missing: Level) -> Findings:
    check = "evaluation images"
    count = len(data.rows(part))
    without = int(((data.split == part) & ~data.known).sum())
    if count:
        yield "ok", check, f"{count} {word} images"
    else:
        yield missing, check, f"no {word} images with a label; give some patients the split {part}"
    if without:
        yield "warning", check, f"{without} {word} images have no label and are not used; label them or make them train"


def _class_support(data: SiteData, parts: Sequence[tuple[Part, str]]) -> Findings:
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


def score_remedy(part: Part) -> str:
    """What to change so that scores of single classes of these images are known."""
    ways = [f"give more patients the split {part}", "join classes", "agree on a smaller minimum"]
    return f"{', '.join(ways[:-1])}, or {ways[-1]}"


def _withheld_scores(data: SiteData, parts: Sequence[tuple[Part, str]]) -> Findings:
    """Which scores will not leave, because a class has fewer patients than may be counted."""
    check = "released scores"
    minimum = data.min_support or SHIPPED_MINIMUM
    for part, word in parts:
        if (data.labels[data.rows(part)] >= len(data.classes)).any():
            continue
        patients = data.patients_by_class(part)
        few = [f"{name} {count}" for name, count in patients.items() if 0 < count < minimum]
        largest = max(patients, key=lambda name: patients[name])
        if few:
            message = (
                f"{word}: balanced accuracy and F1 are withheld where a policy asks for {minimum} patients behind a count "
                f"(patients by class: {', '.join(few)}; the largest class is {largest} with {patients[largest]}); "
                + score_remedy(part)
            )
            yield "warning" if data.min_support else "ok", check, message


def _divided_groups(data: SiteData) -> Findings:
    check = "patients and lesions"
    alone = [name for name, group in zip(data.names, data.groups, strict=True) if group == name]
    if len(alone) == len(data.names):
        unknown = "no patient or lesion is named, so it cannot be checked that none is in two splits"
        yield "warning", check, f"{unknown}; fill in the columns patient or lesion"
        return
    if alone:
        counted = f"{len(alone)} images have no patient or lesion and count as patients of their own: {_listed(alone)}"
        yield "warning", check, f"{counted}; fill in the column patient"
    splits: dict[str, set[str]] = defaultdict(set)
    for group, split in zip(data.groups, data.split, strict=True):
        splits[group].add(str(split))
    divided = [group for group, found in splits.items() if len(found) > 1]
    if divided:
        first = f"{divided[0]!r} in {' and '.join(sorted(splits[divided[0]], key=SPLITS.index))}"
        remedy = "keep all images of one in one split"
        yield "failure", check, f"{len(divided)} patients or lesions are in two splits, first {first}; {remedy}"
    else:
        yield "ok", check, f"{len(splits)} patients or lesions, each in one split"


def _repeated_images(data: SiteData, rows_of: Mapping[str, list[int]]) -> Findings:
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


def _empty_images(data: SiteData, empty: Sequence[int]) -> Findings:
    if empty:
        names = _listed(data.names[row] for row in empty)
        message = f"{len(empty)} images have one colour only: {names}; look at them and take them out"
        yield "warning", "empty images", message
    else:
        yield "ok", "empty images", "no image is of one colour only"


def _original_shapes(data: SiteData) -> Findings:
    check = "original sizes"
    grey, colour = (sum(shape[-1] for shape in data.shapes if shape[-2] == channels) for channels in (1, 3))
    if grey and colour:
        message = f"{grey} grey and {colour} colour images; check that both belong to this data set"
        yield "warning", check, message
    sizes = sorted({(height, width) for height, width, _, _ in data.shapes}, key=lambda size: size[0] * size[1])
    if not sizes:
        yield "ok", check, "the sizes before resizing are not known"
        return
    span = " to ".join(f"{height}x{width}" for height, width in dict.fromkeys((sizes[0], sizes[-1])))
    yield "ok", check, f"{len(sizes)} original sizes, {span} (height x width)"


def _mixes(sites: Mapping[str, Looked]) -> Findings:
    """Whether the shares of the classes differ between sites, so that a site's statistics are not of its device alone."""
    labels = {site: one.known[one.known != UNKNOWN_LABEL] for site, one in sites.items() if one.known.ndim == 1}
    count = max((int(known.max(initial=-1)) for known in labels.values()), default=-1) + 1
    shares = {
        site: np.bincount(known, minlength=count) / len(known)
        for site, known in labels.items()
        if len(known) >= MIN_IMAGES_OF_MIX
    }
    apart = {(a, b): float(np.abs(shares[a] - shares[b]).sum()) / 2 for a, b in combinations(shares, 2)}
    if not apart or max(apart.values()) < DIFFERENT_MIX:
        return
    pair = max(apart, key=apart.__getitem__)
    message = (
        f"{' and '.join(pair)} have different mixes of classes ({apart[pair]:.0%} apart): do not set problem.norm=site; it "
        "helped where mixes were equal and devices synthetic, and cost AUC on real devices"
    )
    yield "ok", "mixes of classes", message


def _listed(names: Iterable[str]) -> str:
    found = list(names)
    return ", ".join(found[:SHOWN]) + _more(len(found))


def _more(count: int) -> str:
    return f" and {count - SHOWN} more" if count > SHOWN else ""
